//! What the simulated host keeps of turns: their sequence, who left, and where vCPUs with a seat or that roam may run besides.
//!
//! What it does with that is in `turns`.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::{PcpuSet, VmId};
use tandem_policy::turns::Sequence;

/// What the simulated host keeps of turns.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub sequence: Sequence,
    /// VMs that began to sleep since the last observation.
    pub left: BTreeSet<VmId>,
    /// Of vCPUs that a policy has given a seat: where they may run besides.
    granted: BTreeMap<u32, PcpuSet>,
    /// vCPUs that roam, and where each may run while it does not.
    pub roaming: BTreeMap<u32, PcpuSet>,
    /// Of each vCPU at the end of its VM's last turn: how long it had been runnable, and when that was.
    pub accounts: BTreeMap<u32, (u64, u64)>,
}

impl Turns {
    /// Whether a VM takes turns.
    pub fn takes_part(&self, vm: VmId) -> bool {
        self.sequence.rotation().member(vm).is_some()
    }

    /// Where a vCPU may run but for the seat it has.
    pub fn granted(&self, v: u32) -> Option<PcpuSet> {
        self.granted.get(&v).cloned()
    }

    /// Where a vCPU may run that has no seat by a policy's decision, or the seat. One that roams has another in each turn; that is the host's
    /// own doing.
    pub fn allowed<'a>(&'a self, v: u32, now: &'a PcpuSet) -> &'a PcpuSet {
        self.roaming.get(&v).unwrap_or(now)
    }

    /// A vCPU that may run on `now` roams from now on: where it may run while it does not.
    pub fn roam(&mut self, v: u32, now: &PcpuSet) {
        let home = self.granted.remove(&v);
        self.roaming.entry(v).or_insert_with(|| home.unwrap_or_else(|| now.clone()));
    }

    /// A vCPU that may run on `before` may from now on run on `after`.
    pub fn narrow(&mut self, v: u32, before: &PcpuSet, after: &PcpuSet) {
        let granted = self.granted.remove(&v).unwrap_or_else(|| before.clone());
        if granted != *after {
            self.granted.insert(v, granted);
        }
    }
}
