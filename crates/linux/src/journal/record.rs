//! The journal's records: what is about to be changed, and what it was before.

use std::fmt;
use std::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tandem_model::{Nanos, Nice, PcpuSet};

use crate::cgroup::{CgroupId, CgroupPath, Knob};
use crate::ids::Tid;
use crate::thread::{StartTime, ThreadRef};

/// So many of the values that a thing was given are kept: one that is in force, and two that may be by now (a VM that takes turns
/// has the kernel's default weight and its own in turn).
pub const KEPT: usize = 3;

/// So many of the affinities: a thread that roams may be on any of its pCPUs.
pub const KEPT_AFFINITIES: usize = 18;

/// The shortest and the longest slice that the kernel gives a thread; what is asked for beyond is brought into this range.
const SLICES: (Nanos, Nanos) = (Nanos(100_000), Nanos::from_millis(100));

/// One kind of record: the daemon's below, or that of another agent with changes of its own.
///
/// As text it says what undoing it puts back.
pub trait Entry:
    Clone + fmt::Debug + fmt::Display + PartialEq + Serialize + DeserializeOwned
{
    /// What a record is about: of two with the same key only the first tells the original.
    type Key: Clone + fmt::Debug + Eq + Hash;

    /// The command that puts back what such a journal lists.
    const RESTORE: &'static str;

    /// So many records are kept of the threads of one process.
    const MOST_PER_PROCESS: usize = usize::MAX;

    /// So many bytes of lines are kept of what is changed for one user, of threads and cgroups together: 640 of each of 16,384 vCPUs, where he has so
    /// many. Numbers that `/etc/subuid` gives to one name are one user. `how_many_vcpus_one_user_has_room_for` says what that suffices for.
    const MOST_BYTES_PER_USER: usize = 10 << 20;

    /// So many bytes of lines are kept: 640 of each of the host's 65,536 vCPUs. In memory they take two and a half times
    /// as much (`journal_size`), and while the file is replaced there are two.
    const MOST_BYTES: usize = 40 << 20;

    /// What the record is about.
    fn key(&self) -> Self::Key;

    /// The thread that it is about, if it is about one.
    fn thread(&self) -> Option<&ThreadRef>;

    /// So many of the values that its thing was given are kept.
    fn kept(&self) -> usize {
        KEPT
    }

    /// Whether undoing it takes away what is there, without a value that tells whose that is.
    fn takes_away(&self) -> bool {
        false
    }

    /// Whether what is in this record, read from the system, can have come of writing what is in `written`.
    fn comes_of(&self, written: &Self) -> bool {
        self == written
    }

    /// Whether it can be what Tandem writes; the error says what cannot.
    fn check(&self) -> Result<(), String>;
}

/// Something that is about to be changed, and what it was before. Fields that a later version adds are read over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Record {
    /// The cpu controller is enabled for the cgroups below this one (v2).
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
    },
    /// A cgroup that is not ours gets another value.
    Knob {
        /// Which cgroup.
        cgroup: CgroupPath,
        /// Which cgroup that was.
        id: CgroupId,
        /// Which of its knobs.
        knob: Knob,
        /// The knob's text as it was.
        original: String,
    },
    /// A thread is moved.
    Moved {
        /// Which thread.
        thread: ThreadRef,
        /// Where it belongs.
        from: CgroupPath,
        /// Where it goes.
        to: CgroupPath,
    },
    /// A thread gets other pCPUs.
    Affinity {
        /// Which thread.
        thread: ThreadRef,
        /// Where it was allowed to run.
        original: PcpuSet,
    },
    /// A thread gets another nice value.
    Nice {
        /// Which thread.
        thread: ThreadRef,
        /// Its nice value.
        original: Nice,
    },
    /// A thread gets another slice.
    Slice {
        /// Which thread.
        thread: ThreadRef,
        /// Its own slice, in ns; `None`: it had the scheduler's.
        original: Option<Nanos>,
    },
}

/// What a [`Record`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Of [`Record::Enabled`].
    Enabled(CgroupPath, CgroupId),
    /// Of [`Record::Created`].
    Created(CgroupPath),
    /// Of [`Record::Knob`].
    Knob(CgroupPath, CgroupId, Knob),
    /// Of [`Record::Moved`]: one per place the thread was moved to.
    Moved(Tid, StartTime, CgroupPath),
    /// Of [`Record::Affinity`].
    Affinity(Tid, StartTime),
    /// Of [`Record::Nice`].
    Nice(Tid, StartTime),
    /// Of [`Record::Slice`].
    Slice(Tid, StartTime),
}

impl Entry for Record {
    type Key = Key;

    const RESTORE: &'static str = "tandem host restore";

    /// KVM has 4096 vCPUs at most: each moved twice, with three attributes.
    const MOST_PER_PROCESS: usize = 5 * 4096;

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

    fn takes_away(&self) -> bool {
        matches!(self, Record::Created { .. })
    }

    /// The kernel brings slices into its range. On cgroup v1 a quota is written in three steps, of which the first lifts the cap.
    fn comes_of(&self, written: &Record) -> bool {
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

/// A path that leads nowhere but into the hierarchy.
pub fn check_path(cgroup: &CgroupPath) -> Result<(), String> {
    let is_within = cgroup.0.starts_with('/') && !cgroup.0.split('/').any(|part| part == "..");
    if is_within { Ok(()) } else { Err(format!("'{cgroup}' is no path within the hierarchy")) }
}

/// What undoing it puts back.
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
