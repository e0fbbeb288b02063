//! How a VM was served, beyond its mean share: over short windows, wait by wait, and against having the host for itself.
//!
//! A mean share hides a VM that starves for a second and is paid back later, and CPU time hides a VM that spends it waiting for
//! its own vCPUs. So an experiment has more figures for each VM:
//!
//! - [`WindowFigures`]: CPU time against what was due in windows of one length, the worst and the best of them.
//! - [`Waits`]: how long a vCPU waited for a pCPU each time before it ran.
//! - [`Completion`]: how long a guest's bursts or requests took, from when each was due until it was done.
//! - [`SpinFigures`]: what branch counters told of its vCPUs, against what its guest says of itself.
//! - [`Alone`]: what the same VM does alone on the same pCPUs, and so what its share deserves of that.
//!
//! Nothing here measures. Parts are fractions: 0.9 is 90 % of the due.

use std::collections::BTreeMap;

use serde::Serialize;
use tandem_policy::flexs::Basis;
use tandem_policy::host::flexs::Left;
use tandem_policy::host::flexs::Refusal;

/// A VM's CPU time against its due, over windows of one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFigures {
    /// Length of a window, in seconds.
    pub seconds: f64,
    /// Windows in which the VM wanted CPU: it was due at least a twentieth of a pCPU. They overlap: one begins every quarter of the
    /// length.
    pub windows: usize,
    /// The least that it received in one of them, as a part of its due there; absent where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
    /// The most that it received in one of them, as a part of its due there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greatest: Option<f64>,
}

impl WindowFigures {
    /// The worst and the best of several runs, by length.
    pub fn over_runs<'a>(runs: impl Iterator<Item = &'a [WindowFigures]>) -> Vec<WindowFigures> {
        let mut all: Vec<WindowFigures> = Vec::new();
        for figures in runs.flatten() {
            match all
                .iter_mut()
                .find(|known| known.seconds == figures.seconds)
            {
                None => all.push(figures.clone()),
                Some(known) => {
                    let both = |a: Option<f64>, b: Option<f64>, of: fn(f64, f64) -> f64| {
                        a.zip(b).map_or(a.or(b), |(a, b)| Some(of(a, b)))
                    };
                    known.windows += figures.windows;
                    known.least = both(known.least, figures.least, f64::min);
                    known.greatest = both(known.greatest, figures.greatest, f64::max);
                }
            }
        }
        all
    }
}

/// What the policy `flexs` found of a VM's vCPUs and did, since the daemon began, in periods of a vCPU: a vCPU in one accounting period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpinFigures {
    /// Those in which it was judged.
    pub judged: u64,
    /// Of these, those in which it was taken for one that spins.
    pub called_spinning: u64,
    /// Swaps with a sibling that were decided.
    pub decided: u64,
    /// Those that were made.
    pub swaps: u64,
    /// Those in which a vCPU spun and nobody looked for a sibling, by the reason.
    pub left: BTreeMap<Left, u64>,
    /// Searches for a sibling that found none.
    pub failed: u64,
    /// Siblings that were no candidates in these, by the reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// By what the guest says, those in which it did nothing but wait in a loop.
    pub spun: u64,
    /// Of these, those in which it was taken for one that spins.
    pub found: u64,
    /// The others, by what the verdicts rest on.
    pub missed: BTreeMap<Basis, u64>,
    /// By what the guest says, those in which it computed.
    pub worked: u64,
    /// Of these, those in which it was taken for one that spins.
    pub false_alarms: u64,
}

impl SpinFigures {
    /// The sums of both.
    #[must_use]
    pub fn plus(self, other: SpinFigures) -> SpinFigures {
        SpinFigures {
            judged: self.judged + other.judged,
            called_spinning: self.called_spinning + other.called_spinning,
            decided: self.decided + other.decided,
            swaps: self.swaps + other.swaps,
            left: sums(self.left, other.left),
            failed: self.failed + other.failed,
            refused: sums(self.refused, other.refused),
            spun: self.spun + other.spun,
            found: self.found + other.found,
            missed: sums(self.missed, other.missed),
            worked: self.worked + other.worked,
            false_alarms: self.false_alarms + other.false_alarms,
        }
    }

    /// Recall: the part of the periods in which a vCPU spun that were found; absent where none spun.
    pub fn recall(&self) -> Option<f64> {
        part(self.found, self.spun)
    }

    /// The same, of those periods in which it ran for long enough to be judged.
    pub fn recall_of_judged(&self) -> Option<f64> {
        let too_few = self.missed.get(&Basis::TooFew).copied();
        part(self.found, self.spun.saturating_sub(too_few.unwrap_or(0)))
    }

    /// The part of the periods in which a vCPU worked that it was taken for one that spins; absent where none worked.
    pub fn false_alarm_rate(&self) -> Option<f64> {
        part(self.false_alarms, self.worked)
    }
}

fn part(of: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| of as f64 / all as f64)
}

fn sums<K: Ord>(mut one: BTreeMap<K, u64>, other: BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    for (key, count) in other {
        *one.entry(key).or_default() += count;
    }
    one
}

/// How long vCPUs waited for a pCPU before they ran. Percentiles are not measured: the kernel keeps sums only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// Times that a vCPU of the VM got a pCPU, after waking up or after others had run.
    pub runs: u64,
    /// Mean wait before each, in nanoseconds; absent where no vCPU got a pCPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
}

/// How long the bursts or requests of a VM took, each from when it was due to begin until it was done, by the guest's own clock. That
/// holds the timer, the wake-up, the wait for a pCPU, being preempted, earlier bursts that were late, and the work itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// How many were done; without any, the figures below are absent.
    pub count: u64,
    /// How many were given up because too many were late. They have no completion time.
    pub dropped: u64,
    /// The mean, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    /// The median, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// What 99 of 100 took at most, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
}

/// What a VM does while it is alone on the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Alone {
    /// Items of work per second.
    pub work_per_second: f64,
    /// CPU time, in pCPUs.
    pub share: f64,
    /// What its share deserves of that work beside the other VMs, as a part of it. Its share is GPS by weight, with no VM wanting more
    /// CPU time than it takes alone: 0.5 for one of two equal VMs that never sleep, 1 for one that needs less than its share.
    pub deserved: f64,
}

/// The geometric mean; none of nothing, and 0 where a value is 0.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0usize);
    for value in values {
        sum += value.max(0.0).ln();
        count += 1;
    }
    (count > 0).then(|| (sum / count as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_and_half_are_one() {
        let mean = geometric_mean([2.0, 0.5]).unwrap();
        assert!((mean - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean([]), None);
        assert_eq!(geometric_mean([0.0, 4.0]), Some(0.0));
    }

    #[test]
    fn who_never_says_that_anybody_spins_has_a_recall_of_0_however_often_it_is_right() {
        let never = SpinFigures {
            judged: 1000,
            spun: 100,
            worked: 900,
            missed: BTreeMap::from([(Basis::Compared, 60), (Basis::TooFew, 40)]),
            ..SpinFigures::default()
        };
        assert_eq!(
            (never.recall(), never.false_alarm_rate()),
            (Some(0.0), Some(0.0))
        );
        let found = SpinFigures {
            spun: 100,
            found: 90,
            missed: BTreeMap::from([(Basis::TooFew, 10)]),
            ..SpinFigures::default()
        };
        assert_eq!(
            (found.recall(), found.recall_of_judged()),
            (Some(0.9), Some(1.0))
        );
        let both = never.plus(found);
        assert_eq!(both.missed[&Basis::TooFew], 50);
        assert_eq!(both.recall(), Some(0.45));
        let none = SpinFigures::default();
        assert_eq!((none.recall(), none.false_alarm_rate()), (None, None));
    }

    #[test]
    fn what_was_not_measured_is_absent() {
        let none = WindowFigures {
            seconds: 1.0,
            windows: 0,
            least: None,
            greatest: None,
        };
        let json = serde_json::to_string(&none).unwrap();
        assert_eq!(json, r#"{"seconds":1.0,"windows":0}"#);
        let waits = Waits {
            runs: 0,
            mean_ns: None,
        };
        assert_eq!(serde_json::to_string(&waits).unwrap(), r#"{"runs":0}"#);
        let completion = Completion {
            count: 0,
            dropped: 2,
            mean_ns: None,
            p50_ns: None,
            p99_ns: None,
        };
        let json = serde_json::to_string(&completion).unwrap();
        assert_eq!(json, r#"{"count":0,"dropped":2}"#);
    }
}
