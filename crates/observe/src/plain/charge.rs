//! Estimates the culprits of waits without switch events: divides the wait of a vCPU among the threads that ran on the pCPUs that it may
//! use, in proportion to their run time there.
//!
//! Only the total run time of a thread is known, not the pCPUs where it ran. It is assumed to be spread evenly over its allowed pCPUs, as far
//! as threads with fewer allowed pCPUs leave room there (`spread.rs`): a free thread does not run on a pCPU that pinned threads fill.
//!
//! ```text
//! there(j, S) = ran_j · Σ_p∈S part_j(p) ÷ Σ_p part_j(p)
//! others(v) = Σ_k≠v there(k, allowed_v)
//! charged(v ← j) = min(waited_v, others(v)) · there(j, allowed_v) ÷ others(v)
//! ```
//!
//! So a victim charges a culprit at most its run time on the pCPUs of the victim. The rest of the wait is
//! charged to [`Party::Unseen`]. Several victims can wait for one culprit at the same time, each in full.
//!
//! The estimate is exact if all threads are pinned to one pCPU, and degrades with the number of allowed pCPUs. A vCPU that may
//! use only one pCPU waits for vCPUs; any other waits for VMs as a whole, since the position of a VM's vCPUs is
//! unknown. All arithmetic is in whole ns, rounded down; the remainder goes to [`Party::Others`].
//!
//! Each set of pCPUs has one distribution of culprits, sorted once. A victim takes its first [`TOP`] entries, so
//! a thousand VMs that may run anywhere do not need a thousand edges each.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tandem_model::states::edges::{
    Amount, EdgeKind, Edges, EdgesBuilder, Evidence, Party, PartyId, TOP,
};
use tandem_model::{Nanos, PcpuSet, VcpuId, VmId};

use super::spread::Spread;

/// Number of entries of a distribution that are charged individually; the victim itself may be among them.
const FIRST: usize = TOP + 1;

/// Run time of a party.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) party: Party,
    pub(super) time: Nanos,
    pub(super) allowed: PcpuSet,
}

/// A vCPU's wait for a pCPU; its own run time is also listed as [`Ran`].
#[derive(Clone, Debug)]
pub(super) struct Waited {
    pub(super) vm: VmId,
    pub(super) vcpu: VcpuId,
    pub(super) time: Nanos,
    pub(super) ran: Nanos,
    pub(super) allowed: PcpuSet,
}

/// Run times of the parties with the same allowed pCPUs.
#[derive(Debug, Default)]
struct Group {
    /// Each vCPU separately.
    apart: BTreeMap<PartyId, Ranked>,
    /// The vCPUs of a VM together.
    together: BTreeMap<PartyId, Ranked>,
}

/// Run time of a party, and its VM.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    vm: Option<VmId>,
    time: u128,
}

/// Divides all waits of an interval of this length.
pub(super) fn charge(waits: &[Waited], ran: &[Ran], length: Nanos) -> Edges {
    let mut builder = EdgesBuilder::new();
    let mut groups: BTreeMap<&PcpuSet, Group> = BTreeMap::new();
    for ran in ran.iter().filter(|ran| ran.time > Nanos::ZERO) {
        let group = groups.entry(&ran.allowed).or_default();
        let (apart, together) = (builder.party(&ran.party), builder.party(&ran.party.whole()));
        for (parties, id) in [(&mut group.apart, apart), (&mut group.together, together)] {
            let vm = ran.party.vm();
            let ranked = parties.entry(id).or_insert(Ranked { vm, time: 0 });
            ranked.time += u128::from(ran.time.0);
        }
    }
    let sums = groups.iter().map(|(allowed, group)| {
        let times = group.together.values().map(|ran| ran.time);
        (*allowed, times.sum())
    });
    let spread = Spread::new(sums, length);
    // Many vCPUs share few sets.
    let mut by_set: BTreeMap<&PcpuSet, Vec<&Waited>> = BTreeMap::new();
    for wait in waits.iter().filter(|wait| wait.time > Nanos::ZERO) {
        by_set.entry(&wait.allowed).or_default().push(wait);
    }
    let unnamed = [Party::Others, Party::Unseen].map(|party| builder.party(&party));
    for (set, waits) in by_set {
        let distribution = Distribution::new(&groups, &spread, set);
        for wait in waits {
            distribution.divide(wait, unnamed, &mut builder);
        }
    }
    builder.top(TOP)
}

/// Estimated run times of all parties on the pCPUs of a set.
#[derive(Debug)]
struct Distribution {
    is_pinned: bool,
    /// In descending order.
    there: Vec<(PartyId, Ranked)>,
    /// Positions of each VM's parties beyond the first entries.
    later: BTreeMap<VmId, Vec<usize>>,
    total: u128,
}

impl Distribution {
    fn new(groups: &BTreeMap<&PcpuSet, Group>, spread: &Spread<'_>, set: &PcpuSet) -> Distribution {
        let is_pinned = set.len() == 1;
        let mut there: BTreeMap<PartyId, Ranked> = BTreeMap::new();
        for (allowed, group) in groups.iter().filter(|(allowed, _)| allowed.overlaps(set)) {
            let parties = if is_pinned { &group.apart } else { &group.together };
            let (part, whole) = spread.there(allowed, set);
            for (party, ran) in parties {
                let vm = ran.vm;
                let sum = there.entry(*party).or_insert(Ranked { vm, time: 0 });
                sum.time += (ran.time * part).checked_div(whole).unwrap_or(0);
            }
        }
        let mut there: Vec<(PartyId, Ranked)> = there.into_iter().collect();
        there.sort_by_key(|(_, ran)| Reverse(ran.time));
        let mut later: BTreeMap<VmId, Vec<usize>> = BTreeMap::new();
        for (at, (_, ran)) in there.iter().enumerate().skip(FIRST) {
            if let Some(vm) = ran.vm {
                later.entry(vm).or_default().push(at);
            }
        }
        Distribution { is_pinned, total: there.iter().map(|(_, ran)| ran.time).sum(), there, later }
    }

    /// Charges the first entries and the victim's own VM with their part of a wait, and [`Party::Others`] with the rest.
    fn divide(
        &self,
        wait: &Waited,
        [others_id, unseen_id]: [PartyId; 2],
        builder: &mut EdgesBuilder,
    ) {
        let itself = Party::Vcpu { vm: wait.vm, vcpu: wait.vcpu };
        let victim = builder.party(&itself);
        let own = if self.is_pinned { victim } else { builder.party(&itself.whole()) };
        // A victim ran all its time on its allowed pCPUs.
        let own_time = if wait.allowed.is_empty() { 0 } else { u128::from(wait.ran.0) };
        let others = self.total.saturating_sub(own_time);
        let known = u128::from(wait.time.0).min(others);
        let first = self.there.iter().take(FIRST);
        let of_own_vm = self.later.get(&wait.vm).into_iter().flatten();
        let mut charges = Vec::with_capacity(FIRST + 2);
        let mut left = known as u64;
        for (culprit, ran) in first.chain(of_own_vm.map(|&at| &self.there[at])) {
            let time = if *culprit == own { ran.time.saturating_sub(own_time) } else { ran.time };
            let charged = (known * time).checked_div(others).unwrap_or(0) as u64;
            charges.push((*culprit, charged));
            left -= charged;
        }
        charges.push((others_id, left));
        let unseen = wait.time.0 - known as u64;
        charges.push((unseen_id, unseen));
        for (culprit, time) in charges {
            let (kind, evidence) = (EdgeKind::Pcpu, Evidence::Estimated);
            builder.add(victim, culprit, kind, evidence, Amount::time(Nanos(time)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn set(list: &str) -> PcpuSet {
        list.parse().unwrap()
    }

    fn vcpu(vm: u64, vcpu: u32) -> Party {
        Party::Vcpu { vm: VmId(vm), vcpu: VcpuId(vcpu) }
    }

    fn make() -> Party {
        Party::Process { name: "make".to_owned(), cgroup: None }
    }

    fn ran(party: Party, ms: u64, allowed: &str) -> Ran {
        Ran { party, time: Nanos::from_millis(ms), allowed: set(allowed) }
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

    /// Returns the charges of a victim in ms, without rounding remainders.
    fn charges(edges: &Edges, victim: &Party) -> Vec<(Party, u64)> {
        let edges = edges.of(victim, EdgeKind::Pcpu);
        let charges = edges.map(|edge| (edge.culprit.clone(), edge.time().0 / 1_000_000));
        charges.filter(|(_, ms)| *ms > 0).collect()
    }

    #[test]
    fn pinned_vcpu_waits_for_its_pcpu_only() {
        let all = [
            ran(vcpu(1, 0), 400, "0"),
            ran(vcpu(2, 0), 300, "0"),
            ran(vcpu(2, 1), 900, "1"),
            ran(make(), 100, "0"),
        ];
        let edges = charge(&[waited(1, 0, 400, 400, "0")], &all, SECOND);
        let expected = [(vcpu(2, 0), 300), (make(), 100)];
        assert_eq!(charges(&edges, &vcpu(1, 0)), expected);
        assert!(edges.iter().all(|edge| edge.evidence == Evidence::Estimated));
    }

    #[test]
    fn stacked_siblings_wait_for_each_other() {
        let all = [ran(vcpu(1, 0), 500, "0"), ran(vcpu(1, 1), 500, "0")];
        let waits = [waited(1, 0, 500, 500, "0"), waited(1, 1, 500, 500, "0")];
        let edges = charge(&waits, &all, SECOND);
        assert_eq!(charges(&edges, &vcpu(1, 0)), [(vcpu(1, 1), 500)]);
        assert_eq!(charges(&edges, &vcpu(1, 1)), [(vcpu(1, 0), 500)]);
        assert_eq!(edges.by_vm().len(), 1, "the VM waits for itself");
    }

    #[test]
    fn free_vcpu_charges_vms_in_proportion() {
        let all = [
            ran(vcpu(1, 0), 500, "0-1"),
            ran(vcpu(1, 1), 300, "0-1"),
            ran(vcpu(2, 0), 600, "0-1"),
            // Half of it counts: pCPU 2 is not allowed for the victim.
            ran(vcpu(3, 0), 200, "1-2"),
        ];
        let edges = charge(&[waited(1, 0, 100, 500, "0-1")], &all, SECOND);
        let expected =
            [(Party::Vm(VmId(2)), 60), (Party::Vm(VmId(1)), 30), (Party::Vm(VmId(3)), 10)];
        assert_eq!(charges(&edges, &vcpu(1, 0)), expected);
    }

    #[test]
    fn pinned_threads_leave_free_ones_no_room() {
        let all = [ran(vcpu(1, 0), 500, "0"), ran(vcpu(2, 0), 500, "0"), ran(make(), 900, "0-1")];
        let edges = charge(&[waited(1, 0, 500, 500, "0")], &all, SECOND);
        assert_eq!(charges(&edges, &vcpu(1, 0)), [(vcpu(2, 0), 500)]);
        // If they leave 200 ms, the free thread runs at most that long there.
        let all = [ran(vcpu(1, 0), 400, "0"), ran(vcpu(2, 0), 400, "0"), ran(make(), 900, "0-1")];
        let edges = charge(&[waited(1, 0, 600, 400, "0")], &all, SECOND);
        let expected = [(vcpu(2, 0), 400), (make(), 200)];
        assert_eq!(charges(&edges, &vcpu(1, 0)), expected);
    }

    #[test]
    fn charge_is_at_most_the_run_time() {
        let all = [ran(vcpu(1, 0), 100, "0"), ran(vcpu(2, 0), 200, "0")];
        let edges = charge(&[waited(1, 0, 900, 100, "0")], &all, SECOND);
        let expected = [(Party::Unseen, 700), (vcpu(2, 0), 200)];
        assert_eq!(charges(&edges, &vcpu(1, 0)), expected);
    }

    #[test]
    fn rounded_charges_sum_to_the_wait() {
        let third = |n| ran(vcpu(n, 0), 333, "0-2");
        let all = [third(1), third(2), third(3), third(4)];
        for wait in [1, 2, 3, 7, 500_000_003, 1_000_000_007] {
            let wait = Nanos(wait);
            let waits = [Waited { time: wait, ..waited(1, 0, 0, 333, "0-2") }];
            assert_eq!(charge(&waits, &all, SECOND).total(EdgeKind::Pcpu), wait);
        }
    }

    #[test]
    fn wait_without_others_is_unseen() {
        let all = [ran(vcpu(1, 0), 500, "0"), ran(vcpu(2, 0), 500, "1")];
        let alone = [waited(1, 0, 10, 500, "0"), waited(9, 0, 10, 0, ""), waited(1, 1, 0, 0, "1")];
        let edges = charge(&alone, &all, SECOND);
        assert_eq!(charges(&edges, &vcpu(1, 0)), [(Party::Unseen, 10)]);
        assert_eq!(charges(&edges, &vcpu(9, 0)), [(Party::Unseen, 10)]);
        assert!(charges(&edges, &vcpu(1, 1)).is_empty());
    }

    #[test]
    fn free_vms_have_few_edges_each() {
        let vms = 1..=1_000;
        let all: Vec<Ran> = vms.clone().map(|n| ran(vcpu(n, 0), n, "0-3")).collect();
        let waits: Vec<Waited> = vms.map(|n| waited(n, 0, 100, n, "0-3")).collect();
        let edges = charge(&waits, &all, SECOND);
        assert!(edges.len() <= 1_000 * (TOP + 1), "{}", edges.len());
        assert_eq!(edges.total(EdgeKind::Pcpu), Nanos::from_millis(100_000));
        let last = charges(&edges, &vcpu(1_000, 0));
        assert_eq!(last[0].0, Party::Others);
        let named: Vec<_> = last[1..].iter().map(|(party, _)| party.vm()).collect();
        assert!(!named.contains(&Some(VmId(1_000))), "not for itself");
    }

    #[test]
    fn own_sibling_is_always_named() {
        let mut all: Vec<Ran> = (2..40).map(|n| ran(vcpu(n, 0), 500, "0-3")).collect();
        all.extend([ran(vcpu(1, 0), 300, "0-3"), ran(vcpu(1, 1), 200, "0-3")]);
        let edges = charge(&[waited(1, 0, 960, 300, "0-3")], &all, SECOND);
        let of_own = charges(&edges, &vcpu(1, 0)).into_iter();
        let of_own: Vec<_> = of_own.filter(|(party, _)| *party == Party::Vm(VmId(1))).collect();
        // 960 ms × 200 ÷ (38 × 500 + 200).
        assert_eq!(of_own, [(Party::Vm(VmId(1)), 10)]);
    }
}
