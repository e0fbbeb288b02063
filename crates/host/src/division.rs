//! Division of a VM's vCPUs into groups of their own, next to the VM's group, and their reunion.
//!
//! ```text
//! parent ─┬─ tandem-db-812         the VM's group: empty while its vCPUs are divided
//!         ├─ tandem-db-812-vcpu0   r × portion of vCPU 0
//!         └─ tandem-db-812-vcpu1   r × portion of vCPU 1
//! ```

use tandem_linux::actuator::{Actuator, ActuatorError, Outcome};
use tandem_linux::cgroup::CgroupPath;
use tandem_model::{VcpuId, Weight};

use crate::managed::{ManagedVcpu, ManagedVm, give_up_group};

/// Divides the vCPUs into groups with these portions of the VM's weight, or unites them if there are none; true if anything changed.
///
/// A VM in the idle class, in turns, or in a group that the daemon did not make stays undivided.
/// If one vCPU cannot be moved, all are united.
pub(crate) fn divide(
    managed: &mut ManagedVm,
    portions: &[(VcpuId, f64)],
    actuator: &mut Actuator,
) -> Result<bool, ActuatorError> {
    let can = managed.divisible && !managed.in_force.idle && !managed.in_force.rotating;
    if portions.is_empty() || !can {
        return unite(managed, actuator);
    }
    let weight = managed.in_force.weight;
    managed.undivided = managed.undivided.or(Some(weight));
    for (id, portion) in portions {
        let Some(vcpu) = managed.vcpus.iter_mut().find(|vcpu| vcpu.index == *id) else {
            continue;
        };
        if vcpu.settings.portion.is_none() {
            let weight = weight.times(*portion);
            match part(&managed.cgroup, vcpu, weight, &mut managed.busy, actuator) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    unite(managed, actuator)?;
                    return Err(error);
                }
            }
        }
        vcpu.settings.portion = Some(*portion);
    }
    managed.write_weight(weight, actuator)?;
    Ok(true)
}

/// Moves a vCPU into a new group with this weight next to its VM's; false if the thread is gone.
fn part(
    vms: &CgroupPath,
    vcpu: &mut ManagedVcpu,
    weight: Weight,
    busy: &mut Vec<CgroupPath>,
    actuator: &mut Actuator,
) -> Result<bool, ActuatorError> {
    // A group of its own inside the VM's group is removed, with its settings.
    if let Some(group) = vcpu.group.take() {
        give_up_group(group, busy, actuator);
    }
    let parent = vms.parent().unwrap_or_else(CgroupPath::root);
    let name = format!("{}-vcpu{}", vms.name(), vcpu.index);
    actuator.charge_like(&parent.child(&name), vms);
    let group = match actuator.create_group(&parent, &name) {
        Ok(group) => group,
        Err(error) => {
            actuator.stop_charging(&parent.child(&name));
            return Err(error);
        }
    };
    let moved = weigh(&group, weight, actuator)
        .and_then(|written| Ok((written, actuator.move_thread(&vcpu.thread, &group)?)));
    match moved {
        Ok((written, Outcome::Done)) => {
            (vcpu.settings.weight, vcpu.settings.idle) = (Some(written), false);
            vcpu.group = Some(group);
            Ok(true)
        }
        Ok((_, Outcome::Gone)) => {
            give_up_group(group, busy, actuator);
            Ok(false)
        }
        Err(error) => {
            give_up_group(group, busy, actuator);
            Err(error)
        }
    }
}

/// Sets the weight of a vCPU's group.
/// A group that was too busy to remove earlier may still be in the idle class, which has no weight.
fn weigh(
    group: &CgroupPath,
    weight: Weight,
    actuator: &mut Actuator,
) -> Result<Weight, ActuatorError> {
    if actuator.controller().is_idle(group)? == Some(true) {
        actuator.set_idle(group, false)?;
    }
    actuator.set_weight(group, weight)
}

/// Moves the vCPUs into their VM's group and restores its weight.
/// If others put the group into the idle class, there is no weight to set.
fn unite(managed: &mut ManagedVm, actuator: &mut Actuator) -> Result<bool, ActuatorError> {
    let apart = |vcpu: &&mut ManagedVcpu| vcpu.settings.portion.is_some();
    managed.undivided = None;
    let mut any = false;
    for vcpu in managed.vcpus.iter_mut().filter(apart) {
        any = true;
        actuator.move_thread(&vcpu.thread, &managed.cgroup)?;
        if let Some(group) = vcpu.group.take() {
            give_up_group(group, &mut managed.busy, actuator);
        }
        (vcpu.settings.portion, vcpu.settings.weight) = (None, None);
        vcpu.settings.idle = false;
    }
    if any && actuator.controller().is_idle(&managed.cgroup)? != Some(true) {
        managed.in_force.weight = actuator.set_weight(&managed.cgroup, managed.in_force.weight)?;
    }
    Ok(any)
}

impl ManagedVm {
    /// Whether its vCPUs are divided.
    pub fn is_apart(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.settings.portion.is_some())
    }

    /// Sets the VM's weight on its group, or on the groups of its vCPUs by their portions.
    /// A vCPU's group that others put into the idle class has no weight to write.
    pub(crate) fn write_weight(
        &mut self,
        weight: Weight,
        actuator: &mut Actuator,
    ) -> Result<(), ActuatorError> {
        if !self.is_apart() {
            self.in_force.weight = actuator.set_weight(&self.cgroup, weight)?;
            return Ok(());
        }
        let mut sum = 0.0;
        for vcpu in &mut self.vcpus {
            if let (Some(portion), Some(group)) = (vcpu.settings.portion, &vcpu.group) {
                let part = weight.times(portion);
                let written =
                    if vcpu.settings.idle { part } else { actuator.set_weight(group, part)? };
                vcpu.settings.weight = Some(written);
                sum += written.value();
            }
        }
        self.in_force.weight = Weight::saturating(sum);
        Ok(())
    }
}
