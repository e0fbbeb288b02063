//! Contents of a pCPU's private cache: working sets in LRU order.
//!
//! A vCPU or thread that starts on a pCPU fetches the missing part of its working set and evicts the least recently used data.
//! A program therefore finds its data again after a small program, and none of it after one that fills the cache.

use super::Costs;

/// Owner of a working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The kernel of the host.
    Host,
    /// The kernel of a VM.
    Kernel(u32),
    /// A thread's data.
    Thread(u32),
}

/// A private cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Owners and the cached KiB of each, more than 0; the most recently used is last.
    held: Vec<(Owner, u64)>,
}

/// Initial capacity of the list of working sets.
const TYPICAL_SETS: usize = 16;

impl Default for Cache {
    fn default() -> Cache {
        Cache { held: Vec::with_capacity(TYPICAL_SETS) }
    }
}

impl Cache {
    /// The cached KiB of a working set.
    pub fn holds(&self, owner: Owner) -> u64 {
        let found = self.held.iter().find(|(of, _)| *of == owner);
        found.map_or(0, |(_, kib)| *kib)
    }

    /// Fetches a working set of `kib` KiB and returns the missing KiB.
    /// `kib` is limited to the size of the cache (`costs.cache_kib`).
    pub fn bring(&mut self, owner: Owner, kib: u64, costs: &Costs) -> u64 {
        let kib = kib.min(costs.cache_kib);
        if kib == 0 {
            return 0;
        }
        if let Some(last) = self.held.last()
            && *last == (owner, kib)
        {
            return 0;
        }
        let mut had = 0;
        if let Some(at) = self.held.iter().position(|(of, _)| *of == owner) {
            let held = self.held.remove(at);
            if held.1 == kib {
                // Fully cached: no eviction.
                self.held.push(held);
                return 0;
            }
            had = held.1.min(kib);
        }
        let mut too_many = (self.held.iter().map(|(_, kib)| kib).sum::<u64>() + kib)
            .saturating_sub(costs.cache_kib);
        self.held.retain_mut(|(_, kib)| {
            let pushed_out = too_many.min(*kib);
            too_many -= pushed_out;
            *kib -= pushed_out;
            *kib > 0
        });
        self.held.push((owner, kib));
        kib - had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(cache_kib: u64) -> Costs {
        Costs { cache_kib, ..Costs::default() }
    }

    #[test]
    fn fitting_sets_are_fetched_once() {
        let (mut cache, costs) = (Cache::default(), costs(256));
        assert_eq!(cache.bring(Owner::Thread(1), 128, &costs), 128);
        assert_eq!(cache.bring(Owner::Kernel(0), 64, &costs), 64);
        assert_eq!(cache.bring(Owner::Host, 64, &costs), 64);
        for owner in [Owner::Host, Owner::Kernel(0)] {
            assert_eq!(cache.bring(owner, 64, &costs), 0);
        }
        assert_eq!(cache.bring(Owner::Thread(1), 128, &costs), 0);
    }

    #[test]
    fn least_recently_used_set_is_evicted() {
        let (mut cache, costs) = (Cache::default(), costs(256));
        cache.bring(Owner::Thread(1), 128, &costs);
        cache.bring(Owner::Thread(2), 128, &costs);
        // Half of the older set is evicted.
        assert_eq!(cache.bring(Owner::Kernel(0), 64, &costs), 64);
        assert_eq!(cache.holds(Owner::Thread(1)), 64);
        assert_eq!(cache.holds(Owner::Thread(2)), 128);
        // Fetching it again evicts the other.
        assert_eq!(cache.bring(Owner::Thread(1), 128, &costs), 64);
        assert_eq!(cache.holds(Owner::Thread(2)), 64);
    }

    #[test]
    fn large_set_evicts_all_others() {
        let (mut cache, costs) = (Cache::default(), costs(256));
        cache.bring(Owner::Host, 64, &costs);
        cache.bring(Owner::Kernel(0), 64, &costs);
        assert_eq!(cache.bring(Owner::Thread(1), 4096, &costs), 256);
        assert_eq!((cache.holds(Owner::Host), cache.holds(Owner::Kernel(0))), (0, 0));
        // After another owner ran, a part of the large set is missing.
        assert_eq!(cache.bring(Owner::Kernel(0), 64, &costs), 64);
        assert_eq!(cache.bring(Owner::Thread(1), 4096, &costs), 64);
    }

    #[test]
    fn empty_sets_are_ignored() {
        let (mut cache, costs) = (Cache::default(), costs(0));
        assert_eq!(cache.bring(Owner::Thread(1), 128, &costs), 0);
        assert_eq!(cache.bring(Owner::Host, 0, &costs), 0);
    }
}
