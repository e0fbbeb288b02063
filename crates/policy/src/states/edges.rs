//! Who waits for whom: edges from a victim to the culprit that had what the victim wanted.
//!
//! A vCPU that is RDY while a pCPU runs somebody else waits for that somebody; an edge says so, with the time, and whether
//! that was seen (a switch on that pCPU) or follows from sums. Culprits are other vCPUs, also siblings; other threads of a
//! VM's process; tasks of the host; threads of the kernel. The order of edges, and of those that are equal in time, is
//! that of their parties, never that of a hash.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::units::Nanos;
use crate::units::VcpuId;
use crate::units::VmId;

/// Who waits, or is waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    /// A vCPU.
    Vcpu {
        /// Its VM.
        vm: VmId,
        /// Which of the VM's.
        vcpu: VcpuId,
    },
    /// The vCPUs of a VM, where they are not told apart.
    Vm(VmId),
    /// Another thread that works for a VM: its emulator, I/O threads, vhost.
    VmThread {
        /// The VM.
        vm: VmId,
        /// The thread's name.
        name: String,
    },
    /// A task of the host that is no VM's, by name.
    Task(String),
    /// A thread of the kernel, by name.
    KernelThread(String),
}

impl Party {
    /// The VM that it belongs to, if any.
    pub fn vm(&self) -> Option<VmId> {
        match self {
            Party::Vcpu { vm, .. } | Party::Vm(vm) | Party::VmThread { vm, .. } => Some(*vm),
            Party::Task(_) | Party::KernelThread(_) => None,
        }
    }

    /// The same party with the vCPUs of a VM taken together.
    pub fn whole(&self) -> Party {
        match self {
            Party::Vcpu { vm, .. } => Party::Vm(*vm),
            other => other.clone(),
        }
    }
}

/// How an edge is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Seen: the culprit ran on that pCPU at that time.
    Measured,
    /// Divided by what everybody ran where the victim could have run.
    Estimated,
}

/// A victim waited for a culprit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// Who waited.
    pub victim: Party,
    /// Who had what it wanted.
    pub culprit: Party,
    /// For how long.
    pub time: Nanos,
    /// How that is known.
    pub evidence: Evidence,
}

/// Edges, each pair of parties once for each kind of evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges(BTreeMap<(Party, Party, Evidence), Nanos>);

impl Edges {
    /// None yet.
    pub fn new() -> Edges {
        Edges::default()
    }

    /// Adds to what is there between the two; an edge of no time is left out.
    pub fn add(&mut self, edge: Edge) {
        if edge.time > Nanos::ZERO {
            let key = (edge.victim, edge.culprit, edge.evidence);
            *self.0.entry(key).or_default() += edge.time;
        }
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Edges) {
        other.iter().for_each(|edge| self.add(edge));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All, in the order of their parties.
    pub fn iter(&self) -> impl Iterator<Item = Edge> + '_ {
        self.0
            .iter()
            .map(|((victim, culprit, evidence), time)| Edge {
                victim: victim.clone(),
                culprit: culprit.clone(),
                time: *time,
                evidence: *evidence,
            })
    }

    /// The sum of all times.
    pub fn total(&self) -> Nanos {
        self.0.values().copied().sum()
    }

    /// The `k` longest, the longest first.
    pub fn top(&self, k: usize) -> Vec<Edge> {
        let mut edges: Vec<Edge> = self.iter().collect();
        // The sort is stable: equals stay in the order of their parties.
        edges.sort_by_key(|edge| std::cmp::Reverse(edge.time));
        edges.truncate(k);
        edges
    }

    /// With the vCPUs of each VM taken together, as victims and as culprits. A VM that waits for itself has stacked vCPUs.
    pub fn by_vm(&self) -> Edges {
        let mut whole = Edges::new();
        for edge in self.iter() {
            whole.add(Edge {
                victim: edge.victim.whole(),
                culprit: edge.culprit.whole(),
                ..edge
            });
        }
        whole
    }

    /// Those of victims that are `of`.
    pub fn of_victims(&self, of: impl Fn(&Party) -> bool) -> Edges {
        let kept = self.0.iter().filter(|((victim, ..), _)| of(victim));
        Edges(kept.map(|(key, time)| (key.clone(), *time)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpu(vm: u64, vcpu: u32) -> Party {
        Party::Vcpu {
            vm: VmId(vm),
            vcpu: VcpuId(vcpu),
        }
    }

    fn edge(victim: Party, culprit: Party, ms: u64) -> Edge {
        Edge {
            victim,
            culprit,
            time: Nanos::from_millis(ms),
            evidence: Evidence::Estimated,
        }
    }

    fn example() -> Edges {
        let mut edges = Edges::new();
        edges.add(edge(vcpu(1, 0), vcpu(2, 0), 10));
        edges.add(edge(vcpu(1, 1), vcpu(2, 1), 20));
        edges.add(edge(vcpu(1, 0), vcpu(1, 1), 5));
        edges.add(edge(vcpu(1, 0), Party::Task("make".to_owned()), 12));
        edges.add(edge(
            vcpu(2, 0),
            Party::KernelThread("ksoftirqd/0".to_owned()),
            1,
        ));
        edges
    }

    #[test]
    fn the_same_pair_adds_up_and_no_time_is_no_edge() {
        let mut edges = example();
        edges.add(edge(vcpu(1, 0), vcpu(2, 0), 7));
        edges.add(edge(vcpu(2, 0), vcpu(1, 0), 0));
        assert_eq!(edges.len(), 5);
        assert_eq!(edges.total(), Nanos::from_millis(55));
        let mut seen = edge(vcpu(1, 0), vcpu(2, 0), 1);
        seen.evidence = Evidence::Measured;
        edges.add(seen);
        assert_eq!(edges.len(), 6, "evidence is not mixed");
    }

    #[test]
    fn the_longest_come_first_and_equals_in_the_order_of_parties() {
        let top = example().top(2);
        let times: Vec<u64> = top.iter().map(|edge| edge.time.0 / 1_000_000).collect();
        assert_eq!(times, [20, 12]);
        let mut equal = Edges::new();
        for culprit in [3, 2, 4] {
            equal.add(edge(vcpu(1, 0), vcpu(culprit, 0), 9));
        }
        let culprits: Vec<_> = equal.top(9).into_iter().map(|edge| edge.culprit).collect();
        assert_eq!(culprits, [vcpu(2, 0), vcpu(3, 0), vcpu(4, 0)]);
        assert!(equal.top(0).is_empty());
    }

    #[test]
    fn by_vm_takes_vcpus_together_and_keeps_the_time() {
        let whole = example().by_vm();
        assert_eq!(whole.total(), example().total());
        let of_one = whole.of_victims(|victim| victim.vm() == Some(VmId(1)));
        let pairs: Vec<_> = of_one.top(9);
        assert_eq!(pairs[0], edge(Party::Vm(VmId(1)), Party::Vm(VmId(2)), 30));
        assert_eq!(pairs.len(), 3, "the other VM, the task, and itself");
        assert!(pairs.iter().any(|edge| edge.culprit == edge.victim));
    }

    #[test]
    fn sets_add_up() {
        let mut both = example();
        both.extend(&example());
        assert_eq!(both.total(), Nanos::from_millis(96));
        assert_eq!(both.len(), example().len());
        assert!(Edges::new().is_empty() && !both.is_empty());
    }
}
