//! A VM in the rotation.

use tandem_linux::actuator::IdleSwitch;
use tandem_linux::thread::ThreadRef;
use tandem_model::{PcpuSet, VmId};

/// A VM in the rotation, as the turn thread needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    /// The VM.
    pub vm: VmId,
    /// The switch of its cgroup's idle class, with its weight.
    pub switch: IdleSwitch,
    /// The threads of its vCPUs that never sleep.
    pub threads: Vec<ThreadRef>,
    /// The pCPUs on which its single vCPU may run, if it roams; its affinity is journaled.
    /// The vCPUs of other VMs are pinned to their slots already.
    pub roams: Option<PcpuSet>,
}
