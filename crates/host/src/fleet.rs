//! The managed VMs: found, adopted, measured each period, changed, released.
//!
//! Life of a managed VM: a scan finds it and the selection takes it → *adopted*: a cgroup that is its
//! own (libvirt's layout) is used as it is, otherwise the fleet makes a group and moves the vCPU threads
//! (only those) into it → measured each period (run and wait time of each vCPU, as differences of
//! schedstat) → weights and affinities applied → gone: its group is removed.
//!
//! A dry run does all of this without changes.
//! VMs and vCPUs may vanish between any two lines here.
//! The next scan drops them; that is no error.

mod adopt;
mod by_tenant;
mod candidates;
mod counted;
mod error;
mod grown;
mod keeper_ended;
mod leaving;
mod others;
pub(crate) mod quotas;
mod reload;
#[cfg(test)]
mod tests;
mod turns;
mod vcpus;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use tandem_model::{Decision, Nanos, PolicySet, VmId, VmObservation};
use tandem_policy::host::{Host, IdleTimes, Knobs, WeightKnob};
use tandem_policy::turns::Rotation;

use crate::apply::{Applied, Refused};
use crate::check::kernel::may_inflate_lag;
use crate::config::VmRule;
use crate::counted::Counters;
use crate::discovery::Vm;
use crate::fleet::candidates::Candidates;
pub use crate::fleet::error::FleetError;
use crate::fleet::grown::{Grown, follow_vcpus};
use crate::fleet::leaving::Leaving;
pub(crate) use crate::fleet::leaving::held_by;
use crate::fleet::quotas::Throttling;
use crate::hierarchy::Hierarchy;
use crate::homes::KnownHomes;
use crate::in_force::shares;
use crate::live_vcpu;
use crate::managed::{ManagedVm, Note, recheck_thread};
use crate::origin::Origin;
use crate::summed::Summed;
use crate::turns::Turns;
use crate::vm_cpu::read_group;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::claims::Claims;
use tandem_linux::procfs::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::sched_attr::schedulers_slice;
use tandem_linux::thread::Pid;

/// Whether the daemon makes changes or only logs them.
pub enum Backend {
    /// Every change is journaled, then made.
    Live(Box<Actuator>),
    /// Nothing is changed.
    Dry(Box<dyn CpuController>),
}

impl Backend {
    /// The cgroup controller, for reading.
    pub fn controller(&self) -> &dyn CpuController {
        match self {
            Backend::Live(actuator) => actuator.controller(),
            Backend::Dry(controller) => controller.as_ref(),
        }
    }
}

/// All managed VMs.
pub struct Fleet {
    // First, so that the turn thread ends before the backend reverts all changes.
    turns: Turns,
    backend: Backend,
    sampler: Sampler,
    rules: Vec<VmRule>,
    /// The default policies, for VMs without a rule that sets them.
    policies: PolicySet,
    /// Whether a weight is per vCPU, for VMs without a rule that sets this.
    weight_per_vcpu: bool,
    vms: BTreeMap<VmId, ManagedVm>,
    /// VMs that are found and not managed yet.
    candidates: Candidates,
    /// Cgroups of all VMs of the host, as far as they were read.
    homes: KnownHomes,
    /// VMs that are not managed any more, until all their changes are reverted.
    leaving: Leaving,
    /// Time budget of an update for each of adoption, new vCPUs and reverts.
    budget: Duration,
    hierarchy: Hierarchy,
    throttling: Throttling,
    updates: u64,
    /// VMs whose new vCPUs are not taken yet.
    grown: Grown,
    /// The clock.
    now: Box<dyn Fn() -> Instant + Send>,
    began: Instant,
    /// Whether the kernel has the idle class for groups; `None` before the first VM.
    has_idle: Option<bool>,
    /// Whether groups of single vCPUs can gain anything on this kernel.
    divides: bool,
    /// Claims on this daemon's VMs, which other daemons of the host read.
    claims: Option<Claims>,
    /// Log lines of this update about foreign changes.
    summed: Summed,
    /// Branch counters of vCPUs, for VMs whose policies use them.
    counters: Counters,
}

/// The reason why a VM is not managed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It ended, or its cgroup did.
    Gone,
    /// It is not selected, paused, or its settings changed.
    Unselected,
}

/// Number of updates between two reads of a VM's settings that others may change (affinities, weights).
/// Different VMs are read in different updates.
const RECHECK_EVERY: u64 = 8;

/// Time budget of an update for each of: adopting new VMs, taking new vCPUs, reverting changes of VMs that left.
/// The rest waits for the next update: thousands of VMs that start or end at once must not stop the control loop.
const BUDGET: Duration = Duration::from_millis(100);

impl Fleet {
    /// Returns a fleet without VMs.
    pub fn new(
        backend: Backend,
        sampler: Sampler,
        rules: Vec<VmRule>,
        policies: PolicySet,
    ) -> Fleet {
        Fleet {
            backend,
            sampler,
            rules,
            policies,
            weight_per_vcpu: false,
            vms: BTreeMap::new(),
            candidates: Candidates::default(),
            homes: KnownHomes::default(),
            grown: Grown::default(),
            now: Box::new(Instant::now),
            leaving: Leaving::default(),
            budget: BUDGET,
            hierarchy: Hierarchy::default(),
            throttling: Throttling::default(),
            updates: 0,
            began: Instant::now(),
            has_idle: None,
            divides: may_inflate_lag(),
            turns: Turns::default(),
            claims: None,
            summed: Summed::default(),
            counters: Counters::default(),
        }
    }

    /// Sets the claims shared with other daemons of the host; a VM that another daemon claimed is left to it.
    #[must_use]
    pub fn with_claims(mut self, claims: Claims) -> Fleet {
        self.claims = Some(claims);
        self
    }

    /// Sets whether a weight is per vCPU, for VMs without a rule that sets this.
    #[must_use]
    pub fn with_weight_per_vcpu(mut self, weight_per_vcpu: bool) -> Fleet {
        self.weight_per_vcpu = weight_per_vcpu;
        self
    }

    /// Returns the managed VMs, by id.
    pub fn vms(&self) -> impl Iterator<Item = &ManagedVm> {
        self.vms.values()
    }

    /// Returns a managed VM.
    pub fn vm(&self, id: VmId) -> Option<&ManagedVm> {
        self.vms.get(&id)
    }

    /// Returns each VM's mean wait per run over about the last second, without VMs whose vCPUs did not run.
    ///
    /// Call it about as often as the result is published.
    pub fn mark_waits(&mut self) -> BTreeMap<VmId, Nanos> {
        let now = Nanos(self.began.elapsed().as_nanos() as u64);
        let waits = self.vms.iter_mut();
        let means = waits.map(|(id, managed)| Some((*id, managed.waits.mark(now)?)));
        means.flatten().collect()
    }

    /// Returns the number of vCPUs whose files may stay open, if there are more vCPUs than that.
    pub fn overflow(&self) -> Option<usize> {
        self.sampler.overflow()
    }

    /// Returns the cgroup controller, for reading.
    pub fn controller(&self) -> &dyn CpuController {
        self.backend.controller()
    }

    /// Brings the fleet in line with a scan: adopts new VMs, follows hot-plugged vCPUs, releases VMs that are gone.
    ///
    /// `found` holds the selected VMs, `all` every VM on the host.
    /// Adoptions and reverts beyond the budget wait for the next update.
    pub fn update(&mut self, found: &[Vm], all: &[Vm]) -> (Vec<Note>, Vec<Refused>) {
        self.updates = self.updates.wrapping_add(1);
        let (mut notes, mut refused) = (Vec::new(), Vec::new());
        // While pCPUs are idle there are no observations, which would check this.
        self.outlive_keeper();
        self.take_foreign(&mut notes);
        self.throttling.begin_update();
        let present: BTreeSet<VmId> = found.iter().map(|vm| vm.id).collect();
        let is_gone = |id: &VmId| !present.contains(id);
        let gone: Vec<VmId> = self.vms.keys().copied().filter(is_gone).collect();
        let there: BTreeSet<VmId> =
            if gone.is_empty() { BTreeSet::new() } else { all.iter().map(|vm| vm.id).collect() };
        for id in gone {
            if let Some(managed) = self.vms.remove(&id) {
                let why = if there.contains(&id) { Left::Unselected } else { Left::Gone };
                self.leave(managed, why, &mut notes);
            }
        }
        let (mut new, mut ended, mut grown) = (Vec::new(), Vec::new(), Vec::new());
        for vm in found {
            let Some(mut managed) = self.vms.remove(&vm.id) else {
                new.push(vm);
                continue;
            };
            ended.push((vm, follow_vcpus(&mut managed, vm)));
            if managed.vcpu_count() < vm.vcpus.len() {
                grown.push(vm);
            }
            let outcome = self.follow(&mut managed, &mut notes);
            self.keep(managed, outcome, &mut notes, &mut refused);
        }
        self.let_go_of_vcpus(&ended, &mut refused);
        self.take_new_vcpus(&grown, &mut notes, &mut refused);
        self.take_busy_groups();
        self.release_leaving(&mut refused);
        self.adopt_new(new, all, &mut notes, &mut refused);
        self.reread_hierarchy();
        self.throttling.forget_quotas(&self.vms);
        // On a quiet host no other journal write compacts it.
        if let Backend::Live(actuator) = &mut self.backend {
            actuator.compact_if_due();
        }
        self.summed.end(&mut notes);
        (notes, refused)
    }

    /// Keeps a VM managed after `outcome`, unless its cgroup is gone.
    /// A VM that still runs is then adopted again at the next update.
    fn keep(
        &mut self,
        managed: ManagedVm,
        outcome: Result<(), FleetError>,
        notes: &mut Vec<Note>,
        refused: &mut Vec<Refused>,
    ) {
        match outcome {
            Err(error) if error.is_gone() => self.leave(managed, Left::Gone, notes),
            outcome => {
                refused.extend(outcome.err().map(|error| error.refused(&managed.vm.name)));
                self.vms.insert(managed.vm.id, managed);
            }
        }
    }

    /// Reads the cgroups above the VMs': the new ones, or all in every [`RECHECK_EVERY`]th update.
    fn reread_hierarchy(&mut self) {
        if self.updates.is_multiple_of(RECHECK_EVERY) {
            self.hierarchy.forget();
        }
        let above = self.vms.values().map(ManagedVm::above).collect();
        self.hierarchy.read(self.backend.controller(), above);
    }

    /// Follows a VM's changes since the last scan: its number of vCPUs, their affinities, the operator's weight.
    fn follow(&mut self, managed: &mut ManagedVm, notes: &mut Vec<Note>) -> Result<(), FleetError> {
        let actuator = match &mut self.backend {
            Backend::Live(actuator) => Some(actuator.as_mut()),
            Backend::Dry(_) => None,
        };
        managed.weigh(actuator, notes)?;
        if (self.updates + managed.vm.id.0).is_multiple_of(RECHECK_EVERY) {
            let mut theirs = Vec::new();
            let rechecked = self.recheck(managed, &mut theirs);
            self.sum_up(managed.cgroup(), theirs, notes);
            rechecked?;
            self.read_bounds(managed);
        }
        Ok(())
    }

    /// Reads a VM's quotas and cpusets.
    fn read_bounds(&mut self, managed: &mut ManagedVm) {
        self.throttling.read_quotas(self.backend.controller(), managed);
        self.read_cpusets(managed);
    }

    /// Reads the settings again that others may have changed.
    fn recheck(
        &mut self,
        managed: &mut ManagedVm,
        notes: &mut Vec<Note>,
    ) -> Result<(), FleetError> {
        match &mut self.backend {
            Backend::Live(actuator) => managed.recheck_vcpus(&self.sampler, actuator, notes)?,
            Backend::Dry(controller) => {
                let vm = managed.vm.name.as_str();
                for vcpu in &mut managed.cpu.vcpus {
                    recheck_thread(vcpu, vm, &self.sampler, None, notes)?;
                    match read_group(vcpu, controller.as_ref(), &managed.cpu.group) {
                        Err(error) if error.is_gone() => {}
                        other => drop(other?),
                    }
                }
            }
        }
        match &mut self.backend {
            Backend::Live(actuator) if !managed.is_left_alone() => {
                managed.recheck_group(actuator, notes)?;
            }
            // A group that a dry run would make has the default settings.
            _ if managed.made || managed.is_shared => {}
            backend => {
                let (weight, idle) = shares(backend.controller(), managed.cgroup())?;
                managed.cpu.on_read(weight, idle);
                if managed.is_left_alone() && !managed.is_tenants {
                    managed.configured = weight;
                }
            }
        }
        Ok(())
    }

    /// Stops managing a VM and queues its revert.
    /// A VM that still runs leaves the rotation first, so that the turn thread stops writing to its cgroup.
    fn leave(&mut self, managed: ManagedVm, why: Left, notes: &mut Vec<Note>) {
        self.close_files_of(&managed.cpu.vcpus);
        let (name, pid) = (&managed.vm.name, managed.vm.process.pid);
        notes.push(Note(match why {
            Left::Gone => format!("VM {name} (pid {pid}) is gone"),
            Left::Unselected => {
                format!("VM {name} (pid {pid}) is not managed any more: its changes are reverted")
            }
        }));
        if let (Left::Unselected, Some(keeper)) = (why, &mut self.turns.keeper)
            && managed.takes_turns()
            && !keeper.remove(managed.vm.id)
        {
            let error = format!("VM {name}: it does not leave its turns; please report this");
            self.turns.errors.push(error);
        }
        self.leaving.push(managed);
    }

    /// Whether changes on this process's VM are still to be reverted.
    pub fn is_leaving(&self, pid: Pid) -> bool {
        self.leaving.pids().contains(&pid)
    }

    /// Queues vCPU groups that were too busy to remove, except those that are in use again.
    fn take_busy_groups(&mut self) {
        for managed in self.vms.values_mut() {
            for group in std::mem::take(&mut managed.busy) {
                self.leaving.push_group(&managed.vm, group, false);
            }
        }
        if !self.leaving.is_empty() {
            let vcpus = self.vms.values().flat_map(|managed| &managed.cpu.vcpus);
            let in_use = vcpus.filter_map(|vcpu| vcpu.group.as_ref()).collect();
            self.leaving.withdraw(&in_use);
        }
    }

    /// Returns the time since `began`.
    fn since(&self, began: Instant) -> Duration {
        (self.now)().saturating_duration_since(began)
    }

    /// Reverts changes of VMs that left, and removes busy groups of vCPUs, within the budget.
    fn release_leaving(&mut self, refused: &mut Vec<Refused>) {
        let kept = if self.leaving.is_empty() {
            HashSet::new()
        } else {
            self.vms.values().flat_map(|managed| held_by(managed).cgroups).collect()
        };
        let actuator = match &mut self.backend {
            Backend::Live(actuator) => Some(actuator.as_mut()),
            Backend::Dry(_) => None,
        };
        let (now, budget) = (&self.now, self.budget);
        let began = now();
        let goes_on = || now().saturating_duration_since(began) < budget;
        for left in self.leaving.release(actuator, &kept, goes_on, refused) {
            self.give_up(left.pid, left.policies);
        }
    }

    /// Returns the value of the first rule for this VM that has one.
    /// The VM's origin is read once, if a rule needs it.
    fn rule<T>(
        &self,
        vm: &Vm,
        origin: &OnceCell<Origin>,
        says: impl Fn(&VmRule) -> Option<T>,
    ) -> Option<T> {
        let read = || Origin::of(vm, &ProcFs::host(), self.controller());
        self.rules.iter().filter(|rule| rule.is_for(vm, || origin.get_or_init(read))).find_map(says)
    }

    /// Ends the turn thread and returns the backend, which can revert all changes.
    pub fn into_backend(mut self) -> Backend {
        self.turns.keeper = None;
        self.backend
    }
}

impl Host for Fleet {
    type Applied = Applied;

    fn idle(&mut self) -> (Nanos, IdleTimes) {
        let now = Nanos(self.began.elapsed().as_nanos() as u64);
        (now, self.sampler.pcpu_idle().unwrap_or_default())
    }

    fn knobs(&self) -> Knobs {
        let controller = self.controller();
        let (least, most) = controller.weight_range();
        Knobs {
            vcpu_groups: true,
            idle: self.has_idle.unwrap_or(false),
            nice: true,
            slice: schedulers_slice().map(|_| Knobs::SLICES),
            affinity: true,
            weight: WeightKnob { least, most, step: 1.0, default: controller.default_weight() },
        }
    }

    /// Observes the managed VMs, except those of which no vCPU can be read or was sampled before.
    /// A vCPU without an earlier sample has neither run nor waited.
    fn observe(&mut self, elapsed: Nanos, period: Nanos, closely: bool) -> Vec<VmObservation> {
        let scale = period.0 as f64 / elapsed.0.max(1) as f64;
        self.take_turn_news();
        self.sampler.begin_round();
        let mut observations = Vec::with_capacity(self.vms.len());
        let mut parents: HashMap<Option<CgroupPath>, usize> = HashMap::new();
        for (id, managed) in &mut self.vms {
            let mut vcpus = Vec::with_capacity(managed.vcpu_count());
            let stood_still = self.sampler.stood_still(managed.vm.process.pid);
            for vcpu in &mut managed.cpu.vcpus {
                let sample = match vcpu.host.last {
                    Some(last) if stood_still => last,
                    _ => match self.sampler.sample(&vcpu.host.thread) {
                        Ok(sample) => sample,
                        Err(_) => {
                            vcpu.host.last = None;
                            continue;
                        }
                    },
                };
                managed.waits.count(vcpu.host.last, sample);
                let mut observed = live_vcpu::observe(vcpu, sample, scale, closely, &self.sampler);
                self.throttling.count(vcpu.host.caps(), observed.waited, scale);
                if !stood_still {
                    observed.branches = self.counters.read(managed.policies, vcpu);
                }
                vcpus.push(observed);
            }
            if vcpus.is_empty() {
                continue;
            }
            if std::mem::replace(&mut managed.sampled, true) {
                let parent = managed.cgroup().parent();
                let next = parents.len();
                let siblings = *parents.entry(parent).or_insert(next);
                observations.push(VmObservation {
                    in_force: managed.cpu.settings(managed.quota()),
                    siblings: siblings as u32,
                    levels: self.hierarchy.levels(&managed.above()),
                    divisible: managed.cpu.divisible && self.divides,
                    policies: managed.policies,
                    ..VmObservation::new(*id, managed.configured, vcpus)
                });
            }
        }
        self.throttling.take_out_throttled(
            self.backend.controller(),
            &self.vms,
            period,
            &mut observations,
        );
        observations
    }

    fn apply(&mut self, decisions: &[Decision], rotation: Option<&Rotation>) -> Applied {
        let Backend::Live(actuator) = &mut self.backend else {
            return Applied::default();
        };
        let applied = Applied::all(decisions, &mut self.vms, actuator);
        if let Some(rotation) = rotation {
            self.take_turns(rotation);
        }
        applied
    }
}
