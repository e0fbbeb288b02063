//! `tandem sim sweep`: a grid of settings and seeds, in shards that any engine can spread.
//!
//! The grid is every combination of `--policies` and `--vary` (the last key varies fastest), each with
//! `--runs` seeds one apart. Its cells are numbered from 0, combination by combination, run by run,
//! and cell k belongs to shard k mod N of N, so that shards take about as long as each other. A shard
//! needs nothing but the scenario and its number, and writes one Parquet file; `merge` joins the files
//! into the one that the whole grid would have written, byte for byte.
//!
//! A file appears under its name only when it is complete, and says in its metadata of which grid it
//! is. The same command again therefore finds its work done, and a file of something else is never
//! replaced unless asked.
//!
//! - [`grid`]: which cells there are, and what tells grids apart.
//! - [`file`](mod@file): the Parquet file.
//! - [`place`]: what is there already, and how a file comes under its name.
//! - [`merge`]: shards to one file.
//!
//! It does not start other processes, and an interrupted shard begins anew.

mod file;
mod grid;
mod merge;
mod place;

use std::path::Path;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use clap::Subcommand;
use tandem_report::figure;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;
use tandem_sim::Scenario;

use self::grid::Grid;
use self::grid::Identity;
use self::grid::Shard;
use super::execute;
use super::input::ScenarioArgs;
use super::policies;
use super::vary;
use crate::console::print;

/// `tandem sim sweep`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SweepArgs {
    #[command(subcommand)]
    command: Option<SweepCommand>,
    // Beside each other: a group that holds another counts as absent.
    #[command(flatten)]
    scenario: Option<ScenarioArgs>,
    #[command(flatten)]
    grid: Option<GridArgs>,
}

#[derive(Debug, Subcommand)]
enum SweepCommand {
    /// Join the files of all shards into the one that the whole grid would have written
    Merge(merge::MergeArgs),
}

/// A shard of a grid, or all of it.
#[derive(Debug, Args)]
struct GridArgs {
    /// Values of the grid, such as host.scheduler=cfs,eevdf,credit; several make all combinations
    #[arg(long, value_name = "KEY=VALUE,…")]
    vary: Vec<String>,
    /// Policies of the grid, such as stock,aple,hvs,aple+hvs; an unknown one lists all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Runs of each combination, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The file to write: Parquet, a row for each figure
    #[arg(long, value_name = "FILE.parquet")]
    out: PathBuf,
    /// Only the cells of shard I of N, I from 1 [default: all]
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Replace a file of another grid
    #[arg(long)]
    force: bool,
}

/// Carries it out.
pub fn main(args: &SweepArgs) -> anyhow::Result<()> {
    match (&args.command, &args.scenario, &args.grid) {
        (Some(SweepCommand::Merge(args)), _, _) => merge::main(args),
        (None, Some(scenario), Some(args)) => sweep(scenario, args),
        _ => anyhow::bail!(
            "there is nothing to sweep: write tandem sim sweep SCENARIO.toml --vary KEY=A,B --out \
             FILE.parquet"
        ),
    }
}

fn sweep(scenario: &ScenarioArgs, args: &GridArgs) -> anyhow::Result<()> {
    let workers = execute::workers(args.runs, args.workers)?;
    let combinations = vary::combinations(policies::combinations(&args.policies)?, &args.vary)?;
    let grid = Grid::read(&scenario.source()?, &combinations, args.runs)?;
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    ensure!(
        u64::from(shard.of) <= grid.cells(),
        "--shard {shard} is not possible: the grid has {} cells, so it has that many shards at most",
        grid.cells()
    );
    let identity = grid.identity(shard);
    if place::is_done(&args.out, &identity, args.force)? {
        return print(&format!(
            "{} is complete already: {identity}. Nothing to do.\n",
            args.out.display()
        ));
    }
    place::check(&args.out)?;
    let began = Instant::now();
    let cells: Vec<u64> = shard.cells(grid.cells()).collect();
    let job = |&cell: &u64| grid.cell(cell).map(|(_, scenario, seed)| (scenario, seed));
    let each: Option<Vec<(&Scenario, u64)>> = cells.iter().map(job).collect();
    let each = each.context("a cell is missing")?;
    let figures = execute::all(&each, workers)?;
    let rows = place::write(&args.out, &identity, |writer| {
        for (&cell, metrics) in cells.iter().zip(&figures) {
            let (combination, scenario, seed) = grid.cell(cell).context("a cell is missing")?;
            for metric in metrics {
                writer.push(file::Row {
                    cell,
                    scenario: scenario.name.as_str().into(),
                    combination: combination.into(),
                    seed,
                    vm: metric.vm.as_str().into(),
                    metric: metric.metric.into(),
                    unit: metric.unit.into(),
                    value: metric.value,
                });
            }
            writer.end_cell()?;
        }
        Ok(())
    })?;
    print(&table(&args.out, &identity, rows, began))
}

/// What was written, in a line.
fn table(out: &Path, identity: &Identity, rows: u64, began: Instant) -> String {
    let mut table = Table::new(&["file", "shard", "cells", "rows", "seconds"]);
    table.row(vec![
        Cell::toned(out.display().to_string(), Tone::Strong),
        identity.shard.to_string().into(),
        identity
            .shard
            .cells(identity.cells)
            .count()
            .to_string()
            .into(),
        rows.to_string().into(),
        figure::rate(began.elapsed().as_secs_f64()).into(),
    ]);
    table.to_string()
}
