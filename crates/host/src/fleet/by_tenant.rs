//! The order of waiting work in an update, fair among tenants, which do not trust each other.
//!
//! The first item of each tenant comes first, then the second of each, and so on: a tenant with thousands delays only itself.
//! Among tenants, the one with the oldest last try goes first.
//! Otherwise a tenant whose first item uses up the budget could do so in every update.

use std::collections::BTreeMap;

/// Maximum number of tenants whose last try is recorded; the others count as never tried.
const MAX_KNOWN: usize = 4096;

/// The time of each tenant's last try, as a number of tries.
#[derive(Debug, Default)]
pub(super) struct ByTenant {
    tries: u64,
    last: BTreeMap<Option<u32>, u64>,
}

impl ByTenant {
    /// Returns the items in the order of their tries, which keeps the order among those of a tenant.
    pub(super) fn order<T>(&self, waiting: Vec<T>, tenant: impl Fn(&T) -> Option<u32>) -> Vec<T> {
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        let keyed = waiting.into_iter().map(|one| {
            let tenant = tenant(&one);
            let count = counts.entry(tenant).or_default();
            *count += 1;
            let last = self.last.get(&tenant).copied().unwrap_or(0);
            ((*count, last), one)
        });
        let mut keyed: Vec<((usize, u64), T)> = keyed.collect();
        keyed.sort_by_key(|(key, _)| *key);
        keyed.into_iter().map(|(_, one)| one).collect()
    }

    /// Records a try for this tenant.
    pub(super) fn tried(&mut self, tenant: Option<u32>) {
        self.tries += 1;
        self.last.insert(tenant, self.tries);
        if self.last.len() > MAX_KNOWN {
            let oldest = self.last.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(tenant, _)| *tenant);
            oldest.and_then(|tenant| self.last.remove(&tenant));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type One = (Option<u32>, u32);

    fn order(turns: &ByTenant, waiting: &[One]) -> Vec<One> {
        turns.order(waiting.to_vec(), |(tenant, _)| *tenant)
    }

    #[test]
    fn hostile_tenants_with_much_work_delay_only_themselves() {
        let (hostile, others) = (Some(1000), Some(1001));
        let mut turns = ByTenant::default();
        let mut waiting: Vec<One> = (0..1_000).map(|n| (hostile, n)).collect();
        waiting.extend([(others, 0), (None, 0), (others, 1)]);
        let first = [(hostile, 0), (others, 0), (None, 0), (hostile, 1), (others, 1), (hostile, 2)];
        assert_eq!(order(&turns, &waiting)[..6], first);
        // The budget allows one item, of the first tenant.
        turns.tried(hostile);
        assert_eq!(order(&turns, &waiting)[..3], [(others, 0), (None, 0), (hostile, 0)]);
        turns.tried(others);
        assert_eq!(order(&turns, &waiting)[..3], [(None, 0), (hostile, 0), (others, 0)]);
    }

    #[test]
    fn hostile_numbers_of_tenants_are_bounded() {
        let mut turns = ByTenant::default();
        for tenant in 0..MAX_KNOWN as u32 + 3 {
            turns.tried(Some(tenant));
        }
        assert_eq!(turns.last.len(), MAX_KNOWN);
        assert!(!turns.last.contains_key(&Some(2)) && turns.last.contains_key(&Some(3)));
    }
}
