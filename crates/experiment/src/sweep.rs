//! A grid of settings and seeds, in shards that any engine can spread.
//!
//! The grid is every combination of some settings (the last key varies fastest), each with several
//! seeds one apart. Its cells are numbered from 0, combination by combination, run by run, and cell k
//! belongs to shard k mod N of N, so that shards take about as long as each other. A shard needs
//! nothing but the scenario and its number, and writes one Parquet file; [`merge`] joins the files into
//! the one that the whole grid would have written, byte for byte.
//!
//! A file appears under its name only when it is complete, and says in its metadata of which grid it
//! is. The same sweep again therefore finds its work done, and a file of something else is never
//! replaced unless asked.
//!
//! - [`grid`]: which cells there are, and what tells grids apart.
//! - [`file`](mod@file): the Parquet file; [`writer`]: that, or CSV.
//! - [`place`]: what is there already, and how a file comes under its name.
//! - [`merge`]: shards to one file.
//! - [`division`]: into how many shards, and which of them are there; [`slurm`]: the script that has Slurm run them.
//!
//! It does not start other processes, and an interrupted shard begins anew.

pub mod division;
pub mod file;
pub mod grid;
pub mod merge;
pub mod place;
pub mod slurm;
pub mod writer;

use std::path::Path;
use std::sync::Arc;

use self::file::Row;
use self::grid::{Cell, Grid, Shard};
use self::place::WriteError;
use crate::execute;
use crate::execute::{ExecuteError, Job};
use crate::metrics::Metric;
use crate::parameters::Value;
use crate::progress::Progress;

/// The cells of a shard with their figures.
#[derive(Debug)]
pub struct Figures<'a> {
    grid: &'a Grid,
    shard: Shard,
    /// For each cell of the shard, in their order.
    metrics: Vec<Vec<Metric>>,
}

/// Runs a shard.
pub fn run<'a>(
    grid: &'a Grid,
    shard: Shard,
    workers: usize,
    progress: &dyn Progress,
) -> Result<Figures<'a>, ExecuteError> {
    let cells = shard.cells(grid.cells());
    let jobs: Vec<Job<'_>> = cells
        .filter_map(|cell| grid.cell(cell))
        .map(|cell| Job { scenario: cell.scenario, seed: cell.seed })
        .collect();
    Ok(Figures { grid, shard, metrics: execute::all(&jobs, workers, progress)? })
}

impl Figures<'_> {
    /// Each cell of the shard with its figures.
    pub fn cells(&self) -> impl Iterator<Item = (u64, Cell<'_>, &[Metric])> {
        let cells = self.shard.cells(self.grid.cells());
        let figures = cells.zip(&self.metrics);
        figures.filter_map(move |(number, metrics)| {
            Some((number, self.grid.cell(number)?, metrics.as_slice()))
        })
    }

    /// Writes the shard's file, whole or not at all; how many rows it has. Nothing is left once
    /// `is_interrupted` says so.
    pub fn write(&self, path: &Path, is_interrupted: &dyn Fn() -> bool) -> Result<u64, WriteError> {
        let identity = self.grid.identity(self.shard);
        let parameters = self.grid.parameters();
        place::write(path, &identity, parameters.columns(), is_interrupted, |writer| {
            for (number, cell, metrics) in self.cells() {
                let values: Arc<[Value]> = cell.parameters.into();
                for metric in metrics {
                    writer.push(Row {
                        cell: number,
                        scenario: cell.scenario.name.as_str().into(),
                        combination: cell.combination.into(),
                        parameters: Arc::clone(&values),
                        seed: cell.seed,
                        vm: metric.vm.as_str().into(),
                        metric: metric.metric.into(),
                        unit: metric.unit.into(),
                        value: metric.value,
                    });
                }
                writer
                    .end_cell()
                    .map_err(|cause| WriteError::Write { path: path.to_owned(), cause })?;
            }
            Ok(())
        })
    }
}
