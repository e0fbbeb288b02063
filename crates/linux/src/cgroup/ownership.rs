//! Finds the cgroup that belongs to one VM alone, if any.
//!
//! If libvirt, systemd or an operator gave a VM its own cgroup, Tandem sets the weight of that cgroup.
//! Only a VM that shares its cgroup with others needs a new one.
//! Layouts in use:
//!
//! - libvirt on v1: `/machine.slice/machine-qemu….scope/{emulator,vcpu0,…}` → the scope;
//! - libvirt on v2: `/machine.slice/machine-qemu….scope/libvirt/{emulator,vcpu0,…}` → the scope;
//! - `systemd-run --scope qemu …`: `/…/run-r1.scope` → the scope; likewise a service of its own;
//! - one folder per VM, by an operator's script: `/vms/web/{emulator,vcpu0}` → `/vms/web`;
//! - started from a shell or a container that holds more than the VM → none.
//!
//! The rule: start at the lowest cgroup that holds all vCPU threads.
//! Climb while the cgroup above holds only this VM, and either also holds its other threads or lies within a `*.scope` or `*.service`.
//! The climb ends at such a scope or service, and never enters the root or a `*.slice`, which are made for many VMs.
//! Without these reasons it must not go on, because a folder like `/vms` holds a single VM only until the next one starts.
//!
//! Helper processes of a VM (virtiofsd, swtpm) live in its machine scope.
//! In a scope named `machine-…`, processes other than VMs therefore do not count.
//!
//! For many VMs, [`Residents`] indexes the VMs at or below each cgroup, which finds others without a search.
//! [`Occupants`] reads a cgroup's processes once, and only if that index has no other VM there.
//! The cost of 1,000 VMs is thus 1,000 times that of one.
//! Tenants may fill a cgroup with anything, so the number of examined entries is bounded.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cgroup::controller::CpuController;
use crate::cgroup::error::CgroupError;
use crate::cgroup::path::CgroupPath;
use crate::ids::Pid;
use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// The cgroups of one VM's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residence {
    /// The VM's process.
    pub pid: Pid,
    /// Cgroup of the process's first thread.
    pub main: CgroupPath,
    /// Cgroup of each vCPU thread.
    pub vcpus: Vec<CgroupPath>,
}

/// The processes with threads in a cgroup or below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// None.
    Nobody,
    /// One process.
    One(Pid),
    /// Several processes.
    Several,
}

impl Occupant {
    /// Combines the occupants of two cgroups.
    #[must_use]
    pub fn and(self, other: Occupant) -> Occupant {
        match (self, other) {
            (Occupant::Nobody, only) | (only, Occupant::Nobody) => only,
            (one, same) if one == same => one,
            _ => Occupant::Several,
        }
    }
}

/// Returns the occupant of a cgroup, for a VM with this number of vCPUs.
type FindOccupant<'a> = dyn FnMut(&CgroupPath, usize) -> Result<Occupant, CgroupError> + 'a;

/// The VMs of a host, several of which may be in one process, indexed by cgroup.
#[derive(Clone, Debug, Default)]
pub struct Residents {
    residences: Vec<Arc<Residence>>,
    /// The VMs in each cgroup or below.
    tenants: HashMap<String, Tenants>,
}

#[derive(Clone, Debug, Default)]
struct Tenants {
    /// Indices of VMs with a vCPU thread there.
    vcpus: First<usize>,
    /// VM processes whose first thread is there.
    mains: First<Pid>,
}

/// The first of several values, and whether there is a different one.
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
    /// Indexes these VMs, numbered in this order.
    pub fn new(residences: Vec<Arc<Residence>>) -> Residents {
        let mut residents = Residents::default();
        for (vm, home) in residences.iter().enumerate() {
            residents.enter(&home.main, |tenants| tenants.mains.add(home.pid));
            let mut before = None;
            for place in &home.vcpus {
                // Fast path: the vCPUs of a VM are often in one cgroup.
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

    /// A VM by its index.
    pub fn get(&self, vm: usize) -> Option<&Residence> {
        self.residences.get(vm).map(Arc::as_ref)
    }

    /// Returns the cgroup that belongs to this VM alone, if any.
    /// `occupant` returns the occupant of a cgroup; it receives the VM's number of vCPUs.
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
        // At the machine scope, or right below, other processes do not matter.
        if let Some(scope) = &machine
            && (start == *scope || start.parent().as_ref() == Some(scope))
            && is_own(scope)?
        {
            return Ok(machine);
        }
        if !is_own(&start)? {
            // Each thread may have a cgroup below one with helpers, as in libvirt's scope.
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
        occupant: &mut FindOccupant<'_>,
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

/// The lowest cgroup at or above all of these.
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

/// Reads the cgroups of one VM's threads; omits threads that ended meanwhile.
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

/// Maximum number of cgroups and processes examined to find the owner of a cgroup, without those of vCPUs.
/// A VMM has a few, with its helpers and vhost workers.
pub const MAX_EXAMINED: usize = 256;
/// Additional cgroups and processes examined per vCPU: libvirt creates a cgroup for each, and vhost about one worker.
pub const PER_VCPU: usize = 2;

/// The occupants of this host's cgroups; reads each cgroup on demand, and once.
pub struct Occupants<'a> {
    controller: &'a dyn CpuController,
    procfs: &'a ProcFs,
    known: HashMap<CgroupPath, Occupant>,
    kernel_threads: HashMap<Pid, bool>,
}

impl<'a> Occupants<'a> {
    /// Creates the cache without reading.
    pub fn new(controller: &'a dyn CpuController, procfs: &'a ProcFs) -> Occupants<'a> {
        Occupants { controller, procfs, known: HashMap::new(), kernel_threads: HashMap::new() }
    }

    /// Returns the occupant of this cgroup and those below, for a VM with this number of vCPUs.
    /// Kernel threads that serve the VM, such as vhost workers, do not count.
    ///
    /// Examines at most [`MAX_EXAMINED`] cgroups and processes, plus [`PER_VCPU`] per vCPU.
    /// More count as several processes: no VM needs them, and a tenant could delay the daemon with them.
    pub fn of(&mut self, cgroup: &CgroupPath, vcpus: usize) -> Result<Occupant, CgroupError> {
        let mut left = MAX_EXAMINED.saturating_add(vcpus.saturating_mul(PER_VCPU));
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
            // Known kernel threads do not count towards the limit.
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
            occupant = occupant.and(self.occupant_of(&pids, &mut left));
            if open.len() > left {
                occupant = Occupant::Several;
            }
        }
        self.known.insert(cgroup.clone(), occupant);
        Ok(occupant)
    }

    /// Returns the occupant for these processes; several if examining them exceeds `left`.
    fn occupant_of(&mut self, pids: &[Pid], left: &mut usize) -> Occupant {
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

/// Returns the cgroup that belongs to this VM alone, if any; `others` are the host's other VMs.
/// For all of a host's VMs, use [`Residents`].
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

    /// The VM's own cgroup; the occupants are the VMs' threads and `extra`.
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
    fn libvirt_v1_owns_its_scope() {
        for vcpus in 1..4 {
            let vm = libvirt(SCOPE, 7, vcpus);
            assert_eq!(own(&vm, &[], &[]), Some(SCOPE.to_owned()));
        }
    }

    #[test]
    fn libvirt_v2_owns_its_scope() {
        for vcpus in 1..4 {
            let vm = libvirt(&format!("{SCOPE}/libvirt"), 7, vcpus);
            assert_eq!(own(&vm, &[], &[]), Some(SCOPE.to_owned()));
        }
    }

    #[test]
    fn machine_scope_may_hold_helpers_only() {
        let web = libvirt(&format!("{SCOPE}/libvirt"), 7, 2);
        let helper = format!("{SCOPE}/libvirt/emulator");
        assert_eq!(own(&web, &[], &[(&helper, 9)]), Some(SCOPE.to_owned()));
        let nested = vm(8, &helper, &[&format!("{SCOPE}/libvirt/vcpu0")]);
        assert_eq!(own(&web, &[nested], &[]), None);
    }

    #[test]
    fn libvirt_without_systemd_owns_its_folder() {
        let web = libvirt("/machine/qemu-1-web.libvirt-qemu", 7, 1);
        let wanted = Some("/machine/qemu-1-web.libvirt-qemu".to_owned());
        assert_eq!(own(&web, &[], &[]), wanted, "even as the only VM");
        let other = libvirt("/machine/qemu-2-db.libvirt-qemu", 8, 2);
        assert_eq!(own(&web, &[other], &[]), wanted);
    }

    #[test]
    fn exclusive_scope_or_service_is_owned() {
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
    fn root_and_slices_are_not_owned() {
        assert_eq!(own(&vm(7, "/", &["/", "/"]), &[], &[]), None);
        let slice = "/machine.slice";
        assert_eq!(own(&vm(7, slice, &[slice]), &[], &[]), None);
    }

    #[test]
    fn operators_folder_ends_the_climb() {
        let web = vm(7, "/", &["/vms/web", "/vms/web"]);
        assert_eq!(own(&web, &[], &[]), Some("/vms/web".to_owned()));
        let split = vm(7, "/vms/web/emulator", &["/vms/web/vcpu0"]);
        assert_eq!(own(&split, &[], &[]), Some("/vms/web".to_owned()));
    }

    #[test]
    fn vms_of_one_process_share_their_cgroup() {
        let place = "/system.slice/many.service";
        let (a, b) = (vm(7, place, &[place]), vm(7, place, &[place, place]));
        assert_eq!(own(&a, &[b], &[]), None);
    }

    #[test]
    fn vm_without_vcpus_owns_none() {
        assert_eq!(own(&vm(7, "/a", &[]), &[], &[]), None);
    }
}
