//! `tandem-lab bench churn`: leftover state after many VM starts and stops under the daemon ([`tandem_bench::churn`]).

use std::path::PathBuf;

use clap::Args;
use tandem_bench::churn::Settings;
use tandem_bench::{churn, tables};
use tandem_demo::range;
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::{Backend, MAX_VCPUS};
use tandem_report::progress::Progress;

use tandem_cli::live;
use tandem_cli::live::{BackendArg, DaemonArgs};
use tandem_command::console::{check_writable, print};
use tandem_command::output::save_json;

/// `tandem-lab bench churn`
#[derive(Debug, Args)]
pub struct ChurnArgs {
    /// Number of VM starts, 1 … 100000
    #[arg(long, default_value_t = 200)]
    starts: u32,
    /// Spread the starts over this many minutes, 1 … 10080 [default: start each VM when the previous one has ended]
    #[arg(long, value_name = "M")]
    minutes: Option<u32>,
    /// vCPUs of each VM, 1 … 64
    #[arg(long, default_value_t = 2)]
    vcpus: u32,
    /// What runs the vCPUs [default: kvm, or threads where there is no KVM]
    #[arg(long, value_enum)]
    backend: Option<BackendArg>,
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
pub fn main(args: &ChurnArgs) -> anyhow::Result<()> {
    let settings = Settings {
        starts: range::whole("--starts", args.starts, 1, 100_000)?,
        minutes: args
            .minutes
            .map(|minutes| range::whole("--minutes", minutes, 1, 10_080))
            .transpose()?,
        vcpus: range::whole("--vcpus", args.vcpus, 1, MAX_VCPUS)?,
        backend: args.backend.map(Backend::from),
        daemon: args.daemon.plan(Placement::Rebalance)?,
        state_dir: live::state_dir(args.state_dir.as_ref()),
    };
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let progress = Progress::begin(settings.steps());
    let figures = churn::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    print(&tables::churn(&figures).to_string())?;
    if let Some(quarters) = &figures.quarters {
        print(&tables::churn_quarters(quarters).to_string())?;
    }
    for error in figures.daemon_errors.iter().take(5) {
        tell!("the daemon said: {error}");
    }
    args.json.as_ref().map_or(Ok(()), |path| save_json(path, &figures))
}
