//! A VM in the rotation.

use tandem_linux::actuator::IdleSwitch;
use tandem_linux::thread::ThreadRef;
use tandem_model::{PcpuSet, VcpuId, VmId};

/// A VM in the rotation, as the turn thread needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    /// The VM.
    pub vm: VmId,
    /// The switch of its cgroup's idle class, with its weight.
    pub switch: IdleSwitch,
    /// Its vCPUs that have slots.
    pub vcpus: Vec<PlayerVcpu>,
}

impl Player {
    /// The threads of its vCPUs.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadRef> {
        self.vcpus.iter().map(|vcpu| &vcpu.thread)
    }
}

/// A vCPU of a VM in the rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct PlayerVcpu {
    /// Its number in the VM.
    pub id: VcpuId,
    /// Its thread.
    pub thread: ThreadRef,
    /// Its pCPUs outside its slots, if it moves to these; its affinities are journaled.
    /// Other vCPUs are pinned to their slots already.
    pub home: Option<PcpuSet>,
}
