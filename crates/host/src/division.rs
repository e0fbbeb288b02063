//! A VM's vCPUs put apart, each into a group beside the VM's, and together again.
//!
//! ```text
//! parent ─┬─ tandem-db-812         the VM's group: empty while its vCPUs are apart, ready for them to come back
//!         ├─ tandem-db-812-vcpu0   r × portion of vCPU 0
//!         └─ tandem-db-812-vcpu1   r × portion of vCPU 1
//! ```

use tandem_linux::actuator::Actuator;
use tandem_linux::actuator::ActuatorError;
use tandem_linux::actuator::Outcome;
use tandem_linux::cgroup::CgroupPath;
use tandem_policy::VcpuId;
use tandem_policy::Weight;

use crate::managed::ManagedVcpu;
use crate::managed::ManagedVm;

/// Puts the vCPUs apart in these portions of the VM's weight, or together if there are none; true if anything was changed. Of a VM in the
/// idle class, in turns, or with a group that is not ours nothing is.
pub(crate) fn divide(
    managed: &mut ManagedVm,
    portions: &[(VcpuId, f64)],
    actuator: &mut Actuator,
) -> Result<bool, ActuatorError> {
    let can = managed.made && !managed.in_force.idle && !managed.in_force.rotating;
    if portions.is_empty() || !can {
        return unite(managed, actuator);
    }
    for (id, portion) in portions {
        let Some(vcpu) = managed.vcpus.iter_mut().find(|vcpu| vcpu.index == *id) else {
            continue;
        };
        if vcpu.settings.portion.is_none() && !part(&managed.cgroup, vcpu, actuator)? {
            continue;
        }
        vcpu.settings.portion = Some(*portion);
    }
    let weight = managed.in_force.weight;
    managed.write_weight(weight, actuator)?;
    Ok(true)
}

/// Moves a vCPU into a group of its own beside its VM's; false: it is gone.
fn part(
    vms: &CgroupPath,
    vcpu: &mut ManagedVcpu,
    actuator: &mut Actuator,
) -> Result<bool, ActuatorError> {
    // One that it has inside its VM's group goes with the settings there.
    if let Some(group) = vcpu.group.take() {
        actuator.release_group(&group)?;
    }
    let parent = vms.parent().unwrap_or_else(CgroupPath::root);
    let name = format!("{}-vcpu{}", vms.name(), vcpu.index);
    let group = actuator.create_group(&parent, &name)?;
    if actuator.move_thread(&vcpu.thread, &group)? == Outcome::Gone {
        actuator.release_group(&group)?;
        return Ok(false);
    }
    vcpu.settings.weight = Some(actuator.controller().weight(&group)?);
    vcpu.group = Some(group);
    Ok(true)
}

/// Moves the vCPUs into their VM's group, which gets the VM's weight again.
fn unite(managed: &mut ManagedVm, actuator: &mut Actuator) -> Result<bool, ActuatorError> {
    let apart = |vcpu: &&mut ManagedVcpu| vcpu.settings.portion.is_some();
    if !managed.vcpus.iter_mut().any(|vcpu| apart(&vcpu)) {
        return Ok(false);
    }
    // First its weight, so that nobody runs with another.
    actuator.set_weight(&managed.cgroup, managed.in_force.weight)?;
    for vcpu in managed.vcpus.iter_mut().filter(apart) {
        actuator.move_thread(&vcpu.thread, &managed.cgroup)?;
        if let Some(group) = vcpu.group.take() {
            actuator.release_group(&group)?;
        }
        (vcpu.settings.portion, vcpu.settings.weight) = (None, None);
    }
    Ok(true)
}

impl ManagedVm {
    /// Whether any of its vCPUs is apart.
    pub fn is_apart(&self) -> bool {
        self.vcpus
            .iter()
            .any(|vcpu| vcpu.settings.portion.is_some())
    }

    /// Gives the VM a weight: its group, or the groups of its vCPUs by their portions.
    pub(crate) fn write_weight(
        &mut self,
        weight: Weight,
        actuator: &mut Actuator,
    ) -> Result<(), ActuatorError> {
        if !self.is_apart() {
            self.in_force.weight = actuator.set_weight(&self.cgroup, weight)?;
            return Ok(());
        }
        for vcpu in &mut self.vcpus {
            if let (Some(portion), Some(group)) = (vcpu.settings.portion, &vcpu.group) {
                let written = actuator.set_weight(group, Weight(weight.0 * portion))?;
                vcpu.settings.weight = Some(written);
            }
        }
        self.in_force.weight = weight;
        Ok(())
    }
}
