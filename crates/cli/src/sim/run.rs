//! `tandem sim run`: one scenario, once.

use std::path::PathBuf;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use tandem_policy::Nanos;
use tandem_sim::World;
use tandem_sim::scenario::load;

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
    /// Write a picture of a short window as SVG: pCPUs and vCPUs as lanes
    #[arg(long, value_name = "PATH")]
    picture: Option<PathBuf>,
    /// The picture's window in simulated time
    #[arg(long, value_name = "FROM-TO", default_value = "0ms-20ms")]
    window: String,
    /// Events that the trace holds at most; what happens later is left out
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    trace_events: usize,
}

/// Runs it.
pub fn main(args: &RunArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    args.output.check()?;
    for path in args.trace.iter().chain(&args.picture) {
        output::check(path)?;
    }
    let (from, to) = window(&args.window)?;
    let traced = args.trace.is_some() || args.picture.is_some();
    let mut world = World::new(&scenario);
    if traced {
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
    if traced {
        let (tracks, events) = world.take_trace();
        if events.len() >= args.trace_events {
            eprintln!(
                "the trace is full: it holds the first {} events (--trace-events)",
                events.len()
            );
        }
        if let Some(path) = &args.trace {
            trace::write_trace(path, &tracks, &events)?;
        }
        if let Some(path) = &args.picture {
            trace::write_picture(path, &tracks, &events, from, to)?;
        }
    }
    Ok(())
}

/// Reads a window such as `10ms-12ms`.
fn window(text: &str) -> anyhow::Result<(Nanos, Nanos)> {
    let wrong = || format!("--window {text} is not possible: write FROM-TO, such as 10ms-12ms");
    let (from, to) = text.split_once('-').with_context(wrong)?;
    let time = |text: &str| {
        load::time(text)
            .map_err(anyhow::Error::msg)
            .with_context(wrong)
    };
    let (from, to) = (time(from)?, time(to)?);
    ensure!(from < to, wrong());
    Ok((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_two_times_in_order() {
        let ends = (Nanos(10_000_000), Nanos(12_500_000));
        assert_eq!(window("10ms-12.5ms").unwrap(), ends);
        for text in ["10ms", "12ms-10ms", "10-12", ""] {
            let error = window(text).unwrap_err().to_string();
            assert!(error.contains("FROM-TO"), "{error}");
        }
    }
}
