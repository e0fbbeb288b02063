//! The setups on this machine: real vCPUs, a cgroup for each VM, two pCPUs.
//!
//! All VMs run in this process.
//! The process is bound to the two pCPUs before it starts a VM, so unpinned vCPUs stay there as well.
//! Each VM's vCPU threads are in a cgroup with the VM's weight, as on most hosts and in the simulator.
//! The journaled actuator creates the cgroups, and removes them at the end, even after a failure.
//! All weights are the same large multiple of the host's default, so that background load gets little time.

use std::io;
use std::num::TryFromIntError;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::affinity::{AffinityError, affinity};
use tandem_linux::cgroup::CgroupError;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::thread::{Pid, ThreadError, ThreadRef, ThreadStat, Tid};
use tandem_linux::{ProcFs, cgroup};
use tandem_microvm::{
    Calibration, ConfigError, Microvm, MicrovmConfig, ParameterError, Snapshot, StartError,
};
use tandem_model::{PcpuSet, VcpuId, VmId, Weight};
use tandem_observe::{Interval, ObserveError, Source, WatchedVcpu, WatchedVm};
use thiserror::Error;

use super::setup;
use super::setup::{Count, Guest, PCPUS, Places, Quantity, Setup};
use crate::rest::Waits;

/// Error in preparing this machine or running a setup.
#[derive(Debug, Error)]
pub enum MachineError {
    /// The affinity of this process cannot be read.
    #[error("cannot read which pCPUs this process may use: {0}")]
    Affinity(#[source] AffinityError),
    /// This process may use too few pCPUs.
    #[error("calibration needs {PCPUS} pCPUs; this process may use pCPUs {0}")]
    Pcpus(PcpuSet),
    /// This process cannot be bound to two pCPUs.
    #[error("cannot bind this process to pCPUs {pcpus:?}: {source}")]
    Bind {
        /// The pCPUs.
        pcpus: Vec<u32>,
        /// The kernel's error.
        source: io::Error,
    },
    /// Cgroups are not usable.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Cgroups cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// A signal interrupted the measurement.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A setup failed.
    #[error("{setup}: {source}")]
    Setup {
        /// The setup.
        setup: String,
        /// The cause.
        source: Box<SetupError>,
    },
    /// A change could not be reverted.
    #[error("could not revert {what}: {error}")]
    Revert {
        /// The change.
        what: String,
        /// The cause.
        error: String,
    },
}

/// Error of a setup.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A guest's configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A guest's settings do not match its workload.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A guest did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A vCPU has no valid thread ID.
    #[error("a vCPU without a thread: {0}")]
    NoThread(#[from] TryFromIntError),
    /// A vCPU's thread was not found.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The cgroup was not found.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The cgroup cannot be created, weighted or filled.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// The wait time of a vCPU cannot be read.
    #[error("cannot read how long a vCPU waited: {0}")]
    Account(#[source] io::Error),
    /// A vCPU is not on the pCPUs that this process was bound to.
    #[error("a vCPU is on pCPU {}, not on one of {pcpus:?}: another process has moved it", pcpu.map_or("?".to_owned(), |pcpu| pcpu.to_string()))]
    Moved {
        /// The current pCPU.
        pcpu: Option<u32>,
        /// The permitted pCPUs.
        pcpus: Vec<u32>,
    },
    /// The vCPUs cannot be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A signal interrupted the measurement.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A VM failed.
    #[error("the VM stopped: {0}")]
    Stopped(String),
    /// The clock did not advance between two snapshots.
    #[error("the clock stands still")]
    Clock,
    /// A VM detected broken invariants.
    #[error("VM {vm} saw {violations} broken invariants: a bug of Tandem or of this host")]
    Broken {
        /// The VM, from 0.
        vm: usize,
        /// Number of violations.
        violations: u64,
    },
}

/// Start-up time that is not counted: first entries, page faults and placement of vCPUs.
const SETTLE: Duration = Duration::from_millis(100);

/// Work rate of each vCPU of each VM of a setup, items per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates(Vec<Vec<f64>>);

impl Rates {
    /// Returns a quantity of the setup, items per second.
    pub fn of(&self, quantity: &Quantity) -> f64 {
        let vcpus = self.0.get(quantity.guest).map_or(&[][..], Vec::as_slice);
        let counted = match quantity.count {
            Count::All => vcpus,
            Count::First => vcpus.get(..1).unwrap_or_default(),
            Count::Others => vcpus.get(1..).unwrap_or_default(),
        };
        counted.iter().sum()
    }
}

/// Result of a real run of a setup.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Work rates of the vCPUs.
    pub rates: Rates,
    /// Placement of the vCPUs at the start of the measurement.
    pub began: Places,
    /// Waits of the vCPUs for their pCPUs.
    pub waits: Waits,
}

/// This machine, prepared.
pub struct Machine {
    actuator: Actuator,
    interrupt: Interrupt,
    /// The pCPUs in use.
    pcpus: Vec<u32>,
    /// Calibration that determines the sizes of all VMs' work.
    pub calibration: Calibration,
}

impl Machine {
    /// Binds this thread and its future children to two pCPUs, and measures their speed.
    pub fn prepare(state_dir: &Path, interrupt: Interrupt) -> Result<Machine, MachineError> {
        // The kernel takes thread ID 0 for the calling thread.
        let usable = affinity(Tid(0)).map_err(MachineError::Affinity)?;
        let pcpus: Vec<u32> = usable.iter().take(PCPUS as usize).map(|p| p.0).collect();
        if pcpus.len() != PCPUS as usize {
            return Err(MachineError::Pcpus(usable));
        }
        let mut set = CpuSet::new();
        pcpus.iter().for_each(|&pcpu| set.set(pcpu as usize));
        if let Err(error) = sched_setaffinity(None, &set) {
            let source = error.into();
            return Err(MachineError::Bind { pcpus, source });
        }
        let (actuator, _) = Actuator::open(cgroup::open(&ProcFs::host())?, state_dir)?;
        Ok(Machine { actuator, interrupt, pcpus, calibration: Calibration::measure() })
    }

    /// Runs a setup for a time.
    pub fn run(&mut self, setup: &Setup, time: Duration) -> Result<Ran, MachineError> {
        self.within(setup, |machine, vms| {
            let began = machine.places(vms)?;
            let waited = waits(vms)?;
            let before: Vec<Snapshot> = vms.iter().map(Microvm::snapshot).collect();
            machine.interrupt.sleep(time)?;
            let after: Vec<Snapshot> = vms.iter().map(Microvm::snapshot).collect();
            let after_waiting = waits(vms)?;
            let rates = before.iter().zip(&after).map(|(a, b)| rates(a, b));
            let wall = |(a, b): (&Snapshot, &Snapshot)| {
                b.t_ns.saturating_sub(a.t_ns) * b.vcpus.len() as u64
            };
            Ok(Ran {
                rates: Rates(rates.collect::<Result<_, _>>()?),
                began,
                waits: after_waiting.since(waited, before.iter().zip(&after).map(wall).sum()),
            })
        })
    }

    /// Returns the host's largest cgroup weight relative to its default weight.
    pub fn weight_range(&self) -> f64 {
        let controller = self.actuator.controller();
        controller.weight_range().1.value() / controller.default_weight().value()
    }

    /// Returns the current or last pCPU of each vCPU.
    fn places(&self, vms: &[Microvm]) -> Result<Places, SetupError> {
        let place = |tid: i32| {
            let folder = format!("/proc/self/task/{tid}");
            let pcpu = ThreadStat::read(Path::new(&folder))?.pcpu;
            let place = self.pcpus.iter().position(|&known| Some(known) == pcpu);
            place
                .map(|place| place as u32)
                .ok_or_else(|| SetupError::Moved { pcpu, pcpus: self.pcpus.clone() })
        };
        let of_vm = |vm: &Microvm| vm.tids().into_iter().map(place).collect();
        vms.iter().map(of_vm).collect()
    }

    /// Runs a setup and observes it for a time; returns the initial placement and the interval, with VMs numbered from 0.
    pub fn observe(
        &mut self,
        setup: &Setup,
        time: Duration,
        source: &mut dyn Source,
    ) -> Result<(Places, Interval), MachineError> {
        self.within(setup, |machine, vms| {
            let watched = watched(vms)?;
            let began = machine.places(vms)?;
            source.begin(&watched)?;
            machine.interrupt.sleep(time)?;
            Ok((began, source.interval(&watched)?))
        })
    }

    /// Starts a setup's VMs, calls `look` once they are placed, and stops them.
    fn within<T>(
        &mut self,
        setup: &Setup,
        look: impl FnOnce(&mut Machine, &[Microvm]) -> Result<T, SetupError>,
    ) -> Result<T, MachineError> {
        self.interrupt.check()?;
        self.with_vms(setup, look).map_err(|error| MachineError::Setup {
            setup: setup.to_string(),
            source: Box::new(error),
        })
    }

    fn with_vms<T>(
        &mut self,
        setup: &Setup,
        look: impl FnOnce(&mut Machine, &[Microvm]) -> Result<T, SetupError>,
    ) -> Result<T, SetupError> {
        let heaviest = setup.guests.iter().map(|guest| guest.weight);
        let heaviest = heaviest.max().unwrap_or(1).max(setup::HEAVIEST);
        let mut vms = Vec::new();
        for (i, guest) in setup.guests.iter().enumerate() {
            let vm = Microvm::start(self.config(setup, i, guest)?)?;
            self.enclose(i, guest, heaviest, &vm)?;
            vms.push(vm);
        }
        self.interrupt.sleep(SETTLE)?;
        let seen = look(self, &vms)?;
        for (i, vm) in vms.into_iter().enumerate() {
            let violations = vm.stop().sum(|vcpu| vcpu.violations);
            if violations > 0 {
                return Err(SetupError::Broken { vm: i, violations });
            }
        }
        Ok(seen)
    }

    fn config(&self, setup: &Setup, i: usize, guest: &Guest) -> Result<MicrovmConfig, SetupError> {
        let mut config = MicrovmConfig::new(format!("cal{i}").parse()?, guest.workload);
        config.vcpus = guest.vcpus;
        config.parameters = guest.parameters()?;
        config.seed = i as u64 + 1;
        config.calibration = Some(self.calibration);
        let pins = (0..guest.vcpus).map_while(|vcpu| setup.pinning.pcpu(vcpu));
        config.pins = pins.filter_map(|pcpu| self.pcpus.get(pcpu as usize).copied()).collect();
        Ok(config)
    }

    /// Moves a VM's vCPUs into a cgroup of its weight; `heaviest` is the largest relative weight of the setup.
    fn enclose(
        &mut self,
        i: usize,
        guest: &Guest,
        heaviest: u32,
        vm: &Microvm,
    ) -> Result<(), SetupError> {
        let pid = Pid(std::process::id());
        let procfs = ProcFs::host();
        // The cgroup of the main thread, because vCPU threads may have been moved.
        let own = ThreadRef::read(&procfs, pid, Tid(pid.0))?;
        let times = setup::times(self.weight_range(), heaviest);
        let controller = self.actuator.controller();
        let parent = controller.cgroup_of(&own)?;
        let usual = controller.default_weight().value();
        let weight = Weight::saturating(usual * times * f64::from(guest.weight));
        let name = format!("tandem-calibrate-{i}-{pid}");
        let group = self.actuator.create_group(&parent, &name)?;
        self.actuator.set_weight(&group, weight)?;
        for tid in vm.tids() {
            let tid = Tid(u32::try_from(tid)?);
            let thread = ThreadRef::read(&procfs, pid, tid)?;
            self.actuator.move_thread(&thread, &group)?;
        }
        Ok(())
    }

    /// Removes the cgroups.
    pub fn leave(mut self) -> Result<(), MachineError> {
        let report = self.actuator.restore();
        match report.failures.first() {
            None => Ok(()),
            Some(failure) => Err(MachineError::Revert {
                what: failure.what.clone(),
                error: failure.error.clone(),
            }),
        }
    }
}

/// Returns the waits of the vCPUs for their pCPUs so far.
fn waits(vms: &[Microvm]) -> Result<Waits, SetupError> {
    let mut sum = Waits::default();
    for tid in vms.iter().flat_map(Microvm::tids) {
        let folder = format!("/proc/self/task/{tid}");
        sum = sum.and(Waits::of_task(&folder).map_err(SetupError::Account)?);
    }
    Ok(sum)
}

/// Returns VMs of this process in the form of an observation source, numbered from 0.
fn watched(vms: &[Microvm]) -> Result<Vec<WatchedVm>, SetupError> {
    let (pid, procfs) = (Pid(std::process::id()), ProcFs::host());
    let process = ThreadRef::of_process(&procfs, pid)?;
    let watched = (0u64..).zip(vms).map(|(number, vm)| {
        let vcpus = (0u32..).zip(vm.tids()).map(|(index, tid)| {
            let tid = Tid(u32::try_from(tid)?);
            Ok(WatchedVcpu { vcpu: VcpuId(index), thread: ThreadRef::read(&procfs, pid, tid)? })
        });
        Ok(WatchedVm {
            vm: VmId(number),
            process,
            vcpus: vcpus.collect::<Result<_, SetupError>>()?,
        })
    });
    watched.collect()
}

/// Returns the work rate of each vCPU, items per second.
fn rates(before: &Snapshot, after: &Snapshot) -> Result<Vec<f64>, SetupError> {
    if let Some(failure) = &after.failure {
        return Err(SetupError::Stopped(failure.clone()));
    }
    let seconds = after.t_ns.saturating_sub(before.t_ns) as f64 / 1e9;
    if seconds <= 0.0 {
        return Err(SetupError::Clock);
    }
    let vcpus = before.vcpus.iter().zip(&after.vcpus);
    Ok(vcpus.map(|(a, b)| b.work.saturating_sub(a.work) as f64 / seconds).collect())
}

/// Fixtures for tests with real VMs.
#[cfg(test)]
pub mod testing {
    use tempfile::TempDir;

    use super::*;

    /// Prepares this machine and returns it with the folder of its journal.
    ///
    /// Prints the reason and returns `None` if KVM is not available or the preparation fails.
    pub fn machine() -> Option<(Machine, TempDir)> {
        if let Err(error) = tandem_microvm::kvm::available() {
            eprintln!("skipped: {error}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        match Machine::prepare(dir.path(), Interrupt::watch().unwrap()) {
            Ok(machine) => Some((machine, dir)),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// Unwraps a result; for a user without root, prints the error and returns `None` to skip the test.
    pub fn unless_not_root<T>(ran: Result<T, MachineError>) -> Option<T> {
        match ran {
            Ok(ran) => Some(ran),
            Err(error) if rustix::process::getuid().as_raw() != 0 => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::setup::{Pinning, first_of, reference};
    use super::*;

    #[test]
    fn quantity_counts_selected_vcpus() {
        let rates = Rates(vec![vec![1.0, 20.0, 300.0], vec![4000.0]]);
        let of = |guest, count| {
            let quantity = Quantity { guest, ..first_of(Vec::new(), Pinning::Free, count) };
            rates.of(&quantity)
        };
        assert_eq!(of(0, Count::All), 321.0);
        assert_eq!(of(0, Count::First), 1.0);
        assert_eq!(of(0, Count::Others), 320.0);
        assert_eq!(of(1, Count::All), 4000.0);
        assert_eq!((of(1, Count::Others), of(2, Count::All)), (0.0, 0.0));
    }

    #[test]
    fn real_vcpus_work_and_remove_cgroups() {
        let Some((mut machine, _dir)) = testing::machine() else {
            return;
        };
        let quantity = reference();
        let ran = machine.run(&quantity.setup, Duration::from_millis(100));
        let Some(ran) = testing::unless_not_root(ran) else {
            return;
        };
        assert!(ran.rates.of(&quantity) > 0.0);
        assert_eq!(ran.began, [[0, 1]], "pinned");
        assert!(ran.waits.wall_ns >= 200_000_000, "{:?}", ran.waits);
        machine.leave().unwrap();
        let own = format!("tandem-calibrate-0-{}", std::process::id());
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"] {
            assert!(!Path::new(root).join(&own).exists());
        }
    }
}
