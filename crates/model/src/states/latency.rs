//! Histogram of wake-up latencies of vCPUs, with logarithmic buckets.
//!
//! Sums over intervals and vCPUs are exact; quantiles are known to a factor of two.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Number of buckets of a [`Latency`].
pub const BUCKETS: usize = 32;

/// Counts of times by binary logarithm, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Element n counts times of at least 2ⁿ ns and less than 2ⁿ⁺¹ ns; the first also counts shorter ones, the last longer ones.
    pub counts: [u64; BUCKETS],
    /// Sum of all times.
    pub time: Nanos,
}

impl Latency {
    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the quantile of `part`, 0…1, as the upper bound of its bucket.
    /// Returns `None` if there are no times, or it is in the last bucket, which has no upper bound.
    pub fn quantile(&self, part: f64) -> Option<Nanos> {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut below: u64 = 0;
        let bucket = self.counts.iter().position(|count| {
            below = below.saturating_add(*count);
            below >= rank
        })?;
        (bucket + 1 < BUCKETS).then(|| Nanos(1 << (bucket + 1)))
    }

    /// Returns the number of times below 2^`power` ns.
    pub fn below(&self, power: usize) -> u64 {
        let counts = self.counts.iter().take(power);
        counts.fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl AddAssign for Latency {
    fn add_assign(&mut self, other: Latency) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(count);
        }
        self.time += other.time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds_of_buckets() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        latency.counts[10] = 98;
        latency.counts[20] = 2;
        assert_eq!(latency.quantile(0.0), Some(Nanos(2048)));
        assert_eq!(latency.quantile(0.98), Some(Nanos(2048)));
        assert_eq!(latency.quantile(0.99), Some(Nanos(1 << 21)));
        assert_eq!(latency.quantile(1.0), Some(Nanos(1 << 21)));
        latency.counts[31] = 1;
        assert_eq!(latency.quantile(1.0), None, "the last bucket has no upper bound");
        assert_eq!((latency.below(10), latency.below(11)), (0, 98));
        assert_eq!(latency.below(BUCKETS), latency.count());
    }

    #[test]
    fn sums_are_exact() {
        let mut one = Latency::default();
        (one.counts[3], one.time) = (2, Nanos(21));
        let mut sum = one;
        sum += one;
        assert_eq!((sum.counts[3], sum.count(), sum.time), (4, 4, Nanos(42)));
    }
}
