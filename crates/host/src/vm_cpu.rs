//! The CPU settings of VMs on a live host: cgroups and threads as [`tandem_policy::vm_cpu`] sees them.

#[cfg(test)]
mod tests;

use tandem_linux::actuator::{Actuator, ActuatorError, Held, IdleSwitch, Outcome};
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Knob};
use tandem_linux::restore::RestoreReport;
use tandem_linux::sched_attr;
use tandem_linux::thread::ThreadRef;
use tandem_model::{Nanos, Nice, PcpuSet, VcpuId, VcpuSettings, Weight};
use tandem_policy::vm_cpu::{self, Knobs};

use crate::in_force::{shares, vcpu_group};
use crate::live_vcpu::LiveVcpu;

/// A vCPU on a live host.
pub(crate) type VcpuCpu = vm_cpu::VcpuCpu<CgroupPath, LiveVcpu>;

/// A VM on a live host.
pub(crate) type VmCpu = vm_cpu::VmCpu<CgroupPath, LiveVcpu>;

/// Returns a vCPU that was just found, with its thread's current settings.
pub(crate) fn found(index: VcpuId, thread: ThreadRef, allowed: PcpuSet) -> VcpuCpu {
    let settings = VcpuSettings {
        nice: sched_attr::nice(thread.tid).unwrap_or_default(),
        slice: sched_attr::slice(thread.tid).unwrap_or_default(),
        ..VcpuSettings::default()
    };
    VcpuCpu::new(index, LiveVcpu::new(thread), settings, allowed)
}

/// The knobs of a VM: journaled by the actuator, then set.
pub(crate) struct LiveKnobs<'a> {
    pub(crate) actuator: &'a mut Actuator,
    /// Groups of vCPUs that could not be removed; the fleet retries.
    pub(crate) busy: &'a mut Vec<CgroupPath>,
}

impl LiveKnobs<'_> {
    /// Creates a group and moves a vCPU there; on an error, or if the thread has ended, the group is removed.
    fn move_into(
        &mut self,
        group: CgroupPath,
        thread: &ThreadRef,
        weigh: impl FnOnce(&mut Actuator, &CgroupPath) -> Result<Weight, ActuatorError>,
    ) -> Result<Option<(CgroupPath, Weight)>, ActuatorError> {
        let moved = weigh(self.actuator, &group)
            .and_then(|weight| Ok((weight, self.actuator.move_thread(thread, &group)?)));
        match moved {
            Ok((weight, Outcome::Done)) => Ok(Some((group, weight))),
            Ok((_, Outcome::Gone)) => {
                self.remove_group(group);
                Ok(None)
            }
            Err(error) => {
                self.remove_group(group);
                Err(error)
            }
        }
    }
}

impl Knobs<CgroupPath, LiveVcpu> for LiveKnobs<'_> {
    type Error = ActuatorError;
    type Switch = IdleSwitch;

    fn default_weight(&self) -> Weight {
        self.actuator.controller().default_weight()
    }

    fn is_idle(&self, group: &CgroupPath) -> Result<bool, ActuatorError> {
        Ok(self.actuator.controller().is_idle(group)? == Some(true))
    }

    fn set_weight(&mut self, group: &CgroupPath, weight: Weight) -> Result<Weight, ActuatorError> {
        self.actuator.set_weight(group, weight)
    }

    fn set_idle(&mut self, group: &CgroupPath, idle: bool) -> Result<(), ActuatorError> {
        self.actuator.set_idle(group, idle)
    }

    fn find_inner_group(
        &mut self,
        vm: &CgroupPath,
        vcpu: &mut VcpuCpu,
    ) -> Result<bool, ActuatorError> {
        read_group(vcpu, self.actuator.controller(), vm)?;
        if vcpu.group.is_none() {
            let group = self.actuator.create_group(vm, &format!("vcpu{}", vcpu.id))?;
            let default = self.default_weight();
            self.move_into(group, &vcpu.host.thread, |_, _| Ok(default))?;
            read_group(vcpu, self.actuator.controller(), vm)?;
        }
        Ok(vcpu.group.is_some())
    }

    fn separate(
        &mut self,
        vm: &CgroupPath,
        vcpu: &VcpuCpu,
        weight: Weight,
    ) -> Result<Option<(CgroupPath, Weight)>, ActuatorError> {
        let parent = vm.parent().unwrap_or_else(CgroupPath::root);
        let name = format!("{}-vcpu{}", vm.name(), vcpu.id);
        self.actuator.charge_like(&parent.child(&name), vm);
        let group = self.actuator.create_group(&parent, &name).inspect_err(|_| {
            self.actuator.stop_charging(&parent.child(&name));
        })?;
        self.move_into(group, &vcpu.host.thread, |actuator, group| {
            // A group that was too busy to remove earlier may still be in the idle class, which has no weight.
            if actuator.controller().is_idle(group)? == Some(true) {
                actuator.set_idle(group, false)?;
            }
            actuator.set_weight(group, weight)
        })
    }

    fn rejoin(&mut self, vm: &CgroupPath, vcpu: &VcpuCpu) -> Result<(), ActuatorError> {
        self.actuator.move_thread(&vcpu.host.thread, vm).map(drop)
    }

    /// A group stays if, for example, it holds another thread.
    fn remove_group(&mut self, group: CgroupPath) {
        let held = Held { cgroups: vec![group.clone()], ..Held::default() };
        let reports = self.actuator.release_empty(&[&held]);
        if !reports.iter().all(RestoreReport::is_complete) {
            self.busy.push(group);
        }
    }

    fn set_nice(&mut self, vcpu: &LiveVcpu, nice: Nice) -> Result<Option<Nice>, ActuatorError> {
        let outcome = self.actuator.set_nice(&vcpu.thread, nice)?;
        let now = self.actuator.threads().nice(vcpu.thread.tid);
        Ok(value(outcome, now.unwrap_or(nice)))
    }

    fn set_slice(
        &mut self,
        vcpu: &LiveVcpu,
        slice: Option<Nanos>,
    ) -> Result<Option<Option<Nanos>>, ActuatorError> {
        let outcome = self.actuator.set_slice(&vcpu.thread, slice)?;
        let now = self.actuator.threads().slice(vcpu.thread.tid);
        Ok(value(outcome, now.unwrap_or(slice)))
    }

    fn set_affinity(
        &mut self,
        vcpu: &LiveVcpu,
        pcpus: &PcpuSet,
    ) -> Result<Option<PcpuSet>, ActuatorError> {
        let outcome = self.actuator.set_affinity(&vcpu.thread, pcpus)?;
        let now = self.actuator.threads().affinity(vcpu.thread.tid);
        Ok(value(outcome, now.unwrap_or_else(|_| pcpus.clone())))
    }

    fn prepare_turns(
        &mut self,
        group: &CgroupPath,
        weight: Weight,
        goes_on: bool,
    ) -> Result<IdleSwitch, ActuatorError> {
        self.actuator.idle_switch(group, weight, goes_on)
    }

    fn prepare_slots(&mut self, vcpu: &LiveVcpu, pcpus: &PcpuSet) -> Result<bool, ActuatorError> {
        Ok(self.actuator.prepare_affinity(&vcpu.thread, pcpus)? == Outcome::Done)
    }
}

/// Returns the value that the kernel has after a change, which it may have adjusted; `None` if the thread has ended.
fn value<T>(outcome: Outcome, now: T) -> Option<T> {
    (outcome == Outcome::Done).then_some(now)
}

/// Finds the cgroup that holds a vCPU alone, if any, and reads its settings.
///
/// Returns a description of each foreign setting, if the cgroup is the same as before.
/// If the thread has ended, all stays as it is.
pub(crate) fn read_group(
    vcpu: &mut VcpuCpu,
    controller: &dyn CpuController,
    vm: &CgroupPath,
) -> Result<Vec<(Knob, String)>, CgroupError> {
    let found = vcpu_group(controller, vm, &vcpu.host.thread, vcpu.group.as_ref())?;
    let now = match found.as_ref().map(|group| shares(controller, group)) {
        // Just removed, so its thread is being moved.
        Some(Err(error)) if error.is_gone() => None,
        read => read.transpose()?,
    };
    let (Some(group), Some((weight, idle))) = (found, now) else {
        vcpu.on_group(None);
        return Ok(Vec::new());
    };
    if vcpu.group.as_ref() != Some(&group) {
        vcpu.on_group(Some((group, weight, idle)));
        return Ok(Vec::new());
    }
    let mut foreign = Vec::new();
    let settings = &mut vcpu.settings;
    if idle != settings.idle {
        foreign.push((Knob::Idle, format!("cpu.idle of {group} to {}", u8::from(idle))));
        settings.idle = idle;
        if !idle {
            settings.weight = Some(controller.default_weight());
        }
    }
    if !idle && Some(weight) != settings.weight {
        foreign.push((Knob::Weight, format!("the weight of {group} to {weight}")));
        settings.weight = Some(weight);
    }
    Ok(foreign)
}
