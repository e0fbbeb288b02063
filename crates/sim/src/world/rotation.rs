//! The simulated turn keeper's state: the sequence of turns, departed VMs, and the affinities of vCPUs outside their slots.
//!
//! `turns` acts on this state.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::{PcpuSet, VmId};
use tandem_policy::turns::Sequence;

/// The simulated turn keeper's state.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub sequence: Sequence,
    /// VMs that began to sleep since the last observation.
    pub left: BTreeSet<VmId>,
    /// vCPUs that move to the pCPUs of their slots, and their affinities outside these.
    pub homes: BTreeMap<u32, PcpuSet>,
    /// By vCPU, at the end of its VM's last turn: its runnable time so far, and the time of that reading.
    pub accounts: BTreeMap<u32, (u64, u64)>,
}
