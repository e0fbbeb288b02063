//! `tandem-lab bench fairness`: lags over named mixes of VMs, several runs each, in stock and with Tandem ([`tandem_bench::fairness`]).

use std::path::PathBuf;

use clap::Args;
use tandem_bench::fairness::Settings;
use tandem_bench::{fairness, mixes, tables};
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

/// `tandem-lab bench fairness`
#[derive(Debug, Args)]
pub struct FairnessArgs {
    /// Runs of each mix, 1 … 100
    #[arg(long, default_value_t = 3)]
    runs: u32,
    #[command(flatten)]
    seconds: SecondsArgs,
    /// Mixes to run [default: all]; an unknown name lists them
    #[arg(long, value_name = "NAME,…")]
    mixes: Option<String>,
    /// Modes to measure [default: equal-weights,hard-cap,tandem]
    #[arg(long, value_name = "NAME,…", default_value = "equal-weights,hard-cap,tandem")]
    modes: String,
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

impl FairnessArgs {
    fn settings(&self) -> anyhow::Result<Settings> {
        let runs = range::whole("--runs", self.runs, 1, 100)?;
        let chosen = mixes::chosen(self.mixes.as_deref())?;
        let plan = Plan {
            vms: Vec::new(),
            modes: mode::list(&self.modes)?,
            window: self.seconds.window()?,
            settle: self.seconds.settle()?,
            backend: self.backend.map(Backend::from),
            seed: 1,
            pcpus: host_facts::usable_pcpus()?,
            daemon: self.daemon.plan(Placement::Rebalance)?,
            alone: self.seconds.alone_if_wanted()?,
            state_dir: live::state_dir(self.state_dir.as_ref()),
        };
        Ok(Settings::new(runs, chosen, plan)?)
    }
}

/// Runs the suite.
pub fn main(args: &FairnessArgs) -> anyhow::Result<()> {
    let settings = args.settings()?;
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let progress = Progress::begin(settings.steps());
    let suite = fairness::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    print(&tables::fairness(&suite).to_string())?;
    print(&format!("\n{}\n", tables::fairness_service(&suite)))?;
    print(
        "Deserved work: work relative to the work that each VM's share deserves, geometric mean. Least: CPU time of a VM relative to its fair share.",
    )?;
    if let Some(completion) = tables::fairness_completion(&suite) {
        print(&format!("\n{completion}\n"))?;
        print(
            "Completion: time in milliseconds from the scheduled start of a burst to its end; medians of the runs (their range).",
        )?;
    }
    for mix in &suite.mixes {
        let reasons = mix.modes.iter().flat_map(|mode| &mode.not_measured);
        for note in mix.notes.iter().chain(reasons) {
            tell!("{}: {note}", mix.mix);
        }
    }
    args.json.as_ref().map_or(Ok(()), |path| save_json(path, &suite))
}
