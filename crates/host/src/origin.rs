//! The origin of a VM, which decides whether its name is trusted.
//!
//! The command line of a VMM names the VM, and any user with KVM can start a VM named `db-1`.
//! A rule or selection by name alone therefore applies only to VMs of the host's operator. These are VMs
//! - whose process is root's, or
//! - whose cgroup is in `/machine.slice` or `/machine`, where libvirt and systemd-machined put VMs as root.
//!   No cgroup on the way may belong to another user.
//!
//! The names of other VMs count in a rule that also has their user (`uid`) or cgroup (`cgroup`).

use std::fmt;

use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::procfs::{ProcFs, user_of};

use crate::discovery::Vm;

/// The cgroups in which only root puts VMs.
const MACHINES: [&str; 2] = ["/machine.slice", "/machine"];

/// Origin of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Real user of its process, if it can be read.
    pub(crate) user: Option<u32>,
    /// Cgroup of its first vCPU, if it can be read.
    pub(crate) cgroup: Option<CgroupPath>,
    /// Whether the host's operator chose its name.
    pub(crate) is_operators: bool,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.user {
            Some(user) => write!(f, "user {user}")?,
            None => write!(f, "user not known")?,
        }
        match &self.cgroup {
            Some(cgroup) => write!(f, ", in {cgroup}"),
            None => Ok(()),
        }
    }
}

impl Origin {
    /// Reads the origin.
    pub(crate) fn of(vm: &Vm, procfs: &ProcFs, controller: &dyn CpuController) -> Origin {
        let user = user_of(&procfs.process(vm.process.pid));
        let first = vm.vcpus.first().map_or(&vm.process, |vcpu| &vcpu.thread);
        let cgroup = controller.cgroup_of(first).ok();
        let is_machine = || {
            let cgroup = cgroup.as_ref();
            cgroup.is_some_and(|cgroup| is_machine(cgroup, controller))
        };
        Origin { is_operators: user == Some(0) || is_machine(), user, cgroup }
    }
}

/// Whether only root puts VMs into this cgroup.
fn is_machine(cgroup: &CgroupPath, controller: &dyn CpuController) -> bool {
    let is_roots = |place: &CgroupPath| {
        let owners = controller.owners(place);
        owners.is_ok_and(|owners| owners.folder == 0)
    };
    MACHINES.into_iter().any(|machines| {
        let machines = CgroupPath(machines.to_owned());
        cgroup.is_within(&machines)
            && std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
                .take_while(|place| place.is_within(&machines))
                .all(|place| is_roots(&place))
    })
}
