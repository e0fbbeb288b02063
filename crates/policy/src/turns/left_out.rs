//! VMs that never sleep but are left out of the rotation because of their cgroup.
//!
//! A VM in the idle class yields to its siblings only, so all members are of one set of siblings:
//! the one with the most vCPUs that never sleep.
//! VMs of the other sets stay resident.
//! They lose by that if they share a pCPU with candidates of another set, and if any candidate
//! has vCPUs that have to run together.

use std::collections::BTreeMap;

use super::candidate::Candidate;
use tandem_model::units::{PcpuId, VmId};

/// Returns the candidates of the chosen set, and the VMs of other sets that lose by being left out.
pub fn choose(mut sets: BTreeMap<u32, Vec<Candidate>>) -> (Vec<Candidate>, Vec<VmId>) {
    let vcpus = |set: &[Candidate]| set.iter().map(|vm| vm.vcpus.len()).sum::<usize>();
    // The first of the largest.
    let largest = sets.iter().rev().max_by_key(|(_, set)| vcpus(set));
    let Some(largest) = largest.map(|(set, _)| *set) else {
        return (Vec::new(), Vec::new());
    };
    let left_out = match sets.len() {
        1 => Vec::new(),
        _ => left_out(&sets, largest),
    };
    (sets.remove(&largest).unwrap_or_default(), left_out)
}

fn left_out(sets: &BTreeMap<u32, Vec<Candidate>>, chosen: u32) -> Vec<VmId> {
    let mut all = sets.values().flatten();
    if all.all(|candidate| candidate.vcpus.len() < 2) {
        return Vec::new();
    }
    // The set whose VMs may use a pCPU; `None` if there are several.
    let mut users: BTreeMap<PcpuId, Option<u32>> = BTreeMap::new();
    for (set, pcpu) in sets.iter().flat_map(|(set, candidates)| {
        let pcpus = candidates.iter().flat_map(pcpus);
        pcpus.map(move |pcpu| (*set, pcpu))
    }) {
        let user = users.entry(pcpu).or_insert(Some(set));
        *user = user.filter(|user| *user == set);
    }
    let meets_others = |candidate: &&Candidate| {
        let mut pcpus = pcpus(candidate);
        pcpus.any(|pcpu| users.get(&pcpu) == Some(&None))
    };
    let others = sets.iter().filter(|(set, _)| **set != chosen);
    let others = others.flat_map(|(_, candidates)| candidates);
    let mut vms: Vec<VmId> = others.filter(meets_others).map(|vm| vm.vm).collect();
    vms.sort();
    vms
}

/// The pCPUs that a candidate's vCPUs may use, possibly with repetitions.
fn pcpus(candidate: &Candidate) -> impl Iterator<Item = PcpuId> + '_ {
    candidate.vcpus.iter().flat_map(|(_, pcpus)| pcpus.iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::units::VcpuId;

    /// A VM with one vCPU that never sleeps per list of allowed pCPUs.
    fn candidate(vm: u64, vcpus: &[&str]) -> Candidate {
        let vcpus = (0..).zip(vcpus);
        Candidate {
            vm: VmId(vm),
            due: 1.0,
            correction: 1.0,
            vcpus: vcpus.map(|(n, list)| (VcpuId(n), list.parse().unwrap())).collect(),
        }
    }

    fn chosen<const N: usize>(sets: [(u32, Vec<Candidate>); N]) -> (Vec<u64>, Vec<u64>) {
        let (candidates, left_out) = choose(sets.into());
        (
            candidates.iter().map(|candidate| candidate.vm.0).collect(),
            left_out.iter().map(|vm| vm.0).collect(),
        )
    }

    #[test]
    fn largest_set_rotates_and_others_are_reported() {
        let two: &[&str] = &["0-3", "0-3"];
        let sets = [
            (0, vec![candidate(1, two)]),
            (1, vec![candidate(2, two), candidate(3, two)]),
            (2, vec![candidate(4, &["2"]), candidate(5, &["7"])]),
        ];
        assert_eq!(chosen(sets), (vec![2, 3], vec![1, 4]));
        let siblings = [(3, vec![candidate(1, two), candidate(2, two)])];
        assert_eq!(chosen(siblings), (vec![1, 2], vec![]));
        assert_eq!(chosen([]), (vec![], vec![]));
    }

    #[test]
    fn first_of_equal_sets_rotates() {
        let each = [1, 2, 3].map(|vm| (vm as u32, vec![candidate(vm, &["0", "1"])]));
        assert_eq!(chosen(each), (vec![1], vec![2, 3]));
    }

    #[test]
    fn unaffected_vms_are_not_reported() {
        let single = [1, 2].map(|vm| (vm as u32, vec![candidate(vm, &["0-1"])]));
        assert_eq!(chosen(single), (vec![1], vec![]), "nothing to run together");
        let apart = [(0, vec![candidate(1, &["0", "1"])]), (1, vec![candidate(2, &["2", "3"])])];
        assert_eq!(chosen(apart), (vec![1], vec![]), "they never meet");
    }
}
