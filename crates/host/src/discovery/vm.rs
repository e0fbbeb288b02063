//! A discovered VM.

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
    /// Id, unique for the lifetime of a [`super::Discovery`].
    pub id: VmId,
    /// Its process.
    pub process: ThreadRef,
    /// Name given by its VMM, or else program and PID.
    pub name: String,
    /// The VMM.
    pub vmm: Vmm,
    /// Its vCPUs by number.
    pub vcpus: Vec<VcpuThread>,
    /// Number of further KVM vCPUs whose threads are unknown.
    pub unidentified: usize,
    /// The real user of its process, for which it counts in limits per user; `None` if unknown.
    #[serde(skip)]
    pub user: Option<u32>,
}
