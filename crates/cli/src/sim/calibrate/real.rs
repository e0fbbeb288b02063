//! The setups on this machine: real vCPUs, a cgroup for each VM, two pCPUs.
//!
//! All VMs run in this process, whose threads are bound to the two pCPUs before any is started, so that
//! vCPUs that are not pinned stay there as well. Each VM's vCPU threads are in a cgroup of its own with
//! its weight, as on most hosts, and as the simulator has it; the journaled actuator of the host crate
//! makes the cgroups, and takes them away when this ends, however it ends. All weights are the same large
//! multiple of the host's usual one, so that what else runs there gets little of the pCPUs.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use anyhow::ensure;
use rustix::thread::CpuSet;
use rustix::thread::sched_setaffinity;
use tandem_linux::ProcFs;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_microvm::Calibration;
use tandem_microvm::Microvm;
use tandem_microvm::MicrovmConfig;
use tandem_microvm::Snapshot;
use tandem_policy::Weight;

use super::setup;
use super::setup::Count;
use super::setup::Guest;
use super::setup::PCPUS;
use super::setup::Quantity;
use super::setup::Setup;
use crate::demo::host_facts;
use tandem_linux::interrupt::Interrupt;

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
    pub fn prepare(state_dir: &Path, interrupt: Interrupt) -> anyhow::Result<Machine> {
        let usable = host_facts::usable_pcpus()?;
        let pcpus: Vec<u32> = usable.iter().take(PCPUS as usize).map(|p| p.0).collect();
        ensure!(
            pcpus.len() == PCPUS as usize,
            "calibration needs {PCPUS} pCPUs; this process may use pCPUs {usable}"
        );
        let mut set = CpuSet::new();
        pcpus.iter().for_each(|&pcpu| set.set(pcpu as usize));
        sched_setaffinity(None, &set)
            .with_context(|| format!("cannot bind this process to pCPUs {pcpus:?}"))?;
        let (actuator, _) = Actuator::open(cgroup::open(&ProcFs::host())?, state_dir)?;
        Ok(Machine {
            actuator,
            interrupt,
            pcpus,
            calibration: Calibration::measure(),
        })
    }

    /// Runs a setup for some time.
    pub fn run(&mut self, setup: &Setup, time: Duration) -> anyhow::Result<Rates> {
        self.interrupt.check()?;
        let run = self.run_vms(setup, time);
        run.with_context(|| format!("{setup}"))
    }

    fn run_vms(&mut self, setup: &Setup, time: Duration) -> anyhow::Result<Rates> {
        let mut vms = Vec::new();
        for (i, guest) in setup.guests.iter().enumerate() {
            let vm = Microvm::start(self.config(setup, i, guest)?)?;
            self.enclose(i, guest, &vm)?;
            vms.push(vm);
        }
        self.interrupt.sleep(SETTLE)?;
        let before: Vec<Snapshot> = vms.iter().map(Microvm::snapshot).collect();
        self.interrupt.sleep(time)?;
        let after: Vec<Snapshot> = vms.iter().map(Microvm::snapshot).collect();
        let rates = before.iter().zip(&after).map(|(a, b)| rates(a, b));
        let rates = Rates(rates.collect::<anyhow::Result<_>>()?);
        for (i, vm) in vms.into_iter().enumerate() {
            let violations = vm.stop().sum(|vcpu| vcpu.violations);
            ensure!(
                violations == 0,
                "VM {i} saw {violations} broken invariants: a bug of Tandem or of this host"
            );
        }
        Ok(rates)
    }

    fn config(&self, setup: &Setup, i: usize, guest: &Guest) -> anyhow::Result<MicrovmConfig> {
        let mut config = MicrovmConfig::new(format!("cal{i}").parse()?, guest.workload);
        config.vcpus = guest.vcpus;
        config.parameters = guest.parameters()?;
        config.seed = i as u64 + 1;
        config.calibration = Some(self.calibration);
        let pins = (0..guest.vcpus).map_while(|vcpu| setup.pinning.pcpu(vcpu));
        config.pins = pins
            .filter_map(|pcpu| self.pcpus.get(pcpu as usize).copied())
            .collect();
        Ok(config)
    }

    /// Moves a VM's vCPUs into a cgroup of its weight.
    fn enclose(&mut self, i: usize, guest: &Guest, vm: &Microvm) -> anyhow::Result<()> {
        let pid = Pid(std::process::id());
        let procfs = ProcFs::host();
        // The group of this process itself, not of a vCPU: those will have moved.
        let own = ThreadRef::read(&procfs, pid, Tid(pid.0))?;
        let controller = self.actuator.controller();
        let parent = controller.cgroup_of(&own)?;
        let usual = controller.default_weight().0;
        let (_, most) = controller.weight_range();
        let times = (most.0 / usual / f64::from(setup::HEAVIEST))
            .floor()
            .max(1.0);
        let weight = Weight(usual * times * f64::from(guest.weight));
        let name = format!("tandem-calibrate-{i}-{pid}");
        let group = self.actuator.create_group(&parent, &name)?;
        self.actuator.set_weight(&group, weight)?;
        for tid in vm.tids() {
            let tid = Tid(u32::try_from(tid).context("a vCPU without a thread")?);
            let thread = ThreadRef::read(&procfs, pid, tid)?;
            self.actuator.move_thread(&thread, &group)?;
        }
        Ok(())
    }

    /// Takes the cgroups away.
    pub fn leave(mut self) -> anyhow::Result<()> {
        let report = self.actuator.restore()?;
        match report.failures.first() {
            None => Ok(()),
            Some(failure) => bail!("could not put back {}: {}", failure.what, failure.error),
        }
    }
}

/// What each vCPU did per second.
fn rates(before: &Snapshot, after: &Snapshot) -> anyhow::Result<Vec<f64>> {
    if let Some(failure) = &after.failure {
        bail!("the VM stopped: {failure}");
    }
    let seconds = after.t_ns.saturating_sub(before.t_ns) as f64 / 1e9;
    ensure!(seconds > 0.0, "the clock stands still");
    let vcpus = before.vcpus.iter().zip(&after.vcpus);
    Ok(vcpus
        .map(|(a, b)| b.work.saturating_sub(a.work) as f64 / seconds)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::super::setup::Pinning;
    use super::super::setup::first_of;
    use super::super::setup::reference;
    use super::*;

    #[test]
    fn a_quantity_counts_the_vcpus_it_names() {
        let rates = Rates(vec![vec![1.0, 20.0, 300.0], vec![4000.0]]);
        let of = |guest, count| {
            let quantity = Quantity {
                guest,
                ..first_of(Vec::new(), Pinning::Free, count)
            };
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
        if let Err(error) = tandem_microvm::kvm::available() {
            eprintln!("skipped: {error}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::watch().unwrap();
        let mut machine = match Machine::prepare(dir.path(), interrupt) {
            Ok(machine) => machine,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        let quantity = reference();
        let rates = match machine.run(&quantity.setup, Duration::from_millis(100)) {
            Ok(rates) => rates,
            // A user who may not make cgroups.
            Err(error) if rustix::process::getuid().as_raw() != 0 => {
                eprintln!("skipped: {error:#}");
                return;
            }
            Err(error) => panic!("{error:#}"),
        };
        assert!(rates.of(&quantity) > 0.0);
        machine.leave().unwrap();
        let own = format!("tandem-calibrate-0-{}", std::process::id());
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"] {
            assert!(!Path::new(root).join(&own).exists());
        }
    }
}
