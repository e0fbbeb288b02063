//! Runs the mixes: each run of a mix is a demo with fresh VMs that goes through all modes.
//!
//! Run 1 of all modes is followed by run 2 of all modes, so a drift over minutes affects all modes alike.
//! Work is counted in whole phases of the barrier, so the window should contain many of them.

use std::time::Duration;

use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

use super::figures;
use super::figures::Flexs;
use super::mix::{Mix, MixError};
use tandem_demo::alone::{AloneError, AloneResults};
use tandem_demo::demo::DemoError;
use tandem_demo::plan::{DaemonPlan, Plan, placement_name};
use tandem_demo::range::RangeError;
use tandem_demo::{alone, demo, host_facts};
use tandem_host::config::Placement;
use tandem_model::PolicySet;
use tandem_policy::host::{asymmetric, registry};

/// Default modes, in the order of measurement.
pub const MODES: &str = "stock,tandem,flexs";

/// Estimated time to boot the VMs of a run, or to enter and leave a mode.
const CHANGE: Duration = Duration::from_millis(500);

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    runs: u32,
    /// Settings shared by all mixes.
    plan: Plan,
    mixes: Vec<(Mix, Plan)>,
}

impl Settings {
    /// `runs` runs of each of these mixes, whose VMs replace those of `plan`; each vCPU computes `work` million cycles per phase.
    pub fn new(runs: u32, mixes: &[Mix], work: u32, plan: Plan) -> Result<Settings, MixError> {
        let of_mix = |&mix: &Mix| {
            let vms = mix.vms(&plan.pcpus, work)?;
            Ok((mix, Plan { vms, ..plan.clone() }))
        };
        let mixes = mixes.iter().map(of_mix).collect::<Result<_, MixError>>()?;
        Ok(Settings { runs, plan, mixes })
    }

    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        let plans = self.mixes.iter().map(|(_, plan)| plan);
        let runs = plans.clone().map(demo::steps).sum::<u64>() * u64::from(self.runs);
        demo::steps_alone(plans) + runs
    }

    /// Estimated duration.
    pub fn estimate(&self) -> Duration {
        let plans = self.mixes.iter().map(|(_, plan)| plan);
        let alone = self.plan.alone.map_or(Duration::ZERO, |alone_for| {
            let kinds = alone::distinct(plans.clone()) as u32;
            (alone_for + alone::SETTLE + CHANGE) * kinds
        });
        let mode = |plan: &Plan| plan.settle + plan.window + CHANGE;
        let run = |plan: &Plan| CHANGE + mode(plan) * plan.modes.len() as u32;
        alone + plans.map(run).sum::<Duration>() * self.runs
    }

    /// Describes the measurement in one line.
    pub fn announce(&self) -> String {
        format!(
            "{} mixes in {} modes, {} runs: about {} min",
            self.mixes.len(),
            self.plan.modes.len(),
            self.runs,
            self.estimate().as_secs().div_ceil(60)
        )
    }
}

/// Runs all mixes.
/// A run in which a VM fails is omitted, with its reason; a failure of the first run ends the bench.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Flexs, DemoError> {
    let mut alone = AloneResults::default();
    let mut backend = String::new();
    let mut mixes = Vec::with_capacity(settings.mixes.len());
    let mut notes = Vec::new();
    for (mix, plan) in &settings.mixes {
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for run in 1..=settings.runs {
            let plan = Plan { seed: u64::from(run), ..plan.clone() };
            let part = progress.within(&format!("{}, run {run}", mix.name()));
            match demo::run(&plan, &mut alone, &part, interrupt) {
                Ok(experiment) => {
                    backend.clone_from(&experiment.backend);
                    notes.extend(experiment.notes.iter().cloned());
                    runs.push(experiment);
                }
                Err(error) if backend.is_empty() || !is_vm_error(&error) => return Err(error),
                Err(error) => failures.push(tandem_report::explain(&error)),
            }
        }
        mixes.push(figures::summarize(*mix, plan, &runs, failures));
    }
    notes.sort();
    notes.dedup();
    let plan = &settings.plan;
    Ok(Flexs {
        host: host_facts::read(),
        backend,
        counters: "synthetic",
        runs: settings.runs,
        seconds: plan.window.as_secs_f64(),
        settle_seconds: plan.settle.as_secs_f64(),
        alone_seconds: plan.alone.unwrap_or_default().as_secs_f64(),
        promised: figures::promised(&mixes),
        mixes,
        notes,
    })
}

/// Returns the daemon's plan if FlexS can act with it: it needs pinned vCPUs, and excludes other policies that swap vCPUs.
pub fn checked(daemon: DaemonPlan) -> Result<DaemonPlan, RangeError> {
    let wrong = |flag, value: &str, range: &str| RangeError {
        flag,
        value: value.to_owned(),
        range: range.to_owned(),
    };
    if daemon.placement != Placement::Rebalance {
        let range = "rebalance, without which FlexS swaps no vCPUs";
        return Err(wrong("--placement", placement_name(daemon.placement), range));
    }
    let asymmetric = registry::find(asymmetric::ENTRY.name).ok();
    let swaps = |policies: &PolicySet| asymmetric.is_some_and(|policy| policies.contains(policy));
    if daemon.policies.as_ref().is_some_and(swaps) {
        let range = "policies that do not swap vCPUs, which FlexS does";
        return Err(wrong("--policies", asymmetric::ENTRY.name, range));
    }
    Ok(daemon)
}

/// Returns whether the error concerns a VM, so that another experiment may succeed.
pub fn is_vm_error(error: &DemoError) -> bool {
    match error {
        DemoError::Vm(_)
        | DemoError::Reading(_)
        | DemoError::Timeslices(_)
        | DemoError::State(_) => true,
        DemoError::Alone(error) => !matches!(error, AloneError::Interrupted(_)),
        DemoError::StateDir(_) | DemoError::Interrupted(_) | DemoError::Leaving { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flexs::mix::WORK;
    use tandem_demo::{mode, test_plan};

    #[test]
    fn estimate_counts_modes_runs_and_alone() {
        let plan = Plan {
            modes: mode::list(MODES).unwrap(),
            window: Duration::from_secs(20),
            settle: Duration::from_secs(2),
            alone: None,
            ..test_plan::plan("1", "1", "burn", "0-1")
        };
        let settings = Settings::new(2, &[Mix::OneBurner], WORK, plan.clone()).unwrap();
        // Twice half a second to boot and three modes of 22.5 s.
        assert_eq!(settings.estimate(), Duration::from_secs(136));
        assert_eq!(settings.announce(), "1 mixes in 3 modes, 2 runs: about 3 min");
        let with_alone = Plan { alone: Some(Duration::from_secs(5)), ..plan };
        let settings = Settings::new(2, &[Mix::OneBurner], WORK, with_alone).unwrap();
        assert!(settings.estimate() > Duration::from_secs(136 + 2 * 5));
    }
}
