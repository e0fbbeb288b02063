//! The host's CPU controller: one trait over cgroup v1 (`cpu.shares`) and v2 (`cpu.weight`).
//!
//! A [`CgroupPath`] is a path within the hierarchy that holds the cpu controller, as
//! `/proc/PID/cgroup` prints it. Nothing here journals: [`crate::actuator::Actuator`] does, and is
//! the only caller outside of tests.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::Serialize;
use tandem_policy::Weight;

/// Which of the two kernel interfaces holds the cpu controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// `cpu.shares`, threads listed in `tasks`.
    V1,
    /// `cpu.weight`, vCPU threads in threaded cgroups.
    V2,
}

/// A cgroup's path within the cpu controller's hierarchy; `/` is the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupPath(pub String);

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A hard cap: `quota` microseconds of CPU time in each `period` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time allowed per period, over all pCPUs, in microseconds (≥ 1000).
    pub quota_us: u64,
    /// The period, in microseconds (1000 … 1 000 000; the kernel's default is 100 000).
    pub period_us: u64,
}
