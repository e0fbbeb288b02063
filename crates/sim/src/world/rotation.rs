//! The simulated host's state of turns: their sequence, departed VMs, and the original affinities of vCPUs in slots.
//!
//! `turns` acts on this state.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::{PcpuSet, VmId};
use tandem_policy::turns::Sequence;

/// The simulated host's state of turns.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub sequence: Sequence,
    /// VMs that began to sleep since the last observation.
    pub left: BTreeSet<VmId>,
    /// Original affinities of the vCPUs to which a policy has given a slot.
    granted: BTreeMap<u32, PcpuSet>,
    /// Roaming vCPUs, and their affinities while they do not roam.
    pub roaming: BTreeMap<u32, PcpuSet>,
    /// By vCPU, at the end of its VM's last turn: its runnable time so far, and the time of that reading.
    pub accounts: BTreeMap<u32, (u64, u64)>,
}

impl Turns {
    /// Whether a VM takes turns.
    pub fn takes_part(&self, vm: VmId) -> bool {
        self.sequence.rotation().member(vm).is_some()
    }

    /// A vCPU's original affinity, if a policy has given it a slot.
    pub fn granted(&self, v: u32) -> Option<PcpuSet> {
        self.granted.get(&v).cloned()
    }

    /// A vCPU's affinity by policy decisions, given the current one.
    /// The host itself gives a roaming vCPU another slot in each turn, which does not count.
    pub fn allowed<'a>(&'a self, v: u32, now: &'a PcpuSet) -> &'a PcpuSet {
        self.roaming.get(&v).unwrap_or(now)
    }

    /// Starts the roaming of a vCPU with affinity `now`, and keeps its original affinity.
    pub fn roam(&mut self, v: u32, now: &PcpuSet) {
        let home = self.granted.remove(&v);
        self.roaming.entry(v).or_insert_with(|| home.unwrap_or_else(|| now.clone()));
    }

    /// Changes a vCPU's affinity from `before` to `after`, and keeps its original one if that differs.
    pub fn narrow(&mut self, v: u32, before: &PcpuSet, after: &PcpuSet) {
        let granted = self.granted.remove(&v).unwrap_or_else(|| before.clone());
        if granted != *after {
            self.granted.insert(v, granted);
        }
    }
}
