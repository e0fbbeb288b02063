//! `tandem sim run`: one scenario, once.

use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use tandem_experiment::execute;
use tandem_experiment::metrics;
use tandem_experiment::parquet;
use tandem_experiment::parquet::Row;
use tandem_experiment::progress::Progress;
use tandem_policy::Nanos;
use tandem_report::simulation;
use tandem_report::simulation::run_page;
use tandem_report::simulation::run_tables;
use tandem_report::simulation::trace;
use tandem_report::simulation::trace_picture;
use tandem_sim::World;
use tandem_sim::scenario::load;

use super::input::ScenarioArgs;
use super::page;
use super::progress::Bar;
use crate::console::print;
use crate::output;
use crate::output::OutputArgs;

/// How long a picture is unless it is said.
const WINDOW: Nanos = Nanos::from_millis(20);

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
    /// The picture's window in simulated time [default: 20ms from --trace-from on]
    #[arg(long, value_name = "FROM-TO")]
    window: Option<String>,
    /// Record for trace and picture only from this simulated time on
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    trace_from: String,
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
    let trace_from = trace_from(&args.trace_from, scenario.duration)?;
    let (from, to) = window(args.window.as_deref(), trace_from)?;
    let traced = args.trace.is_some() || args.picture.is_some();
    let mut world = World::new(&scenario);
    if args.output.json.is_some() || args.output.html.is_some() {
        world.record_waits();
    }
    let progress = Bar::new();
    progress.begin(scenario.duration);
    progress.say(&scenario.name);
    if traced {
        world.run_until(trace_from);
        world.record_trace(args.trace_events);
    }
    let results = execute::run(&mut world, scenario.duration, &progress)?;
    drop(progress);
    if !args.output.json_only() {
        print(&run_tables::text(&scenario, &results))?;
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
    if let Some(path) = &args.output.html {
        let footer = simulation::footer();
        let page = run_page::html(&scenario, &results, &page::command(), &footer);
        output::write_text(path, "page", &page)?;
    }
    if traced {
        let (tracks, events) = world.take_trace();
        if events.len() >= args.trace_events {
            tell!(
                "the trace is full: it holds the first {} events (--trace-events)",
                events.len()
            );
        }
        if let Some(path) = &args.trace {
            let bytes = trace::trace(&tracks, &events).encode();
            write(path, &bytes.context("the simulator's trace is wrong")?)?;
        }
        if let Some(path) = &args.picture {
            let picture = trace_picture::draw(&tracks, &events, from, to);
            write(path, picture.svg().as_bytes())?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads when recording begins.
fn trace_from(text: &str, duration: Nanos) -> anyhow::Result<Nanos> {
    let from = load::time(text)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("--trace-from {text} is not possible: write a time such as 2s"))?;
    ensure!(
        from < duration,
        "--trace-from {text} is not possible: the simulation ends after {duration}"
    );
    Ok(from)
}

/// Reads a window such as `10ms-12ms`; without one it begins when recording does.
fn window(text: Option<&str>, recorded_from: Nanos) -> anyhow::Result<(Nanos, Nanos)> {
    let Some(text) = text else {
        let end = Nanos(recorded_from.0.saturating_add(WINDOW.0));
        return Ok((recorded_from, end));
    };
    let wrong = || format!("--window {text} is not possible: write FROM-TO, such as 10ms-12ms");
    let (from, to) = text.split_once('-').with_context(wrong)?;
    let time = |text: &str| {
        load::time(text)
            .map_err(anyhow::Error::msg)
            .with_context(wrong)
    };
    let (from, to) = (time(from)?, time(to)?);
    ensure!(from < to, wrong());
    ensure!(
        recorded_from < to,
        "--window {text} is over before recording begins (--trace-from {recorded_from})"
    );
    Ok((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_two_times_in_order() {
        let ends = (Nanos(10_000_000), Nanos(12_500_000));
        assert_eq!(window(Some("10ms-12.5ms"), Nanos::ZERO).unwrap(), ends);
        for text in ["10ms", "12ms-10ms", "10-12", ""] {
            let error = window(Some(text), Nanos::ZERO).unwrap_err().to_string();
            assert!(error.contains("FROM-TO"), "{error}");
        }
    }

    #[test]
    fn a_window_goes_with_what_is_recorded() {
        let second = Nanos::from_millis(1000);
        let ends = (second, Nanos::from_millis(1020));
        assert_eq!(window(None, second).unwrap(), ends);
        let error = window(Some("10ms-12ms"), second).unwrap_err().to_string();
        assert!(error.contains("--trace-from 1.000 s"), "{error}");
    }

    #[test]
    fn recording_begins_within_the_simulation() {
        let second = Nanos::from_millis(1000);
        assert_eq!(trace_from("0ms", second).unwrap(), Nanos::ZERO);
        for text in ["1s", "2s", "soon"] {
            let error = trace_from(text, second).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
