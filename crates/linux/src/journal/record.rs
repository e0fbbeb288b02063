//! The journal's records: each names a setting that is about to change, and its original value.

use std::fmt;
use std::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tandem_model::{Nanos, Nice, PcpuSet};

use crate::cgroup::{CgroupId, CgroupPath, Knob};
use crate::ids::Tid;
use crate::thread::{StartTime, ThreadRef};

/// Number of written values that are kept per key: the current one, and two that may have replaced it.
/// The weight of a VM that takes turns alternates between the kernel's default and its own.
pub const KEPT: usize = 3;

/// Number of written affinities that are kept per thread: a vCPU in turns may be on the pCPU of any of its slots.
pub const KEPT_AFFINITIES: usize = 18;

/// Range to which the kernel clamps a thread's slice.
const SLICES: (Nanos, Nanos) = (Nanos(100_000), Nanos::from_millis(100));

/// A kind of record: the daemon's ([`Record`]), or that of another agent.
///
/// `Display` names the value that an undo restores.
pub trait Entry:
    Clone + fmt::Debug + fmt::Display + PartialEq + Serialize + DeserializeOwned
{
    /// The setting that a record is about; of several records with one key, the first holds the original.
    type Key: Clone + fmt::Debug + Eq + Hash;

    /// The command that restores from such a journal.
    const RESTORE: &'static str;

    /// Maximum number of records about the threads of one process.
    const MAX_PER_PROCESS: usize = usize::MAX;

    /// Maximum bytes of lines charged to one user, for threads and cgroups together: 640 for each of 16,384 vCPUs.
    /// The test `vcpu_capacity_per_user` has the resulting numbers of vCPUs.
    const MAX_BYTES_PER_USER: usize = 10 << 20;

    /// Maximum bytes of all lines: 640 for each of the host's 65,536 vCPUs.
    /// In memory they take 2.5 times as much (`journal_size`); during a replacement there are two files.
    const MAX_BYTES: usize = 40 << 20;

    /// The key of the record.
    fn key(&self) -> Self::Key;

    /// The thread that the record is about, if any.
    fn thread(&self) -> Option<&ThreadRef>;

    /// Number of written values that are kept for the record's key.
    fn kept(&self) -> usize {
        KEPT
    }

    /// Whether the value in this record, read from the system, can result from writing the one in `written`.
    fn results_from(&self, written: &Self) -> bool {
        self == written
    }

    /// Checks that Tandem can have written the record; the error names the part that it cannot have.
    fn check(&self) -> Result<(), String>;
}

/// A setting that is about to change, and its original value.
/// Readers skip fields that later versions add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Record {
    /// The cpu controller is enabled for the cgroups below this one (v2).
    Enabled {
        /// The parent of those cgroups.
        cgroup: CgroupPath,
        /// ID of that cgroup.
        id: CgroupId,
    },
    /// A cgroup is created.
    Created {
        /// The new cgroup.
        cgroup: CgroupPath,
    },
    /// A knob of a cgroup that Tandem did not create gets another value.
    Knob {
        /// The cgroup.
        cgroup: CgroupPath,
        /// ID of that cgroup.
        id: CgroupId,
        /// The knob.
        knob: Knob,
        /// The original text of the knob.
        original: String,
    },
    /// A thread is moved.
    Moved {
        /// The thread.
        thread: ThreadRef,
        /// The cgroup that it returns to.
        from: CgroupPath,
        /// The cgroup that it moves to.
        to: CgroupPath,
    },
    /// A thread gets other pCPUs.
    Affinity {
        /// The thread.
        thread: ThreadRef,
        /// The pCPUs that it was allowed to run on.
        original: PcpuSet,
    },
    /// A thread gets another nice value.
    Nice {
        /// The thread.
        thread: ThreadRef,
        /// Its original nice value.
        original: Nice,
    },
    /// A thread gets another slice.
    Slice {
        /// The thread.
        thread: ThreadRef,
        /// Its original custom slice, in ns; `None` for the scheduler's.
        original: Option<Nanos>,
    },
}

/// The setting that a [`Record`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Key of [`Record::Enabled`].
    Enabled(CgroupPath, CgroupId),
    /// Key of [`Record::Created`].
    Created(CgroupPath),
    /// Key of [`Record::Knob`].
    Knob(CgroupPath, CgroupId, Knob),
    /// Key of [`Record::Moved`]: one per cgroup that the thread was moved to.
    Moved(Tid, StartTime, CgroupPath),
    /// Key of [`Record::Affinity`].
    Affinity(Tid, StartTime),
    /// Key of [`Record::Nice`].
    Nice(Tid, StartTime),
    /// Key of [`Record::Slice`].
    Slice(Tid, StartTime),
}

impl Entry for Record {
    type Key = Key;

    const RESTORE: &'static str = "tandem host restore";

    /// KVM allows 4096 vCPUs; each may be moved twice and have three attributes changed.
    const MAX_PER_PROCESS: usize = 5 * 4096;

    fn key(&self) -> Key {
        match self {
            Record::Enabled { cgroup, id } => Key::Enabled(cgroup.clone(), *id),
            Record::Created { cgroup } => Key::Created(cgroup.clone()),
            Record::Knob { cgroup, id, knob, .. } => Key::Knob(cgroup.clone(), *id, *knob),
            Record::Moved { thread, to, .. } => Key::Moved(thread.tid, thread.start, to.clone()),
            Record::Affinity { thread, .. } => Key::Affinity(thread.tid, thread.start),
            Record::Nice { thread, .. } => Key::Nice(thread.tid, thread.start),
            Record::Slice { thread, .. } => Key::Slice(thread.tid, thread.start),
        }
    }

    fn thread(&self) -> Option<&ThreadRef> {
        match self {
            Record::Moved { thread, .. }
            | Record::Affinity { thread, .. }
            | Record::Nice { thread, .. }
            | Record::Slice { thread, .. } => Some(thread),
            Record::Enabled { .. } | Record::Created { .. } | Record::Knob { .. } => None,
        }
    }

    fn kept(&self) -> usize {
        match self {
            Record::Affinity { .. } => KEPT_AFFINITIES,
            _ => KEPT,
        }
    }

    /// The kernel clamps slices to its range.
    /// On cgroup v1 a quota is written in three steps, the first of which lifts the cap.
    fn results_from(&self, written: &Record) -> bool {
        match (self, written) {
            (
                Record::Knob { knob: Knob::Quota, original: now, .. },
                Record::Knob { knob: Knob::Quota, original: asked, .. },
            ) => {
                let period = |text: &str| text.split_once(' ').map(|(_, period)| period.to_owned());
                now == asked || (now.starts_with("max ") && period(now) == period(asked))
            }
            (Record::Slice { original: now, .. }, Record::Slice { original: asked, .. }) => {
                *now == asked.map(|slice| slice.clamp(SLICES.0, SLICES.1)) || now == asked
            }
            _ => self == written,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Record::Enabled { cgroup, .. }
            | Record::Created { cgroup }
            | Record::Knob { cgroup, .. } => check_path(cgroup),
            Record::Moved { from, to, .. } => check_path(from).and_then(|()| check_path(to)),
            Record::Affinity { .. } | Record::Nice { .. } | Record::Slice { .. } => Ok(()),
        }
    }
}

/// Checks that a path cannot lead out of the hierarchy.
pub fn check_path(cgroup: &CgroupPath) -> Result<(), String> {
    let is_within = cgroup.0.starts_with('/') && !cgroup.0.split('/').any(|part| part == "..");
    if is_within { Ok(()) } else { Err(format!("'{cgroup}' is no path within the hierarchy")) }
}

/// Names the value that an undo restores.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Enabled { cgroup, .. } => write!(f, "the cpu controller below {cgroup}"),
            Record::Created { cgroup } => write!(f, "the new cgroup {cgroup}"),
            Record::Knob { cgroup, knob, original, .. } => {
                write!(f, "the {knob} '{original}' of cgroup {cgroup}")
            }
            Record::Moved { thread, from, .. } => write!(f, "{thread} to cgroup {from}"),
            Record::Affinity { thread, original } => write!(f, "{thread} to pCPUs {original}"),
            Record::Nice { thread, original } => write!(f, "{thread} to nice value {original}"),
            Record::Slice { thread, original } => match original {
                Some(slice) => write!(f, "{thread} to a slice of {slice}"),
                None => write!(f, "{thread} to the scheduler's slice"),
            },
        }
    }
}
