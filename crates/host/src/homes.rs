//! Where VMs are in the hierarchy of cgroups, and what a group made for one is called.

use std::collections::BTreeMap;

use tandem_policy::VmId;
use tandem_policy::Weight;

use crate::discovery::Vm;
use crate::managed::Note;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::cgroup::ownership::Occupants;
use tandem_linux::cgroup::ownership::Residence;
use tandem_linux::cgroup::ownership::Residents;
use tandem_linux::cgroup::ownership::residence;
use tandem_linux::thread::ThreadRef;

/// Where each VM's threads are; VMs that vanish meanwhile are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    numbers: BTreeMap<VmId, usize>,
    residents: Residents,
}

impl Homes {
    /// Reads it of all VMs of the host.
    pub(crate) fn read(controller: &dyn CpuController, vms: &[Vm]) -> Homes {
        let mut numbers = BTreeMap::new();
        let mut residences = Vec::new();
        for vm in vms {
            let vcpus: Vec<ThreadRef> = vm.vcpus.iter().map(|vcpu| vcpu.thread).collect();
            if let Ok(home) = residence(controller, &vm.process, &vcpus) {
                numbers.insert(vm.id, residences.len());
                residences.push(home);
            }
        }
        Homes {
            numbers,
            residents: Residents::new(residences),
        }
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
            Some(number) => self
                .residents
                .own_cgroup(*number, |cgroup| occupants.of(cgroup)),
            None => Ok(None),
        }
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
    let name: String = vm
        .name
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(64)
        .collect();
    format!("tandem-{name}-{}", vm.process.pid)
}
