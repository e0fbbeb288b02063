//! Completion times of bursts and requests: time from the scheduled start to the end.
//!
//! The scheduled start follows from the workload's plan.
//! The time therefore includes timer delay, wake-up, waiting for a pCPU, preemption, earlier late bursts, and the work itself.
//! Dropped bursts (`dropped`) have no completion time.
//!
//! A vCPU counts each time in a histogram in the memory shared with the VMM (`guest/completion.h`), in TSC cycles.
//! The buckets are log-linear: one for all below 2^[`FROM`], eight of equal width for each factor of two, and one for all from 2^[`TO`] on.
//! Counts only increase, so the difference of two readings is the distribution in between.
//!
//! A quantile is by nearest rank: of n sorted times the one at position ⌈q × n⌉.
//! Times are assumed to be uniform within a bucket, so a quantile has an error of at most an eighth of itself.
//! In the first bucket the error is at most 2^[`FROM`] cycles; in the last one the quantile is 2^[`TO`], a lower bound.
//! The mean is exact except for a burst that ends during the reading.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Times below this power of two are in the first bucket.
pub const FROM: u32 = 10;

/// Times from this power of two on are in the last bucket.
pub const TO: u32 = 37;

/// Buckets between two powers of two.
const PER_POWER: u32 = 8;

/// Number of buckets.
pub(crate) const BUCKETS: usize = ((TO - FROM) * PER_POWER + 2) as usize;

/// Histogram of times, with their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Sum of all times, in TSC cycles.
    cycles: u64,
    /// Counts of the buckets that are not empty.
    counts: BTreeMap<u32, u64>,
}

impl Histogram {
    /// Creates a histogram of times with the sum `cycles` and these counts from the first bucket on.
    pub(crate) fn new(cycles: u64, counts: impl IntoIterator<Item = u64>) -> Histogram {
        let counts = (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
        Histogram { cycles, counts }
    }

    /// Returns true if there are no times.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the difference to `earlier`, an earlier reading of the same counters.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let grown = |(bucket, count): (&u32, &u64)| {
            let before = earlier.counts.get(bucket).copied().unwrap_or_default();
            (*bucket, count.saturating_sub(before))
        };
        let counts = self.counts.iter().map(grown);
        Histogram {
            cycles: self.cycles.saturating_sub(earlier.cycles),
            counts: counts.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.cycles = self.cycles.saturating_add(other.cycles);
        for (bucket, count) in &other.counts {
            *self.counts.entry(*bucket).or_default() += count;
        }
    }

    /// Returns the mean, in TSC cycles; `None` without times.
    pub fn mean(&self) -> Option<f64> {
        match self.count() {
            0 => None,
            count => Some(self.cycles as f64 / count as f64),
        }
    }

    /// Returns the quantile `q` (0 … 1), in TSC cycles; `None` without times.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut before = 0;
        for (&bucket, &count) in &self.counts {
            if before + count >= rank {
                let (from, to) = bounds(bucket);
                let part = ((rank - before) as f64 - 0.5) / count as f64;
                let width = to.map_or(0.0, |to| (to - from) as f64);
                return Some(from as f64 + width * part);
            }
            before += count;
        }
        None
    }
}

/// Returns the lower bound of a bucket and its exclusive upper bound, in TSC cycles; the last bucket has no upper bound.
fn bounds(bucket: u32) -> (u64, Option<u64>) {
    let edge = |bucket: u32| {
        let (power, eighth) = (FROM + bucket / PER_POWER, bucket % PER_POWER);
        u64::from(PER_POWER + eighth) << (power - PER_POWER.ilog2())
    };
    match bucket {
        0 => (0, Some(edge(0))),
        _ if bucket as usize >= BUCKETS - 1 => (1 << TO, None),
        _ => (edge(bucket - 1), Some(edge(bucket))),
    }
}

/// Summary of completion times; without any, there is no mean and no quantile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// Number of completed bursts or requests.
    pub count: u64,
    /// The mean, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<u64>,
    /// The median, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<u64>,
    /// The 99th percentile, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
}

impl Completion {
    /// Returns the summary of `times`, in cycles of a TSC of `tsc_khz`.
    pub fn of(times: &Histogram, tsc_khz: u64) -> Completion {
        let nanoseconds = |cycles: f64| (cycles * 1e6 / tsc_khz.max(1) as f64).round() as u64;
        Completion {
            count: times.count(),
            mean_ns: times.mean().map(nanoseconds),
            p50_ns: times.quantile(0.5).map(nanoseconds),
            p99_ns: times.quantile(0.99).map(nanoseconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_library::completion_bucket;

    /// Returns a histogram of these times with the guest's buckets.
    fn histogram(times: impl IntoIterator<Item = u64>) -> Histogram {
        let mut counts = vec![0; BUCKETS];
        let mut cycles = 0;
        for time in times {
            counts[completion_bucket(time) as usize] += 1;
            cycles += time;
        }
        Histogram::new(cycles, counts)
    }

    #[test]
    fn guest_buckets_have_known_bounds() {
        for (cycles, bucket) in [
            (0, 0),
            (1023, 0),
            (1024, 1),
            (1151, 1),
            (1152, 2),
            (2047, 8),
            (2048, 9),
            (2304, 10),
            ((1 << 37) - 1, 216),
            (1 << 37, 217),
            (u64::MAX, 217),
        ] {
            assert_eq!(completion_bucket(cycles), bucket, "{cycles}");
        }
        assert_eq!(BUCKETS, 218);
    }

    #[test]
    fn guest_buckets_match_our_bounds() {
        let mut at = 0;
        for bucket in 0..BUCKETS as u32 {
            let (from, to) = bounds(bucket);
            assert_eq!(from, at, "bucket {bucket} begins where the one before ends");
            assert_eq!(completion_bucket(from), bucket);
            if let Some(to) = to {
                assert_eq!(completion_bucket(to - 1), bucket);
                assert!(bucket == 0 || (to - from) * 8 <= from, "bucket {bucket} is wide");
                at = to;
            }
        }
        assert_eq!(bounds(u32::MAX), (1 << TO, None));
    }

    #[test]
    fn quantiles_interpolate_within_bucket() {
        // Four in 1024 … 1151: at one, three, five and seven eighths of the bucket.
        let four = histogram([1024; 4]);
        let places = [0.25, 0.5, 0.75, 1.0].map(|q| four.quantile(q).unwrap());
        assert_eq!(places, [1040.0, 1072.0, 1104.0, 1136.0]);
        // 99 short ones and a long one: p99 is short, any higher quantile is the long one.
        let mut times = vec![4096; 99];
        times.push(1 << 20);
        let mixed = histogram(times);
        assert!(mixed.quantile(0.99).unwrap() < 4608.0);
        assert_eq!(mixed.quantile(0.991), Some(f64::from((1 << 20) + (1 << 16))));
        // In the first bucket and in the last.
        assert_eq!(histogram([3]).quantile(0.5), Some(512.0));
        assert_eq!(histogram([u64::MAX]).quantile(0.99), Some(2f64.powi(37)));
    }

    #[test]
    fn quantile_error_is_below_an_eighth() {
        let times: Vec<u64> = (1..=1000).map(|i| i * i * 37 + 1024).collect();
        let all = histogram(times.iter().copied());
        for (q, place) in [(0.01, 9), (0.5, 499), (0.9, 899), (0.99, 989)] {
            let (ours, exact) = (all.quantile(q).unwrap(), times[place] as f64);
            assert!((ours / exact - 1.0).abs() <= 0.125, "{q}: {ours} {exact}");
        }
        assert_eq!(all.mean(), Some(times.iter().sum::<u64>() as f64 / 1000.0));
    }

    #[test]
    fn since_returns_times_in_between() {
        let before = histogram([2_000, 5_000, 1 << 30]);
        let mut after = before.clone();
        let between = histogram([5_000, 5_001, 70_000]);
        after.add(&between);
        assert_eq!(after.count(), 6);
        assert_eq!(after.since(&before), between);
        assert!(after.since(&after).is_empty());
        // Counters that decrease count as unchanged.
        assert!(before.since(&after).is_empty());
    }

    #[test]
    fn summary_is_in_nanoseconds_or_absent() {
        // A TSC of 2 GHz: two cycles a nanosecond.
        let done = Completion::of(&histogram([8_192, 10_000]), 2_000_000);
        assert_eq!((done.count, done.mean_ns), (2, Some(4_548)));
        assert_eq!((done.p50_ns, done.p99_ns), (Some(4_352), Some(4_864)));
        let none = Completion::of(&Histogram::default(), 2_000_000);
        let json = serde_json::to_string(&none).unwrap();
        assert_eq!(json, r#"{"count":0}"#);
        assert_eq!(serde_json::from_str::<Completion>(&json).unwrap(), none);
    }

    #[test]
    fn histogram_round_trips_through_json() {
        let written = histogram([100, 5_000, 5_000, 1 << 40]);
        let json = serde_json::to_string(&written).unwrap();
        assert_eq!(json, r#"{"cycles":1099511637876,"counts":{"0":1,"18":2,"217":1}}"#);
        assert_eq!(serde_json::from_str::<Histogram>(&json).unwrap(), written);
    }
}
