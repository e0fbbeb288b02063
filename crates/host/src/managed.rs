//! A VM under the daemon's care, and what is in force for it: read back, and read again now and then, because others
//! may change it.

use std::collections::BTreeSet;

use tandem_linux::actuator::{Actuator, ActuatorError, Foreign, Held};
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Knob};
use tandem_linux::restore::RestoreReport;
use tandem_linux::sampler::{Sampler, VcpuSample};
use tandem_linux::sched_attr;
use tandem_linux::thread::ThreadRef;
use tandem_model::{
    Knob as Setting, Nanos, PcpuSet, PolicySet, VcpuId, VcpuObservation, VcpuSettings, VmSettings,
    Weight,
};

use crate::configured::Configured;
use crate::discovery::Vm;
use crate::in_force::{settings, shares, vcpu_group};
use crate::quotas::CapId;
use crate::waits::Waits;

/// A vCPU that has just become quiet is looked at once, and from then on every so many periods.
const LOOK_EVERY: u32 = 10;

/// One vCPU thread under care.
#[derive(Debug)]
pub(crate) struct ManagedVcpu {
    pub(crate) index: VcpuId,
    pub(crate) thread: ThreadRef,
    pub(crate) last: Option<VcpuSample>,
    pub(crate) allowed: PcpuSet,
    /// Where the operator lets it run, if we narrowed that.
    pub(crate) granted: Option<PcpuSet>,
    /// Where its cpuset lets it run; `None`: nothing is known that keeps it from anywhere, or no policy asks.
    pub(crate) cpuset: Option<PcpuSet>,
    /// Whether it roams in turns. Then whoever keeps these writes its affinity, and `allowed` is where it may be given a seat.
    pub(crate) roams: bool,
    /// What else is in force.
    pub(crate) settings: VcpuSettings,
    /// The cgroup that holds it alone, if it has one.
    pub(crate) group: Option<CgroupPath>,
    /// The quotas of the cgroups at and above its own; `None`: not read yet.
    pub(crate) quotas: Option<Vec<CapId>>,
    /// What we set on its thread; what differs from that was set by somebody else.
    pub(crate) ours: BTreeSet<Setting>,
    /// Periods in a row without any run or wait, and whether it was runnable when last looked at.
    quiet: u32,
    runnable: bool,
}

/// One VM under care.
#[derive(Debug)]
pub struct ManagedVm {
    /// As discovered.
    pub vm: Vm,
    /// The cgroup whose weight is the VM's.
    pub cgroup: CgroupPath,
    /// Whether the cgroup was made by us.
    pub made: bool,
    /// Whether its vCPUs can be put apart: the group was made by us, and nobody else has moved a vCPU out of it.
    pub(crate) divisible: bool,
    /// While its vCPUs are apart: the weight that its empty group was left with.
    pub(crate) undivided: Option<Weight>,
    /// Configured weight w_i, in the knob's units.
    pub configured: Weight,
    /// How that comes about.
    pub(crate) worth: Configured,
    /// Whether a rule says it: then no other weight counts.
    pub(crate) has_rule: bool,
    /// Whether the weight of its cgroup is a tenant's word, and none that counts.
    pub(crate) is_tenants: bool,
    /// What is in force. In the idle class there is no weight: then it is the one that the VM gets when it leaves.
    pub in_force: VmSettings,
    /// The most that quotas below its cgroup leave it, in pCPUs, where they bind.
    pub(crate) left_below: Option<f64>,
    /// The policies that may act on it.
    pub policies: PolicySet,
    /// Whether the cgroup is not the VM's alone: so it is for a VM without one of its own that is left as it is.
    pub(crate) is_shared: bool,
    /// Whether it takes turns no more, and what is in force has to be read again.
    pub(crate) ended_turns: bool,
    /// Groups of its vCPUs that could not be removed when they were given up; the fleet tries them again.
    pub(crate) busy: Vec<CgroupPath>,
    /// How long its vCPUs waited.
    pub(crate) waits: Waits,
    pub(crate) vcpus: Vec<ManagedVcpu>,
    /// Whether any of its vCPUs was ever sampled; before that there is nothing to observe.
    pub(crate) sampled: bool,
}

/// Something an operator would want to read in the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl ManagedVm {
    /// How many vCPU threads are under care.
    pub fn vcpu_count(&self) -> usize {
        self.vcpus.len()
    }

    /// Where each vCPU may run, by vCPU number.
    pub fn allowed(&self) -> Vec<(VcpuId, PcpuSet)> {
        let vcpus = self.vcpus.iter();
        vcpus.map(|vcpu| (vcpu.index, vcpu.allowed.clone())).collect()
    }

    /// Whether it is measured and left as it is.
    pub fn is_left_alone(&self) -> bool {
        self.policies == PolicySet::NONE
    }

    /// The cgroup right above its own; the root's is the root.
    pub(crate) fn above(&self) -> CgroupPath {
        self.cgroup.parent().unwrap_or_else(CgroupPath::root)
    }

    /// The most that the quotas of its own leave it, in pCPUs; `None`: it has none.
    pub fn quota(&self) -> Option<f64> {
        let quotas = [self.in_force.quota, self.left_below];
        quotas.into_iter().flatten().reduce(f64::min)
    }

    /// It takes no turns any more.
    pub(crate) fn end_turns(&mut self) {
        self.in_force.rotating = false;
        self.ended_turns = true;
    }

    /// Has a VM whose vCPUs are worth something each weigh what they do now; what is in force moves with it. A VM that takes turns
    /// gets it with its next one; in the idle class there is nothing to write.
    pub(crate) fn weigh(
        &mut self,
        actuator: Option<&mut Actuator>,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let vcpus = self.vm.vcpus.len();
        let (before, now) = (self.configured, self.worth.weight(vcpus));
        let factor = now.value() / before.value();
        // Shares of what somebody else set may not add up to the last digit.
        if self.is_left_alone() || (factor - 1.0).abs() <= 1e-9 {
            return Ok(());
        }
        self.configured = now;
        self.in_force.weight = self.in_force.weight.times(factor);
        let vm = &self.vm.name;
        notes.extend(self.worth.news(vm, vcpus).map(Note));
        let line = format!("VM {vm} at weight {now} with {vcpus} vCPUs");
        notes.push(Note(line));
        if let Some(actuator) = actuator
            && !(self.in_force.idle || self.in_force.rotating || self.ended_turns)
        {
            self.write_weight(self.in_force.weight, actuator)?;
        }
        Ok(())
    }

    pub(crate) fn vcpu_mut(&mut self, vcpu: VcpuId) -> Option<&mut ManagedVcpu> {
        self.vcpus.iter_mut().find(|managed| managed.index == vcpu)
    }

    /// What somebody else set on its cgroup, and the daemon has written over by now.
    pub(crate) fn hear_of(&mut self, foreign: &Foreign) -> Note {
        let Foreign { cgroup, knob, text } = foreign;
        let line =
            format!("VM {}: someone else set the {knob} of {cgroup} to {text}", self.vm.name);
        let weight = match foreign.knob {
            Knob::Weight if !self.has_rule && !self.is_tenants => {
                text.parse().ok().and_then(Weight::new)
            }
            _ => None,
        };
        match weight {
            Some(weight) => {
                self.configured = weight;
                self.worth.replace(weight, self.vm.vcpus.len());
                Note(format!("{line}; it counts as configured from now on"))
            }
            None => {
                Note(format!("{line}; the daemon's stays in force, and this comes back in the end"))
            }
        }
    }

    /// Reads the cgroup's settings again. What somebody else set counts from now on, a weight as configured unless a rule says
    /// another. Leaving the idle class sets the kernel's default weight, which nobody asked for: what is configured stays.
    pub(crate) fn recheck_group(
        &mut self,
        actuator: &mut Actuator,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let now = settings(actuator.controller(), &self.cgroup)?;
        self.in_force.quota = now.quota;
        // In turns it changes all the time, by us.
        if self.in_force.rotating || self.ended_turns {
            return Ok(());
        }
        let foreign = |knob: &str, value: &dyn std::fmt::Display| {
            format!(
                "VM {}: someone else set the {knob} of {} to {value}",
                self.vm.name, self.cgroup
            )
        };
        if now.idle != self.in_force.idle {
            notes.push(Note(foreign("cpu.idle", &u8::from(now.idle))));
            self.in_force.idle = now.idle;
            forget_idle_class(actuator, &self.cgroup, now.idle)?;
            if !now.idle {
                self.in_force.weight = actuator.controller().default_weight();
            }
        }
        let ours = self.undivided.unwrap_or(self.in_force.weight);
        if !now.idle && now.weight != ours && self.has_rule {
            let line = foreign("weight", &now.weight);
            actuator.set_weight(&self.cgroup, ours)?;
            // The actuator tells of what it finds there, but not of groups that were made here, nor of what comes back anyway.
            if !actuator.has_foreign(&self.cgroup, Knob::Weight) {
                notes.push(Note(format!("{line}; the rule's stays in force")));
            }
        } else if !now.idle && now.weight != ours && self.is_tenants {
            self.write_weight(ours, actuator)?;
        } else if !now.idle && now.weight != ours {
            let line = foreign("weight", &now.weight);
            notes.push(Note(format!("{line}; it counts as configured from now on")));
            actuator.forget_knob(&self.cgroup, Knob::Weight)?;
            match self.undivided.as_mut() {
                // The vCPUs' groups have it in parts.
                Some(undivided) => *undivided = now.weight,
                None => self.in_force.weight = now.weight,
            }
            self.configured = now.weight;
            self.worth.replace(now.weight, self.vm.vcpus.len());
        }
        Ok(())
    }
}

/// Gives up a group that held a vCPU alone. One that cannot be removed, because somebody is in it or for another reason, goes to the `busy` ones.
pub(crate) fn give_up_group(
    group: CgroupPath,
    busy: &mut Vec<CgroupPath>,
    actuator: &mut Actuator,
) {
    let held = Held { cgroups: vec![group.clone()], ..Held::default() };
    let reports = actuator.release_empty(&[&held]);
    if !reports.iter().all(RestoreReport::is_complete) {
        busy.push(group);
    }
}

/// Somebody else put a cgroup into the idle class, and with that gave up the weight that it had, or took it out.
fn forget_idle_class(
    actuator: &mut Actuator,
    cgroup: &CgroupPath,
    idle: bool,
) -> Result<(), ActuatorError> {
    actuator.forget_knob(cgroup, Knob::Idle)?;
    if idle { actuator.forget_knob(cgroup, Knob::Weight) } else { Ok(()) }
}

impl ManagedVcpu {
    /// A thread that has just been found.
    pub(crate) fn new(index: VcpuId, thread: ThreadRef, allowed: PcpuSet) -> ManagedVcpu {
        ManagedVcpu {
            settings: VcpuSettings {
                nice: sched_attr::nice(thread.tid).unwrap_or_default(),
                slice: sched_attr::slice(thread.tid).unwrap_or_default(),
                ..VcpuSettings::default()
            },
            index,
            thread,
            last: None,
            allowed,
            granted: None,
            cpuset: None,
            roams: false,
            group: None,
            quotas: None,
            ours: BTreeSet::new(),
            quiet: 0,
            runnable: true,
        }
    }

    /// The quotas at and above its cgroup, as far as they are known.
    pub(crate) fn caps(&self) -> &[CapId] {
        self.quotas.as_deref().unwrap_or_default()
    }

    /// It roams from now on; its affinity is journaled.
    pub(crate) fn roam(&mut self) {
        if let Some(granted) = self.granted.take() {
            self.allowed = granted;
        }
        self.ours.insert(Setting::Affinity);
        self.roams = true;
    }

    /// Reads what is set on the thread again. What somebody else set stays, and is no longer ours to put back.
    pub(crate) fn recheck(
        &mut self,
        vm: &str,
        sampler: &Sampler,
        actuator: Option<&mut Actuator>,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let Ok(allowed) = sampler.read_affinity(&self.thread) else {
            return Ok(());
        };
        let mut foreign: Vec<(Setting, String)> = Vec::new();
        if allowed != self.allowed && !self.roams {
            let what = format!("its affinity to {allowed}; it stays there");
            foreign.push((Setting::Affinity, what));
            self.allowed = allowed;
            self.granted = None;
        }
        if let Ok(nice) = sched_attr::nice(self.thread.tid)
            && nice != self.settings.nice
        {
            foreign.push((Setting::Nice, format!("its nice value to {nice}")));
            self.settings.nice = nice;
        }
        if let Ok(slice) = sched_attr::slice(self.thread.tid)
            && slice != self.settings.slice
        {
            let slice_text =
                slice.map_or_else(|| "the usual".to_owned(), |slice| slice.to_string());
            foreign.push((Setting::Slice, format!("its slice to {slice_text}")));
            self.settings.slice = slice;
        }
        let foreign: Vec<_> =
            foreign.into_iter().filter(|(setting, _)| self.ours.remove(setting)).collect();
        let Some(actuator) = actuator else {
            return Ok(());
        };
        for (setting, what) in foreign {
            actuator.forget_thread(&self.thread, setting)?;
            notes.push(Note(format!("VM {vm} vCPU {}: someone else set {what}", self.index)));
        }
        Ok(())
    }

    /// Finds the cgroup that holds it alone, if it has one, and reads what is in force there. What somebody else set in the
    /// one that it had before is returned, in words. Of a thread that ended nothing changes.
    pub(crate) fn reread_group(
        &mut self,
        controller: &dyn CpuController,
        vms: &CgroupPath,
    ) -> Result<Vec<(Knob, String)>, CgroupError> {
        let found = vcpu_group(controller, vms, &self.thread, self.group.as_ref())?;
        let now = match found.as_ref().map(|group| shares(controller, group)) {
            // Removed a moment ago, so its thread is on its way elsewhere.
            Some(Err(error)) if error.is_gone() => None,
            read => read.transpose()?,
        };
        let (Some(group), Some(now)) = (found, now) else {
            self.group = None;
            (self.settings.weight, self.settings.idle) = (None, false);
            return Ok(Vec::new());
        };
        if self.group.as_ref() != Some(&group) {
            self.group = Some(group);
            (self.settings.weight, self.settings.idle) = (Some(now.weight), now.idle);
            return Ok(Vec::new());
        }
        let mut foreign = Vec::new();
        if now.idle != self.settings.idle {
            foreign.push((Knob::Idle, format!("cpu.idle of {group} to {}", u8::from(now.idle))));
            self.settings.idle = now.idle;
            if !now.idle {
                self.settings.weight = Some(controller.default_weight());
            }
        }
        if !now.idle && Some(now.weight) != self.settings.weight {
            foreign.push((Knob::Weight, format!("the weight of {group} to {}", now.weight)));
            self.settings.weight = Some(now.weight);
        }
        Ok(foreign)
    }

    /// Reads again what is set on the cgroup that holds it alone. What somebody else set stays, and is no longer ours to put
    /// back. True if somebody else moved it out of the group in which it was apart.
    pub(crate) fn recheck_group(
        &mut self,
        vm: &str,
        vms: &CgroupPath,
        busy: &mut Vec<CgroupPath>,
        actuator: &mut Actuator,
        notes: &mut Vec<Note>,
    ) -> Result<bool, ActuatorError> {
        let before = self.group.clone();
        let foreign = match self.reread_group(actuator.controller(), vms) {
            Err(error) if error.is_gone() => return Ok(false),
            other => other?,
        };
        if let Some(group) = before
            && self.group.as_ref() != Some(&group)
        {
            let was_apart = self.settings.portion.take().is_some();
            if was_apart {
                notes.push(Note(format!(
                    "VM {vm} vCPU {}: someone else moved it out of {group}; it stays there, and the VM's vCPUs are not put apart any more",
                    self.index
                )));
            }
            // Also what was set on one that was there before comes back.
            give_up_group(group, busy, actuator);
            return Ok(was_apart);
        }
        for (knob, what) in foreign {
            if let Some(group) = &self.group {
                match knob {
                    Knob::Idle => forget_idle_class(actuator, group, self.settings.idle)?,
                    Knob::Weight | Knob::Quota => actuator.forget_knob(group, knob)?,
                }
            }
            notes.push(Note(format!("VM {vm} vCPU {}: someone else set {what}", self.index)));
        }
        Ok(false)
    }

    /// What it did since the last sample, `scale` times; nothing where there is no earlier one.
    pub(crate) fn observe(
        &mut self,
        sample: VcpuSample,
        scale: f64,
        closely: bool,
        sampler: &Sampler,
    ) -> VcpuObservation {
        let fresh = VcpuObservation {
            in_force: self.settings,
            granted: self.granted.clone(),
            cpuset: self.cpuset.clone(),
            ..VcpuObservation::new(self.index, self.allowed.clone())
        };
        let Some(last) = self.last.replace(sample) else {
            return fresh;
        };
        let scaled =
            |now: Nanos, then: Nanos| Nanos((now.saturating_sub(then).0 as f64 * scale) as u64);
        let ran = scaled(sample.ran, last.ran);
        let waited = scaled(sample.waited, last.waited);
        self.note_activity(ran + waited, closely, sampler);
        VcpuObservation {
            ran,
            waited,
            runs: Some((sample.runs.saturating_sub(last.runs) as f64 * scale) as u64),
            runnable: self.runnable,
            ..fresh
        }
    }

    /// Keeps `runnable` up to date without a read per period for those that sleep for long.
    fn note_activity(&mut self, active: Nanos, closely: bool, sampler: &Sampler) {
        if active > Nanos::ZERO {
            (self.quiet, self.runnable) = (0, true);
            return;
        }
        self.quiet = self.quiet.saturating_add(1);
        if closely && (self.quiet == 1 || self.quiet.is_multiple_of(LOOK_EVERY)) {
            self.runnable = sampler.read_state(&self.thread).is_ok_and(|state| state.is_runnable());
        } else if !closely {
            self.runnable = false;
        }
    }
}
