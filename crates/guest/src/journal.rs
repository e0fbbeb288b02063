//! Journal records of the agent's changes in its VM, with original values.
//!
//! File format, lock, durability and detection of foreign changes are shared with the host daemon ([`tandem_linux::journal`]); the records differ.
//! The agent has its own state directory (`/run/tandem-guest`).
//! A daemon and an agent can therefore run on one machine that is both a VM and a host of VMs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_linux::ProcFs;
use tandem_linux::cgroup::{CgroupId, CgroupPath};
use tandem_linux::journal::{Entry, check_path};
use tandem_linux::sched_attr::FairScheduling;
use tandem_linux::thread::{StartTime, ThreadRef, Tid};
use tandem_model::{Nanos, PcpuSet};

/// Returns the file of the only kernel parameter that the agent writes.
pub fn haltpoll_parameter(procfs: &ProcFs) -> PathBuf {
    procfs.resolve("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
}

/// A pending change and the original value.
/// Unknown fields of later versions are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// The cpuset controller is enabled for the cgroups below this one (v2).
    Enabled {
        /// Parent of the cgroups that get the controller.
        cgroup: CgroupPath,
        /// Id of that cgroup.
        id: CgroupId,
    },
    /// A cgroup is created.
    Created {
        /// The new cgroup.
        cgroup: CgroupPath,
        /// Destination of its remaining processes.
        home: CgroupPath,
    },
    /// A cgroup that is not the agent's gets other vCPUs.
    Vcpus {
        /// The cgroup.
        cgroup: CgroupPath,
        /// Id of that cgroup.
        id: CgroupId,
        /// Original `cpuset.cpus`.
        original: String,
    },
    /// A kernel parameter gets another value.
    Parameter {
        /// File of the parameter.
        path: PathBuf,
        /// Original text.
        original: String,
    },
    /// A thread is bound to other vCPUs, or may lose those that it was bound to.
    Affinity {
        /// The thread.
        thread: ThreadRef,
        /// Original affinity.
        original: PcpuSet,
    },
    /// A thread gets another timer slack.
    TimerSlack {
        /// The thread.
        thread: ThreadRef,
        /// Original timer slack, ns.
        original: Nanos,
    },
    /// A thread gets another scheduling policy or slice.
    Scheduling {
        /// The thread.
        thread: ThreadRef,
        /// Original scheduling.
        original: FairScheduling,
    },
}

/// Identity of the changed object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Key of [`Change::Enabled`].
    Enabled(CgroupPath, CgroupId),
    /// Key of [`Change::Created`].
    Created(CgroupPath),
    /// Key of [`Change::Vcpus`].
    Vcpus(CgroupPath, CgroupId),
    /// Key of [`Change::Parameter`].
    Parameter(PathBuf),
    /// Key of [`Change::Affinity`].
    Affinity(Tid, StartTime),
    /// Key of [`Change::TimerSlack`].
    TimerSlack(Tid, StartTime),
    /// Key of [`Change::Scheduling`].
    Scheduling(Tid, StartTime),
}

impl Entry for Change {
    type Key = Key;

    const RESTORE: &'static str = "tandem guest restore";

    fn key(&self) -> Key {
        match self {
            Change::Enabled { cgroup, id } => Key::Enabled(cgroup.clone(), *id),
            Change::Created { cgroup, .. } => Key::Created(cgroup.clone()),
            Change::Vcpus { cgroup, id, .. } => Key::Vcpus(cgroup.clone(), *id),
            Change::Parameter { path, .. } => Key::Parameter(path.clone()),
            Change::Affinity { thread, .. } => Key::Affinity(thread.tid, thread.start),
            Change::TimerSlack { thread, .. } => Key::TimerSlack(thread.tid, thread.start),
            Change::Scheduling { thread, .. } => Key::Scheduling(thread.tid, thread.start),
        }
    }

    fn thread(&self) -> Option<&ThreadRef> {
        match self {
            Change::Affinity { thread, .. }
            | Change::TimerSlack { thread, .. }
            | Change::Scheduling { thread, .. } => Some(thread),
            _ => None,
        }
    }

    /// Compares vCPU lists as sets.
    fn results_from(&self, written: &Change) -> bool {
        match (self, written) {
            (Change::Vcpus { original: now, .. }, Change::Vcpus { original: asked, .. }) => {
                let (now, asked) = (now.parse::<PcpuSet>(), asked.parse::<PcpuSet>());
                now.is_ok() && now.ok() == asked.ok()
            }
            _ => self == written,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Change::Enabled { cgroup, .. } | Change::Vcpus { cgroup, .. } => check_path(cgroup),
            Change::Created { cgroup, home } => check_path(cgroup).and_then(|()| check_path(home)),
            Change::Parameter { .. }
            | Change::Affinity { .. }
            | Change::TimerSlack { .. }
            | Change::Scheduling { .. } => Ok(()),
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Enabled { cgroup, .. } => {
                write!(f, "the cpuset controller below {cgroup}")
            }
            Change::Created { cgroup, .. } => write!(f, "the new cgroup {cgroup}"),
            Change::Vcpus { cgroup, original, .. } => {
                write!(f, "the cpuset.cpus '{original}' of cgroup {cgroup}")
            }
            Change::Parameter { path, original } => {
                write!(f, "'{original}' in {}", path.display())
            }
            Change::Affinity { thread, original } => {
                write!(f, "{thread} to vCPUs {original}")
            }
            Change::TimerSlack { thread, original } => {
                write!(f, "{thread} to a timer slack of {original}")
            }
            Change::Scheduling { thread, original } => {
                let policy = if original.batch { "SCHED_BATCH" } else { "SCHED_OTHER" };
                match original.slice {
                    Some(slice) => write!(f, "{thread} to {policy} with a slice of {slice}"),
                    None => write!(f, "{thread} to {policy} with the scheduler's slice"),
                }
            }
        }
    }
}
