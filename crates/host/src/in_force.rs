//! What is in force for a cgroup, read from the kernel, and which cgroup holds a vCPU alone.
//!
//! On cgroup v2 a cgroup has its knobs only where the cpu controller is let down to it. Where it is not, nobody has set anything:
//! the kernel's defaults are in force. In the idle class a cgroup has no weight of its own, so there too the default stands for it.

use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController};
use tandem_linux::thread::ThreadRef;
use tandem_model::VmSettings;

use crate::quotas::{pcpus, quota};

/// What is in force for a cgroup.
pub(crate) fn settings(
    controller: &dyn CpuController,
    cgroup: &CgroupPath,
) -> Result<VmSettings, CgroupError> {
    Ok(VmSettings { quota: quota(controller, cgroup).map(pcpus), ..shares(controller, cgroup)? })
}

/// The same without a hard cap, which is not looked for.
pub(crate) fn shares(
    controller: &dyn CpuController,
    cgroup: &CgroupPath,
) -> Result<VmSettings, CgroupError> {
    let has_knobs = controller.missing_enables(cgroup)?.is_empty();
    let idle = has_knobs && controller.is_idle(cgroup)?.unwrap_or(false);
    Ok(VmSettings {
        weight: match has_knobs && !idle {
            true => controller.weight(cgroup)?,
            false => controller.default_weight(),
        },
        idle,
        quota: None,
        rotating: false,
        left_turns: false,
    })
}

/// The cgroup below its VM's that holds a vCPU's thread alone (libvirt makes `vcpuN`), or `known`, if the thread is still there.
pub(crate) fn vcpu_group(
    controller: &dyn CpuController,
    vms: &CgroupPath,
    thread: &ThreadRef,
    known: Option<&CgroupPath>,
) -> Result<Option<CgroupPath>, CgroupError> {
    let place = controller.cgroup_of(thread)?;
    let is_its_own = known == Some(&place)
        || (place != *vms && place.is_within(vms) && controller.threads(&place)? == [thread.tid]);
    Ok(is_its_own.then_some(place))
}

/// Whether the kernel has the idle class for cgroups; `None`: this cgroup does not tell.
pub(crate) fn has_idle_class(controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<bool> {
    // A dry run has not made the VM's group.
    let cgroup = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(|cgroup| controller.exists(cgroup))?;
    let has_knobs = controller.missing_enables(&cgroup).ok()?.is_empty();
    let is_idle = controller.is_idle(&cgroup).ok()?;
    has_knobs.then_some(is_idle.is_some())
}
