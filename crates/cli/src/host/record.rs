//! `tandem host record` and `tandem host replay`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::record::{HostFrames, run, summary};
use tandem_host::replay::Steps;
use tandem_host::select::{VmPattern, WrongArgument};
use tandem_host::{replay, top, trace, why};
use tandem_linux::interrupt::Interrupt;
use tandem_model::length;
use tandem_observe::moment;
use tandem_observe::moment::Moment;
use tandem_observe::record::{DEFAULT_MAX_BYTES, Damage, MIN_MAX_BYTES, Record, Recorder, Wanted};
use tandem_report::host_trace::TracePage;
use tandem_report::record_page::RecordPage;
use tandem_report::{host_trace, record_page};

use super::look::{
    FindArgs, MEASUREMENT, OUTPUT, SELECTION, SourceArgs, check_recorded, interval, parse_vm, style,
};
use tandem_command::invocation::command;
use tandem_command::{console, output};

/// Number of time steps on a page.
const STEPS: usize = 120;

/// Range of the length of a trace.
const MIN_TRACE: Duration = Duration::from_millis(50);
const MAX_TRACE: Duration = Duration::from_secs(3600);

/// Exit status if a part of the requested data could not be read.
const PARTIAL: i32 = 4;

/// `tandem host record`
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// New folder for the record; with --trace a file for ui.perfetto.dev
    #[arg(short, long, value_name = "FOLDER", help_heading = OUTPUT)]
    output: PathBuf,
    /// Write a full trace instead: every switch of every pCPU and the states of each vCPU; needs --duration, root and BPF
    #[arg(long, requires = "duration", conflicts_with_all = ["interval", "max_size", "source"], help_heading = MEASUREMENT)]
    trace: bool,
    /// Write the trace as a page, too: states of each VM over time, and waits
    #[arg(long, value_name = "FILE", requires = "trace", help_heading = OUTPUT)]
    html: Option<PathBuf>,
    /// Length of an interval, 50ms … 1h
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval, help_heading = MEASUREMENT)]
    interval: Duration,
    /// End after this time, such as 90s, 10m, 2h or 7d; a trace: 50ms … 1h [default: until interrupted]
    #[arg(long, value_name = "TIME", value_parser = length::length, help_heading = MEASUREMENT)]
    duration: Option<Duration>,
    /// Maximum size of the record, such as 64M or 2G; the oldest intervals are dropped [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = length::bytes(MIN_MAX_BYTES), help_heading = OUTPUT)]
    max_size: Option<u64>,
    /// State directory of a running daemon, for its weights
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR", help_heading = MEASUREMENT)]
    state_dir: PathBuf,
}

/// `tandem host replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Folder that 'tandem host record' wrote
    #[arg(value_name = "FOLDER")]
    record: PathBuf,
    /// VMs: a name or glob ('db-*'), a process id (4711) or a cgroup ('/machine.slice/*') [default: all]
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    /// List the contents: begin and end, VMs, gaps
    #[arg(long, conflicts_with_all = ["at", "from", "to", "vcpus", "vms"], help_heading = OUTPUT)]
    list: bool,
    /// Show the interval at this time: 2026-11-23T14:05:00Z, +90s after the begin, -10m before the end
    #[arg(long, value_name = "TIME", value_parser = moment::moment, allow_hyphen_values = true, conflicts_with_all = ["from", "to"], help_heading = SELECTION)]
    at: Option<Moment>,
    /// Show the sum from this time on [default: the begin]
    #[arg(long, value_name = "TIME", value_parser = moment::moment, allow_hyphen_values = true, help_heading = SELECTION)]
    from: Option<Moment>,
    /// Show the sum until this time [default: the end]
    #[arg(long, value_name = "TIME", value_parser = moment::moment, allow_hyphen_values = true, help_heading = SELECTION)]
    to: Option<Moment>,
    /// Print a line for each vCPU, too
    #[arg(long, conflicts_with = "why", help_heading = OUTPUT)]
    vcpus: bool,
    /// Name the causes of waits with remedies, as 'tandem host why' does
    #[arg(long, conflicts_with = "list", help_heading = OUTPUT)]
    why: bool,
    /// Write a page: states of each VM over time, waits and totals, in one file without external resources
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "why", "json", "vcpus"], help_heading = OUTPUT)]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

pub fn record(args: &RecordArgs) -> anyhow::Result<()> {
    // Installed before the record starts, so that a signal always completes it.
    let interrupt = Interrupt::watch()?;
    if let Some(length) = args.duration.filter(|_| args.trace) {
        return trace(args, length, &interrupt);
    }
    let begin = Instant::now();
    let mut frames = HostFrames::begin(args.source.open()?, args.find.options(), &args.state_dir)?;
    let max = args.max_size.unwrap_or(DEFAULT_MAX_BYTES);
    let recorder = Recorder::create(&args.output, max)?;
    note!("recording to {}; Ctrl-C ends it", args.output.display());
    let end = args.duration.and_then(|length| begin.checked_add(length));
    console::log_to_stderr(None, false);
    let recorded = run(&mut frames, recorder, args.interval, end, &interrupt);
    let finished = recorded.context("recording ended; the earlier part stays readable")?;
    note!("{}: {}", args.output.display(), summary(&finished));
    Ok(())
}

fn trace(args: &RecordArgs, length: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
    if !(MIN_TRACE..=MAX_TRACE).contains(&length) {
        let said = format!(
            "--duration {length:?} is not possible for a trace: {MIN_TRACE:?} … {MAX_TRACE:?}"
        );
        bail!(WrongArgument(said));
    }
    let files = [Some(&args.output), args.html.as_ref()];
    files.into_iter().flatten().try_for_each(|file| output::check(file))?;
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
    check_recorded(&args.vms)?;
    let record = Record::open(&args.record)?;
    let style = style(std::io::stdout().is_terminal());
    if args.list {
        let listing = replay::list(&record)?;
        console::print(&if args.json {
            serde_json::to_string_pretty(&listing)?
        } else {
            replay::text::text(&listing, style)
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
    let shown = replayed.shown_if_any(&args.vms).with_context(of_record)?;
    let is_root = rustix::process::geteuid().is_root();
    console::print(&match (args.why, args.json) {
        (true, true) => serde_json::to_string_pretty(&replayed.why(&args.vms))?,
        (true, false) => {
            let why = why::text::text(&replayed.why(&args.vms));
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

/// Prints the damages if requested; exits with [`PARTIAL`] if there are any.
pub(super) fn partial(damages: &[Damage], prints: bool) -> anyhow::Result<()> {
    for damage in damages.iter().filter(|_| prints) {
        tell!("tandem: {damage}");
    }
    match damages {
        [] => Ok(()),
        _ => std::process::exit(PARTIAL),
    }
}

fn html(args: &ReplayArgs, record: &Record, wanted: Wanted, path: &Path) -> anyhow::Result<()> {
    output::check(path)?;
    let read = Steps::read(record, wanted.clone(), &args.vms, STEPS)?;
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
