//! `tandem host why`: causes of waits, remedies, and trials of remedies.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tandem_host::columns::wrapped;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::select::VmPattern;
use tandem_host::why;
use tandem_host::why::Why;
use tandem_host::why::trial::TryOptions;
use tandem_linux::interrupt::Interrupt;

use super::look::{FindArgs, MEASUREMENT, OUTPUT, SourceArgs, interval, parse_vm, style};
use tandem_command::console;

const REMEDIES: &str = "Remedies";

/// Default length of a measurement.
const LOOK: Duration = Duration::from_secs(2);
/// Default length of each measurement of a trial.
const TRIAL: Duration = Duration::from_secs(5);

/// `tandem host why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000) [default: all]
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Length of a measurement, 50ms … 1h [default: 2s, with --try 5s]
    #[arg(long, value_name = "TIME", value_parser = interval, help_heading = MEASUREMENT)]
    duration: Option<Duration>,
    /// State directory of a running daemon, and of the journal of --try
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR", help_heading = MEASUREMENT)]
    state_dir: PathBuf,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Try the remedies of the named VMs one by one: measure, apply, measure, revert, measure; revert everything at the end
    #[arg(long = "try", help_heading = REMEDIES)]
    try_cures: bool,
    /// With --try: leave remedies that helped until 'tandem host restore'
    #[arg(long, requires = "try_cures", help_heading = REMEDIES)]
    keep: bool,
    /// With --try: allow settings of the host too, and all VMs if none is named
    #[arg(long, requires = "try_cures", help_heading = REMEDIES)]
    yes: bool,
}

/// Runs the command.
pub fn main(args: &WhyArgs) -> anyhow::Result<()> {
    let mut why = Why::open(args.source.open()?, args.find.options(), &args.state_dir)?;
    if args.try_cures {
        return try_cures(&mut why, args);
    }
    let found = why.look(&args.vms, args.duration.unwrap_or(LOOK))?;
    console::print(&if args.json {
        serde_json::to_string_pretty(&found)?
    } else {
        shown(&why::text::text(&found))
    })
}

/// Wraps text to the width of the terminal, if there is one.
fn shown(text: &str) -> String {
    wrapped(text, style(std::io::stdout().is_terminal()))
}

fn try_cures(why: &mut Why, args: &WhyArgs) -> anyhow::Result<()> {
    let options =
        TryOptions { length: args.duration.unwrap_or(TRIAL), keep: args.keep, yes: args.yes };
    let trials = why.try_cures(&args.vms, &options, &Interrupt::watch()?)?;
    console::print(&if args.json {
        serde_json::to_string_pretty(&trials)?
    } else {
        shown(&why::trial::text(&trials, &args.state_dir))
    })?;
    if trials.is_put_back() { Ok(()) } else { bail!("not everything could be reverted; see above") }
}
