//! The trait over the two versions of the cpu controller: cgroup v1 (`cpu.shares`) and v2 (`cpu.weight`).
//!
//! Weights are in the units of the kernel's file: 2 … 262144 with 1024 as default on v1, 1 … 10000 with 100 on v2.
//! What the two versions share is written once, here; the modules `v1` and `v2` say which files
//! and which order of steps.

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

/// What the kernel gives a cgroup in the idle class among others (WEIGHT_IDLEPRIO of kernel/sched/sched.h), in parts of the default.
pub const IDLE_CLASS: f64 = 3.0 / 1024.0;

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

    /// Whether there is such a cgroup. Where the kernel does not let us look, there is: what is to be undone must not be forgotten.
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        !self.id(cgroup).is_err_and(|error| error.is_gone())
    }

    /// Which cgroup is at this path now.
    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError>;

    /// Who may change a cgroup; a hierarchy without owners is root's.
    fn owners(&self, cgroup: &CgroupPath) -> Result<Owners, CgroupError> {
        self.id(cgroup).map(|_| Owners::ROOT)
    }

    /// A knob's text.
    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError>;

    /// Writes a knob's text.
    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError>;

    /// The text of a cgroup's `cpu.stat`.
    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError>;

    /// What a cgroup's own quota did so far; `None` where that is not counted, because the controller does not reach the cgroup.
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

    /// So many of them at most; which, where there are more, is not said. There may be a hundred thousand.
    fn some_processes(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<Pid>, CgroupError> {
        let mut processes = self.processes(cgroup)?;
        processes.truncate(most);
        Ok(processes)
    }

    /// The cgroups right below.
    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError>;

    /// So many of them at most; which, where there are more, is not said. Whoever may make cgroups can make a million.
    fn some_children(
        &self,
        cgroup: &CgroupPath,
        most: usize,
    ) -> Result<Vec<CgroupPath>, CgroupError> {
        let mut children = self.children(cgroup)?;
        children.truncate(most);
        Ok(children)
    }

    /// Moves one thread, and none of its process's others.
    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// Whether `parent` can hold a cgroup for single threads of the processes in it. The error says
    /// what is in the way. It takes a bounded number of reads.
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
    /// [`CgroupError::InUse`], and nothing changed, when one of them has settings of its own, or where a tenant has made more of
    /// them in a cgroup of his than are looked through.
    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;

    /// A cgroup's weight. One in the idle class has none: before Linux 6.12 its `cpu.weight` then shows 0, for which the kernel's default
    /// stands, which it has once it leaves the class.
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

    /// A cgroup's weight; `None` in the idle class, where what `cpu.weight` and `cpu.shares` show is nobody's setting. Only of weights that look
    /// like that class's (0, or 3/1024 of the default) a second file is read.
    fn weight_outside_idle(&self, cgroup: &CgroupPath) -> Result<Option<Weight>, CgroupError> {
        let text = self.read_knob(cgroup, Knob::Weight)?;
        let shown = text.parse().unwrap_or(f64::MAX);
        let of_idle = (self.default_weight().value() * IDLE_CLASS).ceil();
        match shown <= of_idle && self.is_idle(cgroup)? == Some(true) {
            true => Ok(None),
            false => self.weight(cgroup).map(Some),
        }
    }

    /// What setting a cgroup's weight writes: rounded and brought into range.
    fn writable(&self, weight: Weight) -> Weight {
        let (least, most) = self.weight_range();
        let written = weight.value().round();
        Weight::saturating(written.clamp(least.value(), most.value()))
    }

    /// Sets a cgroup's weight, rounded and brought into range; returns what was written.
    fn set_weight(&self, cgroup: &CgroupPath, weight: Weight) -> Result<Weight, CgroupError> {
        let written = self.writable(weight);
        self.write_knob(cgroup, Knob::Weight, &format!("{:.0}", written.value()))?;
        Ok(written)
    }

    /// Whether a cgroup is in the idle class; `None` where the kernel has none (before Linux 5.15), and on v2 where the cpu
    /// controller does not reach the cgroup.
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

    /// Puts a cgroup into the idle class, or takes it out; its weight is then the kernel's default.
    fn set_idle(&self, cgroup: &CgroupPath, idle: bool) -> Result<(), CgroupError> {
        self.write_knob(cgroup, Knob::Idle, if idle { "1" } else { "0" })
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
