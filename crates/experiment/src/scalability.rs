//! Scalability of the programs of a scenario, on hardware and in their VMs.
//!
//! Each VM's program also runs alone without a hypervisor, on one CPU and on as many CPUs as the VM has vCPUs.
//! The run on many CPUs yields utilization, workload parallelism, synchronization frequency, the type, and the VM's potential.
//! The scenario itself yields the VM's speedup.
//! Formulas and types are those of Shan's dissertation (NJIT 2018), chapter 4, in `tandem_policy::scalability`.
//! `usage` derives their inputs from the simulator's times.
//!
//! A speedup in a VM is relative to the CPU time allocated to the VM: it is N if the VM used all of it.
//! The measured speedup, work per second relative to one CPU, complements the formulas.
//! For a VM it is scaled up from the allocated CPU time to N CPUs.
//! Formula and measurement differ by effects that the formulas omit: cold caches, page tables, the guest's kernel,
//! and programs that do different work on many CPUs.
//!
//! `tandem-sim compare --vary host.cfs.latency=…` sweeps the allocation period; here `--set` changes it.

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

/// Error of an analysis.
#[derive(Debug, Error)]
pub enum AnalysisError {
    /// A VM's program cannot run without the VM.
    #[error("the program of `{0}` does not run on hardware")]
    NotOnHardware(String),
    /// The measured times are invalid inputs of the formulas.
    #[error(transparent)]
    Formula(#[from] ScalabilityError),
    /// The runs did not end.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// A program on hardware.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// On as many CPUs as its VM has vCPUs.
    native: Usage,
    /// On one CPU, if it can run there and does any work.
    one: Option<Usage>,
}

/// The analysis of a scenario.
#[derive(Debug, Serialize)]
pub struct Analysis {
    /// The scenario's name.
    pub scenario: String,
    /// The scenario's seed.
    pub seed: u64,
    /// A thread that blocks at least once in this time counts as synchronizing often, ns.
    pub timeslice: Nanos,
    /// Analysis of each VM.
    pub vms: Vec<VmAnalysis>,
}

/// The analysis of one VM.
#[derive(Debug, Serialize)]
pub struct VmAnalysis {
    /// The VM's name.
    pub name: String,
    /// The VM's program.
    pub workload: String,
    /// Number of CPUs, N.
    pub n: u32,
    /// Mean number of active CPUs, on hardware.
    pub parallelism: f64,
    /// Voluntary switches of a thread per second, on hardware.
    pub synchronization: f64,
    /// Number of the type, 1 … 4.
    #[serde(rename = "type")]
    pub number: u8,
    /// Name of the type.
    pub class: Type,
    /// Scaling on hardware.
    pub hardware: Scaling,
    /// Scaling in the VM; absent if the scenario has no hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmScaling>,
}

/// Efficiency and speedup.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scaling {
    /// Fraction of the available CPU time that was used.
    pub efficiency: Fraction,
    /// N times the efficiency.
    pub speedup: Speedup,
    /// Work rate relative to one CPU; absent if the program cannot run on one CPU, or did no work there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Speedup>,
}

/// Scaling in the VM.
#[derive(Debug, Serialize)]
pub struct VmScaling {
    /// The fair share, in pCPUs.
    pub share: f64,
    /// Received CPU time, in pCPUs.
    pub received: f64,
    /// Efficiency and speedup, relative to the allocated CPU time.
    #[serde(flatten)]
    pub scaling: Scaling,
    /// Potential efficiency: min(1, utilization on hardware ÷ share).
    pub potential_efficiency: Fraction,
}

/// Parses a time above 0 from an argument.
pub fn timeslice_of(text: &str) -> Result<Nanos, String> {
    match load::time(text)? {
        Nanos::ZERO => Err("above 0, such as 6ms".to_owned()),
        time => Ok(time),
    }
}

/// Returns the host's time slice of a vCPU when all vCPUs are runnable.
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

/// Runs the scenario and its programs on hardware, and analyzes them; `timeslice` is as in [`Analysis`].
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
    // Identical VMs share one run on hardware.
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
