//! A managed VM, and changes of its settings by others.
//!
//! Settings are read again now and then, because others may change them.

use tandem_linux::actuator::{Actuator, ActuatorError, Foreign};
use tandem_linux::cgroup::{CgroupPath, Knob};
use tandem_linux::sampler::Sampler;
use tandem_linux::sched_attr;
use tandem_model::{Knob as Setting, PcpuSet, PolicySet, VcpuId, Weight};
use tandem_policy::vm_cpu::Knobs;

use crate::configured::Configured;
use crate::discovery::Vm;
use crate::in_force::shares;
use crate::vm_cpu::{LiveKnobs, VcpuCpu, VmCpu, read_group};
use crate::waits::Waits;

/// One managed VM.
#[derive(Debug)]
pub struct ManagedVm {
    /// As discovered.
    pub vm: Vm,
    /// Whether the daemon made its cgroup.
    pub made: bool,
    /// Its CPU settings.
    pub(crate) cpu: VmCpu,
    /// Configured weight w_i, in the knob's units.
    pub configured: Weight,
    /// The source of the configured weight.
    pub(crate) worth: Configured,
    /// Whether a rule sets the weight, which then overrides foreign weights.
    pub(crate) has_rule: bool,
    /// Whether a tenant can write the weight of its cgroup; such a weight is ignored.
    pub(crate) is_tenants: bool,
    /// The limit by its cgroup's quota, in pCPUs.
    pub(crate) own_quota: Option<f64>,
    /// The limit by quotas below its cgroup, in pCPUs, if they bind.
    pub(crate) left_below: Option<f64>,
    /// The policies that may act on it.
    pub policies: PolicySet,
    /// Whether the cgroup holds other processes too: a VM without a cgroup of its own that is only measured.
    pub(crate) is_shared: bool,
    /// Groups of its vCPUs that could not be removed; the fleet retries.
    pub(crate) busy: Vec<CgroupPath>,
    /// Wait time of its vCPUs.
    pub(crate) waits: Waits,
    /// Whether any of its vCPUs was ever sampled.
    pub(crate) sampled: bool,
}

/// A line for the operator's log.
#[derive(Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl ManagedVm {
    /// Returns the cgroup whose weight is the VM's.
    pub fn cgroup(&self) -> &CgroupPath {
        &self.cpu.group
    }

    /// Returns the current weight; in the idle class and in turns, the one outside the class.
    pub fn weight(&self) -> Weight {
        self.cpu.weight()
    }

    /// Whether it takes turns.
    pub fn takes_turns(&self) -> bool {
        self.cpu.takes_turns()
    }

    /// Whether its vCPUs have groups of their own.
    pub fn is_divided(&self) -> bool {
        self.cpu.is_divided()
    }

    /// Returns the number of managed vCPU threads.
    pub fn vcpu_count(&self) -> usize {
        self.cpu.vcpus.len()
    }

    /// Returns the pCPUs on which each vCPU may run, by vCPU number.
    pub fn allowed(&self) -> Vec<(VcpuId, PcpuSet)> {
        let vcpus = self.cpu.vcpus.iter();
        vcpus.map(|vcpu| (vcpu.id, vcpu.allowed.clone())).collect()
    }

    /// Whether it is only measured.
    pub fn is_left_alone(&self) -> bool {
        self.policies == PolicySet::NONE
    }

    /// Returns the parent of its cgroup; the root's is the root.
    pub(crate) fn above(&self) -> CgroupPath {
        self.cgroup().parent().unwrap_or_else(CgroupPath::root)
    }

    /// Returns the limit by its quotas, in pCPUs; `None` without quotas.
    pub fn quota(&self) -> Option<f64> {
        let quotas = [self.own_quota, self.left_below];
        quotas.into_iter().flatten().reduce(f64::min)
    }

    /// Returns its CPU settings, and the knobs to change them with.
    pub(crate) fn with_knobs<'a>(
        &'a mut self,
        actuator: &'a mut Actuator,
    ) -> (&'a mut VmCpu, LiveKnobs<'a>) {
        (&mut self.cpu, LiveKnobs { actuator, busy: &mut self.busy })
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
        let vm = &self.vm.name;
        notes.extend(self.worth.news(vm, vcpus).map(Note));
        let line = format!("VM {vm} at weight {now} with {vcpus} vCPUs");
        notes.push(Note(line));
        let weight = self.weight().times(factor);
        match actuator {
            Some(actuator) => {
                let (cpu, mut knobs) = self.with_knobs(actuator);
                cpu.set_weight(weight, &mut knobs)?;
            }
            None => self.cpu.on_weight(weight),
        }
        Ok(())
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
        let cgroup = self.cgroup().clone();
        // The turn keeper changes them all the time.
        if self.takes_turns() || self.cpu.has_ended_turns() {
            return Ok(());
        }
        let (weight, idle) = shares(actuator.controller(), &cgroup)?;
        let name = self.vm.name.clone();
        let foreign = |knob: &str, value: &dyn std::fmt::Display| {
            format!("VM {name}: someone else set the {knob} of {cgroup} to {value}")
        };
        if idle != self.cpu.is_idle() {
            notes.push(Note(foreign("cpu.idle", &u8::from(idle))));
            forget_idle_class(actuator, &cgroup, idle)?;
            let (cpu, knobs) = self.with_knobs(actuator);
            cpu.on_idle(idle, knobs.default_weight());
        }
        if idle || self.cpu.group_weight().is_none_or(|ours| weight == ours) {
            return Ok(());
        }
        let line = foreign("weight", &weight);
        if self.has_rule || self.is_tenants {
            let (cpu, mut knobs) = self.with_knobs(actuator);
            cpu.restore_group_weight(&mut knobs)?;
            // The actuator reports a foreign weight, except in groups that the daemon made, or if it will restore that weight anyway.
            if self.has_rule && !actuator.has_foreign(&cgroup, Knob::Weight) {
                notes.push(Note(format!("{line}; the rule's stays in force")));
            }
        } else {
            notes.push(Note(format!("{line}; it counts as configured from now on")));
            actuator.forget_knob(&cgroup, Knob::Weight)?;
            self.cpu.on_weight(weight);
            self.configured = weight;
            self.worth.replace(weight, self.vm.vcpus.len());
        }
        Ok(())
    }

    /// Reads the settings of its vCPUs' threads and of their own cgroups again, and adopts foreign values.
    pub(crate) fn recheck_vcpus(
        &mut self,
        sampler: &Sampler,
        actuator: &mut Actuator,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        for vcpu in &mut self.cpu.vcpus {
            recheck_thread(vcpu, &self.vm.name, sampler, Some(&mut *actuator), notes)?;
        }
        self.recheck_vcpu_groups(actuator, notes)
    }

    /// Reads the settings of its vCPUs' own cgroups again, and adopts foreign values.
    pub(crate) fn recheck_vcpu_groups(
        &mut self,
        actuator: &mut Actuator,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let name = self.vm.name.clone();
        let (cpu, mut knobs) = self.with_knobs(actuator);
        for vcpu in &mut cpu.vcpus {
            let moved = recheck_vcpu_group(vcpu, &name, &cpu.group, &mut knobs, notes)?;
            cpu.divisible &= !moved;
        }
        cpu.settle_division(&mut knobs)
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

/// Reads a thread's settings again.
/// The daemon keeps a foreign value and will not revert that setting.
pub(crate) fn recheck_thread(
    vcpu: &mut VcpuCpu,
    vm: &str,
    sampler: &Sampler,
    actuator: Option<&mut Actuator>,
    notes: &mut Vec<Note>,
) -> Result<(), ActuatorError> {
    let thread = vcpu.host.thread;
    let Ok(allowed) = sampler.read_affinity(&thread) else {
        return Ok(());
    };
    let mut foreign: Vec<(Setting, String)> = Vec::new();
    if allowed != vcpu.allowed && vcpu.slots.is_empty() {
        let what = format!("its affinity to {allowed}; it stays there");
        foreign.push((Setting::Affinity, what));
        vcpu.on_affinity(allowed);
    }
    let settings = &mut vcpu.settings;
    if let Ok(nice) = sched_attr::nice(thread.tid)
        && nice != settings.nice
    {
        foreign.push((Setting::Nice, format!("its nice value to {nice}")));
        settings.nice = nice;
    }
    if let Ok(slice) = sched_attr::slice(thread.tid)
        && slice != settings.slice
    {
        let slice_text = slice.map_or_else(|| "the usual".to_owned(), |slice| slice.to_string());
        foreign.push((Setting::Slice, format!("its slice to {slice_text}")));
        settings.slice = slice;
    }
    let foreign: Vec<_> =
        foreign.into_iter().filter(|(setting, _)| vcpu.ours.remove(setting)).collect();
    let Some(actuator) = actuator else {
        return Ok(());
    };
    for (setting, what) in foreign {
        actuator.forget_thread(&thread, setting)?;
        notes.push(Note(format!("VM {vm} vCPU {}: someone else set {what}", vcpu.id)));
    }
    Ok(())
}

/// Reads the settings of the cgroup that holds a vCPU alone.
///
/// The daemon keeps a foreign value and will not revert that setting.
/// Returns true if the thread was moved out of a group that the daemon had made for it.
fn recheck_vcpu_group(
    vcpu: &mut VcpuCpu,
    vm: &str,
    vms: &CgroupPath,
    knobs: &mut LiveKnobs<'_>,
    notes: &mut Vec<Note>,
) -> Result<bool, ActuatorError> {
    let before = vcpu.group.clone();
    let foreign = match read_group(vcpu, knobs.actuator.controller(), vms) {
        Err(error) if error.is_gone() => return Ok(false),
        other => other?,
    };
    if let Some(group) = before
        && vcpu.group.as_ref() != Some(&group)
    {
        let was_apart = vcpu.settings.portion.take().is_some();
        if was_apart {
            notes.push(Note(format!(
                "VM {vm} vCPU {}: someone else moved it out of {group}; it stays there, and the VM's vCPUs are not put apart any more",
                vcpu.id
            )));
        }
        // This also reverts the settings of a group that existed before.
        knobs.remove_group(group);
        return Ok(was_apart);
    }
    for (knob, what) in foreign {
        if let Some(group) = &vcpu.group {
            match knob {
                Knob::Idle => forget_idle_class(knobs.actuator, group, vcpu.settings.idle)?,
                Knob::Weight | Knob::Quota => knobs.actuator.forget_knob(group, knob)?,
            }
        }
        notes.push(Note(format!("VM {vm} vCPU {}: someone else set {what}", vcpu.id)));
    }
    Ok(false)
}
