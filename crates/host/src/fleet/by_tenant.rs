//! In which order what waits for a part of an update is done, since tenants do not trust each other.
//!
//! One of each tenant's, then the second of each, and so on: who has thousands waits for himself. Who had a try longest ago goes first: one whose
//! first takes all the time that there is must not have it in each update.

use std::collections::BTreeMap;

/// Of so many tenants it is known when they had a try; of others it counts as never.
const MOST_KNOWN: usize = 4096;

/// Which tenant had a try when.
#[derive(Debug, Default)]
pub(super) struct ByTenant {
    tries: u64,
    last: BTreeMap<Option<u32>, u64>,
}

impl ByTenant {
    /// These in the order in which they are tried. Those of a tenant stay in theirs.
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

    /// One of this tenant's is tried.
    pub(super) fn tried(&mut self, tenant: Option<u32>) {
        self.tries += 1;
        self.last.insert(tenant, self.tries);
        if self.last.len() > MOST_KNOWN {
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
    fn hostile_tenants_with_much_to_do_wait_for_themselves() {
        let (his, others) = (Some(1000), Some(1001));
        let mut turns = ByTenant::default();
        let mut waiting: Vec<One> = (0..1_000).map(|n| (his, n)).collect();
        waiting.extend([(others, 0), (None, 0), (others, 1)]);
        let first = [(his, 0), (others, 0), (None, 0), (his, 1), (others, 1), (his, 2)];
        assert_eq!(order(&turns, &waiting)[..6], first);
        // There is time for one of his only.
        turns.tried(his);
        assert_eq!(order(&turns, &waiting)[..3], [(others, 0), (None, 0), (his, 0)]);
        turns.tried(others);
        assert_eq!(order(&turns, &waiting)[..3], [(None, 0), (his, 0), (others, 0)]);
    }

    #[test]
    fn hostile_numbers_of_tenants_are_not_all_remembered() {
        let mut turns = ByTenant::default();
        for tenant in 0..MOST_KNOWN as u32 + 3 {
            turns.tried(Some(tenant));
        }
        assert_eq!(turns.last.len(), MOST_KNOWN);
        assert!(!turns.last.contains_key(&Some(2)) && turns.last.contains_key(&Some(3)));
    }
}
