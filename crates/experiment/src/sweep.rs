//! Sweep over a grid of settings and seeds, in shards for any batch system.
//!
//! The grid is every combination of some settings (the last key varies fastest), each with several consecutive seeds.
//! Its cells are numbered from 0, combination by combination, run by run.
//! Cell k belongs to shard k mod N of N, so that shards take similar times.
//! A shard needs only the scenario and its number, and writes one Parquet file.
//! [`merge`] joins the files into the file that the whole grid would have written, byte for byte.
//!
//! A file appears under its name only when it is complete, and its metadata identifies the grid.
//! So a repeated sweep finds its work done, and files of other grids are replaced only with `--force`.
//!
//! - [`grid`]: cells and fingerprint of a grid.
//! - [`file`](mod@file): the Parquet file; [`writer`]: Parquet or CSV.
//! - [`place`]: checks of existing files, and atomic creation of files.
//! - [`merge`]: joins shards into one file.
//! - [`division`]: the number of shards and the completed ones; [`slurm`]: the script for Slurm.
//!
//! It starts no other processes, and an interrupted shard restarts from its first cell.

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
    /// Figures of each cell of the shard, in order.
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
    /// Returns each cell of the shard with its figures.
    pub fn cells(&self) -> impl Iterator<Item = (u64, Cell<'_>, &[Metric])> {
        let cells = self.shard.cells(self.grid.cells());
        let figures = cells.zip(&self.metrics);
        figures.filter_map(move |(number, metrics)| {
            Some((number, self.grid.cell(number)?, metrics.as_slice()))
        })
    }

    /// Writes the shard's file atomically and returns its number of rows.
    ///
    /// If `is_interrupted` returns true, no file is left.
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
