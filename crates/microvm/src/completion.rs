//! Completion times: how long bursts and requests took, from when each was due to begin until it was done.
//!
//! Due is a point on the clock in the workload's plan. So the time holds all that came between: the timer, the wake-up, the wait
//! for a pCPU, being preempted, earlier bursts that were late, and the work itself. What was given up (`dropped`) was never done
//! and has no completion time.
//!
//! A vCPU counts each in a histogram in the memory that it shares with the VMM (`guest/completion.h`), in TSC cycles and in
//! log-linear buckets: one for all below 2^[`FROM`], eight of equal width for each factor of two from there, one for all from
//! 2^[`TO`] on. The counts only grow: the difference of two looks is the distribution of what was done in between.
//!
//! A quantile is by nearest rank: of n times the one at place ⌈q × n⌉ when they are sorted. Times in one bucket are taken for evenly
//! spread over it, so a quantile is off by an eighth of itself at most. In the first bucket it is off by 2^[`FROM`] cycles at most; in
//! the last one it is 2^[`TO`], a bound from below. The mean is exact but for a burst that ended while it was read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Times below this power of two are in the first bucket.
pub const FROM: u32 = 10;

/// Times from this power of two on are in the last bucket.
pub const TO: u32 = 37;

/// Buckets between two powers of two.
const PER_POWER: u32 = 8;

/// How many buckets there are.
pub(crate) const BUCKETS: usize = ((TO - FROM) * PER_POWER + 2) as usize;

/// How many times there were in each bucket, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// All times added up, in TSC cycles.
    cycles: u64,
    /// The buckets that are not empty.
    counts: BTreeMap<u32, u64>,
}

impl Histogram {
    /// A histogram of times that add up to `cycles`, with these counts from the first bucket on.
    pub(crate) fn new(cycles: u64, counts: impl IntoIterator<Item = u64>) -> Histogram {
        let counts = (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
        Histogram { cycles, counts }
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// What was counted since `earlier`, an earlier look at the same counters.
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

    /// Adds what another one counted.
    pub fn add(&mut self, other: &Histogram) {
        self.cycles = self.cycles.saturating_add(other.cycles);
        for (bucket, count) in &other.counts {
            *self.counts.entry(*bucket).or_default() += count;
        }
    }

    /// The mean, in TSC cycles; none of nothing.
    pub fn mean(&self) -> Option<f64> {
        match self.count() {
            0 => None,
            count => Some(self.cycles as f64 / count as f64),
        }
    }

    /// The time that a part `q` (0 … 1) of all took at most, in TSC cycles; none of nothing.
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

/// The least time of a bucket in TSC cycles, and the least one that is too long for it; none for the last bucket.
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

/// The completion times of a span of time; without any, there is no mean and no quantile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// Bursts or requests that were done.
    pub count: u64,
    /// The mean, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<u64>,
    /// The median, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<u64>,
    /// What 99 of 100 took at most, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
}

impl Completion {
    /// The figures of `times`, whose cycles are those of a TSC of `tsc_khz`.
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

    /// A histogram of these times, counted as the guest counts.
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
    fn buckets_are_worked_out() {
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
    fn the_guests_buckets_are_those_whose_bounds_we_know() {
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
    fn quantiles_are_by_nearest_rank_and_evenly_spread_in_a_bucket() {
        // Four in 1024 … 1151: at an eighth, three, five and seven eighths of it.
        let four = histogram([1024; 4]);
        let places = [0.25, 0.5, 0.75, 1.0].map(|q| four.quantile(q).unwrap());
        assert_eq!(places, [1040.0, 1072.0, 1104.0, 1136.0]);
        // 99 short ones and a long one: p99 is still short, anything beyond is the long one.
        let mut times = vec![4096; 99];
        times.push(1 << 20);
        let mixed = histogram(times);
        assert!(mixed.quantile(0.99).unwrap() < 4608.0);
        assert_eq!(mixed.quantile(0.991), Some(f64::from((1 << 20) + (1 << 16))));
        // Below all buckets and above.
        assert_eq!(histogram([3]).quantile(0.5), Some(512.0));
        assert_eq!(histogram([u64::MAX]).quantile(0.99), Some(2f64.powi(37)));
    }

    #[test]
    fn a_quantile_is_within_an_eighth_of_the_true_one() {
        let times: Vec<u64> = (1..=1000).map(|i| i * i * 37 + 1024).collect();
        let all = histogram(times.iter().copied());
        for (q, place) in [(0.01, 9), (0.5, 499), (0.9, 899), (0.99, 989)] {
            let (ours, exact) = (all.quantile(q).unwrap(), times[place] as f64);
            assert!((ours / exact - 1.0).abs() <= 0.125, "{q}: {ours} {exact}");
        }
        assert_eq!(all.mean(), Some(times.iter().sum::<u64>() as f64 / 1000.0));
    }

    #[test]
    fn the_difference_of_two_looks_is_what_was_done_in_between() {
        let before = histogram([2_000, 5_000, 1 << 30]);
        let mut after = before.clone();
        let between = histogram([5_000, 5_001, 70_000]);
        after.add(&between);
        assert_eq!(after.count(), 6);
        assert_eq!(after.since(&before), between);
        assert!(after.since(&after).is_empty());
        // Counters that seem to run backwards are taken for unchanged.
        assert!(before.since(&after).is_empty());
    }

    #[test]
    fn figures_are_nanoseconds_and_absent_where_nothing_was_done() {
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
    fn a_histogram_is_read_as_it_was_written() {
        let written = histogram([100, 5_000, 5_000, 1 << 40]);
        let json = serde_json::to_string(&written).unwrap();
        assert_eq!(json, r#"{"cycles":1099511637876,"counts":{"0":1,"18":2,"217":1}}"#);
        assert_eq!(serde_json::from_str::<Histogram>(&json).unwrap(), written);
    }
}
