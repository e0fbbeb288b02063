//! `tandem host top`: intervals in a terminal, as text or as JSON.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::select::VmPattern;
use tandem_host::top;
use tandem_host::top::Top;
use tandem_host::top::screen::terminal;
use tandem_host::top::screen::terminal::View;

use super::look::{
    FindArgs, MEASUREMENT, OUTPUT, SELECTION, SourceArgs, chosen, interval, parse_vm, style,
};
use super::{check_matches, show};

/// `tandem host top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000) [default: all]
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    /// Omit these VMs; may be repeated
    #[arg(long, value_name = "VM", value_parser = parse_vm, help_heading = SELECTION)]
    exclude: Vec<VmPattern>,
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Length of an interval, 50ms … 1h
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval, help_heading = MEASUREMENT)]
    interval: Duration,
    /// State directory of a running daemon, for its weights
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR", help_heading = MEASUREMENT)]
    state_dir: PathBuf,
    /// Print a line for each vCPU, too
    #[arg(long, help_heading = OUTPUT)]
    vcpus: bool,
    /// Exit after one interval
    #[arg(long, help_heading = OUTPUT)]
    once: bool,
    /// Print plain text on terminals too, one interval below the other
    #[arg(long, help_heading = OUTPUT)]
    batch: bool,
    /// Print JSON: a document per interval, each on a line
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &TopArgs) -> anyhow::Result<()> {
    let (select, selector) = chosen(&args.vms, &args.exclude)?;
    let mut top = Top::open(args.source.open()?, args.find.options(), selector, &args.state_dir)?;
    let found = top.begin()?;
    let mut begin = Instant::now();
    check_matches(&select, found.selected, found.all)?;
    let style = style(std::io::stdout().is_terminal() && !args.batch);
    let is_root = rustix::process::geteuid().is_root();
    if std::io::stdout().is_terminal() && !(args.once || args.batch || args.json) {
        let view =
            View { interval: args.interval, with_vcpus: args.vcpus, colour: style.colour, is_root };
        return Ok(terminal::show(&mut top, view)?);
    }
    for round in 0.. {
        // The interval includes the time of reading, so that its rate is as requested.
        begin += args.interval;
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let shown = top.interval()?;
        let text = if args.json {
            serde_json::to_string(&shown)?
        } else {
            // Notes do not change between intervals.
            let notes = top::text::notes(&shown, is_root).into_iter();
            let notes = notes.filter(|_| round == 0).map(|note| format!("{note}\n"));
            notes.collect::<String>() + &top::text::text(&shown, args.vcpus, style)
        };
        if !show(&text, false)? || args.once {
            break;
        }
    }
    Ok(())
}
