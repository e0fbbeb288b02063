//! `tandem-lab bench overhead`: cost of the daemon with many vCPUs ([`tandem_bench::overhead`]).

use std::path::PathBuf;

use clap::Args;
use tandem_bench::overhead::Settings;
use tandem_bench::{overhead, tables};
use tandem_demo::range;
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::MAX_VCPUS;
use tandem_report::progress::Progress;

use tandem_cli::live;
use tandem_cli::live::DaemonArgs;
use tandem_command::console::{check_writable, print};
use tandem_command::number::time;
use tandem_command::output::save_json;

/// `tandem-lab bench overhead`
#[derive(Debug, Args)]
pub struct OverheadArgs {
    /// Number of VMs, 1 … 1000
    #[arg(long, default_value_t = 125)]
    vms: u32,
    /// vCPUs of each, 1 … 64
    #[arg(long, default_value_t = 8)]
    vcpus: u32,
    /// Seconds counted, 1 … 3600
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = time::<f64>("seconds"))]
    seconds: f64,
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
pub fn main(args: &OverheadArgs) -> anyhow::Result<()> {
    let settings = Settings {
        vms: range::whole("--vms", args.vms, 1, 1000)?,
        vcpus: range::whole("--vcpus", args.vcpus, 1, MAX_VCPUS)?,
        window: range::seconds("--seconds", args.seconds, 1.0, 3600.0)?,
        daemon: args.daemon.plan(Placement::Rebalance)?,
        state_dir: live::state_dir(args.state_dir.as_ref()),
    };
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let progress = Progress::begin(settings.steps());
    let figures = overhead::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    print(&tables::overhead(&figures).to_string())?;
    args.json.as_ref().map_or(Ok(()), |path| save_json(path, &figures))
}
