//! The trait over the two versions of the cpu controller: cgroup v1 (`cpu.shares`) and v2 (`cpu.weight`).
//!
//! Weights are in the units of the kernel's file: 2 … 262144 with 1024 as default on v1, 1 … 10000 with 100 on v2.
//! This module has the code that both versions share; `v1` and `v2` have the files and the order of steps.

use std::io::ErrorKind::NotFound;
use std::path::Path;

use tandem_model::Weight;

use crate::cgroup::error::CgroupError;
use crate::cgroup::knob::{Knob, Quota, parse_quota};
use crate::cgroup::path::{CgroupId, CgroupPath, Owners, Version};
use crate::cgroup::stat;
use crate::cgroup::stat::Throttled;
use crate::ids::{Pid, Tid};
use crate::thread::ThreadRef;

/// Weight of a cgroup in the idle class (WEIGHT_IDLEPRIO of kernel/sched/sched.h), relative to the default.
pub const IDLE_CLASS: f64 = 3.0 / 1024.0;

/// The kernel's CPU controller.
///
/// A knob's text is the same for both versions: a weight is a whole number, a quota is
/// `QUOTA PERIOD` in microseconds with `max` for no cap, as in v2's `cpu.max`.
/// Any text that was read can be written again.
pub trait CpuController: Send + Sync {
    /// Version of the interface.
    fn version(&self) -> Version;

    /// Mount point of the hierarchy.
    fn mount(&self) -> &Path;

    /// The kernel's default weight of a cgroup.
    fn default_weight(&self) -> Weight;

    /// The smallest and the largest weight that the kernel accepts.
    fn weight_range(&self) -> (Weight, Weight);

    /// Returns the current cgroup of a thread.
    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError>;

    /// Whether the cgroup exists; true if it cannot be read, because its changes must not be forgotten.
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        !self.id(cgroup).is_err_and(|error| error.is_gone())
    }

    /// Returns the ID of the current cgroup at this path.
    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError>;

    /// Returns the users that may change a cgroup; root for hierarchies without owners.
    fn owners(&self, cgroup: &CgroupPath) -> Result<Owners, CgroupError> {
        self.id(cgroup).map(|_| Owners::ROOT)
    }

    /// Reads a knob's text.
    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError>;

    /// Writes a knob's text.
    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError>;

    /// Reads a cgroup's `cpu.stat`.
    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError>;

    /// Returns the throttling by a cgroup's own quota so far; `None` if the controller is not enabled for the cgroup.
    fn throttled(&self, cgroup: &CgroupPath) -> Result<Option<Throttled>, CgroupError> {
        match self.stat(cgroup) {
            Ok(text) => Ok(stat::throttled(&text)),
            // The file is missing, the cgroup is not.
            Err(CgroupError::Read { source, .. }) if source.kind() == NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The threads in the cgroup itself.
    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError>;

    /// The processes that have a thread in the cgroup itself. In a threaded cgroup of v2, whose
    /// processes belong to the cgroup above, there are none.
    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError>;

    /// Like [`Self::processes`], but returns at most `most`, in no particular order, because there may be 100,000.
    fn some_processes(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<Pid>, CgroupError> {
        let mut processes = self.processes(cgroup)?;
        processes.truncate(most);
        Ok(processes)
    }

    /// The child cgroups.
    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError>;

    /// Like [`Self::children`], but returns at most `most`, any of them, because a tenant can create a million.
    fn some_children(
        &self,
        cgroup: &CgroupPath,
        most: usize,
    ) -> Result<Vec<CgroupPath>, CgroupError> {
        let mut children = self.children(cgroup)?;
        children.truncate(most);
        Ok(children)
    }

    /// Moves one thread and no others of its process.
    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// Checks that `parent` can hold a cgroup for single threads of its processes, with a bounded number of reads.
    /// The error names the obstacle.
    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError>;

    /// Creates a cgroup for single threads.
    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError>;

    /// Removes a cgroup without threads; it may be gone already.
    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// The cgroups above `cgroup`, which need not exist, that must yet enable the cpu controller so that it has knobs.
    /// The highest comes first; v1 never has any.
    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError>;

    /// Enables the cpu controller for the cgroups below (v2: `+cpu` in `cgroup.subtree_control`).
    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// Disables the cpu controller for the cgroups below.
    /// Fails with [`CgroupError::InUse`], without a change, if one of them has settings of its own,
    /// or if a tenant's cgroup has more of them than the limit on reads.
    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// Returns a cgroup's weight.
    /// A cgroup in the idle class has none, and its `cpu.weight` shows 0 before Linux 6.12; returns the default, which applies once it leaves the class.
    fn weight(&self, cgroup: &CgroupPath) -> Result<Weight, CgroupError> {
        let text = self.read_knob(cgroup, Knob::Weight)?;
        match text.parse::<u32>() {
            Ok(0) => Ok(self.default_weight()),
            Ok(weight) => Ok(Weight::saturating(f64::from(weight))),
            Err(_) => Err(CgroupError::BadKnob {
                cgroup: cgroup.clone(),
                knob: Knob::Weight,
                text,
                wanted: "a whole number",
            }),
        }
    }

    /// Returns a cgroup's weight; `None` in the idle class, where `cpu.weight` and `cpu.shares` do not show a setting.
    /// Reads a second file only if the weight may be that of the class (0, or 3/1024 of the default).
    fn weight_outside_idle(&self, cgroup: &CgroupPath) -> Result<Option<Weight>, CgroupError> {
        let text = self.read_knob(cgroup, Knob::Weight)?;
        let shown = text.parse().unwrap_or(f64::MAX);
        let of_idle = (self.default_weight().value() * IDLE_CLASS).ceil();
        if shown <= of_idle && self.is_idle(cgroup)? == Some(true) {
            Ok(None)
        } else {
            self.weight(cgroup).map(Some)
        }
    }

    /// The weight that [`Self::set_weight`] writes: rounded and clamped to the valid range.
    fn writable(&self, weight: Weight) -> Weight {
        let (least, most) = self.weight_range();
        let written = weight.value().round();
        Weight::saturating(written.clamp(least.value(), most.value()))
    }

    /// Sets a cgroup's weight, rounded and clamped to the valid range; returns the written weight.
    fn set_weight(&self, cgroup: &CgroupPath, weight: Weight) -> Result<Weight, CgroupError> {
        let written = self.writable(weight);
        self.write_knob(cgroup, Knob::Weight, &format!("{:.0}", written.value()))?;
        Ok(written)
    }

    /// Whether a cgroup is in the idle class.
    /// `None` if the kernel has none (before Linux 5.15), or on v2 if the cpu controller is not enabled for the cgroup.
    fn is_idle(&self, cgroup: &CgroupPath) -> Result<Option<bool>, CgroupError> {
        match self.read_knob(cgroup, Knob::Idle) {
            Ok(text) => match text.as_str() {
                "0" => Ok(Some(false)),
                "1" => Ok(Some(true)),
                _ => Err(CgroupError::BadKnob {
                    cgroup: cgroup.clone(),
                    knob: Knob::Idle,
                    text,
                    wanted: "0 or 1",
                }),
            },
            // The file is missing, the cgroup is not.
            Err(CgroupError::Read { source, .. }) if source.kind() == NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves a cgroup into the idle class, or out of it with the kernel's default weight.
    fn set_idle(&self, cgroup: &CgroupPath, idle: bool) -> Result<(), CgroupError> {
        self.write_knob(cgroup, Knob::Idle, if idle { "1" } else { "0" })
    }

    /// Returns a cgroup's hard cap, if any.
    fn quota(&self, cgroup: &CgroupPath) -> Result<Option<Quota>, CgroupError> {
        let text = self.read_knob(cgroup, Knob::Quota)?;
        parse_quota(&text).ok_or_else(|| CgroupError::BadKnob {
            cgroup: cgroup.clone(),
            knob: Knob::Quota,
            text,
            wanted: "a quota or 'max', then a period",
        })
    }

    /// Sets or removes a cgroup's hard cap.
    fn set_quota(&self, cgroup: &CgroupPath, quota: Option<Quota>) -> Result<(), CgroupError> {
        let text = match quota {
            None => "max 100000".to_owned(),
            Some(Quota { quota_us, period_us })
                if quota_us >= 1000 && (1000..=1_000_000).contains(&period_us) =>
            {
                format!("{quota_us} {period_us}")
            }
            Some(quota) => {
                return Err(CgroupError::BadQuota { cgroup: cgroup.clone(), quota });
            }
        };
        self.write_knob(cgroup, Knob::Quota, &text)
    }
}
