//! Parties that wait, or are waited for.
//!
//! An interval has many edges between few parties, so edges hold indices into a table of parties ([`super::edges::Edges`]).
//! Parties compare by identity, not by order of appearance.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{VcpuId, VmId};

/// A party that waits, or is waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    /// A vCPU.
    Vcpu {
        /// Its VM.
        vm: VmId,
        /// Its number in the VM.
        vcpu: VcpuId,
    },
    /// All vCPUs of a VM together.
    Vm(VmId),
    /// Another thread of a VM: emulator, I/O threads, vhost.
    VmThread {
        /// The VM.
        vm: VmId,
        /// The thread's name.
        name: String,
    },
    /// Other processes of the host with the same name and cgroup.
    Process {
        /// Their name.
        name: String,
        /// Their cgroup of the cpu controller, if known.
        cgroup: Option<String>,
    },
    /// A kernel thread, by name.
    KernelThread(String),
    /// Unseen parties: interrupts, exited tasks, steal by an outer hypervisor.
    Unseen,
    /// All other parties that were seen.
    Others,
}

impl Party {
    /// Returns its VM, if any.
    pub fn vm(&self) -> Option<VmId> {
        match self {
            Party::Vcpu { vm, .. } | Party::Vm(vm) | Party::VmThread { vm, .. } => Some(*vm),
            Party::Process { .. } | Party::KernelThread(_) | Party::Unseen | Party::Others => None,
        }
    }

    /// Returns the VM for a vCPU, else the party itself.
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
