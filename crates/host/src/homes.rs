//! Where VMs are in the hierarchy of cgroups, and what a group made for one is called.

use std::collections::BTreeMap;
use std::sync::Arc;

use tandem_model::{VmId, Weight};

use crate::discovery::Vm;
use crate::managed::Note;
use tandem_linux::cgroup::ownership::{Occupants, Residence, Residents, residence};
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController};
use tandem_linux::thread::ThreadRef;

/// Where each VM's threads are; VMs that vanish meanwhile are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    numbers: BTreeMap<VmId, usize>,
    residents: Residents,
}

impl Homes {
    /// Reads it of all VMs of the host.
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

    /// A VM's.
    pub(crate) fn get(&self, vm: VmId) -> Option<&Residence> {
        self.residents.get(*self.numbers.get(&vm)?)
    }

    /// The cgroup that is this VM's alone, if it has one.
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

/// A VM is looked for where it was last, but each time at first: whoever starts VMs moves their threads then ...
const LOOKS_AT_FIRST: u32 = 3;
/// ... and later every so many looks, not all VMs in the same one: a thousand VMs have thousands of files to read. Twice as many halve these
/// reads, and a VM that moves is seen where it was for twice as long.
const LOOKS_PER_READ: u32 = 16;

/// Where VMs were when they were looked at before. A process may have several.
#[derive(Debug, Default)]
pub(crate) struct KnownHomes(BTreeMap<(ThreadRef, VmId), Known>);

#[derive(Debug)]
struct Known {
    vcpus: Vec<ThreadRef>,
    home: Arc<Residence>,
    looks: u32,
}

/// Whether a VM that was found is believed to be where it was, after so many looks at it.
fn is_believed(process: &ThreadRef, looks: u32) -> bool {
    let phase = looks.wrapping_add(process.pid.0);
    looks >= LOOKS_AT_FIRST && !phase.is_multiple_of(LOOKS_PER_READ)
}

impl KnownHomes {
    /// Where all VMs of the host are: read of those whose threads are others than before, and of the rest now and then, so a VM that moves
    /// may be seen where it was for up to 15 looks.
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
    /// Whether a VM is where it was taken to be; it is read anew at the next look if not.
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
    let name: String = vm.name.chars().map(|c| if allowed(c) { c } else { '_' }).take(64).collect();
    format!("tandem-{name}-{}", vm.process.pid)
}
