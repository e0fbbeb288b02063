//! Per-thread vCPUs: binds each thread to the least loaded vCPU.
//!
//! Source: Kilic, Doddamani, Bhat, Bagdi & Gopalan, "Overcoming Virtualization Overheads for Large-vCPU Virtual
//! Machines", MASCOTS 2018, section on per-thread vCPUs.
//! A VM with far more vCPUs than the host has pCPUs leaves scheduling to the host.
//! Each thread is bound to a vCPU when it is created, and the guest balances no load.
//! If there are more threads than vCPUs, they share evenly; a thread that ends frees its place.

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::PcpuId;

/// The vCPU of each thread. `T` identifies a thread for its lifetime.
#[derive(Clone, Debug)]
pub struct PerThread<T> {
    load: BTreeMap<PcpuId, u32>,
    places: BTreeMap<T, PcpuId>,
}

impl<T: Copy + Ord> PerThread<T> {
    /// Creates a policy for these vCPUs, all unused.
    pub fn new(vcpus: &PcpuSet) -> PerThread<T> {
        PerThread { load: vcpus.iter().map(|vcpu| (vcpu, 0)).collect(), places: BTreeMap::new() }
    }

    /// Updates the set of live threads; returns the new ones with their vCPUs, in the order given.
    /// A new thread gets the vCPU with the fewest threads; on a tie, the lowest number.
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

    /// Adds a thread; returns its vCPU if the thread is new and there are vCPUs.
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
        // A thread that is reported on its own, and seen with the others later.
        assert_eq!(policy.add(15), Some(PcpuId(1)));
        assert_eq!(policy.add(15), None);
        assert!(policy.place(&[10, 12, 13, 14, 15]).is_empty());
    }

    #[test]
    fn without_vcpus_nothing_is_placed() {
        assert!(PerThread::new(&vcpus("")).place(&[1, 2]).is_empty());
    }

    proptest! {
        /// While threads only start, the loads of two vCPUs differ by at most one.
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
