//! A seat for each vCPU: the pCPU that is its own while its VM has its turn.
//!
//! Two vCPUs of a VM share a pCPU only where there are more of them than pCPUs that they may use. Among the pCPUs left to choose
//! from, a VM takes those that are least in demand, so that VMs that could share a row do not sit on each other's pCPUs.
//! Seats are a maximum matching of vCPUs and pCPUs (Kuhn, "The Hungarian method for the assignment problem", 1955), tried
//! in order of demand.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VcpuId};

/// How much of each pCPU's time is spoken for, 1 = all of it.
pub type Demand = BTreeMap<PcpuId, f64>;

/// A pCPU for each of a VM's vCPUs, which may run on these; `None`: one of them may run nowhere.
pub fn seat(vcpus: &[(VcpuId, PcpuSet)], demand: &Demand) -> Option<BTreeMap<VcpuId, PcpuId>> {
    let demand_of = |pcpu: &PcpuId| demand.get(pcpu).copied().unwrap_or(0.0);
    let choices: Vec<Vec<PcpuId>> = vcpus
        .iter()
        .map(|(_, allowed)| {
            let mut pcpus: Vec<PcpuId> = allowed.iter().collect();
            // Equal demand: the lower number, so that VMs of equal size end up on equal seats.
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

/// Finds a pCPU for a vCPU, moving others that have a choice.
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
    fn vcpus_sit_side_by_side() {
        assert_eq!(seats(&["0-3", "0-3"], &[0.0; 4]), [0, 1]);
    }

    #[test]
    fn the_second_vm_sits_where_the_first_does_not() {
        assert_eq!(seats(&["0-3", "0-3"], &[0.4, 0.4, 0.0, 0.0]), [2, 3]);
    }

    #[test]
    fn one_that_has_a_choice_makes_room_for_one_that_has_none() {
        assert_eq!(seats(&["0-1", "0"], &[0.0; 2]), [1, 0]);
        assert_eq!(seats(&["0-1", "1-2", "0"], &[0.0; 3]), [1, 2, 0]);
    }

    #[test]
    fn a_vm_larger_than_its_pcpus_shares_them_evenly() {
        let mut pcpus = seats(&["0-1", "0-1", "0-1", "0-1"], &[0.0; 2]);
        pcpus.sort_unstable();
        assert_eq!(pcpus, [0, 0, 1, 1]);
    }

    #[test]
    fn a_vcpu_that_may_run_nowhere_cannot_sit() {
        assert_eq!(seat(&[(VcpuId(0), PcpuSet::default())], &Demand::new()), None);
    }
}
