//! A managed VM and the current values of its settings.
//!
//! The values are read back after each change, and read again now and then, because others may change them.

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

/// Periods between two reads of the state of a quiet vCPU, after one read when it becomes quiet.
const LOOK_EVERY: u32 = 10;

/// One managed vCPU thread.
#[derive(Debug)]
pub(crate) struct ManagedVcpu {
    pub(crate) index: VcpuId,
    pub(crate) thread: ThreadRef,
    pub(crate) last: Option<VcpuSample>,
    pub(crate) allowed: PcpuSet,
    /// The operator's affinity, if the daemon narrowed it.
    pub(crate) granted: Option<PcpuSet>,
    /// The pCPUs of its cpuset; `None` if no cpuset is known to restrict it, or no policy uses this.
    pub(crate) cpuset: Option<PcpuSet>,
    /// Whether it roams in turns.
    /// Then the turn thread writes its affinity, and `allowed` holds the pCPUs on which it may get a slot.
    pub(crate) roams: bool,
    /// Current values of its other settings.
    pub(crate) settings: VcpuSettings,
    /// The cgroup that holds it alone, if it has one.
    pub(crate) group: Option<CgroupPath>,
    /// The quotas of the cgroups at and above its own; `None`: not read yet.
    pub(crate) quotas: Option<Vec<CapId>>,
    /// Settings of its thread that the daemon changed; a different value there is a foreign change.
    pub(crate) ours: BTreeSet<Setting>,
    /// Periods in a row without any run or wait, and whether it was runnable when last looked at.
    quiet: u32,
    runnable: bool,
}

/// One managed VM.
#[derive(Debug)]
pub struct ManagedVm {
    /// As discovered.
    pub vm: Vm,
    /// The cgroup whose weight is the VM's.
    pub cgroup: CgroupPath,
    /// Whether the daemon made the cgroup.
    pub made: bool,
    /// Whether its vCPUs can get groups of their own: the daemon made the cgroup, and all foreign moves were within it.
    pub(crate) divisible: bool,
    /// The weight of its empty group, while its vCPUs have groups of their own.
    pub(crate) undivided: Option<Weight>,
    /// Configured weight w_i, in the knob's units.
    pub configured: Weight,
    /// The source of the configured weight.
    pub(crate) worth: Configured,
    /// Whether a rule sets the weight, which then overrides foreign weights.
    pub(crate) has_rule: bool,
    /// Whether a tenant can write the weight of its cgroup; such a weight is ignored.
    pub(crate) is_tenants: bool,
    /// Current settings.
    /// In the idle class, the weight is the one that the VM gets when it leaves the class.
    pub in_force: VmSettings,
    /// The limit by quotas below its cgroup, in pCPUs, if they bind.
    pub(crate) left_below: Option<f64>,
    /// The policies that may act on it.
    pub policies: PolicySet,
    /// Whether the cgroup holds other processes too: a VM without a cgroup of its own that is only measured.
    pub(crate) is_shared: bool,
    /// Whether it has left the rotation since its settings were last read.
    pub(crate) ended_turns: bool,
    /// Groups of its vCPUs that could not be removed; the fleet retries.
    pub(crate) busy: Vec<CgroupPath>,
    /// Wait time of its vCPUs.
    pub(crate) waits: Waits,
    pub(crate) vcpus: Vec<ManagedVcpu>,
    /// Whether any of its vCPUs was ever sampled.
    pub(crate) sampled: bool,
}

/// A line for the operator's log.
#[derive(Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl ManagedVm {
    /// Returns the number of managed vCPU threads.
    pub fn vcpu_count(&self) -> usize {
        self.vcpus.len()
    }

    /// Returns the pCPUs on which each vCPU may run, by vCPU number.
    pub fn allowed(&self) -> Vec<(VcpuId, PcpuSet)> {
        let vcpus = self.vcpus.iter();
        vcpus.map(|vcpu| (vcpu.index, vcpu.allowed.clone())).collect()
    }

    /// Whether it is only measured.
    pub fn is_left_alone(&self) -> bool {
        self.policies == PolicySet::NONE
    }

    /// Returns the parent of its cgroup; the root's is the root.
    pub(crate) fn above(&self) -> CgroupPath {
        self.cgroup.parent().unwrap_or_else(CgroupPath::root)
    }

    /// Returns the limit by its quotas, in pCPUs; `None` without quotas.
    pub fn quota(&self) -> Option<f64> {
        let quotas = [self.in_force.quota, self.left_below];
        quotas.into_iter().flatten().reduce(f64::min)
    }

    /// Records that it has left the rotation.
    pub(crate) fn end_turns(&mut self) {
        self.in_force.rotating = false;
        self.ended_turns = true;
    }

    /// Updates the configured weight after a change of the number of vCPUs or of the settings, and scales the current weight with it.
    ///
    /// A VM in a rotation gets the weight with its next turn.
    /// In the idle class there is no weight to write.
    pub(crate) fn weigh(
        &mut self,
        actuator: Option<&mut Actuator>,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let vcpus = self.vm.vcpus.len();
        let (before, now) = (self.configured, self.worth.weight(vcpus));
        let factor = now.value() / before.value();
        // Shares of a foreign weight may not add up to the last digit.
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

    /// Takes in a foreign setting of its cgroup that the daemon has overwritten.
    pub(crate) fn on_foreign_write(&mut self, foreign: &Foreign) -> Note {
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

    /// Reads the cgroup's settings again and adopts foreign values.
    ///
    /// A foreign weight becomes the configured one, unless a rule sets the weight or a tenant wrote it.
    /// Leaving the idle class sets the kernel's default weight, which does not change the configured one.
    pub(crate) fn recheck_group(
        &mut self,
        actuator: &mut Actuator,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let now = settings(actuator.controller(), &self.cgroup)?;
        self.in_force.quota = now.quota;
        // The turn thread changes it all the time.
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
            // The actuator reports a foreign weight, except in groups that the daemon made, or if it will restore that weight anyway.
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
                // The vCPUs' groups hold parts of the weight.
                Some(undivided) => *undivided = now.weight,
                None => self.in_force.weight = now.weight,
            }
            self.configured = now.weight;
            self.worth.replace(now.weight, self.vm.vcpus.len());
        }
        Ok(())
    }
}

/// Removes a group that held a single vCPU, or adds it to `busy` if that fails, for example because it holds another thread.
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

/// Accepts a foreign change of a cgroup's idle class.
/// Entering the class also discards the cgroup's weight.
fn forget_idle_class(
    actuator: &mut Actuator,
    cgroup: &CgroupPath,
    idle: bool,
) -> Result<(), ActuatorError> {
    actuator.forget_knob(cgroup, Knob::Idle)?;
    if idle { actuator.forget_knob(cgroup, Knob::Weight) } else { Ok(()) }
}

impl ManagedVcpu {
    /// Returns a vCPU that was just found, with its thread's current settings.
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

    /// Returns the known quotas at and above its cgroup.
    pub(crate) fn caps(&self) -> &[CapId] {
        self.quotas.as_deref().unwrap_or_default()
    }

    /// Lets it roam; its affinity is journaled already.
    pub(crate) fn roam(&mut self) {
        if let Some(granted) = self.granted.take() {
            self.allowed = granted;
        }
        self.ours.insert(Setting::Affinity);
        self.roams = true;
    }

    /// Reads the thread's settings again.
    /// The daemon keeps a foreign value and will not revert that setting.
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

    /// Finds the cgroup that holds this vCPU alone, if any, and reads its settings.
    ///
    /// Returns a description of each foreign setting, if the cgroup is the same as before.
    /// If the thread has ended, all stays as it is.
    pub(crate) fn reread_group(
        &mut self,
        controller: &dyn CpuController,
        vms: &CgroupPath,
    ) -> Result<Vec<(Knob, String)>, CgroupError> {
        let found = vcpu_group(controller, vms, &self.thread, self.group.as_ref())?;
        let now = match found.as_ref().map(|group| shares(controller, group)) {
            // Just removed, so its thread is being moved.
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

    /// Reads the settings of the cgroup that holds this vCPU alone.
    ///
    /// The daemon keeps a foreign value and will not revert that setting.
    /// Returns true if the thread was moved out of a group that the daemon had made for it.
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
            // This also reverts the settings of a group that existed before.
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

    /// Returns its run and wait times since the last sample, times `scale`; zero without an earlier sample.
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

    /// Keeps `runnable` up to date without a read per period for vCPUs that sleep long.
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
