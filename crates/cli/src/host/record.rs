//! `tandem host record` and `tandem host replay`.

use std::io::IsTerminal;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::moment;
use tandem_host::moment::Moment;
use tandem_host::record::Frames;
use tandem_host::record::run;
use tandem_host::replay;
use tandem_host::top;
use tandem_linux::interrupt::Interrupt;
use tandem_observe::record::DEFAULT_MAX_BYTES;
use tandem_observe::record::LEAST_MAX_BYTES;
use tandem_observe::record::Record;
use tandem_observe::record::Recorder;
use tandem_policy::Nanos;

use super::look::FindArgs;
use super::look::SourceArgs;
use super::look::seconds;
use super::look::style;
use super::look::vm_name;
use crate::console;

/// `tandem host record`
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// The record: a folder that is not there yet
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
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
    #[arg(long)]
    vcpus: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn record(args: &RecordArgs) -> anyhow::Result<()> {
    // Before the record is begun, so that no signal leaves it without an end.
    let interrupt = Interrupt::watch()?;
    let begin = Instant::now();
    let mut frames = Frames::begin(args.source.open()?, args.find.options(), &args.state_dir)?;
    let max = args.max_size.unwrap_or(DEFAULT_MAX_BYTES);
    let mut recorder = Recorder::create(&args.output, max)?;
    tell!("recording to {}; Ctrl-C ends it", args.output.display());
    let end = args.length.and_then(|length| begin.checked_add(length));
    let recorded = run(&mut frames, &mut recorder, args.interval, end, &interrupt);
    let finished = match (recorded, recorder.finish()) {
        (Err(error), _) => {
            let kept = "what was recorded before stays readable";
            let error = anyhow::Error::from(error);
            return Err(error.context(format!("recording ended; {kept}")));
        }
        (Ok(()), finished) => finished?,
    };
    let dropped = match finished.dropped {
        0 => String::new(),
        dropped => format!(", of which the first {dropped} went to make room"),
    };
    tell!(
        "{}: {} intervals{dropped}, {} bytes",
        args.output.display(),
        finished.intervals,
        finished.bytes
    );
    Ok(())
}

pub fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let record = Record::open(&args.record)?;
    if args.list {
        let listing = replay::list(&record)?;
        return console::print(&match args.json {
            true => serde_json::to_string_pretty(&listing)?,
            false => replay::text::text(&listing, style(std::io::stdout().is_terminal())),
        });
    }
    let wanted = wanted(args, &record)?;
    let Some(shown) = replay::replay(&record, wanted.clone(), &args.select_name)? else {
        let what = match wanted == replay::ALWAYS {
            true => "it holds no interval".to_owned(),
            false => "no interval at that time".to_owned(),
        };
        bail!(
            "{}: {what}; --list says what it holds",
            args.record.display()
        );
    };
    if shown.vms.is_empty() && !args.select_name.is_empty() {
        bail!(tandem_host::select::NothingMatched(format!(
            "{}: none of its {} VMs at that time matches '{}'",
            args.record.display(),
            shown.found,
            args.select_name.join("' or '")
        )));
    }
    if args.json {
        return console::print(&serde_json::to_string(&shown)?);
    }
    let is_root = rustix::process::geteuid().is_root();
    let notes = top::text::notes(&shown, is_root).into_iter();
    let notes: String = notes.map(|note| format!("{note}\n")).collect();
    let style = style(std::io::stdout().is_terminal());
    console::print(&(notes + &top::text::text(&shown, args.vcpus, style)))
}

/// The time that is asked for.
fn wanted(args: &ReplayArgs, record: &Record) -> anyhow::Result<Range<Nanos>> {
    let given = [args.at, args.from, args.to];
    if given.iter().all(Option::is_none) {
        return Ok(replay::ALWAYS);
    }
    // Only what is relative needs to know when the record is.
    let is_absolute = |moment: &Moment| matches!(moment, Moment::At(_));
    let (begin, end) = match given.iter().flatten().all(is_absolute) {
        true => (Nanos(0), Nanos(u64::MAX)),
        false => {
            let listing = replay::list(record)?;
            listing
                .from
                .zip(listing.to)
                .with_context(|| format!("{}: it holds no interval", args.record.display()))?
        }
    };
    let resolved = |moment: Moment| moment.within(begin, end);
    if let Some(at) = args.at {
        // The end of a record is in its last interval.
        let at = resolved(at).min(end.saturating_sub(Nanos(1)));
        return Ok(at..at + Nanos(1));
    }
    let range = args.from.map_or(Nanos(0), resolved)..args.to.map_or(Nanos(u64::MAX), resolved);
    if range.start >= range.end {
        bail!(
            "--from {} is not before --to {}",
            moment::printed(range.start),
            moment::printed(range.end)
        );
    }
    Ok(range)
}
