//! `tandem-lab bench changes`: time until VMs are fair again after one starts, sleeps, wakes or stops ([`tandem_bench::changes`]).

use std::path::PathBuf;

use clap::Args;
use tandem_bench::changes::Settings;
use tandem_bench::{changes, tables};
use tandem_demo::range;
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

use tandem_cli::live;
use tandem_cli::live::{BackendArg, DaemonArgs};
use tandem_command::console::{check_writable, print};
use tandem_command::number::time;
use tandem_command::output::save_json;

/// `tandem-lab bench changes`
#[derive(Debug, Args)]
pub struct ChangesArgs {
    /// Repetitions, 1 … 100
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Seconds after each change, 2 … 600; the third VM sleeps that long
    #[arg(long, default_value_t = 5, value_name = "S", value_parser = time::<u32>("seconds"))]
    seconds: u32,
    /// What runs the vCPUs
    #[arg(long, value_enum, default_value = "kvm")]
    backend: BackendArg,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures here as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Runs the measurement.
pub fn main(args: &ChangesArgs) -> anyhow::Result<()> {
    let settings = Settings {
        runs: range::whole("--runs", args.runs, 1, 100)?,
        seconds: range::whole("--seconds", args.seconds, 2, 600)?,
        backend: args.backend.into(),
        daemon: args.daemon.plan(Placement::Rebalance)?,
        state_dir: live::state_dir(args.state_dir.as_ref()),
    };
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let progress = Progress::begin(settings.steps());
    let figures = changes::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    print(&tables::changes(&figures).to_string())?;
    args.json.as_ref().map_or(Ok(()), |path| save_json(path, &figures))
}
