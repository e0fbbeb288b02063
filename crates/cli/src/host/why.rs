//! `tandem host why`: what is wrong with a VM, and what to do.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::why;
use tandem_host::why::Why;

use super::look::FindArgs;
use super::look::SourceArgs;
use super::look::seconds;
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
    /// Where a running daemon keeps its state
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// Runs the command.
pub fn main(args: &WhyArgs) -> anyhow::Result<()> {
    let mut why = Why::open(args.source.open()?, args.find.options(), &args.state_dir)?;
    let found = why.look(args.vm.as_deref(), args.interval)?;
    console::print(&match args.json {
        true => serde_json::to_string_pretty(&found)?,
        false => why::text::text(&found),
    })
}
