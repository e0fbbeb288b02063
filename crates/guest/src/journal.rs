//! What the agent changes in its VM, and what each thing was before.
//!
//! The file, its lock, its durability and how it tells what somebody else set are the host daemon's ([`tandem_linux::journal`]);
//! the records are other ones. The agent's state directory is its own (`/run/tandem-guest`), so that a daemon and an agent may run
//! on one machine, which then is a VM and a host of VMs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_linux::ProcFs;
use tandem_linux::cgroup::{CgroupId, CgroupPath};
use tandem_linux::journal::{Entry, check_path};
use tandem_linux::sched_attr::FairScheduling;
use tandem_linux::thread::{StartTime, ThreadRef, Tid};
use tandem_model::{Nanos, PcpuSet};

/// The file of the only kernel parameter that the agent ever writes.
pub fn haltpoll_parameter(procfs: &ProcFs) -> PathBuf {
    procfs.resolve("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
}

/// Something that is about to be changed, and what it was before. Fields that a later version adds are read over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// The cpuset controller is enabled for the cgroups below this one (v2).
    Enabled {
        /// Whose children get it.
        cgroup: CgroupPath,
        /// Which cgroup that was.
        id: CgroupId,
    },
    /// A cgroup is made.
    Created {
        /// The new cgroup.
        cgroup: CgroupPath,
        /// Where what is left in it goes.
        home: CgroupPath,
    },
    /// A cgroup that is not the agent's gets other vCPUs.
    Vcpus {
        /// Which cgroup.
        cgroup: CgroupPath,
        /// Which cgroup that was.
        id: CgroupId,
        /// Its `cpuset.cpus` as it was.
        original: String,
    },
    /// A kernel parameter gets another value.
    Parameter {
        /// Its file.
        path: PathBuf,
        /// Its text as it was.
        original: String,
    },
    /// A thread is bound to other vCPUs, or may lose those that it was bound to.
    Affinity {
        /// Which thread.
        thread: ThreadRef,
        /// Where it was allowed to run.
        original: PcpuSet,
    },
    /// A thread's timers may be late.
    TimerSlack {
        /// Which thread.
        thread: ThreadRef,
        /// By how much they might before, ns.
        original: Nanos,
    },
    /// A thread is scheduled otherwise.
    Scheduling {
        /// Which thread.
        thread: ThreadRef,
        /// How it was.
        original: FairScheduling,
    },
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Of [`Change::Enabled`].
    Enabled(CgroupPath, CgroupId),
    /// Of [`Change::Created`].
    Created(CgroupPath),
    /// Of [`Change::Vcpus`].
    Vcpus(CgroupPath, CgroupId),
    /// Of [`Change::Parameter`].
    Parameter(PathBuf),
    /// Of [`Change::Affinity`].
    Affinity(Tid, StartTime),
    /// Of [`Change::TimerSlack`].
    TimerSlack(Tid, StartTime),
    /// Of [`Change::Scheduling`].
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

    /// The same vCPUs, however they are listed.
    fn comes_of(&self, written: &Change) -> bool {
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
