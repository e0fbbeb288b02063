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
use tandem_policy::host::flexs::{Left, Refusal};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_absent() {
        let none = WindowFigures { seconds: 1.0, windows: 0, least: None, greatest: None };
        let json = serde_json::to_string(&none).unwrap();
        assert_eq!(json, r#"{"seconds":1.0,"windows":0}"#);
        let waits = Waits { runs: 0, mean_ns: None };
        assert_eq!(serde_json::to_string(&waits).unwrap(), r#"{"runs":0}"#);
        let completion =
            Completion { count: 0, dropped: 2, mean_ns: None, p50_ns: None, p99_ns: None };
        let json = serde_json::to_string(&completion).unwrap();
        assert_eq!(json, r#"{"count":0,"dropped":2}"#);
    }
}
