//! Service of a VM beyond its mean share: short windows, waits, and work relative to the VM alone on the host.
//!
//! A mean share hides a VM that starves for a second and is compensated later.
//! CPU time hides a VM that spends its time waiting for its own vCPUs.
//! So an experiment has more figures for each VM:
//!
//! - [`WindowFigures`]: CPU time relative to the fair share in windows of one length, the worst and the best.
//! - [`Waits`]: waits of vCPUs for a pCPU.
//! - [`Completion`]: completion times of the guest's bursts or requests.
//! - [`SpinFigures`]: verdicts from branch counters on its vCPUs, compared with the guest's own account.
//! - [`Alone`]: figures of the same VM alone on the same pCPUs, and the deserved part of them.
//!
//! This module does not measure.
//! Parts are fractions: 0.9 is 90 % of the fair share.

use std::collections::BTreeMap;

use serde::Serialize;
use tandem_policy::flexs::Basis;
use tandem_policy::host::flexs::{Left, Refusal};

/// A VM's CPU time relative to its fair share, over windows of one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFigures {
    /// Length of a window, in seconds.
    pub seconds: f64,
    /// Number of windows with a fair share of at least a twentieth of a pCPU.
    ///
    /// Windows overlap: one begins every quarter of the length.
    pub windows: usize,
    /// Least received CPU time in a window, relative to the fair share; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
    /// Greatest received CPU time in a window, relative to the fair share; absent without windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greatest: Option<f64>,
}

/// Verdicts and swaps of the policy `flexs` for a VM since the daemon's start.
///
/// Counts are in vCPU periods: one vCPU in one accounting period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpinFigures {
    /// Periods with a verdict.
    pub judged: u64,
    /// Periods with the verdict "spinning".
    pub called_spinning: u64,
    /// Swaps with a sibling that were decided.
    pub decided: u64,
    /// Swaps that were made.
    pub swaps: u64,
    /// Periods of spinning without a search for a sibling, by reason.
    pub left: BTreeMap<Left, u64>,
    /// Searches for a sibling that found none.
    pub failed: u64,
    /// Siblings that were rejected in these searches, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Periods in which, by the guest's account, the vCPU only waited in a loop.
    pub spun: u64,
    /// Periods of `spun` with the verdict "spinning".
    pub found: u64,
    /// Other periods of `spun`, by the basis of the verdict.
    pub missed: BTreeMap<Basis, u64>,
    /// Periods in which, by the guest's account, the vCPU computed.
    pub worked: u64,
    /// Periods of `worked` with the verdict "spinning".
    pub false_alarms: u64,
}

/// Waits of vCPUs for a pCPU; percentiles are not available, because the kernel keeps only sums.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// Number of times that a vCPU was scheduled, after a wake-up or a preemption.
    pub runs: u64,
    /// Mean wait before each, in nanoseconds; absent if no vCPU was scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
}

/// Completion times of a VM's bursts or requests, from the scheduled start to the end, by the guest's clock.
///
/// They include the timer, the wake-up, the wait for a pCPU, preemptions, delays by earlier bursts, and the work itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// Number of completed ones; if 0, the times are absent.
    pub count: u64,
    /// Number of dropped ones, because too many were late; they have no completion time.
    pub dropped: u64,
    /// Mean, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    /// Median, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// 99th percentile, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
}

/// Figures of a VM alone on the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Alone {
    /// Items of work per second.
    pub work_per_second: f64,
    /// CPU time, in pCPUs.
    pub share: f64,
    /// Deserved work with the other VMs, as a fraction of the work alone.
    ///
    /// It follows from the GPS share by weight, where no VM demands more CPU time than it uses alone.
    /// It is 0.5 for one of two equal VMs that never sleep, and 1 for a VM that needs less than its share.
    pub deserved: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_figures_are_absent_in_json() {
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
