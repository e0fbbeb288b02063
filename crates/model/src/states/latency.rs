//! How long vCPUs waited from when they were woken until they ran, as a histogram of binary logarithms.
//!
//! Sums of histograms are exact, of intervals and of vCPUs; quantiles are known to a factor of two.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Buckets of a [`Latency`].
pub const BUCKETS: usize = 32;

/// Times by their binary logarithm, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Element n: how many took 2ⁿ ns or more and less than 2ⁿ⁺¹; the first also less than 1 ns, the last also more.
    pub counts: [u64; BUCKETS],
    /// What all took together.
    pub time: Nanos,
}

impl Latency {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The time that this part of them, 0…1, did not exceed: the end of the bucket. `None` if there are none, or if it is in the last
    /// bucket, which has no end.
    pub fn quantile(&self, part: f64) -> Option<Nanos> {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut below: u64 = 0;
        let bucket = self.counts.iter().position(|count| {
            below = below.saturating_add(*count);
            below >= rank
        })?;
        (bucket + 1 < BUCKETS).then(|| Nanos(1 << (bucket + 1)))
    }

    /// How many took less than 2^`power` ns.
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
    fn quantiles_are_ends_of_buckets() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        latency.counts[10] = 98;
        latency.counts[20] = 2;
        assert_eq!(latency.quantile(0.0), Some(Nanos(2048)));
        assert_eq!(latency.quantile(0.98), Some(Nanos(2048)));
        assert_eq!(latency.quantile(0.99), Some(Nanos(1 << 21)));
        assert_eq!(latency.quantile(1.0), Some(Nanos(1 << 21)));
        latency.counts[31] = 1;
        assert_eq!(latency.quantile(1.0), None, "the last bucket has no end");
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
