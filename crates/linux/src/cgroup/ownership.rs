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
//! `machine-…` processes that are no VMs do not count.
//!
//! Of many VMs: [`Residents`] has an index of who is at or below each cgroup, so that what others there are is found without going
//! through them; and [`Occupants`] reads a cgroup's processes only where that index leaves the VM alone there, and once. So a thousand VMs
//! cost a thousand times what one does. What is in a cgroup may be a tenant's making, so what is looked at there is bounded.

use std::collections::HashMap;
use std::sync::Arc;

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

/// Whose processes have threads in a cgroup or below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// Nobody's.
    Nobody,
    /// One process's.
    One(Pid),
    /// Those of several.
    Several,
}

impl Occupant {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Occupant) -> Occupant {
        match (self, other) {
            (Occupant::Nobody, only) | (only, Occupant::Nobody) => only,
            (one, same) if one == same => one,
            _ => Occupant::Several,
        }
    }
}

/// Asked who has threads in a cgroup or below it, for a VM of so many vCPUs.
type Asked<'a> = dyn FnMut(&CgroupPath, usize) -> Result<Occupant, CgroupError> + 'a;

/// The VMs of a host, of which several may be in one process, by where they are.
#[derive(Clone, Debug, Default)]
pub struct Residents {
    residences: Vec<Arc<Residence>>,
    /// Who is in each cgroup or below it.
    tenants: HashMap<String, Tenants>,
}

#[derive(Clone, Debug, Default)]
struct Tenants {
    /// VMs with a vCPU thread there, by their numbers.
    vcpus: First<usize>,
    /// Processes of VMs whose first thread is there.
    mains: First<Pid>,
}

/// The first of some, and whether there is another.
#[derive(Clone, Debug)]
struct First<T> {
    first: Option<T>,
    has_another: bool,
}

impl<T> Default for First<T> {
    fn default() -> First<T> {
        First { first: None, has_another: false }
    }
}

impl<T: PartialEq> First<T> {
    fn add(&mut self, one: T) {
        match &self.first {
            None => self.first = Some(one),
            Some(first) => self.has_another |= *first != one,
        }
    }

    fn has_other_than(&self, one: &T) -> bool {
        self.has_another || self.first.as_ref().is_some_and(|first| first != one)
    }
}

impl Residents {
    /// These, numbered in this order.
    pub fn new(residences: Vec<Arc<Residence>>) -> Residents {
        let mut residents = Residents::default();
        for (vm, home) in residences.iter().enumerate() {
            residents.enter(&home.main, |tenants| tenants.mains.add(home.pid));
            let mut before = None;
            for place in &home.vcpus {
                // vCPUs of a VM are often in one cgroup.
                if before.replace(place) != Some(place) {
                    residents.enter(place, |tenants| tenants.vcpus.add(vm));
                }
            }
        }
        residents.residences = residences;
        residents
    }

    fn enter(&mut self, place: &CgroupPath, enter: impl Fn(&mut Tenants)) {
        for cgroup in place.at_and_above().filter(|path| !path.is_empty()) {
            match self.tenants.get_mut(cgroup) {
                Some(tenants) => enter(tenants),
                None => enter(self.tenants.entry(cgroup.to_owned()).or_default()),
            }
        }
    }

    /// A VM by its number.
    pub fn get(&self, vm: usize) -> Option<&Residence> {
        self.residences.get(vm).map(Arc::as_ref)
    }

    /// The cgroup that is this VM's alone. `occupant` says who has threads in one or below it, and is told how many vCPUs the VM has.
    pub fn own_cgroup(
        &self,
        vm: usize,
        mut occupant: impl FnMut(&CgroupPath, usize) -> Result<Occupant, CgroupError>,
    ) -> Result<Option<CgroupPath>, CgroupError> {
        let Some(home) = self.get(vm) else {
            return Ok(None);
        };
        let Some(start) = lowest_common(&home.vcpus).filter(can_belong_to_one) else {
            return Ok(None);
        };
        let mut is_own = |cgroup: &CgroupPath| self.is_own(vm, cgroup, &mut occupant);
        let machine = scope_above(&start).filter(is_machine_scope);
        // Right below it, it is the answer whoever else has threads there.
        if let Some(scope) = &machine
            && (start == *scope || start.parent().as_ref() == Some(scope))
            && is_own(scope)?
        {
            return Ok(machine);
        }
        if !is_own(&start)? {
            // The threads may each have a cgroup below one with helpers in it: libvirt's scope.
            return match machine {
                Some(scope) if is_own(&scope)? => Ok(Some(scope)),
                _ => Ok(None),
            };
        }
        let mut own = start;
        while !ends_climb(&own)
            && let Some(above) = own.parent()
            && (holds_main_beside(&above, &own, home)
                || matches!(scope_above(&above), Some(scope) if is_own(&scope)?))
            && is_own(&above)?
        {
            own = above;
        }
        Ok(Some(own))
    }

    fn is_own(
        &self,
        vm: usize,
        cgroup: &CgroupPath,
        occupant: &mut Asked<'_>,
    ) -> Result<bool, CgroupError> {
        let Some(home) = self.get(vm).filter(|_| can_belong_to_one(cgroup)) else {
            return Ok(false);
        };
        let is_shared = |tenants: &Tenants| {
            tenants.vcpus.has_other_than(&vm) || tenants.mains.has_other_than(&home.pid)
        };
        if self.tenants.get(&cgroup.0).is_some_and(is_shared) {
            return Ok(false);
        }
        if is_machine_scope(cgroup) {
            return Ok(true);
        }
        let occupant = occupant(cgroup, home.vcpus.len())?;
        Ok(occupant == Occupant::Nobody || occupant == Occupant::One(home.pid))
    }
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
    [".scope", ".service"].iter().any(|kind| cgroup.name().ends_with(kind))
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
    Ok(Residence { pid: process.pid, main, vcpus: places })
}

/// So many cgroups and processes are looked at to see whose a cgroup is: a VMM has a few, with its helpers and vhost workers, ...
pub const MOST_LOOKED_AT: usize = 256;
/// ... and so many more for each vCPU: libvirt makes a cgroup for each, and vhost has about a worker for each.
pub const PER_VCPU: usize = 2;

/// Who has threads in the cgroups of this host: each cgroup is read when it is asked for, and once.
pub struct Occupants<'a> {
    controller: &'a dyn CpuController,
    procfs: &'a ProcFs,
    known: HashMap<CgroupPath, Occupant>,
    kernel_threads: HashMap<Pid, bool>,
}

impl<'a> Occupants<'a> {
    /// Nothing is read yet.
    pub fn new(controller: &'a dyn CpuController, procfs: &'a ProcFs) -> Occupants<'a> {
        Occupants { controller, procfs, known: HashMap::new(), kernel_threads: HashMap::new() }
    }

    /// Who has threads in this cgroup or below it, for a VM of so many vCPUs. vhost workers and their like are threads of the kernel
    /// that serve the VM, and do not count.
    ///
    /// No more than [`MOST_LOOKED_AT`] cgroups and processes are looked at, and [`PER_VCPU`] more for each vCPU: where there are more, that
    /// counts as several processes, because no VM needs them, and whoever may make cgroups could keep everybody waiting.
    pub fn of(&mut self, cgroup: &CgroupPath, vcpus: usize) -> Result<Occupant, CgroupError> {
        let mut left = MOST_LOOKED_AT.saturating_add(vcpus.saturating_mul(PER_VCPU));
        let mut occupant = Occupant::Nobody;
        let mut open = vec![cgroup.clone()];
        while occupant != Occupant::Several
            && let Some(next) = open.pop()
        {
            if let Some(known) = self.known.get(&next) {
                occupant = occupant.and(*known);
                continue;
            }
            left = left.saturating_sub(1);
            // Threads of the kernel that are known cost no look.
            let most = left.saturating_add(1).saturating_add(self.kernel_threads.len());
            let here = self.controller.some_processes(&next, most).and_then(|pids| {
                open.extend(self.controller.some_children(&next, left + 1)?);
                Ok(pids)
            });
            let pids = match here {
                Ok(pids) => pids,
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error),
            };
            occupant = occupant.and(self.who(&pids, &mut left));
            if open.len() > left {
                occupant = Occupant::Several;
            }
        }
        self.known.insert(cgroup.clone(), occupant);
        Ok(occupant)
    }

    /// Whose processes these are, if that takes no more than `left` looks at them.
    fn who(&mut self, pids: &[Pid], left: &mut usize) -> Occupant {
        let mut occupant = Occupant::Nobody;
        for pid in pids {
            if occupant == Occupant::Several {
                break;
            }
            if !self.kernel_threads.contains_key(pid) {
                match left.checked_sub(1) {
                    Some(rest) => *left = rest,
                    None => return Occupant::Several,
                }
            }
            if !self.is_kernel_thread(*pid) {
                occupant = occupant.and(Occupant::One(*pid));
            }
        }
        occupant
    }

    fn is_kernel_thread(&mut self, pid: Pid) -> bool {
        let known = self.kernel_threads.entry(pid);
        *known.or_insert_with(|| is_kernel_thread(self.procfs, pid))
    }
}

/// The cgroup that is this VM's alone on this host, if it has one. `others` are the other VMs. For all of a host's VMs, see [`Residents`].
pub fn find_own_cgroup(
    controller: &dyn CpuController,
    procfs: &ProcFs,
    vm: &Residence,
    others: &[Residence],
) -> Result<Option<CgroupPath>, CgroupError> {
    let all = [std::slice::from_ref(vm), others].concat();
    let mut occupants = Occupants::new(controller, procfs);
    Residents::new(all.into_iter().map(Arc::new).collect())
        .own_cgroup(0, |cgroup, vcpus| occupants.of(cgroup, vcpus))
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

    /// What is this VM's own, with the VMs' own threads as occupants besides `extra`.
    fn own(vm: &Residence, others: &[Residence], extra: &[(&str, u32)]) -> Option<String> {
        let all = [std::slice::from_ref(vm), others].concat();
        let of_vms = all.iter().flat_map(|vm| {
            let places = vm.vcpus.iter().chain([&vm.main]);
            places.map(|place| (place.clone(), vm.pid))
        });
        let extra = extra.iter().map(|&(place, pid)| (path(place), Pid(pid)));
        let threads: Vec<(CgroupPath, Pid)> = of_vms.chain(extra).collect();
        let occupant = |cgroup: &CgroupPath, _: usize| {
            let inside = threads.iter().filter(|(place, _)| place.is_within(cgroup));
            let inside = inside.map(|(_, pid)| Occupant::One(*pid));
            Ok(inside.fold(Occupant::Nobody, Occupant::and))
        };
        let found = Residents::new(all.into_iter().map(Arc::new).collect()).own_cgroup(0, occupant);
        found.unwrap().map(|cgroup| cgroup.0)
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
