//! Estimates the pCPUs where threads ran: spreads their run time evenly over their allowed pCPUs, as far as threads with fewer
//! allowed pCPUs leave room.
//!
//! Threads with few allowed pCPUs ran there regardless of others, so sets of pCPUs are processed from the smallest to the
//! largest. The run time of a set's threads is spread over its pCPUs like water: each gets the same amount, up to the rest of the
//! interval that smaller sets leave.
//!
//! ```text
//! left(p) = length − Σ_smaller sets put(p)
//! put(p) = min(level, left(p)), with the level at which Σ_p put(p) is the run time of the set
//! ```
//!
//! Sets of equal size ignore each other, so their order does not matter. Time without room (a thread was pinned meanwhile, or
//! clocks were read one after the other) is spread evenly. Times are in ns.

use std::collections::BTreeMap;

use tandem_model::{Nanos, PcpuId, PcpuSet};

/// Run times that the threads of each set put on each of its pCPUs.
#[derive(Debug, Default)]
pub(super) struct Spread<'a> {
    of: BTreeMap<&'a PcpuSet, BTreeMap<PcpuId, u128>>,
}

impl<'a> Spread<'a> {
    /// Spreads the total run time of each set's threads in an interval of this length.
    pub(super) fn new(
        sums: impl IntoIterator<Item = (&'a PcpuSet, u128)>,
        length: Nanos,
    ) -> Spread<'a> {
        let mut by_size: BTreeMap<usize, Vec<(&PcpuSet, u128)>> = BTreeMap::new();
        for (set, sum) in sums {
            by_size.entry(set.len()).or_default().push((set, sum));
        }
        let mut filled: BTreeMap<PcpuId, u128> = BTreeMap::new();
        let mut spread = Spread::default();
        for (size, sets) in by_size {
            let mut here = Vec::with_capacity(sets.len());
            for (set, sum) in sets.into_iter().filter(|_| size > 0) {
                let left = set.iter().map(|pcpu| {
                    let filled = filled.get(&pcpu).copied().unwrap_or(0);
                    u128::from(length.0).saturating_sub(filled)
                });
                let put = pour(sum, &left.collect::<Vec<u128>>());
                here.push((set, set.iter().zip(put).collect::<BTreeMap<_, _>>()));
            }
            for (set, put) in here {
                for (pcpu, time) in &put {
                    *filled.entry(*pcpu).or_default() += time;
                }
                spread.of.insert(set, put);
            }
        }
        spread
    }

    /// Returns the part of the run time of the threads of `allowed` on the pCPUs of `set`, as numerator and denominator.
    pub(super) fn there(&self, allowed: &PcpuSet, set: &PcpuSet) -> (u128, u128) {
        let Some(put) = self.of.get(allowed) else {
            return (0, 0);
        };
        let whole: u128 = put.values().sum();
        // Zero run time is spread evenly.
        if whole == 0 {
            return (allowed.common(set) as u128, allowed.len() as u128);
        }
        let there = put.iter().filter(|(pcpu, _)| set.contains(**pcpu));
        (there.map(|(_, time)| time).sum(), whole)
    }
}

/// Divides a sum evenly among places, up to the room of each.
fn pour(sum: u128, left: &[u128]) -> Vec<u128> {
    let room: u128 = left.iter().sum();
    let count = left.len() as u128;
    if room <= sum {
        let over = (sum - room) / count.max(1);
        return left.iter().map(|left| left + over).collect();
    }
    // In ascending order of room: a place with less room than its part leaves more to the others.
    let mut order: Vec<usize> = (0..left.len()).collect();
    order.sort_by_key(|place| left[*place]);
    let mut put = vec![0; left.len()];
    let mut rest = sum;
    for (done, place) in order.into_iter().enumerate() {
        put[place] = (rest / (count - done as u128)).min(left[place]);
        rest -= put[place];
    }
    put
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(list: &str) -> PcpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn places_get_equal_parts_up_to_their_room() {
        assert_eq!(pour(900, &[1000, 1000, 1000]), [300, 300, 300]);
        assert_eq!(pour(900, &[0, 1000, 1000]), [0, 450, 450]);
        assert_eq!(pour(900, &[1000, 100, 500]), [400, 100, 400]);
        assert_eq!(pour(900, &[100, 200, 0]), [300, 400, 200], "more than there is room");
        assert_eq!(pour(0, &[5, 5]), [0, 0]);
        assert!(pour(7, &[]).is_empty());
    }

    #[test]
    fn smaller_sets_come_first_in_any_order() {
        let (pinned, pair, all) = (set("0"), set("0-1"), set("0-3"));
        let sums = [(&all, 1200), (&pinned, 1000), (&pair, 600)];
        let spread = Spread::new(sums, Nanos(1000));
        assert_eq!(spread.there(&pinned, &pinned), (1000, 1000));
        assert_eq!(spread.there(&pair, &pinned), (0, 600), "no room on pCPU 0");
        // pCPU 1 has 400 left, pCPUs 2 and 3 all.
        assert_eq!(spread.there(&all, &pair), (400, 1200));
        assert_eq!(spread.there(&all, &set("2")), (400, 1200));
        assert_eq!(spread.there(&set("9"), &all), (0, 0), "nobody is there");
    }

    proptest! {
        /// The sum is preserved up to rounding, and no place exceeds its room if there is enough in total.
        #[test]
        fn pour_preserves_the_sum(sum in 0..5_000u128, left in proptest::collection::vec(0..1_000u128, 1..9)) {
            let put = pour(sum, &left);
            let there: u128 = put.iter().sum();
            prop_assert!(there <= sum && sum - there < left.len() as u128);
            if left.iter().sum::<u128>() > sum {
                prop_assert!(put.iter().zip(&left).all(|(put, left)| put <= left));
                prop_assert_eq!(there, sum);
            }
        }
    }
}
