//! Whether a VM has a cgroup to itself, and which.
//!
//! A VM that libvirt, systemd or an operator gave a cgroup of its own is adjusted there: its weight
//! is that cgroup's. Only a VM that shares its cgroup with others needs a new one. Layouts in use:
//!
//! - libvirt on v1: `/machine.slice/machine-qemu….scope/{emulator,vcpu0,…}` → the scope;
//! - libvirt on v2: `/machine.slice/machine-qemu….scope/libvirt/{emulator,vcpu0,…}` → the scope;
//! - `systemd-run --scope qemu …`: `/…/run-r1.scope` → the scope; a service of its own likewise;
//! - one folder per VM, by an operator's script: `/vms/web/{emulator,vcpu0}` → `/vms/web`;
//! - started from a shell or a container that holds more than the VM → none.
//!
//! The rule: start at the lowest cgroup that holds all vCPU threads. Climb while the cgroup above
//! still holds this VM only and there is a reason to: it holds the VM's other threads too, or it
//! lies within a `*.scope` or `*.service`, at which the climb ends. Never climb into the root or a
//! `*.slice`: those are made to hold many. Without such a reason the climb must not go on, because
//! a folder like `/vms` holds one VM only until the next one starts.
//!
//! Helper processes of a VM (virtiofsd, swtpm) live in its machine scope, so in a scope named
//! `machine-…` processes that are no VMs do not count. Everything here is a pure function over
//! [`Occupants`]; [`find_own_cgroup`] reads them from the host.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::cgroup::controller::CpuController;
use crate::cgroup::error::CgroupError;
use crate::cgroup::path::CgroupPath;
use crate::ids::Pid;
use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// What one VM looks like from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residence {
    /// The VM's process.
    pub pid: Pid,
    /// Where the process's first thread is.
    pub main: CgroupPath,
    /// Where each vCPU thread is.
    pub vcpus: Vec<CgroupPath>,
}

/// Which processes have threads in which cgroup (not in those below).
pub type Occupants = BTreeMap<CgroupPath, BTreeSet<Pid>>;

/// The cgroup that is this VM's alone. `others` are the other VMs, of which several may be in one
/// process.
pub fn own_cgroup(
    vm: &Residence,
    others: &[Residence],
    occupants: &Occupants,
) -> Option<CgroupPath> {
    let start = lowest_common(&vm.vcpus)?;
    let is_own = |cgroup: &CgroupPath| {
        can_belong_to_one(cgroup)
            && !others.iter().any(|other| {
                (other.pid != vm.pid && other.main.is_within(cgroup))
                    || other.vcpus.iter().any(|vcpu| vcpu.is_within(cgroup))
            })
            && (is_machine_scope(cgroup) || holds_only(cgroup, vm.pid, occupants))
    };
    if !is_own(&start) {
        // The threads may each have a cgroup below one with helpers in it: libvirt's scope.
        return scope_above(&start).filter(|scope| is_machine_scope(scope) && is_own(scope));
    }
    let mut own = start;
    while !ends_climb(&own)
        && let Some(above) = own.parent()
        && is_own(&above)
        && (holds_main_beside(&above, &own, vm)
            || scope_above(&above).is_some_and(|scope| is_own(&scope)))
    {
        own = above;
    }
    Some(own)
}

/// The lowest cgroup that is at or above all of these.
fn lowest_common(cgroups: &[CgroupPath]) -> Option<CgroupPath> {
    let (first, rest) = cgroups.split_first()?;
    std::iter::successors(Some(first.clone()), CgroupPath::parent)
        .find(|common| rest.iter().all(|cgroup| cgroup.is_within(common)))
}

fn can_belong_to_one(cgroup: &CgroupPath) -> bool {
    !cgroup.is_root() && !cgroup.name().ends_with(".slice")
}

fn ends_climb(cgroup: &CgroupPath) -> bool {
    [".scope", ".service"]
        .iter()
        .any(|kind| cgroup.name().ends_with(kind))
}

fn is_machine_scope(cgroup: &CgroupPath) -> bool {
    cgroup.name().starts_with("machine-") && cgroup.name().ends_with(".scope")
}

/// The first scope or service at or above the cgroup, without a slice in between.
fn scope_above(cgroup: &CgroupPath) -> Option<CgroupPath> {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .take_while(can_belong_to_one)
        .find(ends_climb)
}

fn holds_only(cgroup: &CgroupPath, pid: Pid, occupants: &Occupants) -> bool {
    occupants
        .iter()
        .filter(|(place, _)| place.is_within(cgroup))
        .all(|(_, pids)| pids.iter().all(|&p| p == pid))
}

/// Whether the VM's first thread is in `above`, but not in `own`.
fn holds_main_beside(above: &CgroupPath, own: &CgroupPath, vm: &Residence) -> bool {
    vm.main.is_within(above) && !vm.main.is_within(own)
}

/// Reads where one VM's threads are; threads that ended meanwhile are left out.
pub fn residence(
    controller: &dyn CpuController,
    process: &ThreadRef,
    vcpus: &[ThreadRef],
) -> Result<Residence, CgroupError> {
    let main = controller.cgroup_of(process)?;
    let mut places = Vec::with_capacity(vcpus.len());
    for vcpu in vcpus {
        match controller.cgroup_of(vcpu) {
            Ok(cgroup) => places.push(cgroup),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Residence {
        pid: process.pid,
        main,
        vcpus: places,
    })
}

/// The cgroup that is this VM's alone on this host, if it has one.
pub fn find_own_cgroup(
    controller: &dyn CpuController,
    procfs: &ProcFs,
    vm: &Residence,
    others: &[Residence],
) -> Result<Option<CgroupPath>, CgroupError> {
    let Some(start) = lowest_common(&vm.vcpus).filter(can_belong_to_one) else {
        return Ok(None);
    };
    let mut top = start;
    while !ends_climb(&top)
        && let Some(above) = top.parent().filter(can_belong_to_one)
    {
        top = above;
    }
    let mut occupants = Occupants::new();
    let mut open = vec![top];
    while let Some(cgroup) = open.pop() {
        let here = controller.processes(&cgroup).and_then(|pids| {
            open.extend(controller.children(&cgroup)?);
            Ok(pids)
        });
        match here {
            Ok(pids) => {
                // vhost workers and their like are threads of the kernel that serve the VM.
                let users = pids
                    .into_iter()
                    .filter(|&pid| !is_kernel_thread(procfs, pid))
                    .collect();
                occupants.insert(cgroup, users);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(own_cgroup(vm, others, &occupants))
}

fn is_kernel_thread(procfs: &ProcFs, pid: Pid) -> bool {
    crate::thread::ThreadStat::read(&procfs.process(pid)).is_ok_and(|stat| stat.kernel_thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    fn vm(pid: u32, main: &str, vcpus: &[&str]) -> Residence {
        Residence {
            pid: Pid(pid),
            main: path(main),
            vcpus: vcpus.iter().map(|vcpu| path(vcpu)).collect(),
        }
    }

    /// What `own_cgroup` says, with the VMs' own threads as occupants besides `extra`.
    fn own(vm: &Residence, others: &[Residence], extra: &[(&str, u32)]) -> Option<String> {
        let mut occupants = Occupants::new();
        for vm in others.iter().chain([vm]) {
            for place in vm.vcpus.iter().chain([&vm.main]) {
                occupants.entry(place.clone()).or_default().insert(vm.pid);
            }
        }
        for &(place, pid) in extra {
            occupants.entry(path(place)).or_default().insert(Pid(pid));
        }
        own_cgroup(vm, others, &occupants).map(|cgroup| cgroup.0)
    }

    const SCOPE: &str = "/machine.slice/machine-qemu\\x2d1\\x2dweb.scope";

    fn libvirt(scope: &str, pid: u32, vcpus: usize) -> Residence {
        let vcpus: Vec<String> = (0..vcpus).map(|n| format!("{scope}/vcpu{n}")).collect();
        let vcpus: Vec<&str> = vcpus.iter().map(String::as_str).collect();
        vm(pid, &format!("{scope}/emulator"), &vcpus)
    }

    #[test]
    fn libvirt_on_v1_gives_the_scope_for_any_number_of_vcpus() {
        for vcpus in 1..4 {
            let vm = libvirt(SCOPE, 7, vcpus);
            assert_eq!(own(&vm, &[], &[]), Some(SCOPE.to_owned()));
        }
    }

    #[test]
    fn libvirt_on_v2_gives_the_scope_above_the_libvirt_folder() {
        for vcpus in 1..4 {
            let vm = libvirt(&format!("{SCOPE}/libvirt"), 7, vcpus);
            assert_eq!(own(&vm, &[], &[]), Some(SCOPE.to_owned()));
        }
    }

    #[test]
    fn helpers_in_a_machine_scope_do_not_count_but_other_vms_do() {
        let web = libvirt(&format!("{SCOPE}/libvirt"), 7, 2);
        let helper = format!("{SCOPE}/libvirt/emulator");
        assert_eq!(own(&web, &[], &[(&helper, 9)]), Some(SCOPE.to_owned()));
        let nested = vm(8, &helper, &[&format!("{SCOPE}/libvirt/vcpu0")]);
        assert_eq!(own(&web, &[nested], &[]), None);
    }

    #[test]
    fn libvirt_without_systemd_stops_below_the_common_folder() {
        let web = libvirt("/machine/qemu-1-web.libvirt-qemu", 7, 1);
        let wanted = Some("/machine/qemu-1-web.libvirt-qemu".to_owned());
        assert_eq!(own(&web, &[], &[]), wanted, "also while it is the only VM");
        let other = libvirt("/machine/qemu-2-db.libvirt-qemu", 8, 2);
        assert_eq!(own(&web, &[other], &[]), wanted);
    }

    #[test]
    fn a_scope_or_service_of_its_own_is_its_own() {
        for place in [
            "/system.slice/run-r1.scope",
            "/user.slice/user-0.slice/session-3.scope",
            "/system.slice/web-vm.service",
        ] {
            let web = vm(7, place, &[place, place]);
            assert_eq!(own(&web, &[], &[]), Some(place.to_owned()));
            assert_eq!(own(&web, &[], &[(place, 8)]), None, "a shell in it");
        }
    }

    #[test]
    fn the_root_and_slices_are_nobodys() {
        assert_eq!(own(&vm(7, "/", &["/", "/"]), &[], &[]), None);
        let slice = "/machine.slice";
        assert_eq!(own(&vm(7, slice, &[slice]), &[], &[]), None);
    }

    #[test]
    fn an_operators_folder_is_used_without_climbing_above_it() {
        let web = vm(7, "/", &["/vms/web", "/vms/web"]);
        assert_eq!(own(&web, &[], &[]), Some("/vms/web".to_owned()));
        let split = vm(7, "/vms/web/emulator", &["/vms/web/vcpu0"]);
        assert_eq!(own(&split, &[], &[]), Some("/vms/web".to_owned()));
    }

    #[test]
    fn several_vms_of_one_process_own_no_common_cgroup() {
        let place = "/system.slice/many.service";
        let (a, b) = (vm(7, place, &[place]), vm(7, place, &[place, place]));
        assert_eq!(own(&a, &[b], &[]), None);
    }

    #[test]
    fn a_vm_without_known_vcpus_has_none() {
        assert_eq!(own(&vm(7, "/a", &[]), &[], &[]), None);
    }
}
