//! The cgroups of VMs, and the names of groups made for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tandem_model::{VmId, Weight};

use crate::discovery::Vm;
use crate::managed::Note;
use tandem_linux::cgroup::ownership::{Occupants, Residence, Residents, residence};
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController};
use tandem_linux::thread::ThreadRef;

/// Residence of each VM's threads; VMs that end in the meantime are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    numbers: BTreeMap<VmId, usize>,
    residents: Residents,
}

impl Homes {
    /// Reads those of all VMs of the host.
    #[cfg(test)]
    pub(crate) fn read(controller: &dyn CpuController, vms: &[Vm]) -> Homes {
        let homes = vms.iter().filter_map(|vm| {
            let home = residence(controller, &vm.process, &threads(vm)).ok()?;
            Some((vm.id, Arc::new(home)))
        });
        Homes::new(homes)
    }

    fn new(homes: impl Iterator<Item = (VmId, Arc<Residence>)>) -> Homes {
        let mut numbers = BTreeMap::new();
        let mut residences = Vec::new();
        for (vm, home) in homes {
            numbers.insert(vm, residences.len());
            residences.push(home);
        }
        Homes { numbers, residents: Residents::new(residences) }
    }

    /// Returns the residence of a VM.
    pub(crate) fn get(&self, vm: VmId) -> Option<&Residence> {
        self.residents.get(*self.numbers.get(&vm)?)
    }

    /// Returns the cgroup that holds only this VM, if there is one.
    pub(crate) fn own_cgroup(
        &self,
        vm: VmId,
        occupants: &mut Occupants<'_>,
    ) -> Result<Option<CgroupPath>, CgroupError> {
        match self.numbers.get(&vm) {
            Some(number) => {
                self.residents.own_cgroup(*number, |cgroup, vcpus| occupants.of(cgroup, vcpus))
            }
            None => Ok(None),
        }
    }
}

fn threads(vm: &Vm) -> Vec<ThreadRef> {
    vm.vcpus.iter().map(|vcpu| vcpu.thread).collect()
}

/// Number of scans in which a new VM's residence is read each time, since its threads are often moved after its start.
const LOOKS_AT_FIRST: u32 = 3;
/// Interval, in scans, between later reads, spread over the VMs: a thousand VMs have thousands of files to read.
/// Twice the interval would halve the reads, and double the delay before a move is noticed.
const LOOKS_PER_READ: u32 = 16;

/// Last known residences. A process may have several VMs.
#[derive(Debug, Default)]
pub(crate) struct KnownHomes(BTreeMap<(ThreadRef, VmId), Known>);

#[derive(Debug)]
struct Known {
    vcpus: Vec<ThreadRef>,
    home: Arc<Residence>,
    looks: u32,
}

/// Whether the last residence still counts, after this many scans.
fn is_believed(process: &ThreadRef, looks: u32) -> bool {
    let phase = looks.wrapping_add(process.pid.0);
    looks >= LOOKS_AT_FIRST && !phase.is_multiple_of(LOOKS_PER_READ)
}

impl KnownHomes {
    /// Returns the residences of all VMs of the host.
    /// They are read for VMs whose threads changed, and for the others in turn, so a move may go unnoticed for up to 15 scans.
    pub(crate) fn look(&mut self, controller: &dyn CpuController, vms: &[Vm]) -> Homes {
        let mut before = std::mem::take(&mut self.0);
        for vm in vms {
            let vcpus = threads(vm);
            let key = (vm.process, vm.id);
            let known = before.remove(&key);
            let looks = known.as_ref().map_or(0, |known| known.looks + 1);
            let known =
                known.filter(|known| known.vcpus == vcpus && is_believed(&vm.process, looks));
            let home = match known {
                Some(known) => Ok(known.home),
                None => residence(controller, &vm.process, &vcpus).map(Arc::new),
            };
            if let Ok(home) = home {
                self.0.insert(key, Known { vcpus, home, looks });
            }
        }
        Homes::new(vms.iter().filter_map(|vm| {
            let known = self.0.get(&(vm.process, vm.id))?;
            Some((vm.id, Arc::clone(&known.home)))
        }))
    }
}

impl KnownHomes {
    /// Whether a VM is still at its last known residence; if not, the next scan reads it again.
    pub(crate) fn confirm(&mut self, controller: &dyn CpuController, vm: &Vm) -> bool {
        let now = residence(controller, &vm.process, &threads(vm)).ok();
        let key = (vm.process, vm.id);
        let known = self.0.get(&key).map(|known| known.home.as_ref());
        let is_there = known == now.as_ref();
        if !is_there {
            self.0.remove(&key);
        }
        is_there
    }
}

/// Note for operators whose tenants own the knobs of their cgroups.
pub(crate) fn tenants_weight(vm: &Vm, cgroup: &CgroupPath, default: Weight) -> Note {
    Note(format!(
        "VM {}: the weight of {cgroup} does not count, because its file is not root's: {default} does; a rule may say otherwise",
        vm.name
    ))
}

/// Returns a group's name, from which operators recognize the VM: `tandem-NAME-PID`.
pub(crate) fn group_name(vm: &Vm) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = vm.name.chars().map(|c| if allowed(c) { c } else { '_' }).take(64).collect();
    format!("tandem-{name}-{}", vm.process.pid)
}
