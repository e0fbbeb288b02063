//! Where a VM comes from, and so whether its name is somebody's word that counts.
//!
//! A VM's name is in its VMM's command line, which whoever starts it writes: anybody with KVM can start one that is called `db-1`. A rule or a
//! selection that says no more than a name means the VMs of who runs this host. Those are the ones
//! - whose process is root's, or
//! - whose cgroup is in `/machine.slice` or `/machine`, where libvirt and systemd-machined, which are root, put VMs, with no cgroup on the
//!   way that was given to another user.
//!
//! For other VMs names count within a rule that also says whose the VM is (`uid`) or where it is (`cgroup`).

use std::fmt;

use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::procfs::{ProcFs, user_of};

use crate::discovery::Vm;

/// The places in which only root puts VMs.
const MACHINES: [&str; 2] = ["/machine.slice", "/machine"];

/// Where a VM comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its process's real user, where that can be read.
    pub(crate) user: Option<u32>,
    /// Where its first vCPU is, where that can be read.
    pub(crate) cgroup: Option<CgroupPath>,
    /// Whether its name is the word of who runs this host.
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
    /// Reads it.
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

/// Whether it is where only root puts VMs.
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
