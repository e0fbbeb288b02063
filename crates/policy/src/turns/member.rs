//! A member of the rotation, and its slots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// A time in which the vCPUs of a VM run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Begin in the rotation.
    pub from: Nanos,
    /// End in the rotation.
    pub to: Nanos,
    /// The pCPU of each vCPU.
    pub pcpus: BTreeMap<VcpuId, PcpuId>,
}

/// A VM in the rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// The VM.
    pub vm: VmId,
    /// Its one or two slots, at different times.
    pub slots: Vec<Slot>,
    /// Whether its vCPUs are moved to the pCPUs of a slot; otherwise they are pinned there.
    pub moves: bool,
}

impl Member {
    /// Its vCPUs that have slots.
    pub fn vcpus(&self) -> impl Iterator<Item = VcpuId> + '_ {
        self.slots.iter().take(1).flat_map(|slot| slot.pcpus.keys().copied())
    }

    /// The pCPUs of all its slots.
    pub fn pcpus(&self) -> PcpuSet {
        self.slots.iter().flat_map(|slot| slot.pcpus.values().copied()).collect()
    }

    /// The pCPUs of a vCPU in all slots.
    pub fn places(&self, vcpu: VcpuId) -> PcpuSet {
        self.slots.iter().filter_map(|slot| slot.pcpus.get(&vcpu).copied()).collect()
    }

    /// The slot at a time of the rotation.
    pub fn slot_at(&self, time: Nanos) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.from <= time && time < slot.to)
    }

    /// Total length of its slots.
    pub fn length(&self) -> Nanos {
        Nanos(self.slots.iter().map(|slot| slot.to.0 - slot.from.0).sum())
    }
}
