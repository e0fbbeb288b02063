//! `tandem host record` and `tandem host replay`.

use std::io::IsTerminal;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::moment;
use tandem_host::moment::Moment;
use tandem_host::record::HostFrames;
use tandem_host::record::run;
use tandem_host::record::summary;
use tandem_host::replay;
use tandem_host::replay::Steps;
use tandem_host::top;
use tandem_host::trace;
use tandem_host::why;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::service::Console;
use tandem_observe::record::DEFAULT_MAX_BYTES;
use tandem_observe::record::Damage;
use tandem_observe::record::LEAST_MAX_BYTES;
use tandem_observe::record::Record;
use tandem_observe::record::Recorder;
use tandem_observe::record::Wanted;
use tandem_report::host_trace;
use tandem_report::host_trace::TracePage;
use tandem_report::record_page;
use tandem_report::record_page::RecordPage;

use super::look::FindArgs;
use super::look::SourceArgs;
use super::look::seconds;
use super::look::style;
use super::look::vm_name;
use crate::console;
use crate::output;
use crate::sim::page::command;

/// Steps of time on a page.
const STEPS: usize = 120;

/// The exit status where a part of what was asked for could not be read.
const PARTIAL: i32 = 4;

/// `tandem host record`
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// The record: a folder that is not there yet; with --trace a file for ui.perfetto.dev
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Instead, trace so many seconds in full: every switch of every pCPU and what each vCPU did; root, BPF
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["interval", "length", "max_size", "source"])]
    trace: Option<Duration>,
    /// Write that trace as a page, too: states of each VM over time, who waited for whom
    #[arg(long, value_name = "FILE", requires = "trace")]
    html: Option<PathBuf>,
    /// Length of an interval, 0.05 … 3600 s
    #[arg(long, default_value = "1", value_name = "S", value_parser = seconds)]
    interval: Duration,
    /// End after so long, such as 90s, 10m, 2h or 7d [default: when interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = moment::length)]
    length: Option<Duration>,
    /// The oldest intervals go when the record would be larger, such as 64M or 2G [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = moment::bytes(LEAST_MAX_BYTES))]
    max_size: Option<u64>,
    /// Where a running daemon keeps its state
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// `tandem host replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The record: the folder that tandem host record wrote
    record: PathBuf,
    /// Say what it holds: from when to when, VMs, gaps
    #[arg(long, conflicts_with_all = ["at", "from", "to", "vcpus", "select_name"])]
    list: bool,
    /// Show the interval of this time: 2026-11-23T14:05:00Z, +90s after the record's begin, -10m before its end
    #[arg(long, value_name = "TIME", value_parser = moment::moment, allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    at: Option<Moment>,
    /// Show what happened from this time on, in sum [default: the record's begin]
    #[arg(long, value_name = "TIME", value_parser = moment::moment, allow_hyphen_values = true)]
    from: Option<Moment>,
    /// Show what happened until this time, in sum [default: the record's end]
    #[arg(long, value_name = "TIME", value_parser = moment::moment, allow_hyphen_values = true)]
    to: Option<Moment>,
    /// Show VMs by name: a glob such as 'db-*'; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = vm_name)]
    select_name: Vec<String>,
    /// A line for each vCPU, too
    #[arg(long, conflicts_with = "why")]
    vcpus: bool,
    /// Say what was wrong with VMs, and what to do, as tandem host why does on a live host
    #[arg(long, conflicts_with = "list")]
    why: bool,
    /// Write a page: states of each VM over time, who waited for whom, totals; one file that opens offline
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "why", "json", "vcpus"])]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn record(args: &RecordArgs) -> anyhow::Result<()> {
    // Before the record is begun, so that no signal leaves it without an end.
    let interrupt = Interrupt::watch()?;
    if let Some(length) = args.trace {
        return trace(args, length, &interrupt);
    }
    let begin = Instant::now();
    let mut frames = HostFrames::begin(args.source.open()?, args.find.options(), &args.state_dir)?;
    let max = args.max_size.unwrap_or(DEFAULT_MAX_BYTES);
    let recorder = Recorder::create(&args.output, max)?;
    note!("recording to {}; Ctrl-C ends it", args.output.display());
    let end = args.length.and_then(|length| begin.checked_add(length));
    let mut console = Console {
        info: "info",
        error: "error",
        print_ready: false,
        level: console::level(),
    };
    let recorded = run(
        &mut frames,
        recorder,
        args.interval,
        end,
        &interrupt,
        &mut console,
    );
    let finished = recorded.context("recording ended; what was recorded before stays readable")?;
    note!("{}: {}", args.output.display(), summary(&finished));
    Ok(())
}

fn trace(args: &RecordArgs, length: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
    let files = [Some(&args.output), args.html.as_ref()];
    files
        .into_iter()
        .flatten()
        .try_for_each(|file| output::check(file))?;
    let begun = moment::now();
    let traced = trace::trace(args.find.options(), length, interrupt)?;
    let remarks = traced.remarks();
    remarks.iter().for_each(|remark| tell!("tandem: {remark}"));
    let bytes = host_trace::perfetto(&traced.trace, &traced.names).encode()?;
    std::fs::write(&args.output, bytes)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    note!("trace for ui.perfetto.dev: {}", args.output.display());
    if let (Some(path), Some(page)) = (&args.html, TracePage::of(&traced.trace, begun)) {
        let title = args.output.display().to_string();
        let page = page.page(&title, &traced.names, remarks, moment::printed);
        output::write_text(path, "page", &page.html(&command(), &record_page::footer()))?;
    }
    Ok(())
}

pub fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let record = Record::open(&args.record)?;
    let style = style(std::io::stdout().is_terminal());
    if args.list {
        let listing = replay::list(&record)?;
        console::print(&match args.json {
            true => serde_json::to_string_pretty(&listing)?,
            false => replay::text::text(&listing, style),
        })?;
        return partial(&listing.damaged, false);
    }
    let of_record = || args.record.display().to_string();
    let wanted = replay::wanted(&record, args.at, args.from, args.to).with_context(of_record)?;
    if let Some(path) = &args.html {
        return html(args, &record, wanted, path).with_context(of_record);
    }
    let read = replay::replay(&record, wanted.clone())?;
    let (replayed, damages) = read.some(&wanted).with_context(of_record)?;
    let shown = replayed
        .shown_if_any(&args.select_name)
        .with_context(of_record)?;
    let is_root = rustix::process::geteuid().is_root();
    console::print(&match (args.why, args.json) {
        (true, true) => serde_json::to_string_pretty(&replayed.why(&args.select_name))?,
        (true, false) => {
            let why = why::text::text(&replayed.why(&args.select_name));
            format!("{}\n{why}", replayed.heading())
        }
        (false, true) => serde_json::to_string(&shown)?,
        (false, false) => {
            let notes = top::text::notes(&shown, is_root).into_iter();
            let notes: String = notes.map(|note| format!("{note}\n")).collect();
            notes + &top::text::text(&shown, args.vcpus, style)
        }
    })?;
    partial(&damages, true)
}

/// Says by what some may be missing, and ends so that scripts know.
pub(super) fn partial(damages: &[Damage], is_said: bool) -> anyhow::Result<()> {
    for damage in damages.iter().filter(|_| is_said) {
        tell!("tandem: {damage}");
    }
    match damages {
        [] => Ok(()),
        _ => std::process::exit(PARTIAL),
    }
}

fn html(args: &ReplayArgs, record: &Record, wanted: Wanted, path: &Path) -> anyhow::Result<()> {
    output::check(path)?;
    let read = Steps::read(record, wanted.clone(), &args.select_name, STEPS)?;
    let (steps, damages) = read.some(&wanted)?;
    let page = RecordPage {
        title: &args.record.display().to_string(),
        steps: &steps.steps,
        whole: &steps.whole,
        names: &steps.names,
        selected: &steps.selected,
        notes: replay::text::remarks(&replay::list(record)?),
        moment: moment::printed,
    };
    output::write_text(path, "page", &page.html(&command(), &record_page::footer()))?;
    partial(&damages, true)
}
