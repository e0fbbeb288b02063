//! `tandem-sim run`: a single run of a scenario.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgGroup, Args};
use tandem_experiment::figures::Row;
use tandem_experiment::progress::Progress;
use tandem_experiment::{execute, figures, metrics};
use tandem_sim::World;
use tandem_sim_report::recording::Recording;
use tandem_sim_report::{run_page, run_tables, trace, trace_picture};

use crate::input::ScenarioArgs;
use crate::output::OutputArgs;
use crate::progress::Bar;
use tandem_command::console::print;
use tandem_command::{invocation, output};

/// `tandem-sim run`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("recorded").args(["trace", "picture"]).multiple(true))]
pub struct RunArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Write a trace for ui.perfetto.dev: pCPUs, vCPUs and threads as tracks
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
    /// Write a picture of a short window, SVG or PNG by its name: pCPUs and vCPUs as lanes
    #[arg(long, value_name = "PATH")]
    picture: Option<PathBuf>,
    /// The picture's window in simulated time [default: 20ms from --trace-from on, or from the end of the warm-up]
    #[arg(long, value_name = "FROM-TO", requires = "picture")]
    window: Option<String>,
    /// Record for trace and picture only from this simulated time on [default: from the end of the warm-up for a picture whose
    /// window is not said, else 0ms]
    #[arg(long, value_name = "TIME", requires = "recorded")]
    trace_from: Option<String>,
    /// Maximum number of events in the trace; later events are omitted
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    trace_events: usize,
}

/// Runs the scenario.
pub fn main(args: &RunArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    args.output.check()?;
    args.trace.as_deref().map_or(Ok(()), output::check)?;
    let drawing = output::check_picture(args.picture.as_deref())?;
    let (trace_from, window) = (args.trace_from.as_deref(), args.window.as_deref());
    let recording = Recording::of(trace_from, window, args.trace.is_some(), &scenario)?;
    let traced = args.trace.is_some() || drawing.is_some();
    let mut world = World::new(&scenario);
    if args.output.json.is_some() || args.output.html.is_some() {
        world.record_waits();
    }
    let progress = Bar::new();
    progress.begin(scenario.duration);
    progress.say(&scenario.name);
    if traced {
        world.run_until(recording.from);
        world.record_trace(args.trace_events);
    }
    let results = execute::run(&mut world, scenario.duration, &progress)?;
    drop(progress);
    if !args.output.json_only() {
        print(&run_tables::text(&scenario, &results))?;
    }
    output::write_json(args.output.json.as_deref(), &tandem_sim_report::versioned(&results))?;
    if let Some(path) = &args.output.table {
        let metrics = metrics::of(&scenario, &results);
        let row = |metric| Row {
            scenario: &scenario.name,
            combination: "",
            parameters: &[],
            seed: scenario.seed,
            metric,
        };
        figures::write(path, &[], metrics.iter().map(row))?;
    }
    if let Some(path) = &args.output.html {
        let footer = tandem_sim_report::footer();
        let page = run_page::html(&scenario, &results, &invocation::command(), &footer);
        output::write_text(path, "page", &page)?;
    }
    if traced {
        let (tracks, events) = world.take_trace();
        if events.len() >= args.trace_events {
            tell!("the trace is full: it holds the first {} events (--trace-events)", events.len());
        }
        if let Some(path) = &args.trace {
            let bytes = trace::trace(&tracks, &events).encode();
            write(path, &bytes.context("the simulator's trace is wrong")?)?;
        }
        if let Some(drawing) = &drawing {
            let (from, to) = recording.window;
            drawing.write(&trace_picture::draw(&tracks, &events, from, to).svg())?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
