//! The subject of the tests: two managed VMs, one in a group that the fleet made, one in a cgroup of its own.

use std::sync::Arc;

use tandem_host::apply::Applied;
use tandem_host::config::VmRule;
use tandem_host::discovery::{VcpuThread, Vm};
use tandem_host::fleet::{Backend, Fleet};
use tandem_host::vmm::Vmm;
use tandem_linux::ProcFs;
use tandem_linux::actuator::{Actuator, Outcome};
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_model::{
    Because, Decision, Nanos, Nice, PcpuSet, PolicySet, Target, VcpuId, VcpuObservation, VmId,
    VmObservation, Weight,
};
use tandem_policy::host::Host;

use crate::harness::Skip;
use crate::helper::{Helper, StateDir, vcpu_threads};
use crate::host::{LiveHost, controller};
use crate::turns_daemon::watchdog;

/// The VM whose group the fleet makes: vCPUs 0, 1 and 2.
pub const SHARED: VmId = VmId(1);

/// The VM that has a cgroup of its own: vCPUs 0 and 1.
pub const OWNER: VmId = VmId(2);

/// A third VM, in a group that the fleet makes: vCPUs 0 and 1. Only some tests have it.
pub const THIRD: VmId = VmId(3);

/// Number of updates after which all foreign changes of every VM have been read.
pub const UPDATES: usize = 8;

const PERIOD: Nanos = Nanos::from_millis(100);

/// A fleet with VMs. The drop order lets the fleet revert its changes before the VMs end.
pub struct Subject {
    /// The fleet.
    pub fleet: Fleet,
    _dir: StateDir,
    /// The VMs' processes.
    pub live_host: LiveHost,
}

/// Describes a VM like the discovery.
pub fn describe(id: VmId, helper: &Helper) -> Vm {
    describe_process(id, helper.pid())
}

/// Describes a VM that another process started.
pub fn describe_process(id: VmId, pid: Pid) -> Vm {
    let procfs = ProcFs::host();
    let mut name = String::new();
    let vcpus = vcpu_threads(pid).into_iter().map(|thread| {
        let comm = thread.stat(&procfs).expect("the thread lives").comm;
        let (vm, index) = comm.rsplit_once("/vcpu").expect("a vCPU's name");
        vm.clone_into(&mut name);
        let index = VcpuId(index.parse().expect("a number"));
        VcpuThread { index, thread }
    });
    let vcpus = vcpus.collect();
    Vm {
        id,
        process: ThreadRef::of_process(&procfs, pid).expect("it lives"),
        name,
        vmm: Vmm::Tandem,
        vcpus,
        unidentified: 0,
        user: None,
    }
}

impl Subject {
    /// A fleet that acts, and manages the VMs of this host.
    pub fn acting_on(live_host: LiveHost) -> Result<Subject, Skip> {
        let dir = StateDir::new();
        let (actuator, _) = Actuator::open(controller()?, &dir.0).expect("it opens");
        Ok(Subject::of(live_host, dir, Backend::Live(Box::new(actuator))))
    }

    /// A fleet that acts through this controller, with a watchdog.
    pub fn acting_through(live_host: LiveHost, controller: Arc<dyn CpuController>) -> Subject {
        let dir = StateDir::new();
        let (actuator, _) = Actuator::open(controller, &dir.0).expect("it opens");
        let fleet = Subject::fleet(Backend::Live(Box::new(actuator)));
        let fleet = fleet.with_watchdog(watchdog(&dir.0));
        Subject::with(live_host, dir, fleet)
    }

    /// A fleet that acts by a rule: all VMs have this weight, relative to the kernel's default.
    pub fn ruled_by(live_host: LiveHost, weight: f64) -> Result<Subject, Skip> {
        let dir = StateDir::new();
        let (actuator, _) = Actuator::open(controller()?, &dir.0).expect("it opens");
        let rule = VmRule { name: Some("*".to_owned()), weight: Some(weight), ..VmRule::default() };
        let backend = Backend::Live(Box::new(actuator));
        let sampler = Sampler::new(ProcFs::host());
        let fleet = Fleet::new(backend, sampler, vec![rule], PolicySet::ALL);
        Ok(Subject::with(live_host, dir, fleet))
    }

    /// A fleet that acts, with a weight for each vCPU.
    pub fn weighing_vcpus() -> Result<Subject, Skip> {
        let dir = StateDir::new();
        let (actuator, _) = Actuator::open(controller()?, &dir.0).expect("it opens");
        let backend = Backend::Live(Box::new(actuator));
        let fleet = Subject::fleet(backend).with_weight_per_vcpu(true);
        Ok(Subject::with(LiveHost::new()?, dir, fleet))
    }

    /// A fleet that acts.
    pub fn acting() -> Result<Subject, Skip> {
        Subject::acting_on(LiveHost::new()?)
    }

    /// A fleet that changes nothing.
    pub fn dry() -> Result<Subject, Skip> {
        let backend = Backend::Dry(controller()?);
        Ok(Subject::of(LiveHost::new()?, StateDir::new(), backend))
    }

    fn of(live_host: LiveHost, dir: StateDir, backend: Backend) -> Subject {
        Subject::with(live_host, dir, Subject::fleet(backend))
    }

    fn fleet(backend: Backend) -> Fleet {
        let sampler = Sampler::new(ProcFs::host());
        Fleet::new(backend, sampler, Vec::new(), PolicySet::ALL)
    }

    fn with(live_host: LiveHost, dir: StateDir, fleet: Fleet) -> Subject {
        let mut subject = Subject { fleet, _dir: dir, live_host };
        subject.update();
        // The first observation of a VM begins its account.
        subject.fleet.observe(PERIOD, PERIOD, false);
        subject
    }

    /// Returns the present VMs.
    pub fn vms(&self) -> [Vm; 2] {
        [describe(SHARED, &self.live_host.shared), describe(OWNER, &self.live_host.owner)]
    }

    /// Updates the fleet with the present VMs; returns its notes for the operator.
    pub fn update(&mut self) -> Vec<String> {
        let vms = self.vms();
        self.update_with(&vms)
    }

    /// Updates the fleet with these VMs.
    pub fn update_with(&mut self, vms: &[Vm]) -> Vec<String> {
        let (notes, refused) = self.fleet.update(vms, vms);
        assert!(refused.is_empty(), "{refused:?}");
        notes.into_iter().map(|note| note.0).collect()
    }

    /// Updates the fleet until all possible foreign changes have been read.
    pub fn recheck(&mut self) -> Vec<String> {
        (0..UPDATES).flat_map(|_| self.update()).collect()
    }

    /// Returns a VM, if it is in the observation of a period.
    pub fn find(&mut self, vm: VmId) -> Option<VmObservation> {
        let observed = self.fleet.observe(PERIOD, PERIOD, false);
        observed.into_iter().find(|observed| observed.vm == vm)
    }

    /// Returns the observation of a VM in a period.
    pub fn observe(&mut self, vm: VmId) -> VmObservation {
        self.find(vm).expect("it is in every observation")
    }

    /// Returns the observation of a vCPU in a period.
    pub fn observe_vcpu(&mut self, vm: VmId, vcpu: u32) -> VcpuObservation {
        let observed = self.observe(vm);
        observed.vcpu(VcpuId(vcpu)).expect("it is read").clone()
    }

    /// Applies a decision, which must succeed.
    pub fn apply(&mut self, decision: Decision) {
        let applied = self.fleet.apply(&[decision], None);
        assert!(applied.refused.is_empty(), "{:?}", applied.refused);
    }

    /// Applies a decision that is refused; returns the error.
    pub fn refused(&mut self, decision: Decision) -> String {
        let Applied { refused, .. } = self.fleet.apply(&[decision], None);
        assert_eq!(refused.len(), 1, "{refused:?}");
        refused[0].error.clone()
    }

    /// Returns the cgroup whose weight is the VM's.
    pub fn cgroup(&self, vm: VmId) -> CgroupPath {
        self.fleet.vm(vm).expect("it is managed").cgroup().clone()
    }

    /// Returns the thread of a vCPU.
    pub fn thread(&self, vm: VmId, vcpu: u32) -> ThreadRef {
        let vms = self.vms();
        let described = vms.iter().find(|described| described.id == vm);
        let mut vcpus = described.expect("one of the two").vcpus.iter();
        let found = vcpus.find(|found| found.index == VcpuId(vcpu));
        found.expect("the vCPU exists").thread
    }

    /// Returns the cgroup below the VM's that holds only this vCPU's thread.
    pub fn group_of(&self, vm: VmId, vcpu: u32) -> CgroupPath {
        let (thread, controller) = (self.thread(vm, vcpu), self.fleet.controller());
        let group = controller.cgroup_of(&thread).expect("the thread lives");
        assert_eq!(group.parent(), Some(self.cgroup(vm)));
        let inside = controller.threads(&group).expect("the group exists");
        assert_eq!(inside, [thread.tid], "no other thread");
        group
    }

    /// Returns a cgroup's weight from the kernel.
    pub fn weight(&self, cgroup: &CgroupPath) -> Weight {
        let controller = self.fleet.controller();
        controller.weight(cgroup).expect("the cgroup exists")
    }

    /// Whether a cgroup is in the idle class, from the kernel.
    pub fn is_idle(&self, cgroup: &CgroupPath) -> bool {
        let controller = self.fleet.controller();
        let is_idle = controller.is_idle(cgroup).expect("the cgroup exists");
        is_idle.expect("the kernel has the idle class")
    }

    /// Skips the test if the kernel has no idle class for cgroups.
    pub fn need_idle_class(&self) -> Result<(), Skip> {
        let cgroup = self.cgroup(SHARED);
        let is_idle = self.fleet.controller().is_idle(&cgroup);
        let has_it = is_idle.expect("the cgroup exists").is_some();
        assert_eq!(self.fleet.knobs().idle, has_it, "the controller knows");
        if has_it {
            Ok(())
        } else {
            Err(Skip("this kernel has no idle class for cgroups (Linux 5.15 has)".to_owned()))
        }
    }

    /// Ends the fleet, which reverts everything; the VMs live on.
    pub fn restore(self) -> LiveHost {
        match self.fleet.into_backend() {
            Backend::Live(mut actuator) => {
                let report = actuator.restore();
                assert!(report.is_complete(), "{report}");
            }
            Backend::Dry(_) => {}
        }
        self.live_host
    }
}

/// Gives a vCPU of the VM with its own cgroup a cgroup, as libvirt does; it is removed with `live_host`.
pub fn operators_vcpu_group(live_host: &mut LiveHost, vcpu: usize, weight: Weight) -> CgroupPath {
    let dir = StateDir::new();
    let controller = controller().map_err(|Skip(why)| why).expect("as before");
    let (mut operator, _) = Actuator::open(controller, &dir.0).expect("it opens");
    let name = format!("vcpu{vcpu}");
    let group = operator.create_group(&live_host.own, &name).expect("a group");
    let thread = live_host.own_threads()[vcpu];
    let outcome = operator.move_thread(&thread, &group).expect("a move");
    assert_eq!(outcome, Outcome::Done);
    operator.set_weight(&group, weight).expect("a weight");
    live_host.operator = Some((operator, dir));
    group
}

const BECAUSE: Because = Because::Configured;

/// A VM as the target of a decision.
pub fn whole(vm: VmId) -> Target {
    Target::Vm(vm)
}

/// A vCPU as the target of a decision.
pub fn single(vm: VmId, vcpu: u32) -> Target {
    Target::Vcpu(vm, VcpuId(vcpu))
}

/// Sets the weight of a group.
pub fn set_weight(target: Target, weight: f64) -> Decision {
    Decision::SetWeight { target, weight: Weight::saturating(weight), because: BECAUSE }
}

/// Moves a group into or out of the idle class.
pub fn set_idle(target: Target, idle: bool) -> Decision {
    Decision::SetIdle { target, idle, because: BECAUSE }
}

/// Sets the nice value of a vCPU's thread.
pub fn set_nice(vm: VmId, vcpu: u32, nice: i8) -> Decision {
    Decision::SetNice { vm, vcpu: VcpuId(vcpu), nice: Nice(nice), because: BECAUSE }
}

/// Sets the slice of a vCPU's thread.
pub fn set_slice(vm: VmId, vcpu: u32, slice: Option<Nanos>) -> Decision {
    Decision::SetSlice { vm, vcpu: VcpuId(vcpu), slice, because: BECAUSE }
}

/// Sets the affinity of a vCPU.
pub fn set_affinity(vm: VmId, vcpu: u32, pcpus: &PcpuSet) -> Decision {
    Decision::SetAffinity { vm, vcpu: VcpuId(vcpu), pcpus: pcpus.clone(), because: BECAUSE }
}
