//! Whom a vCPU waits for, where nobody saw the switches: its wait is divided among those that ran on the pCPUs that it may
//! use, in proportion to what they ran there.
//!
//! What a thread ran on a pCPU is not known, only what it ran in all. It is taken to have run everywhere alike where it may:
//!
//! ```text
//! there(j, S) = ran_j · |allowed_j ∩ S| ÷ |allowed_j|
//! charged(v ← j) = waited_v · there(j, allowed_v) ÷ Σ_k≠v there(k, allowed_v)
//! ```
//!
//! That is exact where everybody is pinned to one pCPU, and the less so the more pCPUs there are to choose from. A vCPU that may
//! use one pCPU only waits for vCPUs; any other waits for VMs as a whole, since which of a VM's vCPUs was where is
//! not known. All arithmetic is in whole ns, rounded down, so charges sum to the wait at most.

use std::collections::BTreeMap;

use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::states::edges::Edge;
use tandem_policy::states::edges::Edges;
use tandem_policy::states::edges::Evidence;
use tandem_policy::states::edges::Party;

/// Somebody ran.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) party: Party,
    pub(super) time: Nanos,
    pub(super) allowed: PcpuSet,
}

/// A vCPU waited for a pCPU; what it ran itself is among what ran.
#[derive(Clone, Debug)]
pub(super) struct Waited {
    pub(super) vm: VmId,
    pub(super) vcpu: VcpuId,
    pub(super) time: Nanos,
    pub(super) ran: Nanos,
    pub(super) allowed: PcpuSet,
}

/// Divides every wait.
pub(super) fn charge(waits: &[Waited], ran: &[Ran]) -> Edges {
    let mut edges = Edges::new();
    // Many vCPUs have one of few sets.
    let mut by_set: BTreeMap<&PcpuSet, Vec<&Waited>> = BTreeMap::new();
    for wait in waits.iter().filter(|wait| wait.time > Nanos::ZERO) {
        by_set.entry(&wait.allowed).or_default().push(wait);
    }
    for (set, waits) in by_set {
        let is_pinned = set.len() == 1;
        let mut there: BTreeMap<Party, u128> = BTreeMap::new();
        for ran in ran {
            let time = time_there(ran.time, &ran.allowed, set);
            if time > 0 {
                let party = match is_pinned {
                    true => ran.party.clone(),
                    false => ran.party.whole(),
                };
                *there.entry(party).or_default() += time;
            }
        }
        let total: u128 = there.values().sum();
        for wait in waits {
            let victim = Party::Vcpu {
                vm: wait.vm,
                vcpu: wait.vcpu,
            };
            let own = match is_pinned {
                true => victim.clone(),
                false => victim.whole(),
            };
            let own_time = time_there(wait.ran, &wait.allowed, set);
            let others = total.saturating_sub(own_time);
            if others == 0 {
                continue;
            }
            for (culprit, &time) in &there {
                let time = match *culprit == own {
                    true => time.saturating_sub(own_time),
                    false => time,
                };
                edges.add(Edge {
                    victim: victim.clone(),
                    culprit: culprit.clone(),
                    time: Nanos((u128::from(wait.time.0) * time / others) as u64),
                    evidence: Evidence::Estimated,
                });
            }
        }
    }
    edges
}

/// What somebody ran on the pCPUs of `set`, as far as that can be told.
fn time_there(ran: Nanos, allowed: &PcpuSet, set: &PcpuSet) -> u128 {
    match allowed.len() {
        0 => 0,
        places => u128::from(ran.0) * allowed.common(set) as u128 / places as u128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> PcpuSet {
        list.parse().unwrap()
    }

    fn vcpu(vm: u64, vcpu: u32) -> Party {
        Party::Vcpu {
            vm: VmId(vm),
            vcpu: VcpuId(vcpu),
        }
    }

    fn ran(party: Party, ms: u64, allowed: &str) -> Ran {
        Ran {
            party,
            time: Nanos::from_millis(ms),
            allowed: set(allowed),
        }
    }

    fn waited(vm: u64, vcpu: u32, ms: u64, ran_ms: u64, allowed: &str) -> Waited {
        Waited {
            vm: VmId(vm),
            vcpu: VcpuId(vcpu),
            time: Nanos::from_millis(ms),
            ran: Nanos::from_millis(ran_ms),
            allowed: set(allowed),
        }
    }

    fn charges(edges: &Edges) -> Vec<(Party, u64)> {
        let edges = edges.top(99).into_iter();
        edges
            .map(|edge| (edge.culprit, edge.time.0 / 1_000_000))
            .collect()
    }

    #[test]
    fn a_pinned_vcpu_waits_for_those_on_its_pcpu_and_for_nobody_else() {
        let all = [
            ran(vcpu(1, 0), 400, "0"),
            ran(vcpu(2, 0), 300, "0"),
            ran(vcpu(2, 1), 900, "1"),
            ran(Party::Task("make".into()), 100, "0"),
        ];
        let edges = charge(&[waited(1, 0, 400, 400, "0")], &all);
        let expected = [(vcpu(2, 0), 300), (Party::Task("make".into()), 100)];
        assert_eq!(charges(&edges), expected);
        assert!(
            edges
                .iter()
                .all(|edge| edge.evidence == Evidence::Estimated)
        );
    }

    #[test]
    fn stacked_siblings_wait_for_each_other() {
        let all = [ran(vcpu(1, 0), 500, "0"), ran(vcpu(1, 1), 500, "0")];
        let waits = [waited(1, 0, 500, 500, "0"), waited(1, 1, 500, 500, "0")];
        let edges = charge(&waits, &all);
        assert_eq!(charges(&edges), [(vcpu(1, 1), 500), (vcpu(1, 0), 500)]);
        assert_eq!(edges.by_vm().len(), 1, "the VM waits for itself");
    }

    #[test]
    fn a_free_vcpu_waits_for_vms_in_proportion_and_not_for_itself() {
        let all = [
            ran(vcpu(1, 0), 500, "0-1"),
            ran(vcpu(1, 1), 300, "0-1"),
            ran(vcpu(2, 0), 600, "0-1"),
            // Half of it counts: on pCPU 2 it was in nobody's way.
            ran(vcpu(3, 0), 200, "1-2"),
        ];
        let edges = charge(&[waited(1, 0, 100, 500, "0-1")], &all);
        let expected = [
            (Party::Vm(VmId(2)), 60),
            (Party::Vm(VmId(1)), 30),
            (Party::Vm(VmId(3)), 10),
        ];
        assert_eq!(charges(&edges), expected);
    }

    #[test]
    fn charges_never_exceed_the_wait() {
        let third = |n| ran(vcpu(n, 0), 333, "0-2");
        let all = [third(1), third(2), third(3), third(4)];
        let wait = Waited {
            time: Nanos(1_000_000_007),
            ..waited(1, 0, 0, 333, "0-2")
        };
        let total = charge(&[wait], &all).total();
        assert!(total <= Nanos(1_000_000_007) && total > Nanos(1_000_000_000));
    }

    #[test]
    fn alone_it_waits_for_nobody_that_is_known() {
        let all = [ran(vcpu(1, 0), 500, "0"), ran(vcpu(2, 0), 500, "1")];
        let alone = [
            waited(1, 0, 10, 500, "0"),
            waited(9, 0, 10, 0, ""),
            waited(1, 1, 0, 0, "1"),
        ];
        assert!(charge(&alone, &all).is_empty());
    }
}
