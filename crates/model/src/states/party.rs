//! Who waits, or is waited for.
//!
//! An interval has many edges between few parties, so edges hold numbers into a table of parties ([`super::edges::Edges`]).
//! Parties are compared by what they are, never by the order in which they were seen.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{VcpuId, VmId};

/// Who waits, or is waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    /// A vCPU.
    Vcpu {
        /// Its VM.
        vm: VmId,
        /// Which of the VM's.
        vcpu: VcpuId,
    },
    /// The vCPUs of a VM, where they are not told apart.
    Vm(VmId),
    /// Another thread that works for a VM: its emulator, I/O threads, vhost.
    VmThread {
        /// The VM.
        vm: VmId,
        /// The thread's name.
        name: String,
    },
    /// Processes of the host that are no VMs, of one name in one cgroup.
    Process {
        /// Their name.
        name: String,
        /// Their path in the hierarchy of the cpu controller, where that is known.
        cgroup: Option<String>,
    },
    /// A thread of the kernel, by name.
    KernelThread(String),
    /// Nobody that was seen: interrupts, tasks that ended, what a hypervisor below this host took.
    Unseen,
    /// All those that were seen and are not named one by one.
    Others,
}

impl Party {
    /// The VM that it belongs to, if any.
    pub fn vm(&self) -> Option<VmId> {
        match self {
            Party::Vcpu { vm, .. } | Party::Vm(vm) | Party::VmThread { vm, .. } => Some(*vm),
            Party::Process { .. } | Party::KernelThread(_) | Party::Unseen | Party::Others => None,
        }
    }

    /// The same party with the vCPUs of a VM taken together.
    pub fn whole(&self) -> Party {
        match self {
            Party::Vcpu { vm, .. } => Party::Vm(*vm),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Vcpu { vm, vcpu } => write!(f, "VM {vm} vCPU {vcpu}"),
            Party::Vm(vm) => write!(f, "VM {vm}"),
            Party::VmThread { vm, name } => write!(f, "VM {vm}: {name}"),
            Party::Process { name, .. } => f.write_str(name),
            Party::KernelThread(name) => write!(f, "[{name}]"),
            Party::Unseen => f.write_str("unseen"),
            Party::Others => f.write_str("others"),
        }
    }
}
