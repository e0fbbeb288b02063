//! `tandem sim run`: one scenario, once.

use std::path::PathBuf;

use clap::Args;
use tandem_sim::World;

use super::execute;
use super::execute::Progress;
use super::input::ScenarioArgs;
use super::metrics;
use super::output;
use super::output::OutputArgs;
use super::parquet;
use super::parquet::Row;
use super::tables;
use super::trace;
use crate::demo::print;

/// `tandem sim run`
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Write a trace for ui.perfetto.dev: pCPUs, vCPUs and threads as tracks
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
    /// Events that the trace holds at most; what happens later is left out
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    trace_events: usize,
}

/// Runs it.
pub fn main(args: &RunArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    args.output.check()?;
    if let Some(path) = &args.trace {
        output::check(path)?;
    }
    let mut world = World::new(&scenario);
    if args.trace.is_some() {
        world.record_trace(args.trace_events);
    }
    let progress = Progress::begin(scenario.duration);
    progress.say(scenario.name.clone());
    let results = execute::run(&mut world, scenario.duration, &progress);
    drop(progress);
    if !args.output.json_only() {
        print(&tables::of(&scenario, &results))?;
    }
    output::write_json(args.output.json.as_deref(), &results)?;
    if let Some(path) = &args.output.parquet {
        let metrics = metrics::of(&scenario, &results);
        let row = |metric| Row {
            scenario: &scenario.name,
            combination: "",
            seed: scenario.seed,
            metric,
        };
        parquet::write(path, metrics.iter().map(row))?;
    }
    if let Some(path) = &args.trace {
        let (tracks, events) = world.take_trace();
        if events.len() >= args.trace_events {
            eprintln!(
                "the trace is full: it holds the first {} events (--trace-events)",
                events.len()
            );
        }
        trace::write_trace(path, &tracks, &events)?;
    }
    Ok(())
}
