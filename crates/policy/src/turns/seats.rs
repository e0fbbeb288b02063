//! Slots: a pCPU for each vCPU, its own while its VM has its turn.
//!
//! Two vCPUs of a VM share a pCPU only if it has more vCPUs than allowed pCPUs.
//! A VM takes its least demanded pCPUs, so that VMs that could share a row do not get the same pCPUs.
//! Slots are a maximum matching of vCPUs and pCPUs (Kuhn, "The Hungarian method for the
//! assignment problem", 1955), tried in order of demand.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VcpuId};

/// Demand for the time of each pCPU, 1 = all of it.
pub type Demand = BTreeMap<PcpuId, f64>;

/// Assigns a pCPU to each of a VM's vCPUs; `None` if one of them may run nowhere.
pub fn seat(vcpus: &[(VcpuId, PcpuSet)], demand: &Demand) -> Option<BTreeMap<VcpuId, PcpuId>> {
    let demand_of = |pcpu: &PcpuId| demand.get(pcpu).copied().unwrap_or(0.0);
    let choices: Vec<Vec<PcpuId>> = vcpus
        .iter()
        .map(|(_, allowed)| {
            let mut pcpus: Vec<PcpuId> = allowed.iter().collect();
            // On a tie the lower number comes first, so that VMs of equal size get equal slots.
            pcpus.sort_by(|a, b| demand_of(a).total_cmp(&demand_of(b)).then(a.cmp(b)));
            pcpus
        })
        .collect();
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

    fn seats(allowed: &[&str], demand: &[f64]) -> Vec<u32> {
        let vcpus: Vec<(VcpuId, PcpuSet)> =
            (0u32..).zip(allowed).map(|(n, list)| (VcpuId(n), list.parse().unwrap())).collect();
        let demand = (0u32..).map(PcpuId).zip(demand.iter().copied()).collect();
        let seats = seat(&vcpus, &demand).unwrap();
        seats.values().map(|pcpu| pcpu.0).collect()
    }

    #[test]
    fn vcpus_get_adjacent_slots() {
        assert_eq!(seats(&["0-3", "0-3"], &[0.0; 4]), [0, 1]);
    }

    #[test]
    fn second_vm_takes_unused_pcpus() {
        assert_eq!(seats(&["0-3", "0-3"], &[0.4, 0.4, 0.0, 0.0]), [2, 3]);
    }

    #[test]
    fn flexible_vcpu_yields_to_pinned_vcpu() {
        assert_eq!(seats(&["0-1", "0"], &[0.0; 2]), [1, 0]);
        assert_eq!(seats(&["0-1", "1-2", "0"], &[0.0; 3]), [1, 2, 0]);
    }

    #[test]
    fn oversized_vm_shares_pcpus_evenly() {
        let mut pcpus = seats(&["0-1", "0-1", "0-1", "0-1"], &[0.0; 2]);
        pcpus.sort_unstable();
        assert_eq!(pcpus, [0, 0, 1, 1]);
    }

    #[test]
    fn unplaceable_vcpu_has_no_slot() {
        assert_eq!(seat(&[(VcpuId(0), PcpuSet::default())], &Demand::new()), None);
    }
}
