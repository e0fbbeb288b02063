//! What an operator without Tandem does: a cgroup per VM, with its weight and perhaps a cap; pins; nice values.
//!
//! It uses the host crate's journaled actuator, so that
//! everything is put back when the mode is left, on an error, on a panic, and by the next start after
//! kill -9. Only vCPU threads move, as in every mode.

use std::path::Path;

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::cgroup::{CgroupError, Quota};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Nanos, Nice, PcpuId, PcpuSet, Weight};
use thiserror::Error;

use crate::plan::{Plan, VmPlan};
use crate::put_back::{PutBackError, complete};
use crate::vm_process::VmProcess;

/// Period of the hard cap: the kernel's default, which is also what clouds use.
pub const CAP_PERIOD_US: u64 = 100_000;

/// Smallest quota that the kernel takes.
const LEAST_QUOTA_US: u64 = 1000;

/// Why the VMs have no cgroups.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// The cgroups of this host.
    #[error(transparent)]
    Open(#[from] CgroupError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] ActuatorError),
    /// A VM's.
    #[error("the cgroup of VM '{vm}'")]
    Vm {
        /// Which.
        vm: String,
        /// Why.
        source: GroupError,
    },
    /// A vCPU's pins or nice value.
    #[error("a vCPU thread of VM '{vm}'")]
    Thread {
        /// Which.
        vm: String,
        /// Why.
        source: ActuatorError,
    },
    /// They could not be taken away again.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
}

/// Why a VM has no cgroup.
#[derive(Debug, Error)]
pub enum GroupError {
    /// It has nothing to put there.
    #[error("it has no vCPU")]
    NoVcpu,
    /// Where it is now could not be read.
    #[error(transparent)]
    Parent(#[from] CgroupError),
    /// A change was not made.
    #[error(transparent)]
    Change(#[from] ActuatorError),
    /// The kernel's weight is another.
    #[error("weight {wanted} becomes {written}, because the kernel takes whole numbers in a range")]
    Weight {
        /// What was to be written.
        wanted: f64,
        /// What was.
        written: Weight,
    },
}

/// Cgroups that exist as long as this does.
pub struct Groups {
    actuator: Actuator,
}

impl Groups {
    /// No cgroup yet.
    pub fn none(state_dir: &Path) -> Result<Groups, GroupsError> {
        let controller = cgroup::open(&ProcFs::host())?;
        let (actuator, _) = Actuator::open(controller, state_dir)?;
        Ok(Groups { actuator })
    }

    /// Makes a cgroup per VM; `caps` gives each VM's cap in CPU time per second.
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

    /// Gives the vCPU threads of all VMs but the first this nice value.
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

    /// Puts everything back.
    pub fn leave(mut self) -> Result<(), GroupsError> {
        Ok(complete(&self.actuator.restore())?)
    }
}

/// A cap of CPU time per second as a quota.
fn quota(cap: Nanos) -> Quota {
    let quota_us = (cap.0 as f64 / 1e9 * CAP_PERIOD_US as f64).round() as u64;
    Quota { quota_us: quota_us.max(LEAST_QUOTA_US), period_us: CAP_PERIOD_US }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_of_two_thirds_of_a_pcpu_is_two_thirds_of_the_period() {
        let two_thirds = quota(Nanos(666_666_667));
        assert_eq!(two_thirds, Quota { quota_us: 66_667, period_us: 100_000 });
        assert_eq!(quota(Nanos(1)).quota_us, LEAST_QUOTA_US);
        assert_eq!(quota(Nanos::from_secs(2)).quota_us, 200_000);
    }
}
