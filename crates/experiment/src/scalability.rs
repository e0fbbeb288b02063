//! How far the programs of a scenario scale, on hardware and in their VMs.
//!
//! Each VM's program also runs alone, without a hypervisor, on as many CPUs as the VM has vCPUs, and on one.
//! From the first come utilization, workload parallelism, synchronization frequency and hence the type, and
//! the potential of the VM; from the scenario itself, the VM's speedup. Formulas and types are those of
//! Shan's dissertation (NJIT 2018), chapter 4, in `tandem_policy::scalability`; `usage` says what of the
//! simulator's times they are given.
//!
//! A speedup in a VM is relative to the CPU time that the VM was allocated: N if all of it was used. What was
//! really done, the work per second against one CPU's, is put beside both formulas: in the VM it is scaled up
//! from the CPU time allocated to N CPUs. The two differ by what the formulas leave out: cold caches, page
//! tables, the guest's kernel, and a program that does other work on many CPUs than on one.
//!
//! The allocation period is swept by `tandem-sim compare --vary host.cfs.latency=…`, or here by `--set`.

pub mod usage;

use serde::Serialize;
use tandem_model::Nanos;
use tandem_policy::scalability::{Fraction, ScalabilityError, Speedup, Type, potential_efficiency};
use tandem_sim::host::HostScheduler;
use tandem_sim::scenario::{Mode, Vm, load};
use tandem_sim::sched::fair::Discipline;
use tandem_sim::{Scenario, World};
use thiserror::Error;

use self::usage::Usage;
use crate::execute;
use crate::execute::ExecuteError;
use crate::progress::Progress;

/// Why there is no analysis.
#[derive(Debug, Error)]
pub enum AnalysisError {
    /// A VM's program cannot run without the VM.
    #[error("the program of `{0}` does not run on hardware")]
    NotOnHardware(String),
    /// What was measured makes no sense to the formulas.
    #[error(transparent)]
    Formula(#[from] ScalabilityError),
    /// The runs did not end.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// A program on hardware.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// On as many CPUs as its VM has.
    native: Usage,
    /// On one, if it can run there and does any work.
    one: Option<Usage>,
}

/// The analysis of a scenario.
#[derive(Debug, Serialize)]
pub struct Analysis {
    /// The scenario's name.
    pub scenario: String,
    /// Its seed.
    pub seed: u64,
    /// Who blocks once in this time synchronizes often, ns.
    pub timeslice: Nanos,
    /// Each VM.
    pub vms: Vec<VmAnalysis>,
}

/// The analysis of one VM.
#[derive(Debug, Serialize)]
pub struct VmAnalysis {
    /// The VM's name.
    pub name: String,
    /// Its program.
    pub workload: String,
    /// CPUs, N.
    pub n: u32,
    /// Active CPUs on average, on hardware.
    pub parallelism: f64,
    /// Voluntary switches of a thread per second, on hardware.
    pub synchronization: f64,
    /// 1 … 4.
    #[serde(rename = "type")]
    pub number: u8,
    /// The same by name.
    pub class: Type,
    /// On hardware.
    pub hardware: Scaling,
    /// Absent where the scenario itself has no hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmScaling>,
}

/// Used and lost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scaling {
    /// Part of the CPU time available that was used.
    pub efficiency: Fraction,
    /// N times that.
    pub speedup: Speedup,
    /// Work done, against one CPU; absent if the program cannot run on one, or did nothing there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Speedup>,
}

/// In the VM.
#[derive(Debug, Serialize)]
pub struct VmScaling {
    /// The fair share, in pCPUs.
    pub share: f64,
    /// What it received, in pCPUs.
    pub received: f64,
    /// Used and lost, of what it was allocated.
    #[serde(flatten)]
    pub scaling: Scaling,
    /// What the efficiency could be: min(1, utilization on hardware ÷ share).
    pub potential_efficiency: Fraction,
}

/// A time above 0, as an argument says it.
pub fn timeslice_of(text: &str) -> Result<Nanos, String> {
    match load::time(text)? {
        Nanos::ZERO => Err("above 0, such as 6ms".to_owned()),
        time => Ok(time),
    }
}

/// What a vCPU gets in a row on the host where all vCPUs are runnable.
pub fn timeslice(scenario: &Scenario) -> Nanos {
    let vcpus: u64 = scenario.vms.iter().map(|vm| u64::from(vm.vcpus)).sum();
    let queued = vcpus.div_ceil(u64::from(scenario.machine.pcpus)).max(1);
    match scenario.host.scheduler {
        HostScheduler::Linux(Discipline::Cfs { latency, min_granularity, .. }) => {
            Nanos(latency.0 / queued).max(min_granularity)
        }
        HostScheduler::Linux(Discipline::Eevdf { base_slice, .. }) => base_slice,
        HostScheduler::Credit(credit) => credit.timeslice,
    }
}

/// Runs what is needed and analyzes it. Who blocks once in `timeslice` synchronizes often.
pub fn analyze(
    scenario: &Scenario,
    timeslice: Nanos,
    progress: &dyn Progress,
) -> Result<Analysis, AnalysisError> {
    let runs = 1 + 2 * scenario.vms.len() as u64;
    progress.begin(Nanos(scenario.duration.0.saturating_mul(runs)));
    let usages = |scenario: &Scenario| -> Result<Vec<Usage>, ExecuteError> {
        progress.say(&scenario.name);
        let mut world = World::new(scenario);
        let results = execute::run(&mut world, scenario.duration, progress)?;
        let vms = results.vms.iter();
        Ok(vms.map(|vm| Usage::of(vm, results.measured)).collect())
    };
    let inside = usages(scenario)?;
    let mut vms = Vec::new();
    // VMs that are alike need one run alone.
    let mut known: Vec<(&Vm, Alone)> = Vec::new();
    for (at, (vm, inside)) in scenario.vms.iter().zip(inside).enumerate() {
        let alike = |other: &&Vm| {
            other.vcpus == vm.vcpus && other.guest == vm.guest && other.workload == vm.workload
        };
        let alone = match known.iter().find(|(other, _)| alike(other)) {
            Some(&(_, alone)) => alone,
            None => {
                let run = |cpus: u32| -> Result<Option<Usage>, ExecuteError> {
                    match usage::on_hardware(scenario, at, cpus) {
                        Some(scenario) => Ok(usages(&scenario)?.first().copied()),
                        None => Ok(None),
                    }
                };
                let native = match scenario.machine.mode {
                    Mode::Native => inside,
                    Mode::Virtual => run(vm.vcpus)?
                        .ok_or_else(|| AnalysisError::NotOnHardware(vm.name.clone()))?,
                };
                let one = run(1)?.filter(|one| one.work > 0.0);
                known.push((vm, Alone { native, one }));
                Alone { native, one }
            }
        };
        let Alone { native, one } = alone;
        let fair = usage::fair(scenario, inside.measured)[at];
        let features = native.features(timeslice);
        vms.push(VmAnalysis {
            name: vm.name.clone(),
            workload: vm.workload.name.clone(),
            n: vm.vcpus,
            parallelism: features.active,
            synchronization: features.voluntary_switches_per_second,
            number: features.class().number(),
            class: features.class(),
            hardware: hardware(&native, one.as_ref())?,
            vm: match scenario.machine.mode {
                Mode::Native => None,
                Mode::Virtual => Some(in_vm(&inside, fair, &native, one.as_ref())?),
            },
        });
    }
    Ok(Analysis { scenario: scenario.name.clone(), seed: scenario.seed, timeslice, vms })
}

fn hardware(native: &Usage, one: Option<&Usage>) -> Result<Scaling, ScalabilityError> {
    let run = native.physical();
    Ok(Scaling {
        efficiency: run.efficiency()?,
        speedup: run.speedup()?,
        measured: one.map(|one| Speedup(native.work_rate() / one.work_rate())),
    })
}

fn in_vm(
    inside: &Usage,
    fair: Nanos,
    native: &Usage,
    one: Option<&Usage>,
) -> Result<VmScaling, ScalabilityError> {
    let run = inside.virtual_run(fair);
    let in_pcpus = |time: Nanos| time.as_secs_f64() / inside.measured.as_secs_f64();
    let utilization = native.physical().efficiency()?;
    let share = Fraction::new(in_pcpus(fair) / f64::from(inside.cpus))?;
    let up = f64::from(inside.cpus) / in_pcpus(run.allocated);
    Ok(VmScaling {
        share: in_pcpus(fair),
        received: in_pcpus(inside.received),
        scaling: Scaling {
            efficiency: run.efficiency()?,
            speedup: run.speedup()?,
            measured: one.map(|one| Speedup(inside.work_rate() / one.work_rate() * up)),
        },
        potential_efficiency: potential_efficiency(utilization, share)?,
    })
}
