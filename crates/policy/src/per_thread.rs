//! Per-thread vCPU: each thread on a vCPU of its own, in turn.
//!
//! Source: Kilic, Doddamani, Bhat, Bagdi & Gopalan, "Overcoming Virtualization Overheads for Large-vCPU Virtual
//! Machines", MASCOTS 2018, section on per-thread vCPUs. A VM with far more vCPUs than the host has pCPUs is to
//! leave scheduling to the host: each thread is bound to a vCPU when it is created, and the guest balances no load.
//! With more threads than vCPUs they share evenly; what ends makes room.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::PcpuId;

/// Which thread is on which vCPU. `T` names a thread for as long as it lives.
#[derive(Clone, Debug)]
pub struct PerThread<T> {
    load: BTreeMap<PcpuId, u32>,
    places: BTreeMap<T, PcpuId>,
}

impl<T: Copy + Ord> PerThread<T> {
    /// For these vCPUs, none of them in use.
    pub fn new(vcpus: &PcpuSet) -> PerThread<T> {
        PerThread { load: vcpus.iter().map(|vcpu| (vcpu, 0)).collect(), places: BTreeMap::new() }
    }

    /// The threads there are now: those that are new, each with its vCPU, in the order given. A new thread gets the
    /// vCPU with the fewest, the lowest number first.
    pub fn place(&mut self, threads: &[T]) -> Vec<(T, PcpuId)> {
        let mut now: Vec<T> = threads.to_vec();
        now.sort_unstable();
        let load = &mut self.load;
        self.places.retain(|thread, vcpu| {
            let stays = now.binary_search(thread).is_ok();
            if !stays && let Some(count) = load.get_mut(vcpu) {
                *count -= 1;
            }
            stays
        });
        let placed = threads.iter().map(|&thread| (thread, self.add(thread)));
        placed.filter_map(|(thread, vcpu)| Some((thread, vcpu?))).collect()
    }

    /// One more thread: its vCPU, if it is new and there are any.
    pub fn add(&mut self, thread: T) -> Option<PcpuId> {
        if self.places.contains_key(&thread) {
            return None;
        }
        let fewest = self.load.iter_mut().min_by_key(|(_, count)| **count);
        let (&vcpu, count) = fewest?;
        *count += 1;
        self.places.insert(thread, vcpu);
        Some(vcpu)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vcpus(list: &str) -> PcpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn threads_spread_in_turn_and_share_evenly() {
        let mut policy = PerThread::new(&vcpus("0-2"));
        let places = policy.place(&[10, 11, 12, 13]);
        let expected = [(10, 0), (11, 1), (12, 2), (13, 0)];
        assert_eq!(places, expected.map(|(t, v)| (t, PcpuId(v))));
        assert!(policy.place(&[10, 11, 12, 13]).is_empty());
        // Thread 11 ended: its vCPU is the emptiest.
        assert_eq!(policy.place(&[10, 12, 13, 14]), [(14, PcpuId(1))]);
        // One that is told of by itself, and is seen with the others later.
        assert_eq!(policy.add(15), Some(PcpuId(1)));
        assert_eq!(policy.add(15), None);
        assert!(policy.place(&[10, 12, 13, 14, 15]).is_empty());
    }

    #[test]
    fn without_vcpus_nothing_is_placed() {
        assert!(PerThread::new(&vcpus("")).place(&[1, 2]).is_empty());
    }

    proptest! {
        /// As threads only come, no vCPU has over one more than another.
        #[test]
        fn loads_differ_by_one_at_most(count in 0u32..100, size in 1u32..20) {
            let all: PcpuSet = (0..size).map(PcpuId).collect();
            let threads: Vec<u32> = (0..count).collect();
            let mut policy = PerThread::new(&all);
            let half = threads.len() / 2;
            policy.place(&threads[..half]);
            policy.place(&threads);
            let loads = policy.load.values();
            prop_assert!(loads.clone().max().unwrap() - loads.min().unwrap() <= 1);
        }
    }
}
