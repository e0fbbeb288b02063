//! Candidates for the rotation.

use std::collections::BTreeMap;

use super::blocks::{Place, Slot};
use super::seats::seat;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VcpuId, VmId};

/// A VM that never sleeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The VM.
    pub vm: VmId,
    /// Its fair share, in pCPUs.
    pub due: f64,
    /// Factor on its part of the rotation, for a VM that receives more or less than that part gives.
    pub correction: f64,
    /// Its vCPUs that never sleep, and the pCPUs where each may run.
    pub vcpus: Vec<(VcpuId, PcpuSet)>,
}

impl Candidate {
    /// All pCPUs where vCPUs of these candidates may run.
    pub(crate) fn all_pcpus(candidates: &[Candidate]) -> PcpuSet {
        let mut pcpus = PcpuSet::default();
        candidates.iter().for_each(|candidate| pcpus.extend(&candidate.pcpus()));
        pcpus
    }

    /// All pCPUs where its vCPUs may run.
    pub(super) fn pcpus(&self) -> PcpuSet {
        let mut pcpus = PcpuSet::default();
        self.vcpus.iter().for_each(|(_, set)| pcpus.extend(set));
        pcpus
    }

    /// Its pCPUs at a time; `None` if a vCPU may run nowhere.
    pub(super) fn place(&self) -> Option<Place> {
        let (_, first) = self.vcpus.first()?;
        let are_alike = self.vcpus.iter().all(|(_, pcpus)| pcpus == first);
        if are_alike && self.vcpus.len() <= first.len() && first.len() > 1 {
            return Some(Place::Block(self.vcpus.len(), first.clone()));
        }
        Some(Place::Fixed(seat(&self.vcpus)?.into_values().collect()))
    }

    /// The pCPU of each vCPU in a slot.
    pub(super) fn pcpus_in(&self, slot: &Slot) -> BTreeMap<VcpuId, PcpuId> {
        let on_slot = |(id, pcpus): &(VcpuId, PcpuSet)| {
            (*id, pcpus.iter().filter(|pcpu| slot.pcpus.contains(pcpu)).collect())
        };
        let vcpus: Vec<(VcpuId, PcpuSet)> = self.vcpus.iter().map(on_slot).collect();
        seat(&vcpus).unwrap_or_default()
    }
}
