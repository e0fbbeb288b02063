//! `tandem demo`: shows on real VMs the cost of sharing this host, and the effect of the daemon.
//!
//! By default, it runs typical VMs with unpinned vCPUs: one spins, one blocks, one computes, one sleeps most of the time.
//! With `--mix`, it runs computing VMs with pinned vCPUs.
//!
//! It boots the microVMs, measures the share of each VM in several modes ([`mode`]), prints the figures as tables or as
//! one JSON document, and writes a page with charts.
//! [`DemoArgs`] become a checked [`Plan`], which [`tandem_demo::demo`] runs.
//!
//! All processes are stopped and all changes reverted at the end, even after an error or a signal.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tandem_demo::alone::AloneResults;
use tandem_demo::mode::Mode;
use tandem_demo::plan::{Pinning, Plan};
use tandem_demo::vm_spec::VmSpec;
use tandem_demo::{demo, demo_words, host_facts, mode, plan, vm_spec};
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Backend;
use tandem_report::experiment::Experiment;
use tandem_report::progress::Progress;
use tandem_report::{experiment_page, experiment_table, json};

use crate::live;
use crate::live::{BackendArg, DaemonArgs, SecondsArgs};
use tandem_command::console::{check_writable, print};

const PAGE: &str = "tandem-demo.html";

/// `tandem demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// vCPUs of each VM, separated by commas: VMs that compute, with pinned vCPUs, as in 4,2,1 [default: four VMs that spin, block,
    /// compute and sleep, with free vCPUs, as many each as there are pCPUs]
    #[arg(long, value_name = "N,…", conflicts_with = "vm")]
    mix: Option<String>,
    /// Weight of each VM, 1 = the kernel's default [default: 1 each]
    #[arg(long, value_name = "W,…", conflicts_with = "vm")]
    weights: Option<String>,
    /// What the VMs of the mix do
    #[arg(long, value_name = "NAME", default_value = vm_spec::WORKLOAD, requires = "mix", conflicts_with = "vm")]
    workload: String,
    /// One VM in detail, instead of a mix; may be repeated. Keys: name, vcpus, weight, workload,
    /// set.KEY (the workload's settings), cpus (pCPUs its vCPUs are pinned to in turn, as in 0-1+3)
    #[arg(long, value_name = "KEY=VALUE,…")]
    vm: Vec<String>,
    /// Pin vCPU i to pCPU i mod P [default with --mix and --vm]
    #[arg(long, conflicts_with = "unpinned")]
    pinned: bool,
    /// Leave vCPUs free [default without --mix and --vm]
    #[arg(long)]
    unpinned: bool,
    #[command(flatten)]
    seconds: SecondsArgs,
    /// Modes to measure: as-is, equal-weights (the stock practice), hard-cap, pinning, nice, batch, tandem
    /// [default: equal-weights,hard-cap,tandem; with --mix and --vm as-is too]
    #[arg(long, value_name = "NAME,…")]
    modes: Option<String>,
    /// What runs the vCPUs [default: kvm, or threads where there is no KVM]
    #[arg(long, value_enum)]
    backend: Option<BackendArg>,
    /// Seed of the workloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one JSON document instead of tables. Shares, fair shares and idle time are in pCPUs;
    /// lag is a fraction, (fair - share) / fair, so 0.127 is 12.7 %
    #[arg(long)]
    json: bool,
    /// Write the page with charts here [default: tandem-demo.html, or no page with --json]
    #[arg(long, value_name = "PATH")]
    html: Option<PathBuf>,
    /// Write no page
    #[arg(long, conflicts_with = "html")]
    no_html: bool,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl DemoArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let pcpus = host_facts::usable_pcpus()?;
        let weights = self.weights.as_deref();
        let specs: Vec<VmSpec> = match (self.vm.as_slice(), &self.mix) {
            ([], None) => plan::everyday_vms(&pcpus, weights)?,
            ([], Some(mix)) => plan::vms_of_mix(mix, weights, &self.workload)?,
            (vms, _) => vms.iter().map(|vm| vm.parse()).collect::<Result<_, _>>()?,
        };
        let everyday = self.vm.is_empty() && self.mix.is_none();
        let pinned = self.pinned || (!everyday && !self.unpinned);
        let (pinning, placement) = if pinned {
            (Pinning::RoundRobin, Placement::Rebalance)
        } else {
            (Pinning::None, Placement::Turns)
        };
        Ok(Plan {
            vms: plan::place(specs, &pcpus, pinning)?,
            modes: match &self.modes {
                Some(names) => mode::list(names)?,
                None if everyday => Mode::DEMO[1..].to_vec(),
                None => Mode::DEMO.to_vec(),
            },
            window: self.seconds.window()?,
            settle: self.seconds.settle()?,
            backend: self.backend.map(Backend::from),
            seed: self.seed,
            daemon: self.daemon.plan(placement)?,
            alone: self.seconds.alone_if_wanted()?,
            state_dir: live::state_dir(self.state_dir.as_ref()),
            pcpus,
        })
    }

    /// Returns the path of the page, if one is to be written.
    fn page(&self) -> Option<PathBuf> {
        match &self.html {
            Some(path) => Some(path.clone()),
            None if self.json || self.no_html => None,
            None => Some(PathBuf::from(PAGE)),
        }
    }
}

/// Runs the demo.
pub fn main(args: DemoArgs) -> anyhow::Result<()> {
    let plan = args.plan()?;
    let page = args.page();
    if let Some(path) = &page {
        // Checked before the measurements, which take about a minute.
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    note!("{}", demo_words::announce(&plan));
    let steps = demo::steps_alone([&plan]) + demo::steps(&plan);
    let progress = Progress::begin(steps);
    let mut alone = AloneResults::default();
    let experiment = demo::run(&plan, &mut alone, &progress, &interrupt)?;
    drop(progress);
    let text = if args.json { json::text(&experiment)? } else { tables(&experiment) };
    print(&text)?;
    if let Some(path) = page {
        let footer = format!("tandem {} demo", env!("CARGO_PKG_VERSION"));
        std::fs::write(&path, experiment_page::html(&experiment, &footer))
            .with_context(|| format!("cannot write {}", path.display()))?;
        note!("charts: {}", path.display());
    }
    if !args.json {
        let program = std::env::args().next();
        note!("\n{}", demo_words::next(program.as_deref().unwrap_or("tandem")));
    }
    Ok(())
}

fn tables(experiment: &Experiment) -> String {
    let pins = if experiment.pinned { "vCPU i pinned to pCPU i mod P" } else { "vCPUs not pinned" };
    let mut parts = vec![
        format!(
            "{} pCPUs, backend {}, {}; {} s per mode after {} s to settle. Shares in pCPUs.",
            experiment.pcpus,
            experiment.backend,
            pins,
            experiment.seconds,
            experiment.settle_seconds,
        ),
        experiment_table::per_vm(experiment).to_string(),
        experiment_table::service(experiment).to_string(),
        experiment_table::SERVICE.to_owned(),
    ];
    if let Some(completion) = experiment_table::completion(experiment) {
        parts.push(completion.to_string());
        parts.push(experiment_table::COMPLETION.to_owned());
    }
    parts.push(experiment_table::per_mode(experiment).to_string());
    let reasons = experiment_table::reasons(experiment);
    if !reasons.is_empty() {
        parts.push(reasons.join("\n"));
    }
    if !experiment.notes.is_empty() {
        parts.push(experiment.notes.join("\n"));
    }
    parts.push(experiment_page::finding(experiment));
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        demo: DemoArgs,
    }

    fn plan(args: &[&str]) -> anyhow::Result<Plan> {
        let args = ["demo"].iter().chain(args);
        Whole::try_parse_from(args)?.demo.plan()
    }

    #[test]
    fn default_is_four_unpinned_vms() {
        let plan = plan(&[]).unwrap();
        let names: Vec<&str> = plan.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["spin", "block", "compute", "bursty"]);
        assert!(plan.vms.iter().all(|vm| vm.pins.is_empty()));
        assert_eq!(plan.modes, [Mode::EqualWeights, Mode::HardCap, Mode::Tandem]);
        assert_eq!(plan.daemon.placement, Placement::Turns);
        assert!(plan.alone.is_some());
    }

    #[test]
    fn mixes_are_pinned_by_default() {
        let pinned = |args: &[&str]| !plan(args).unwrap().vms[0].pins.is_empty();
        assert!(pinned(&["--pinned"]) && pinned(&["--mix", "2,1"]));
        assert!(!pinned(&["--mix", "2,1", "--unpinned"]));
        assert!(pinned(&["--vm", "name=a,vcpus=1"]));
        assert_eq!(plan(&["--alone-seconds", "0"]).unwrap().alone, None);
    }

    #[test]
    fn mix_runs_pinned_burners() {
        let plan = plan(&["--mix", "4,2,1"]).unwrap();
        assert_eq!(plan.vms.iter().map(|vm| vm.vcpus).collect::<Vec<_>>(), [4, 2, 1]);
        assert!(plan.vms.iter().all(|vm| vm.weight == 1.0 && vm.workload == "burn"));
        assert_eq!(plan.modes, Mode::DEMO);
        assert_eq!(plan.daemon.placement, Placement::Rebalance);
    }
}
