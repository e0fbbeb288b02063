//! Where VMs are in the hierarchy of cgroups, and what a group made for one is called.

use std::collections::BTreeMap;

use tandem_policy::VmId;
use tandem_policy::Weight;

use crate::discovery::Vm;
use crate::managed::Note;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::cgroup::ownership::Residence;
use tandem_linux::cgroup::ownership::find_own_cgroup;
use tandem_linux::cgroup::ownership::residence;
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::ThreadRef;

/// Where each VM's threads are; VMs that vanish meanwhile are left out.
pub(crate) fn residences(controller: &dyn CpuController, vms: &[Vm]) -> BTreeMap<VmId, Residence> {
    vms.iter()
        .filter_map(|vm| {
            let vcpus: Vec<ThreadRef> = vm.vcpus.iter().map(|vcpu| vcpu.thread).collect();
            Some((vm.id, residence(controller, &vm.process, &vcpus).ok()?))
        })
        .collect()
}

/// The cgroup that is this VM's alone, if it has one.
pub(crate) fn own_cgroup(
    controller: &dyn CpuController,
    vm: VmId,
    homes: &BTreeMap<VmId, Residence>,
) -> Result<Option<CgroupPath>, CgroupError> {
    let Some(home) = homes.get(&vm) else {
        return Ok(None);
    };
    let others: Vec<Residence> = homes
        .iter()
        .filter(|(other, _)| **other != vm)
        .map(|(_, home)| home.clone())
        .collect();
    find_own_cgroup(controller, &ProcFs::host(), home, &others)
}

/// What an operator should know whose tenants own knobs.
pub(crate) fn tenants_weight(vm: &Vm, cgroup: &CgroupPath, default: Weight) -> Note {
    Note(format!(
        "VM {}: the weight of {cgroup} does not count, because its file is not root's: {default} does; a rule may say otherwise",
        vm.name
    ))
}

/// A name that tells an operator whose group it is: `tandem-NAME-PID`.
pub(crate) fn group_name(vm: &Vm) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = vm
        .name
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(64)
        .collect();
    format!("tandem-{name}-{}", vm.process.pid)
}
