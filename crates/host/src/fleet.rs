//! The VMs under the daemon's care: found, adopted, measured each period, acted on, let go.
//!
//! Life of a managed VM: a scan finds it and the selection takes it → *adopted*: a cgroup that is its
//! own (libvirt's layout) is used as it is, otherwise a group is made and the vCPU threads (only
//! those) are moved into it → measured each period (what each vCPU ran and waited, as differences of
//! schedstat) → weights and affinities applied → gone: its group is removed.
//!
//! A dry run does all of this except to change anything. VMs and vCPUs may vanish between any two
//! lines here; what is gone is dropped at the next scan and is no error.

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

use tandem_model::{Decision, Nanos, PolicySet, VmId, VmObservation, VmSettings};
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
use crate::fleet::leaving::{Leaving, held_by};
use crate::fleet::quotas::Throttling;
use crate::hierarchy::Hierarchy;
use crate::homes::KnownHomes;
use crate::in_force::settings;
use crate::managed::{ManagedVm, Note};
use crate::origin::Origin;
use crate::summed::Summed;
use crate::turns::Turns;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::claims::Claims;
use tandem_linux::procfs::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::sched_attr::schedulers_slice;
use tandem_linux::thread::Pid;

/// How the daemon acts: for real, or only in words.
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

/// All VMs under care.
pub struct Fleet {
    // First, so that the thread that writes by itself ends before the backend puts everything back.
    turns: Turns,
    backend: Backend,
    sampler: Sampler,
    rules: Vec<VmRule>,
    /// The policies of VMs whose rules say nothing of them.
    policies: PolicySet,
    /// Whether weights are those of single vCPUs, of VMs whose rules say nothing of it.
    weight_per_vcpu: bool,
    vms: BTreeMap<VmId, ManagedVm>,
    /// Those that are found and not under care yet.
    candidates: Candidates,
    /// Where all VMs of the host are, as far as it was read.
    homes: KnownHomes,
    /// Those that were under care, until nothing of ours is left on them.
    leaving: Leaving,
    /// For how long an update does each of these, and takes new vCPUs.
    budget: Duration,
    hierarchy: Hierarchy,
    throttling: Throttling,
    updates: u64,
    /// VMs whose new vCPUs are not taken yet.
    grown: Grown,
    /// What the time is.
    now: Box<dyn Fn() -> Instant + Send>,
    began: Instant,
    /// Whether the kernel has the idle class for groups; `None` before the first VM.
    has_idle: Option<bool>,
    /// Whether putting vCPUs apart can gain anything on this kernel.
    divides: bool,
    /// Which VMs are this daemon's, for other daemons of the host.
    claims: Option<Claims>,
    /// Lines of this update about what others set.
    summed: Summed,
    /// What vCPUs' branch counters tell, for VMs whose policies ask for it.
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

/// What somebody else may have changed (affinities, weights) is read of each VM in every so many
/// updates only, of different VMs in different ones.
const RECHECK_EVERY: u64 = 8;

/// For how long an update adopts new VMs, for how long it takes new vCPUs of those it has, and for how long it puts back what was changed for
/// those that left; those beyond wait for the next. Who starts or ends thousands at once must not stop the control loop.
const BUDGET: Duration = Duration::from_millis(100);

impl Fleet {
    /// A fleet without VMs yet.
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

    /// With other daemons of the host that look after VMs of their own: one that they have is left to them.
    #[must_use]
    pub fn with_claims(mut self, claims: Claims) -> Fleet {
        self.claims = Some(claims);
        self
    }

    /// With weights that are those of single vCPUs, unless a VM's rule says otherwise.
    #[must_use]
    pub fn with_weight_per_vcpu(mut self, weight_per_vcpu: bool) -> Fleet {
        self.weight_per_vcpu = weight_per_vcpu;
        self
    }

    /// The VMs under care, by id.
    pub fn vms(&self) -> impl Iterator<Item = &ManagedVm> {
        self.vms.values()
    }

    /// A VM under care.
    pub fn vm(&self, id: VmId) -> Option<&ManagedVm> {
        self.vms.get(&id)
    }

    /// Each VM's mean wait per run since about a second ago; VMs whose vCPUs did not run have none. To be called about as often as
    /// that is published.
    pub fn mark_waits(&mut self) -> BTreeMap<VmId, Nanos> {
        let now = Nanos(self.began.elapsed().as_nanos() as u64);
        let waits = self.vms.iter_mut();
        let means = waits.map(|(id, managed)| Some((*id, managed.waits.mark(now)?)));
        means.flatten().collect()
    }

    /// How many vCPUs' files may stay open, if there are more vCPUs than that.
    pub fn overflow(&self) -> Option<usize> {
        self.sampler.overflow()
    }

    /// The controller, for reading.
    pub fn controller(&self) -> &dyn CpuController {
        self.backend.controller()
    }

    /// Brings the fleet in line with what a scan found: adopts new VMs, follows hot-plugged vCPUs,
    /// lets go of what is gone. `found` holds the selected VMs, `all` every VM on the host. What takes too long is gone on with in the next one: then
    /// new VMs are not under care yet, and what was changed for VMs that are gone is not put back yet.
    pub fn update(&mut self, found: &[Vm], all: &[Vm]) -> (Vec<Note>, Vec<Refused>) {
        self.updates = self.updates.wrapping_add(1);
        let (mut notes, mut refused) = (Vec::new(), Vec::new());
        // While pCPUs are idle there are no observations.
        self.outlive_keeper();
        self.hear_of_others(&mut notes);
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
            if managed.vcpus.len() < vm.vcpus.len() {
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
        // On a quiet host nothing else is journaled.
        if let Backend::Live(actuator) = &mut self.backend {
            actuator.compact_if_due();
        }
        self.summed.end(&mut notes);
        (notes, refused)
    }

    /// What came of looking after a VM: it stays under care, unless its cgroup is gone; a VM that is not is adopted anew at the next look.
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

    /// Reads the cgroups above the VMs', those that are new or, if it is time, all.
    fn reread_hierarchy(&mut self) {
        if self.updates.is_multiple_of(RECHECK_EVERY) {
            self.hierarchy.forget();
        }
        let above = self.vms.values().map(ManagedVm::above).collect();
        self.hierarchy.read(self.backend.controller(), above);
    }

    /// Follows what changed on a VM since the last scan: how many vCPUs it has, their affinities, the operator's weight.
    fn follow(&mut self, managed: &mut ManagedVm, notes: &mut Vec<Note>) -> Result<(), FleetError> {
        let actuator = match &mut self.backend {
            Backend::Live(actuator) => Some(actuator.as_mut()),
            Backend::Dry(_) => None,
        };
        managed.weigh(actuator, notes)?;
        if (self.updates + managed.vm.id.0).is_multiple_of(RECHECK_EVERY) {
            let mut theirs = Vec::new();
            let rechecked = self.recheck(managed, &mut theirs);
            self.sum_up(&managed.cgroup, theirs, notes);
            rechecked?;
            self.read_bounds(managed);
        }
        Ok(())
    }

    /// Reads what bounds a VM besides its weight.
    fn read_bounds(&mut self, managed: &mut ManagedVm) {
        self.throttling.read_quotas(self.backend.controller(), managed);
        self.read_cpusets(managed);
    }

    /// Reads again what somebody else may have changed.
    fn recheck(
        &mut self,
        managed: &mut ManagedVm,
        notes: &mut Vec<Note>,
    ) -> Result<(), FleetError> {
        let vm = managed.vm.name.as_str();
        let cgroup = &managed.cgroup;
        for vcpu in &mut managed.vcpus {
            match &mut self.backend {
                Backend::Live(actuator) => {
                    vcpu.recheck(vm, &self.sampler, Some(actuator), notes)?;
                    let moved =
                        vcpu.recheck_group(vm, cgroup, &mut managed.busy, actuator, notes)?;
                    managed.divisible &= !moved;
                }
                Backend::Dry(controller) => {
                    vcpu.recheck(vm, &self.sampler, None, notes)?;
                    match vcpu.reread_group(controller.as_ref(), cgroup) {
                        Err(error) if error.is_gone() => {}
                        other => drop(other?),
                    }
                }
            }
        }
        match &mut self.backend {
            _ if managed.is_left_alone() => {
                if !managed.is_shared {
                    managed.in_force = settings(self.backend.controller(), &managed.cgroup)?;
                    if !managed.is_tenants {
                        managed.configured = managed.in_force.weight;
                    }
                }
            }
            Backend::Live(actuator) => managed.recheck_group(actuator, notes)?,
            // What is there is in force; a group that was not made has the default.
            Backend::Dry(controller) if !managed.made => {
                managed.in_force = settings(controller.as_ref(), &managed.cgroup)?;
            }
            Backend::Dry(_) => {}
        }
        Ok(())
    }

    /// A VM is not managed any more: the changes on it are reverted. One that still runs leaves its turns first, so that the
    /// thread that keeps them writes its cgroup no more.
    fn leave(&mut self, managed: ManagedVm, why: Left, notes: &mut Vec<Note>) {
        self.close_files_of(&managed.vcpus);
        let (name, pid) = (&managed.vm.name, managed.vm.process.pid);
        notes.push(Note(match why {
            Left::Gone => format!("VM {name} (pid {pid}) is gone"),
            Left::Unselected => {
                format!("VM {name} (pid {pid}) is not managed any more: its changes are reverted")
            }
        }));
        if let (Left::Unselected, Some(keeper)) = (why, &mut self.turns.keeper)
            && managed.in_force.rotating
            && !keeper.remove(managed.vm.id)
        {
            let error = format!("VM {name}: it does not leave its turns; please report this");
            self.turns.errors.push(error);
        }
        self.leaving.push(managed);
    }

    /// Whether changes on this process's VM are yet to be reverted.
    pub fn is_leaving(&self, pid: Pid) -> bool {
        self.leaving.pids().contains(&pid)
    }

    /// Groups of vCPUs that were busy when they were given up are tried again, but for those that are in use again by now.
    fn take_busy_groups(&mut self) {
        for managed in self.vms.values_mut() {
            for group in std::mem::take(&mut managed.busy) {
                self.leaving.push_group(&managed.vm, group, false);
            }
        }
        if !self.leaving.is_empty() {
            let vcpus = self.vms.values().flat_map(|managed| &managed.vcpus);
            let in_use = vcpus.filter_map(|vcpu| vcpu.group.as_ref()).collect();
            self.leaving.withdraw(&in_use);
        }
    }

    /// For how long it has been later than that.
    fn since(&self, began: Instant) -> Duration {
        (self.now)().saturating_duration_since(began)
    }

    /// Puts back what was changed for VMs that left, and busy groups of vCPUs, as far as there is time.
    fn release_leaving(&mut self, refused: &mut Vec<Refused>) {
        let kept = match self.leaving.is_empty() {
            true => HashSet::new(),
            false => self.vms.values().flat_map(|managed| held_by(managed).cgroups).collect(),
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

    /// What the first rule for this VM that says something says. Where it comes from is read once, if a rule asks.
    fn rule<T>(
        &self,
        vm: &Vm,
        origin: &OnceCell<Origin>,
        says: impl Fn(&VmRule) -> Option<T>,
    ) -> Option<T> {
        let read = || Origin::of(vm, &ProcFs::host(), self.controller());
        self.rules.iter().filter(|rule| rule.is_for(vm, || origin.get_or_init(read))).find_map(says)
    }

    /// Gives back what puts everything back.
    pub fn into_backend(mut self) -> Backend {
        // First the thread that writes by itself.
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

    /// A VM is left out until one of its vCPUs has been sampled before, and while none can be read; a vCPU without an earlier
    /// sample did nothing.
    fn observe(&mut self, elapsed: Nanos, period: Nanos, closely: bool) -> Vec<VmObservation> {
        let scale = period.0 as f64 / elapsed.0.max(1) as f64;
        self.hear_of_turns();
        self.sampler.begin_round();
        let mut observations = Vec::with_capacity(self.vms.len());
        let mut parents: HashMap<Option<CgroupPath>, usize> = HashMap::new();
        for (id, managed) in &mut self.vms {
            let mut vcpus = Vec::with_capacity(managed.vcpus.len());
            let stood_still = self.sampler.stood_still(managed.vm.process.pid);
            for vcpu in &mut managed.vcpus {
                let sample = match vcpu.last {
                    Some(last) if stood_still => last,
                    _ => match self.sampler.sample(&vcpu.thread) {
                        Ok(sample) => sample,
                        Err(_) => {
                            vcpu.last = None;
                            continue;
                        }
                    },
                };
                managed.waits.count(vcpu.last, sample);
                let mut observed = vcpu.observe(sample, scale, closely, &self.sampler);
                self.throttling.count(vcpu.caps(), observed.waited, scale);
                if !stood_still {
                    observed.branches = self.counters.read(managed.policies, vcpu);
                }
                vcpus.push(observed);
            }
            if vcpus.is_empty() {
                continue;
            }
            if std::mem::replace(&mut managed.sampled, true) {
                let parent = managed.cgroup.parent();
                let next = parents.len();
                let siblings = *parents.entry(parent).or_insert(next);
                observations.push(VmObservation {
                    in_force: VmSettings { quota: managed.quota(), ..managed.in_force },
                    siblings: siblings as u32,
                    levels: self.hierarchy.levels(&managed.above()),
                    divisible: managed.divisible && self.divides,
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

    fn apply(&mut self, decisions: &[Decision]) -> Applied {
        match &mut self.backend {
            Backend::Live(actuator) => Applied::all(decisions, &mut self.vms, actuator),
            Backend::Dry(_) => Applied::default(),
        }
    }

    fn rotate(&mut self, rotation: &Rotation) {
        self.take_turns(rotation);
    }
}
