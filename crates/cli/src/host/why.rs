//! `tandem host why`: what is wrong with a VM, what to do, and what that does.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tandem_host::columns::wrapped;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::why;
use tandem_host::why::Why;
use tandem_host::why::trial::TryOptions;
use tandem_linux::interrupt::Interrupt;

use super::look::FindArgs;
use super::look::SourceArgs;
use super::look::seconds;
use super::look::style;
use crate::console;

/// `tandem host why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The VM, by name or process id [default: all]
    vm: Option<String>,
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// How long to look, 0.05 … 3600 s
    #[arg(long, default_value = "2", value_name = "S", value_parser = seconds)]
    interval: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Try the cures of the VM that is named, one at a time: measure, change, measure, put back, measure; put everything back at the end
    #[arg(long = "try")]
    try_cures: bool,
    /// How long each measurement of --try takes, 0.05 … 3600 s
    #[arg(long, default_value = "5", value_name = "S", value_parser = seconds, requires = "try_cures")]
    seconds: Duration,
    /// With --try: what helped stays in force, until 'tandem host restore'
    #[arg(long, requires = "try_cures")]
    keep: bool,
    /// With --try: change settings of the host too, and all VMs if none is named
    #[arg(long, requires = "try_cures")]
    yes: bool,
    /// Where a running daemon keeps its state, and --try its journal
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// Runs the command.
pub fn main(args: &WhyArgs) -> anyhow::Result<()> {
    let mut why = Why::open(args.source.open()?, args.find.options(), &args.state_dir)?;
    if args.try_cures {
        return try_cures(&mut why, args);
    }
    let found = why.look(args.vm.as_deref(), args.interval)?;
    console::print(&match args.json {
        true => serde_json::to_string_pretty(&found)?,
        false => shown(&why::text::text(&found)),
    })
}

/// As wide as the terminal, if there is one.
fn shown(text: &str) -> String {
    wrapped(text, style(std::io::stdout().is_terminal()))
}

fn try_cures(why: &mut Why, args: &WhyArgs) -> anyhow::Result<()> {
    let options = TryOptions {
        length: args.seconds,
        keep: args.keep,
        yes: args.yes,
    };
    let trials = why.try_cures(args.vm.as_deref(), &options, &Interrupt::watch()?)?;
    console::print(&match args.json {
        true => serde_json::to_string_pretty(&trials)?,
        false => shown(&why::trial::text(&trials)),
    })?;
    match trials.is_put_back() {
        true => Ok(()),
        false => bail!("not everything could be put back; see above"),
    }
}
