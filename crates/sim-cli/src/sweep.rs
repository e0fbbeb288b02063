//! `tandem-sim sweep`: a grid of settings and seeds into a Parquet file, whole or in shards, and
//! `tandem-sim sweep merge`: the shards' files into one ([`tandem_experiment::sweep`]).
//!
//! On SIGINT, SIGTERM and SIGHUP an incomplete file is removed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use tandem_experiment::sweep;
use tandem_experiment::sweep::division::Division;
use tandem_experiment::sweep::grid::{Grid, Identity, Shard};
use tandem_experiment::sweep::merge::Merge;
use tandem_experiment::sweep::place;
use tandem_experiment::sweep::slurm::Script;
use tandem_linux::interrupt::Interrupt;
use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

use crate::input;
use crate::input::ScenarioArgs;
use crate::progress::Bar;
use tandem_command::console::print;

/// `tandem-sim sweep`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SweepArgs {
    #[command(subcommand)]
    command: Option<SweepCommand>,
    // Separate fields, because clap treats a group within another group as absent.
    #[command(flatten)]
    scenario: Option<ScenarioArgs>,
    #[command(flatten)]
    grid: Option<GridArgs>,
}

#[derive(Debug, Subcommand)]
enum SweepCommand {
    /// Join the files of all shards into the one that the whole grid would have written
    Merge(MergeArgs),
}

/// A whole grid, or a shard of it.
#[derive(Debug, Args)]
struct GridArgs {
    /// Values of the grid, such as host.scheduler=cfs,eevdf,credit; several make all combinations. Set after what --policies sets
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
    /// The file to write, a row for each figure: Parquet, or CSV by its name, which no shard can be
    #[arg(long, value_name = "FILE.parquet")]
    out: PathBuf,
    /// Only the cells of shard I of N, I from 1 [default: all]
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Overwrite the output file, including one of another grid or a damaged one
    #[arg(long)]
    force: bool,
    /// Run nothing if the grid's fingerprint is another, as when the scenario was edited (scripts of --slurm say it)
    #[arg(long, value_name = "FINGERPRINT")]
    expect: Option<String>,
    /// Write a script that has Slurm run the grid in shards (bash FILE.sh), and run nothing
    #[arg(long, value_name = "FILE.sh", conflicts_with_all = ["shard", "force"])]
    slurm: Option<PathBuf>,
    /// Into how many shards [default: those of FILE.parquet.shards, or as many as take about a second each]
    #[arg(long, value_name = "N", requires = "slurm")]
    shards: Option<u32>,
}

/// `tandem-sim sweep merge`
#[derive(Debug, Args)]
struct MergeArgs {
    /// The file to write
    #[arg(value_name = "OUT.parquet")]
    out: PathBuf,
    /// The files of all shards, in any order
    #[arg(value_name = "SHARD.parquet", required = true)]
    shards: Vec<PathBuf>,
    /// Overwrite the output file, including one of another grid or a damaged one
    #[arg(long)]
    force: bool,
    /// Join nothing if the shards are of a grid with another fingerprint (scripts of --slurm say it)
    #[arg(long, value_name = "FINGERPRINT")]
    expect: Option<String>,
}

/// Runs the grid or merges shards.
pub fn main(args: &SweepArgs) -> anyhow::Result<()> {
    match (&args.command, &args.scenario, &args.grid) {
        (Some(SweepCommand::Merge(args)), _, _) => merge(args),
        (None, Some(scenario), Some(args)) => sweep(scenario, args),
        _ => anyhow::bail!(
            "there is nothing to sweep: write tandem-sim sweep SCENARIO.toml --vary KEY=A,B --out \
             FILE.parquet"
        ),
    }
}

fn sweep(scenario: &ScenarioArgs, args: &GridArgs) -> anyhow::Result<()> {
    let workers = input::workers(args.runs, args.workers)?;
    let combinations = input::combinations(&args.policies, &args.vary)?;
    let grid = Grid::read(&scenario.source()?, &combinations, args.runs)?;
    if let Some(expected) = &args.expect {
        grid.expect(expected)?;
    }
    if let Some(script) = &args.slurm {
        return slurm(scenario, args, &grid, script);
    }
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    grid.check(shard)?;
    let identity = grid.identity(shard);
    if is_done(&args.out, &identity, args.force)? {
        return Ok(());
    }
    let began = Instant::now();
    let figures = sweep::run(&grid, shard, workers, &Bar::new())?;
    let interrupt = Interrupt::watch()?;
    let rows = figures.write(&args.out, &|| interrupt.check().is_err())?;
    print(&table(&args.out, &identity, rows, began))
}

fn slurm(scenario: &ScenarioArgs, args: &GridArgs, grid: &Grid, file: &Path) -> anyhow::Result<()> {
    place::check_name(&args.out, Shard::WHOLE)?;
    let division = Division::of(grid, &args.out, args.shards, false, &Bar::new())?;
    let script = Script {
        scenario: &scenario.scenario,
        settings: &scenario.settings,
        seed: scenario.seed,
        duration: scenario.duration.as_deref(),
        policies: &args.policies,
        vary: &args.vary,
        runs: args.runs,
        out: &args.out,
    };
    script.write(file, grid, &division)?;
    let (file, missing, of) = (file.display(), division.missing().len(), division.of);
    print(&format!("{file} runs {missing} of {of} shards: bash {file}\n"))
}

fn merge(args: &MergeArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut merge = Merge::open(&args.out, &args.shards)?;
    if let Some(expected) = &args.expect {
        merge.expect(expected)?;
    }
    let identity = merge.identity().clone();
    if is_done(&args.out, &identity, args.force)? {
        return Ok(());
    }
    let interrupt = Interrupt::watch()?;
    let rows = merge.write(&args.out, &|| interrupt.check().is_err())?;
    print(&table(&args.out, &identity, rows, began))
}

/// Returns whether the output is complete, and then prints a message; fails if the file cannot be written.
fn is_done(out: &Path, identity: &Identity, force: bool) -> anyhow::Result<bool> {
    place::check_name(out, identity.shard)?;
    if place::is_done(out, identity, force)? {
        print(&format!("{} is complete already: {identity}. Nothing to do.\n", out.display()))?;
        return Ok(true);
    }
    place::check(out)?;
    Ok(false)
}

/// Returns a table that describes the written file.
fn table(out: &Path, identity: &Identity, rows: u64, began: Instant) -> String {
    let mut table = Table::new(&["file", "shard", "cells", "rows", "seconds"]);
    let cells = identity.shard.cells(identity.cells).count();
    table.row(vec![
        Cell::toned(out.display().to_string(), Tone::Strong),
        identity.shard.to_string().into(),
        cells.to_string().into(),
        rows.to_string().into(),
        figure::rate(began.elapsed().as_secs_f64()).into(),
    ]);
    table.to_string()
}
