//! Settings of a cgroup, and their texts.
//!
//! A knob's text is the same for both versions of cgroups: a weight is a whole number, a quota is
//! `QUOTA PERIOD` in microseconds with `max` for no cap, as in v2's `cpu.max`.
//!
//! Source: Documentation/scheduler/sched-bwc.rst.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A hard cap: `quota` microseconds of CPU time in each `period` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time allowed per period, over all pCPUs, in microseconds (≥ 1000).
    pub quota_us: u64,
    /// The period, in microseconds (1000 … 1 000 000; the kernel's default is 100 000).
    pub period_us: u64,
}

/// A setting of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Knob {
    /// `cpu.shares` or `cpu.weight`.
    Weight,
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us`, or `cpu.max`.
    Quota,
    /// `cpu.idle`: 1 for a cgroup that runs only on otherwise idle pCPUs.
    /// Its weight cannot be set in the class, and is the kernel's default when it leaves.
    Idle,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Knob::Weight => "weight",
            Knob::Quota => "quota",
            Knob::Idle => "idle class",
        })
    }
}

/// Parses `QUOTA PERIOD`; the inner `None` is `max`, the outer one a malformed text.
pub(crate) fn parse_quota(text: &str) -> Option<Option<Quota>> {
    let (quota, period) = text.trim().split_once(' ')?;
    let period_us = period.parse().ok()?;
    match quota {
        "max" => Some(None),
        number => Some(Some(Quota { quota_us: number.parse().ok()?, period_us })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_quotas_are_parsed() {
        let half = Quota { quota_us: 50_000, period_us: 100_000 };
        assert_eq!(parse_quota("50000 100000\n"), Some(Some(half)));
        assert_eq!(parse_quota("max 100000\n"), Some(None));
        for text in ["", "max", "-1 100000", "a b", "50000"] {
            assert_eq!(parse_quota(text), None, "{text}");
        }
    }
}
