//! The host's CPU controller: one trait over cgroup v1 (`cpu.shares`) and v2 (`cpu.weight`).
//!
//! A [`CgroupPath`] is a path within the hierarchy that holds the cpu controller, as
//! `/proc/PID/cgroup` prints it. Weights are in the units of the kernel's file: 2 … 262144 with
//! 1024 as default on v1, 1 … 10000 with 100 on v2. What the two versions share is written once,
//! here; [`v1`] and [`v2`] say which files and which order of steps.
//!
//! Nothing here journals: [`crate::actuator::Actuator`] does, and is the only caller outside of
//! tests. Nothing here knows VMs either, but for [`ownership`], which finds out whether a VM has a
//! cgroup to itself.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/, scheduler/sched-bwc.rst.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::Serialize;
use tandem_policy::Weight;

use crate::thread::Pid;
use crate::thread::ThreadRef;
use crate::thread::Tid;

pub mod error;
pub mod files;
pub mod mounts;
pub mod ownership;
pub mod v1;
pub mod v2;

pub use error::CgroupError;
pub use mounts::open;

/// Which of the two kernel interfaces holds the cpu controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// `cpu.shares`, threads listed in `tasks`.
    V1,
    /// `cpu.weight`, vCPU threads in threaded cgroups.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
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

impl CgroupPath {
    /// The root of the hierarchy.
    pub fn root() -> CgroupPath {
        CgroupPath("/".to_owned())
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// Its own name, the last part of the path; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The cgroup above; `None` above the root.
    pub fn parent(&self) -> Option<CgroupPath> {
        let (above, name) = self.0.rsplit_once('/')?;
        match (above, name) {
            ("", "") => None,
            ("", _) => Some(CgroupPath::root()),
            _ => Some(CgroupPath(above.to_owned())),
        }
    }

    /// The cgroup `name` below this one.
    pub fn child(&self, name: &str) -> CgroupPath {
        CgroupPath(format!("{}/{name}", self.0.trim_end_matches('/')))
    }

    /// Whether this is `other` or lies below it.
    pub fn is_within(&self, other: &CgroupPath) -> bool {
        match self.0.strip_prefix(other.0.trim_end_matches('/')) {
            Some(rest) => rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }

    /// All cgroups from the root down to and without this one.
    pub fn ancestors(&self) -> Vec<CgroupPath> {
        let mut above: Vec<CgroupPath> =
            std::iter::successors(self.parent(), CgroupPath::parent).collect();
        above.reverse();
        above
    }
}

/// A cgroup for as long as the machine is up: its folder's inode number. A cgroup that is removed
/// and made again under the same path has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// A hard cap: `quota` microseconds of CPU time in each `period` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time allowed per period, over all pCPUs, in microseconds (≥ 1000).
    pub quota_us: u64,
    /// The period, in microseconds (1000 … 1 000 000; the kernel's default is 100 000).
    pub period_us: u64,
}

/// What can be set on a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Knob {
    /// `cpu.shares` or `cpu.weight`.
    Weight,
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us`, or `cpu.max`.
    Quota,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Knob::Weight => "weight",
            Knob::Quota => "quota",
        })
    }
}

/// The kernel's CPU controller.
///
/// A knob's text is the same for both versions: a weight is a whole number, a quota is
/// `QUOTA PERIOD` in microseconds with `max` for no cap, as v2's `cpu.max` has it. The text that
/// was read can always be written back.
pub trait CpuController: Send + Sync {
    /// Which of the two interfaces this is.
    fn version(&self) -> Version;

    /// Where the hierarchy is mounted.
    fn mount(&self) -> &Path;

    /// The weight of a cgroup that nobody gave one.
    fn default_weight(&self) -> Weight;

    /// The smallest and the largest weight that the kernel takes.
    fn weight_range(&self) -> (Weight, Weight);

    /// Where a thread is now.
    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError>;

    /// Whether there is such a cgroup.
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        self.id(cgroup).is_ok()
    }

    /// Which cgroup is at this path now.
    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError>;

    /// A knob's text.
    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError>;

    /// Writes a knob's text.
    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError>;

    /// The threads in the cgroup itself.
    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError>;

    /// The processes that have a thread in the cgroup itself. In a threaded cgroup of v2, whose
    /// processes belong to the cgroup above, there are none.
    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError>;

    /// The cgroups right below.
    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError>;

    /// Moves one thread, and none of its process's others.
    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// Whether `parent` can hold a cgroup for single threads of the processes in it. The error says
    /// what is in the way.
    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError>;

    /// Makes a cgroup that takes single threads.
    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError>;

    /// Removes a cgroup that holds no thread; one that is gone already is fine.
    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// The cgroups that must yet let the cpu controller into what is below them before `cgroup`,
    /// which need not exist, has its knobs: the highest first. Never any on v1.
    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError>;

    /// Lets the cpu controller into the cgroups below (v2: `+cpu` in `cgroup.subtree_control`).
    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// Takes the cpu controller out of the cgroups below. An error of kind
    /// [`CgroupError::InUse`], and nothing changed, when one of them has settings of its own.
    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// A cgroup's weight.
    fn weight(&self, cgroup: &CgroupPath) -> Result<Weight, CgroupError> {
        let text = self.read_knob(cgroup, Knob::Weight)?;
        text.parse().map(Weight).map_err(|_| CgroupError::BadKnob {
            cgroup: cgroup.clone(),
            knob: Knob::Weight,
            text,
            wanted: "a whole number",
        })
    }

    /// Sets a cgroup's weight, rounded and brought into range; returns what was written.
    fn set_weight(&self, cgroup: &CgroupPath, weight: Weight) -> Result<Weight, CgroupError> {
        if !weight.0.is_finite() {
            return Err(CgroupError::BadWeight {
                cgroup: cgroup.clone(),
                weight,
            });
        }
        let (least, most) = self.weight_range();
        let written = weight.0.round().clamp(least.0, most.0);
        self.write_knob(cgroup, Knob::Weight, &format!("{written:.0}"))?;
        Ok(Weight(written))
    }

    /// A cgroup's hard cap; `None` where there is none.
    fn quota(&self, cgroup: &CgroupPath) -> Result<Option<Quota>, CgroupError> {
        let text = self.read_knob(cgroup, Knob::Quota)?;
        parse_quota(&text).ok_or_else(|| CgroupError::BadKnob {
            cgroup: cgroup.clone(),
            knob: Knob::Quota,
            text,
            wanted: "a quota or 'max', then a period",
        })
    }

    /// Sets a cgroup's hard cap, or takes it away.
    fn set_quota(&self, cgroup: &CgroupPath, quota: Option<Quota>) -> Result<(), CgroupError> {
        let text = match quota {
            None => "max 100000".to_owned(),
            Some(Quota {
                quota_us,
                period_us,
            }) if quota_us >= 1000 && (1000..=1_000_000).contains(&period_us) => {
                format!("{quota_us} {period_us}")
            }
            Some(quota) => {
                return Err(CgroupError::BadQuota {
                    cgroup: cgroup.clone(),
                    quota,
                });
            }
        };
        self.write_knob(cgroup, Knob::Quota, &text)
    }
}

/// Reads `QUOTA PERIOD`; the inner `None` is `max`, the outer one a text that is neither.
fn parse_quota(text: &str) -> Option<Option<Quota>> {
    let (quota, period) = text.trim().split_once(' ')?;
    let period_us = period.parse().ok()?;
    match quota {
        "max" => Some(None),
        number => Some(Some(Quota {
            quota_us: number.parse().ok()?,
            period_us,
        })),
    }
}

/// Whether `name` may become a cgroup beside the kernel's own files.
pub fn check_name(parent: &CgroupPath, name: &str) -> Result<(), CgroupError> {
    let taken = ["cgroup.", "cpu.", "cpuset.", "memory.", "io.", "pids."];
    let good = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && !taken.iter().any(|prefix| name.starts_with(prefix))
        && !["tasks", "notify_on_release", "release_agent"].contains(&name)
        && name.chars().all(|c| c != '/' && !c.is_control());
    match good {
        true => Ok(()),
        false => Err(CgroupError::BadName {
            parent: parent.clone(),
            name: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    #[test]
    fn paths_know_parents_children_and_ancestors() {
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(path("/")));
        assert_eq!(path("/").parent(), None);
        assert_eq!(path("/").child("a"), path("/a"));
        assert_eq!(path("/a").child("b"), path("/a/b"));
        assert_eq!(path("/a/b").ancestors(), [path("/"), path("/a")]);
        assert!(path("/a/b").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/")));
        assert!(!path("/ab").is_within(&path("/a")));
        assert_eq!(path("/a/vm.scope").name(), "vm.scope");
    }

    #[test]
    fn quotas_read_as_the_kernel_writes_them() {
        let half = Quota {
            quota_us: 50_000,
            period_us: 100_000,
        };
        assert_eq!(parse_quota("50000 100000\n"), Some(Some(half)));
        assert_eq!(parse_quota("max 100000\n"), Some(None));
        for text in ["", "max", "-1 100000", "a b", "50000"] {
            assert_eq!(parse_quota(text), None, "{text}");
        }
    }

    #[test]
    fn names_that_would_hide_a_kernel_file_are_refused() {
        assert!(check_name(&path("/"), "tandem-12-web").is_ok());
        for name in [
            "",
            "..",
            "a/b",
            "cpu.shares",
            "cgroup.procs",
            "tasks",
            "a\nb",
        ] {
            assert!(check_name(&path("/"), name).is_err(), "{name}");
        }
    }
}
