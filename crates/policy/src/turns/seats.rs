//! Slots: a pCPU for each vCPU, its own while its VM has its turn.
//!
//! Two vCPUs of a VM share a pCPU only if it has more vCPUs than allowed pCPUs.
//! The pCPUs are a maximum matching of vCPUs and pCPUs (Kuhn, "The Hungarian method for the
//! assignment problem", 1955), tried in order of their numbers, so that VMs of equal size get equal pCPUs.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VcpuId};

/// Assigns a pCPU to each of a VM's vCPUs; `None` if one of them may run nowhere.
pub(super) fn seat(vcpus: &[(VcpuId, PcpuSet)]) -> Option<BTreeMap<VcpuId, PcpuId>> {
    let choices: Vec<Vec<PcpuId>> =
        vcpus.iter().map(|(_, allowed)| allowed.iter().collect()).collect();
    if choices.iter().any(Vec::is_empty) {
        return None;
    }
    let mut holders: BTreeMap<PcpuId, usize> = BTreeMap::new();
    let mut standing = Vec::new();
    for vcpu in 0..choices.len() {
        if !place(vcpu, &choices, &mut holders, &mut PcpuSet::default()) {
            standing.push(vcpu);
        }
    }
    let mut seats: BTreeMap<VcpuId, PcpuId> =
        holders.iter().map(|(&pcpu, &vcpu)| (vcpus[vcpu].0, pcpu)).collect();
    for vcpu in standing {
        let taken = |pcpu: &PcpuId| seats.values().filter(|seat| *seat == pcpu).count();
        let least = choices[vcpu].iter().min_by_key(|pcpu| taken(pcpu)).copied()?;
        seats.insert(vcpus[vcpu].0, least);
    }
    Some(seats)
}

/// Finds a pCPU for a vCPU, moving other vCPUs that have alternatives.
fn place(
    vcpu: usize,
    choices: &[Vec<PcpuId>],
    holders: &mut BTreeMap<PcpuId, usize>,
    tried: &mut PcpuSet,
) -> bool {
    let free = choices[vcpu].iter().find(|pcpu| !holders.contains_key(pcpu));
    if let Some(&pcpu) = free {
        holders.insert(pcpu, vcpu);
        return true;
    }
    for &pcpu in &choices[vcpu] {
        if tried.contains(pcpu) {
            continue;
        }
        tried.insert(pcpu);
        let holder = holders.get(&pcpu).copied();
        if holder.is_none_or(|holder| place(holder, choices, holders, tried)) {
            holders.insert(pcpu, vcpu);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(allowed: &[&str]) -> Vec<u32> {
        let vcpus: Vec<(VcpuId, PcpuSet)> =
            (0u32..).zip(allowed).map(|(n, list)| (VcpuId(n), list.parse().unwrap())).collect();
        let seats = seat(&vcpus).unwrap();
        seats.values().map(|pcpu| pcpu.0).collect()
    }

    #[test]
    fn vcpus_get_adjacent_slots() {
        assert_eq!(seats(&["0-3", "0-3"]), [0, 1]);
    }

    #[test]
    fn flexible_vcpu_yields_to_pinned_vcpu() {
        assert_eq!(seats(&["0-1", "0"]), [1, 0]);
        assert_eq!(seats(&["0-1", "1-2", "0"]), [1, 2, 0]);
    }

    #[test]
    fn oversized_vm_shares_pcpus_evenly() {
        let mut pcpus = seats(&["0-1", "0-1", "0-1", "0-1"]);
        pcpus.sort_unstable();
        assert_eq!(pcpus, [0, 0, 1, 1]);
    }

    #[test]
    fn unplaceable_vcpu_has_no_slot() {
        assert_eq!(seat(&[(VcpuId(0), PcpuSet::default())]), None);
    }
}
