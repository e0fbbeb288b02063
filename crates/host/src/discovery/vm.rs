//! A VM as it is found.

use serde::Serialize;
use tandem_model::{VcpuId, VmId};

use crate::vmm::Vmm;
use tandem_linux::thread::ThreadRef;

/// A vCPU and the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct VcpuThread {
    /// The vCPU's number in its VM.
    pub index: VcpuId,
    /// Its thread.
    pub thread: ThreadRef,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// A number that a [`super::Discovery`] gives to no other VM, ever.
    pub id: VmId,
    /// Its process.
    pub process: ThreadRef,
    /// What its VMM calls it, or else program and pid.
    pub name: String,
    /// The program that runs it.
    pub vmm: Vmm,
    /// Its vCPUs by number.
    pub vcpus: Vec<VcpuThread>,
    /// How many KVM vCPUs it holds beyond those: their threads are not known.
    pub unidentified: usize,
    /// Who it counts for where users are bounded: its process's user, or who was given that user's number (subuid(5)). `None`: not known.
    #[serde(skip)]
    pub tenant: Option<u32>,
}
