//! Current settings of a cgroup, read from the kernel, and the cgroup that holds a single vCPU.
//!
//! On cgroup v2 a cgroup has its knobs only if the cpu controller is enabled for it; otherwise the kernel's defaults apply.
//! A cgroup in the idle class has no weight of its own, so the default stands for it.

use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController};
use tandem_linux::thread::ThreadRef;
use tandem_model::Weight;

/// Returns the weight of a cgroup, and whether it is in the idle class.
pub(crate) fn shares(
    controller: &dyn CpuController,
    cgroup: &CgroupPath,
) -> Result<(Weight, bool), CgroupError> {
    let has_knobs = controller.missing_enables(cgroup)?.is_empty();
    let idle = has_knobs && controller.is_idle(cgroup)?.unwrap_or(false);
    let weight =
        if has_knobs && !idle { controller.weight(cgroup)? } else { controller.default_weight() };
    Ok((weight, idle))
}

/// Returns the cgroup below its VM's that holds only this vCPU's thread (libvirt makes `vcpuN`), or `known` if the thread is still there.
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

/// Whether the kernel has the idle class for cgroups; `None` if this cgroup does not show it.
pub(crate) fn has_idle_class(controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<bool> {
    // In a dry run the VM's cgroup may not exist.
    let cgroup = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(|cgroup| controller.exists(cgroup))?;
    let has_knobs = controller.missing_enables(&cgroup).ok()?.is_empty();
    let is_idle = controller.is_idle(&cgroup).ok()?;
    has_knobs.then_some(is_idle.is_some())
}
