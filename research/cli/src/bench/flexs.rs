//! `tandem-lab bench flexs`: spinning VMs competing with computing VMs, with and without FlexS ([`tandem_bench::flexs`]).

use std::path::PathBuf;

use clap::Args;
use tandem_bench::flexs::measure::{MODES, Settings, checked};
use tandem_bench::flexs::mix::WORK;
use tandem_bench::flexs::{measure, mix, output};
use tandem_demo::plan::Plan;
use tandem_demo::{host_facts, mode, range};
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Backend;
use tandem_report::progress::Progress;

use tandem_cli::live;
use tandem_cli::live::{BackendArg, DaemonArgs, SecondsArgs};
use tandem_command::console::{check_writable, print};
use tandem_command::output::save_json;

/// `tandem-lab bench flexs`
#[derive(Debug, Args)]
#[command(mut_arg("seconds", |seconds| seconds.default_value("20")))]
#[command(mut_arg("alone_seconds", |seconds| seconds.default_value("5")))]
#[command(mut_arg("period_ms", |period| {
    period
        .default_value("30")
        .help("The daemon's accounting period, 30 … 1000 ms; each verdict covers a whole period")
}))]
#[command(mut_arg("policies", |policies| {
    policies.default_value("fair").help("The policies of the daemon; mode flexs adds flexs")
}))]
pub struct FlexsArgs {
    /// Mixes to run: one-burner, two-burners (a VM that spins on two pCPUs while one or two vCPUs compute on the second), two-spinners (two
    /// spinning VMs and one computing vCPU), even (a vCPU that computes on both)
    #[arg(long, value_name = "NAME,…", default_value = "one-burner,two-burners,two-spinners,even")]
    mixes: String,
    /// Computation per vCPU and phase of the barrier, in millions of TSC cycles, 1 … 100000. A wait must last for an accounting period to be found
    #[arg(long, value_name = "MCYCLES", default_value_t = WORK)]
    work: u32,
    /// Modes to measure; stock is a cgroup of equal weight per VM, tandem the daemon without flexs
    #[arg(long, value_name = "NAME,…", default_value = MODES)]
    modes: String,
    /// Runs of each mix, 1 … 100; each goes through all modes
    #[arg(long, default_value_t = 3)]
    runs: u32,
    #[command(flatten)]
    seconds: SecondsArgs,
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

impl FlexsArgs {
    fn settings(&self) -> anyhow::Result<Settings> {
        let plan = Plan {
            vms: Vec::new(),
            modes: mode::list(&self.modes)?,
            window: self.seconds.window()?,
            settle: self.seconds.settle()?,
            backend: self.backend.map(Backend::from),
            seed: 1,
            pcpus: host_facts::usable_pcpus()?,
            daemon: checked(self.daemon.plan(Placement::Rebalance)?)?,
            state_dir: live::state_dir(self.state_dir.as_ref()),
            alone: self.seconds.alone_if_wanted()?,
        };
        let runs = range::whole("--runs", self.runs, 1, 100)?;
        let work = range::whole("--work", self.work, 1, 100_000)?;
        Ok(Settings::new(runs, &mix::list(&self.mixes)?, work, plan)?)
    }
}

/// Runs the bench.
pub fn main(args: &FlexsArgs) -> anyhow::Result<()> {
    let settings = args.settings()?;
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    note!("{}", settings.announce());
    let interrupt = Interrupt::watch()?;
    let progress = Progress::begin(settings.steps());
    let figures = measure::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    print(&format!("{}\n", output::work(&figures)))?;
    print(&format!("{}\n", output::verdicts(&figures)))?;
    for reasons in output::reasons(&figures) {
        print(&reasons)?;
    }
    for note in output::notes(&figures) {
        tell!("{note}");
    }
    print(&output::findings(&figures))?;
    args.json.as_ref().map_or(Ok(()), |path| save_json(path, &figures))
}
