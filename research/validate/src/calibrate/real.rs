//! The setups on this machine: real vCPUs, a cgroup for each VM, two pCPUs.
//!
//! All VMs run in this process, whose threads are bound to the two pCPUs before any is started, so that
//! vCPUs that are not pinned stay there as well. Each VM's vCPU threads are in a cgroup of its own with
//! its weight, as on most hosts, and as the simulator has it; the journaled actuator of the host crate
//! makes the cgroups, and takes them away when this ends, however it ends. All weights are the same large
//! multiple of the host's usual one, so that what else runs there gets little of the pCPUs.

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

/// Why this machine cannot be prepared, or a setup not run on it.
#[derive(Debug, Error)]
pub enum MachineError {
    /// The pCPUs that are open to this process cannot be found out.
    #[error("cannot tell which pCPUs this process may use: {0}")]
    Affinity(#[source] AffinityError),
    /// They are too few.
    #[error("calibration needs {PCPUS} pCPUs; this process may use pCPUs {0}")]
    Pcpus(PcpuSet),
    /// This process cannot be bound to two of them.
    #[error("cannot bind this process to pCPUs {pcpus:?}: {source}")]
    Bind {
        /// Which.
        pcpus: Vec<u32>,
        /// What the kernel said.
        source: io::Error,
    },
    /// Cgroups cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// They cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Somebody asked us to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A setup could not be run.
    #[error("{setup}: {source}")]
    Setup {
        /// Which.
        setup: String,
        /// Why.
        source: Box<SetupError>,
    },
    /// Something that was changed is still so.
    #[error("could not put back {what}: {error}")]
    PutBack {
        /// What.
        what: String,
        /// Why.
        error: String,
    },
}

/// Why a setup could not be run.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A guest cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its settings are not its workload's.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A vCPU has no number of a thread.
    #[error("a vCPU without a thread: {0}")]
    NoThread(#[from] TryFromIntError),
    /// A vCPU's thread is not to be found.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// Its cgroup cannot be found.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Its cgroup cannot be made, weighed or filled.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// How long a vCPU waited cannot be read.
    #[error("cannot tell how long a vCPU waited: {0}")]
    Account(#[source] io::Error),
    /// A vCPU is not on the pCPUs that this process was bound to.
    #[error("a vCPU is on pCPU {}, which is none of {pcpus:?}: something has moved it", pcpu.map_or("?".to_owned(), |pcpu| pcpu.to_string()))]
    Moved {
        /// Where it is.
        pcpu: Option<u32>,
        /// Where it should be.
        pcpus: Vec<u32>,
    },
    /// Its vCPUs cannot be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// Somebody asked us to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A VM stopped by itself.
    #[error("the VM stopped: {0}")]
    Stopped(String),
    /// No time went by between two looks at the clock.
    #[error("the clock stands still")]
    Clock,
    /// A VM saw what may not happen.
    #[error("VM {vm} saw {violations} broken invariants: a bug of Tandem or of this host")]
    Broken {
        /// Which, from 0.
        vm: usize,
        /// How many.
        violations: u64,
    },
}

/// Not counted at the beginning: first entries, page faults, and vCPUs that are placed.
const SETTLE: Duration = Duration::from_millis(100);

/// What each vCPU of each VM of a setup got done per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates(Vec<Vec<f64>>);

impl Rates {
    /// A quantity of the setup, items per second.
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

/// What a setup did here.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// What its VMs got done.
    pub rates: Rates,
    /// Where their vCPUs were when counting began.
    pub began: Places,
    /// What its vCPUs waited for their pCPUs.
    pub waits: Waits,
}

/// This machine, prepared.
pub struct Machine {
    actuator: Actuator,
    interrupt: Interrupt,
    /// The pCPUs in use.
    pcpus: Vec<u32>,
    /// What the sizes of all VMs' work follow.
    pub calibration: Calibration,
}

impl Machine {
    /// Binds this thread, and so those it starts, to two pCPUs; and measures how fast they are.
    pub fn prepare(state_dir: &Path, interrupt: Interrupt) -> Result<Machine, MachineError> {
        // To the kernel, thread 0 is whoever asks.
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

    /// Runs a setup for some time.
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

    /// How many times as large as the host's usual weight its largest one is.
    pub fn weight_range(&self) -> f64 {
        let controller = self.actuator.controller();
        controller.weight_range().1.value() / controller.default_weight().value()
    }

    /// The pCPU on which each vCPU is, or was last.
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

    /// Runs a setup and observes it for some time; where its vCPUs were when that began, too. Its VMs are numbered from 0.
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

    /// Starts a setup's VMs, lets somebody look at them once they are placed, and stops them.
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

    /// Moves a VM's vCPUs into a cgroup of its weight, beside VMs of which none is heavier than `heaviest`.
    fn enclose(
        &mut self,
        i: usize,
        guest: &Guest,
        heaviest: u32,
        vm: &Microvm,
    ) -> Result<(), SetupError> {
        let pid = Pid(std::process::id());
        let procfs = ProcFs::host();
        // The group of this process itself, not of a vCPU: those will have moved.
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

    /// Takes the cgroups away.
    pub fn leave(mut self) -> Result<(), MachineError> {
        let report = self.actuator.restore();
        match report.failures.first() {
            None => Ok(()),
            Some(failure) => Err(MachineError::PutBack {
                what: failure.what.clone(),
                error: failure.error.clone(),
            }),
        }
    }
}

/// What the vCPUs have waited for their pCPUs.
fn waits(vms: &[Microvm]) -> Result<Waits, SetupError> {
    let mut sum = Waits::default();
    for tid in vms.iter().flat_map(Microvm::tids) {
        let folder = format!("/proc/self/task/{tid}");
        sum = sum.and(Waits::of_task(&folder).map_err(SetupError::Account)?);
    }
    Ok(sum)
}

/// VMs of this process as a source of observation knows them, numbered from 0.
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

/// What each vCPU did per second.
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

/// What tests of real VMs begin with.
#[cfg(test)]
pub mod testing {
    use tempfile::TempDir;

    use super::*;

    /// This machine, prepared, and the folder of its journal; `None`, and why, where there is no KVM or it cannot be.
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

    /// What ran. A user who may not make cgroups skips the test.
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
    fn a_quantity_counts_the_vcpus_it_names() {
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
    fn real_vcpus_get_work_done_and_leave_nothing_behind() {
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
