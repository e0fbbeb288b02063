//! Settings of an operator without Tandem: a cgroup per VM with its weight and optionally a cap; pins; nice values.
//!
//! The journaled actuator of the `linux` crate reverts all changes when the mode is left, on an error, on a panic,
//! and at the next start after kill -9.
//! Only vCPU threads move, as in every mode.

use std::path::Path;

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::cgroup::{CgroupError, Quota};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Nanos, Nice, PcpuId, PcpuSet, Weight};
use thiserror::Error;

use crate::plan::{Plan, VmPlan};
use crate::put_back::{PutBackError, complete};
use crate::vm_process::VmProcess;

/// Period of the hard cap: the kernel's default, which clouds use as well.
pub const CAP_PERIOD_US: u64 = 100_000;

/// Minimum quota that the kernel accepts.
const MIN_QUOTA_US: u64 = 1000;

/// The settings of the VMs could not be made or reverted.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// The cgroups of this host are unusable.
    #[error(transparent)]
    Open(#[from] CgroupError),
    /// The journal could not be used.
    #[error(transparent)]
    Journal(#[from] ActuatorError),
    /// The cgroup of a VM could not be made.
    #[error("the cgroup of VM '{vm}'")]
    Vm {
        /// The VM.
        vm: String,
        /// The cause.
        source: GroupError,
    },
    /// The pins or nice value of a vCPU could not be set.
    #[error("a vCPU thread of VM '{vm}'")]
    Thread {
        /// The VM.
        vm: String,
        /// The cause.
        source: ActuatorError,
    },
    /// The changes could not be reverted.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
}

/// The cgroup of a VM could not be made.
#[derive(Debug, Error)]
pub enum GroupError {
    /// The VM has no thread to move.
    #[error("the VM has no vCPU")]
    NoVcpu,
    /// The current cgroup of the VM could not be read.
    #[error(transparent)]
    Parent(#[from] CgroupError),
    /// A change failed.
    #[error(transparent)]
    Change(#[from] ActuatorError),
    /// The kernel cannot represent the weight.
    #[error("weight {wanted} becomes {written}, because the kernel takes whole numbers in a range")]
    Weight {
        /// The requested weight.
        wanted: f64,
        /// The nearest weight of the kernel.
        written: Weight,
    },
}

/// Cgroups, pins and nice values; dropping it reverts them.
pub struct Groups {
    actuator: Actuator,
}

impl Groups {
    /// Opens the actuator without any cgroup.
    pub fn none(state_dir: &Path) -> Result<Groups, GroupsError> {
        let controller = cgroup::open(&ProcFs::host())?;
        let (actuator, _) = Actuator::open(controller, state_dir)?;
        Ok(Groups { actuator })
    }

    /// Makes a cgroup per VM; `caps` has each VM's cap in CPU time per second.
    pub fn enter(
        plan: &Plan,
        vms: &[VmProcess],
        caps: Option<&[Nanos]>,
        state_dir: &Path,
    ) -> Result<Groups, GroupsError> {
        let mut groups = Groups::none(state_dir)?;
        for (i, (vm, process)) in plan.vms.iter().zip(vms).enumerate() {
            let quota = caps.and_then(|caps| caps.get(i)).map(|&cap| quota(cap));
            groups
                .add(vm, process, quota)
                .map_err(|source| GroupsError::Vm { vm: vm.name.clone(), source })?;
        }
        Ok(groups)
    }

    fn add(
        &mut self,
        vm: &VmPlan,
        process: &VmProcess,
        quota: Option<Quota>,
    ) -> Result<(), GroupError> {
        let first = process.threads().first().ok_or(GroupError::NoVcpu)?;
        let controller = self.actuator.controller();
        let parent = controller.cgroup_of(first)?;
        let weight = Weight::saturating(controller.default_weight().value() * vm.weight);
        let name = format!("tandem-demo-{}-{}", vm.name, process.pid());
        let group = self.actuator.create_group(&parent, &name)?;
        let written = self.actuator.set_weight(&group, weight)?;
        if (written.value() / weight.value() - 1.0).abs() >= 0.05 {
            return Err(GroupError::Weight { wanted: weight.value(), written });
        }
        if quota.is_some() {
            self.actuator.set_quota(&group, quota)?;
        }
        for thread in process.threads() {
            self.actuator.move_thread(thread, &group)?;
        }
        Ok(())
    }

    /// Pins vCPU i of every VM whose vCPUs are free to pCPU i mod P.
    pub fn pin(&mut self, plan: &Plan, vms: &[VmProcess]) -> Result<(), GroupsError> {
        let all: Vec<PcpuId> = plan.pcpus.iter().collect();
        let free = plan.vms.iter().zip(vms);
        for (vm, process) in free.filter(|(vm, _)| vm.pins.is_empty()) {
            for (thread, &pcpu) in process.threads().iter().zip(all.iter().cycle()) {
                self.actuator
                    .set_affinity(thread, &PcpuSet::from_iter([pcpu]))
                    .map_err(|source| GroupsError::Thread { vm: vm.name.clone(), source })?;
            }
        }
        Ok(())
    }

    /// Sets the nice value of the vCPU threads of all VMs except the first.
    pub fn nice_neighbours(
        &mut self,
        plan: &Plan,
        vms: &[VmProcess],
        nice: Nice,
    ) -> Result<(), GroupsError> {
        for (vm, process) in plan.vms.iter().zip(vms).skip(1) {
            for thread in process.threads() {
                self.actuator
                    .set_nice(thread, nice)
                    .map_err(|source| GroupsError::Thread { vm: vm.name.clone(), source })?;
            }
        }
        Ok(())
    }

    /// Reverts everything.
    pub fn leave(mut self) -> Result<(), GroupsError> {
        Ok(complete(&self.actuator.restore())?)
    }
}

/// Converts a cap in CPU time per second to a quota.
fn quota(cap: Nanos) -> Quota {
    let quota_us = (cap.0 as f64 / 1e9 * CAP_PERIOD_US as f64).round() as u64;
    Quota { quota_us: quota_us.max(MIN_QUOTA_US), period_us: CAP_PERIOD_US }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_is_the_cap_times_the_period() {
        let two_thirds = quota(Nanos(666_666_667));
        assert_eq!(two_thirds, Quota { quota_us: 66_667, period_us: 100_000 });
        assert_eq!(quota(Nanos(1)).quota_us, MIN_QUOTA_US);
        assert_eq!(quota(Nanos::from_secs(2)).quota_us, 200_000);
    }
}
