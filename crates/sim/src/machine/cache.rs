//! What a pCPU's private cache holds: working sets, the one used last in front.
//!
//! Whoever comes onto a pCPU brings in what is missing of its working set, and pushes out what
//! others have not used for longest. So a program finds its data again after another that is small,
//! and finds nothing after one that fills the cache.

use super::Costs;

/// Whose working set it is.
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
    /// Owners and the KiB that are held of each, more than 0; used last at the end.
    held: Vec<(Owner, u64)>,
}

/// Working sets that a cache mostly has room for; more are held as well.
const MOSTLY: usize = 16;

impl Default for Cache {
    fn default() -> Cache {
        Cache { held: Vec::with_capacity(MOSTLY) }
    }
}

impl Cache {
    /// The KiB held of a working set.
    pub fn holds(&self, owner: Owner) -> u64 {
        let found = self.held.iter().find(|(of, _)| *of == owner);
        found.map_or(0, |(_, kib)| *kib)
    }

    /// Brings in a working set of so many KiB; returns how many were missing. Of one that is larger
    /// than the cache (`costs.cache_kib`) only so much counts.
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
                // It fits as it did before.
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
    fn what_fits_is_fetched_once() {
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
    fn what_was_not_used_for_longest_is_pushed_out() {
        let (mut cache, costs) = (Cache::default(), costs(256));
        cache.bring(Owner::Thread(1), 128, &costs);
        cache.bring(Owner::Thread(2), 128, &costs);
        // Half of the older one has to go.
        assert_eq!(cache.bring(Owner::Kernel(0), 64, &costs), 64);
        assert_eq!(cache.holds(Owner::Thread(1)), 64);
        assert_eq!(cache.holds(Owner::Thread(2)), 128);
        // It comes back at the cost of the other.
        assert_eq!(cache.bring(Owner::Thread(1), 128, &costs), 64);
        assert_eq!(cache.holds(Owner::Thread(2)), 64);
    }

    #[test]
    fn a_large_set_leaves_nothing_of_the_others() {
        let (mut cache, costs) = (Cache::default(), costs(256));
        cache.bring(Owner::Host, 64, &costs);
        cache.bring(Owner::Kernel(0), 64, &costs);
        assert_eq!(cache.bring(Owner::Thread(1), 4096, &costs), 256);
        assert_eq!((cache.holds(Owner::Host), cache.holds(Owner::Kernel(0))), (0, 0));
        // And is not held as a whole once somebody else was there.
        assert_eq!(cache.bring(Owner::Kernel(0), 64, &costs), 64);
        assert_eq!(cache.bring(Owner::Thread(1), 4096, &costs), 64);
    }

    #[test]
    fn nobody_without_data_counts() {
        let (mut cache, costs) = (Cache::default(), costs(0));
        assert_eq!(cache.bring(Owner::Thread(1), 128, &costs), 0);
        assert_eq!(cache.bring(Owner::Host, 0, &costs), 0);
    }
}
