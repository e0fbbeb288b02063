//! FlexS on a live host: VMs that wait for themselves with a spin barrier, beside VMs that compute on one of their pCPUs.
//!
//! ```text
//! mixes ──► demo runs, mode by mode ──► work, shares, verdicts against the truth ──► medians, sums ──► tables, JSON
//! ```
//!
//! Each run of a mix is a demo of its own with fresh VMs ([`crate::demo`]) that goes through the modes: stock (a cgroup of equal weight per VM, as
//! libvirt makes it), the daemon with the policy `fair`, and the daemon with `fair,flexs` on synthetic counters
//! ([`tandem_linux::branch_counters::microvm`]). The counters are made up from what guests count of themselves, and that is also the truth which the
//! daemon's verdicts are held against: a vCPU spun in a period if it did not one step of its work in it. So this measures the whole loop (count,
//! judge, choose of two, swap, gain), and not how well hardware counters tell spinning from work.
//!
//! [`mixes`](Mix) are what is run, [`figures`] the JSON form, [`output`] shows it.

pub mod figures;
pub mod output;

use std::time::Duration;

use tandem_linux::interrupt::Interrupt;
use tandem_policy::PcpuSet;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::alone;
use crate::alone::AloneResults;
use crate::demo;
use crate::demo::DemoError;
use crate::host_facts;
use crate::plan::Pinning;
use crate::plan::Plan;
use crate::plan::PlanError;
use crate::plan::VmPlan;
use crate::plan::place;
use crate::vm_spec::VmSpec;
use figures::Flexs;

/// The modes, in the order in which they are measured unless told otherwise.
pub const MODES: &str = "stock,tandem,flexs";

/// Computation per vCPU and phase of the barrier, in millions of TSC cycles: some tenths of a second, so that waiting lasts for whole periods.
pub const WORK: u32 = 600;

/// Time that booting the VMs of a run and entering and leaving a mode take, for the estimate.
const CHANGE: Duration = Duration::from_millis(500);

/// Why there is nothing to measure.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MixError {
    /// No mix has the name.
    #[error("--mixes {text}: '{part}' is not known; it takes a list of {}", Mix::ALL.map(Mix::name).join(","))]
    Unknown {
        /// What was given.
        text: String,
        /// The part that is not known.
        part: String,
    },
    /// A mix is named twice.
    #[error("--mixes names '{0}' twice; each is measured once")]
    Twice(&'static str),
    /// The host has too few pCPUs.
    #[error("the VMs need two pCPUs, and this process may use pCPUs {0}")]
    Pcpus(PcpuSet),
    /// Its VMs cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// VMs on two pCPUs. Those that spin have two vCPUs, one on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One that spins, and one of one vCPU that computes, on the second pCPU.
    OneBurner,
    /// The same, with two vCPUs that compute there.
    TwoBurners,
    /// Two that spin, and one vCPU that computes.
    TwoSpinners,
    /// One that spins, and a vCPU that computes on each pCPU: both are alike, and a swap gains nothing.
    Even,
}

impl Mix {
    /// All of them.
    pub const ALL: [Mix; 4] = [Mix::OneBurner, Mix::TwoBurners, Mix::TwoSpinners, Mix::Even];

    /// The name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mix::OneBurner => "one-burner",
            Mix::TwoBurners => "two-burners",
            Mix::TwoSpinners => "two-spinners",
            Mix::Even => "even",
        }
    }

    /// What it is, in words.
    pub fn what(self) -> &'static str {
        match self {
            Mix::OneBurner => "spin on pCPUs 0 and 1, burn on 1",
            Mix::TwoBurners => "spin on pCPUs 0 and 1, burn twice on 1",
            Mix::TwoSpinners => "spin and another on pCPUs 0 and 1, burn on 1",
            Mix::Even => "spin on pCPUs 0 and 1, burn on both: nothing to be gained",
        }
    }

    /// Its VMs on the first two of these pCPUs; those that spin come first.
    pub fn vms(self, pcpus: &PcpuSet, work: u32) -> Result<Vec<VmPlan>, MixError> {
        let two: Vec<_> = pcpus.iter().take(2).collect();
        let [first, second] = two.as_slice() else {
            return Err(MixError::Pcpus(pcpus.clone()));
        };
        let both: PcpuSet = [*first, *second].into_iter().collect();
        let one: PcpuSet = [*second].into_iter().collect();
        let spin = |name: &str| VmSpec {
            name: name.to_owned(),
            vcpus: 2,
            weight: 1.0,
            workload: "barrier".to_owned(),
            settings: vec![format!("work={work}M"), "wait=spin".to_owned()],
            pcpus: Some(both.clone()),
        };
        let burn = |vcpus, on: &PcpuSet| VmSpec {
            name: "burn".to_owned(),
            vcpus,
            weight: 1.0,
            workload: "burn".to_owned(),
            settings: Vec::new(),
            pcpus: Some(on.clone()),
        };
        let specs = match self {
            Mix::OneBurner => vec![spin("spin"), burn(1, &one)],
            Mix::TwoBurners => vec![spin("spin"), burn(2, &one)],
            Mix::TwoSpinners => vec![spin("spin"), spin("spin2"), burn(1, &one)],
            Mix::Even => vec![spin("spin"), burn(2, &both)],
        };
        Ok(place(specs, pcpus, Pinning::None)?)
    }
}

/// Reads `--mixes`: names separated by commas, each at most once.
pub fn list(text: &str) -> Result<Vec<Mix>, MixError> {
    let mut mixes = Vec::new();
    for part in text.split(',').map(str::trim) {
        let found = Mix::ALL.into_iter().find(|mix| mix.name() == part);
        let mix = found.ok_or_else(|| MixError::Unknown {
            text: text.to_owned(),
            part: part.to_owned(),
        })?;
        if mixes.contains(&mix) {
            return Err(MixError::Twice(mix.name()));
        }
        mixes.push(mix);
    }
    Ok(mixes)
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    runs: u32,
    /// What is the same for all mixes.
    plan: Plan,
    mixes: Vec<(Mix, Plan)>,
}

impl Settings {
    /// So many runs of each of these mixes, whose VMs take the place of those of `plan`; `work` million cycles for each vCPU and phase.
    pub fn new(runs: u32, mixes: &[Mix], work: u32, plan: Plan) -> Result<Settings, MixError> {
        let of_mix = |&mix: &Mix| {
            let vms = mix.vms(&plan.pcpus, work)?;
            Ok((
                mix,
                Plan {
                    vms,
                    ..plan.clone()
                },
            ))
        };
        let mixes = mixes.iter().map(of_mix).collect::<Result<_, MixError>>()?;
        Ok(Settings { runs, plan, mixes })
    }

    /// How many steps of progress there are.
    pub fn steps(&self) -> u64 {
        let plans = self.mixes.iter().map(|(_, plan)| plan);
        let runs = plans.clone().map(demo::steps).sum::<u64>() * u64::from(self.runs);
        demo::steps_alone(plans) + runs
    }

    /// About how long it takes.
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

    /// What is to come, in words.
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

/// Runs all mixes. A run in which a VM fails is left out, with its reason; if the very first fails, so would the others, and the bench ends.
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
            let plan = Plan {
                seed: u64::from(run),
                ..plan.clone()
            };
            let part = progress.within(&format!("{}, run {run}", mix.name()));
            match demo::run(&plan, &mut alone, &part, interrupt) {
                Ok(experiment) => {
                    backend.clone_from(&experiment.backend);
                    notes.extend(experiment.notes.iter().cloned());
                    runs.push(experiment);
                }
                Err(error) if backend.is_empty() || !error.is_of_a_vm() => return Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode;
    use crate::test_plan;

    #[test]
    fn mixes_pin_the_vms_that_spin_to_both_and_burners_to_the_second() {
        let pcpus: PcpuSet = "2-5".parse().unwrap();
        let pins = |mix: Mix| -> Vec<Vec<u32>> {
            let vms = mix.vms(&pcpus, WORK).unwrap();
            let pins = vms.iter().map(|vm| vm.pins.iter().map(|p| p.0).collect());
            pins.collect()
        };
        assert_eq!(pins(Mix::OneBurner), [vec![2, 3], vec![3]]);
        assert_eq!(pins(Mix::TwoBurners), [vec![2, 3], vec![3, 3]]);
        assert_eq!(pins(Mix::TwoSpinners), [vec![2, 3], vec![2, 3], vec![3]]);
        assert_eq!(pins(Mix::Even), [vec![2, 3], vec![2, 3]]);
        let vms = Mix::OneBurner.vms(&pcpus, 7000).unwrap();
        assert_eq!(vms[0].settings, ["work=7000M", "wait=spin"]);
        let error = Mix::Even.vms(&"1".parse().unwrap(), WORK).unwrap_err();
        assert!(error.to_string().contains("need two pCPUs"), "{error}");
    }

    #[test]
    fn names_of_mixes_are_read_and_bad_ones_refused() {
        assert_eq!(
            list("even, one-burner"),
            Ok(vec![Mix::Even, Mix::OneBurner])
        );
        let error = list("even,odd").unwrap_err().to_string();
        assert!(
            error.contains("'odd' is not known; it takes a list of one-burner,two-burners"),
            "{error}"
        );
        assert_eq!(list("even,even"), Err(MixError::Twice("even")));
    }

    #[test]
    fn the_estimate_counts_modes_runs_and_vms_alone() {
        let plan = Plan {
            modes: mode::list(MODES).unwrap(),
            window: Duration::from_secs(20),
            settle: Duration::from_secs(2),
            alone: None,
            ..test_plan::plan("1", "1", "burn", "0-1")
        };
        let settings = Settings::new(2, &[Mix::OneBurner], WORK, plan.clone()).unwrap();
        // Half a second to boot, and three modes of 22.5 s, twice.
        assert_eq!(settings.estimate(), Duration::from_secs(136));
        assert_eq!(
            settings.announce(),
            "1 mixes in 3 modes, 2 runs: about 3 min"
        );
        let with_alone = Plan {
            alone: Some(Duration::from_secs(5)),
            ..plan
        };
        let settings = Settings::new(2, &[Mix::OneBurner], WORK, with_alone).unwrap();
        assert!(settings.estimate() > Duration::from_secs(136 + 2 * 5));
    }
}
