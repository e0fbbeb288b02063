//! Undo of each kind of the daemon's journal records.
//!
//! Records are undone in reverse order, so that each finds the host as it left it, except that the idle class goes first:
//! a cgroup in it has no weight to restore, and the kernel resets the weight when a cgroup leaves it.
//! A controller stays enabled for a cgroup while a failed change below needs it.
//! A group stays while a thread could not be moved out of it to its origin.
//!
//! **Identity of groups.** The owner of the parent cgroup can remove a group of Tandem's and create another of the same name.
//! Tandem must neither remove nor search that one.
//! The journal therefore holds the ID of a new group, in a [`Record::Enabled`].
//! Earlier versions read it as a controller that may have been enabled below, find nothing to undo, and go on.
//! Here the record goes with the group, whose controllers go with it.
//! For a group without an ID (an earlier version, or a run killed before it journaled the ID), the path counts.
//!
//! **Busy groups.** Threads that others started in a group of Tandem's move to the cgroup above, within the limit of [`Emptying`].
//! The undo does not wait for threads that remain: the group is then busy, and the caller retries.
//! A group is also busy while it contains the group of another managed VM, which arises if a thread of one started the other.
//! A restore reverts everything else first.
//!
//! A setting is foreign and stays if its value is none of those that Tandem wrote according to the journal.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::affinity::Threads;
use crate::cgroup::{CgroupError, CgroupId, CgroupPath, CpuController, Knob};
use crate::ids::Tid;
use crate::journal::{Entry, Journal, Key, Record};
use crate::restore::{RestoreReport, Undone, gone_is_fine, nearest, restore_affinity};
use crate::sched_attr::SchedAttrError;

/// Undoes records on a host.
pub(crate) struct Undo<'a> {
    pub(crate) controller: &'a dyn CpuController,
    pub(crate) threads: &'a dyn Threads,
    /// The journal, with the written values.
    pub(crate) journal: &'a Journal,
    /// IDs of the groups that Tandem created.
    pub(crate) groups: &'a HashMap<CgroupPath, CgroupId>,
    /// Limit on moving threads out of groups.
    pub(crate) emptying: Emptying,
}

/// Limit on moving threads out of groups.
pub(crate) enum Emptying {
    /// Move none: a group with threads is busy.
    Not,
    /// Remaining number of threads to move, for all groups together.
    Most(Cell<usize>),
    /// Move threads until this time.
    Until(Instant),
}

impl Emptying {
    /// Moves at most this many threads.
    pub(crate) fn most(threads: usize) -> Emptying {
        Emptying::Most(Cell::new(threads))
    }

    /// Remaining number of threads to move; 0 for the other limits.
    pub(crate) fn left(&self) -> usize {
        match self {
            Emptying::Not | Emptying::Until(_) => 0,
            Emptying::Most(left) => left.get(),
        }
    }

    /// Whether another thread may be moved.
    fn goes_on(&self) -> bool {
        match self {
            Emptying::Not => false,
            Emptying::Most(left) => left.get() > 0,
            Emptying::Until(end) => Instant::now() < *end,
        }
    }

    fn moved_one(&self) {
        if let Emptying::Most(left) = self {
            left.set(left.get().saturating_sub(1));
        }
    }
}

/// Records that stay in the journal.
#[derive(Debug, Default)]
pub(crate) struct Stay {
    /// All of them.
    pub(crate) keys: HashSet<Key>,
    /// Those that failed; the others wait or are busy.
    pub(crate) stuck: HashSet<Key>,
}

impl Undo<'_> {
    /// Undoes these records in reverse of the journal's order and returns those that stay, including `stuck` ones.
    pub(crate) fn undo_all<'r>(
        &self,
        records: impl IntoIterator<Item = &'r Record, IntoIter: DoubleEndedIterator>,
        stuck: &[&'r Record],
        report: &mut RestoreReport,
    ) -> Stay {
        let (identities, records): (Vec<&Record>, Vec<&Record>) =
            records.into_iter().rev().partition(|record| is_identity(self.journal, record));
        let (idle, others): (Vec<&Record>, Vec<&Record>) =
            records.into_iter().partition(|record| is_of_idle_class(record));
        let mut failed = Failed::default();
        for record in stuck {
            failed.add(record, true);
        }
        for record in idle.into_iter().chain(others) {
            let undone = if failed.keeps(record) { Ok(Undone::Waits) } else { self.undo(record) };
            let is_stuck = undone.is_err();
            if report.count(undone, record) {
                failed.add(record, is_stuck);
            }
        }
        let Stay { mut keys, stuck } = failed.stay;
        let with_theirs = identities.into_iter().filter(|record| match record {
            Record::Enabled { cgroup, .. } => keys.contains(&Key::Created(cgroup.clone())),
            _ => false,
        });
        let stay: Vec<Key> = with_theirs.map(Record::key).collect();
        keys.extend(stay);
        Stay { keys, stuck }
    }

    fn undo(&self, record: &Record) -> Result<Undone, String> {
        match record {
            Record::Affinity { thread, original } => {
                if !self.threads.is_alive(thread) {
                    return Ok(Undone::Nothing);
                }
                let now = match self.threads.affinity(thread.tid) {
                    Err(error) if error.is_gone() => return Ok(Undone::Nothing),
                    now => now.map_err(|error| error.to_string())?,
                };
                let now = Record::Affinity { thread: *thread, original: now };
                if self.journal.is_ours(&now) {
                    restore_affinity(self.threads, thread, original)
                } else {
                    Ok(foreign(&now))
                }
            }
            Record::Nice { thread, original } => self.of_thread(
                record,
                |tid| Ok(Record::Nice { thread: *thread, original: self.threads.nice(tid)? }),
                |tid| self.threads.set_nice(tid, *original),
            ),
            Record::Slice { thread, original } => self.of_thread(
                record,
                |tid| Ok(Record::Slice { thread: *thread, original: self.threads.slice(tid)? }),
                |tid| self.threads.set_slice(tid, *original),
            ),
            Record::Moved { thread, from, to } => {
                if !self.threads.is_alive(thread) {
                    return Ok(Undone::Nothing);
                }
                gone_is_fine(self.controller.cgroup_of(thread).and_then(|now| {
                    // In a replacement of our group, another process has placed the thread.
                    if now != *to || !self.is_ours(to)? {
                        return Ok(Undone::Nothing);
                    }
                    let from = nearest(from, |cgroup| self.controller.exists(cgroup));
                    self.controller.move_thread(thread.tid, &from).map(|()| Undone::PutBack)
                }))
            }
            Record::Knob { cgroup, id, knob, original } => {
                gone_is_fine(self.controller.id(cgroup).and_then(|now| {
                    // Without the controller there is neither knob nor value; a killed restore may
                    // have got that far.
                    if now != *id || !self.controller.missing_enables(cgroup)?.is_empty() {
                        return Ok(Undone::Nothing);
                    }
                    let now = self.controller.read_knob(cgroup, *knob)?;
                    if now == *original {
                        return Ok(Undone::Nothing);
                    }
                    // Our idle class is undone already, so this one is foreign, and in it there is no weight.
                    if *knob == Knob::Weight && self.controller.is_idle(cgroup)? == Some(true) {
                        return Ok(Undone::Nothing);
                    }
                    let now = Record::Knob {
                        cgroup: cgroup.clone(),
                        id: *id,
                        knob: *knob,
                        original: now,
                    };
                    if !self.journal.is_ours(&now) {
                        return Ok(foreign(&now));
                    }
                    self.controller.write_knob(cgroup, *knob, original)?;
                    Ok(Undone::PutBack)
                }))
            }
            Record::Created { cgroup } => {
                if self.controller.exists(cgroup) {
                    gone_is_fine(self.is_ours(cgroup).and_then(|is_ours| {
                        if is_ours { self.remove_group(cgroup) } else { Ok(Undone::Nothing) }
                    }))
                } else {
                    Ok(Undone::Nothing)
                }
            }
            Record::Enabled { cgroup, id } => {
                gone_is_fine(self.controller.id(cgroup).and_then(|now| {
                    if now != *id {
                        return Ok(Undone::Nothing);
                    }
                    match self.controller.disable(cgroup) {
                        Ok(()) => Ok(Undone::PutBack),
                        Err(error @ CgroupError::InUse { .. }) => {
                            Ok(Undone::Left(error.to_string()))
                        }
                        Err(error) => Err(error),
                    }
                }))
            }
        }
    }

    /// Reverts an attribute of a live thread if its value is ours.
    fn of_thread(
        &self,
        record: &Record,
        now: impl Fn(Tid) -> Result<Record, SchedAttrError>,
        revert: impl Fn(Tid) -> Result<(), SchedAttrError>,
    ) -> Result<Undone, String> {
        let Some(thread) = record.thread().filter(|thread| self.threads.is_alive(thread)) else {
            return Ok(Undone::Nothing);
        };
        let undone = now(thread.tid).and_then(|now| {
            if now == *record {
                return Ok(Undone::Nothing);
            }
            if self.journal.is_ours(&now) {
                revert(thread.tid).map(|()| Undone::PutBack)
            } else {
                Ok(foreign(&now))
            }
        });
        match undone {
            Err(error) if error.is_gone() => Ok(Undone::Nothing),
            other => other.map_err(|error| error.to_string()),
        }
    }

    /// Whether the cgroup at this path is the one that Tandem created, as far as known.
    fn is_ours(&self, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
        match self.groups.get(cgroup) {
            Some(id) => Ok(self.controller.id(cgroup)? == *id),
            None => Ok(true),
        }
    }

    /// Empties and removes a group.
    /// It can only hold threads that vCPU threads created, which start in their creator's cgroup; they move to the cgroup above.
    fn remove_group(&self, cgroup: &CgroupPath) -> Result<Undone, CgroupError> {
        let try_remove = || match self.controller.remove(cgroup) {
            Ok(()) => Ok(None),
            Err(busy @ CgroupError::Busy { .. }) => Ok(Some(busy)),
            Err(error) => Err(error),
        };
        let Some(busy) = try_remove()? else {
            return Ok(Undone::PutBack);
        };
        // A cgroup below is foreign, could not be removed, or belongs to another VM that still uses it.
        if let Some(below) = self.controller.some_children(cgroup, 1)?.into_iter().next() {
            return if self.journal.knows(&Key::Created(below)) {
                Ok(Undone::Busy(busy.to_string()))
            } else {
                Err(busy)
            };
        }
        if !self.emptying.goes_on() {
            return Ok(Undone::Busy(busy.to_string()));
        }
        let above = cgroup.parent().unwrap_or_else(CgroupPath::root);
        for tid in self.controller.threads(cgroup)? {
            if !self.emptying.goes_on() {
                break;
            }
            match self.controller.move_thread(tid, &above) {
                Err(error) if !error.is_gone() => return Err(error),
                _ => self.emptying.moved_one(),
            }
        }
        Ok(match try_remove()? {
            None => Undone::PutBack,
            Some(busy) => Undone::Busy(busy.to_string()),
        })
    }
}

/// The result for a setting whose value is foreign.
fn foreign(now: &Record) -> Undone {
    let stays = match now {
        Record::Knob { cgroup, knob, original, .. } => {
            format!("the {knob} '{original}' of cgroup {cgroup}")
        }
        Record::Affinity { thread, original } => format!("{thread} on pCPUs {original}"),
        Record::Nice { thread, original } => format!("the nice value {original} of {thread}"),
        Record::Slice { thread, original: Some(slice) } => format!("the slice {slice} of {thread}"),
        other => other.to_string(),
    };
    Undone::Left(format!("{stays} stays: another process changed it meanwhile"))
}

/// Whether a record holds the ID of a created group.
pub(crate) fn is_identity(journal: &Journal, record: &Record) -> bool {
    match record {
        Record::Enabled { cgroup, .. } => journal.knows(&Key::Created(cgroup.clone())),
        _ => false,
    }
}

/// IDs of the created groups, from a journal.
pub(crate) fn identities(journal: &Journal) -> HashMap<CgroupPath, CgroupId> {
    let identities = journal.records().filter(|record| is_identity(journal, record));
    let each = identities.filter_map(|record| match record {
        Record::Enabled { cgroup, id } => Some((cgroup.clone(), *id)),
        _ => None,
    });
    each.collect()
}

fn is_of_idle_class(record: &Record) -> bool {
    matches!(record, Record::Knob { knob: Knob::Idle, .. })
}

/// The cgroup that the record is about, if it needs the controller from those above it.
fn changed(record: &Record) -> Option<&CgroupPath> {
    match record {
        Record::Created { cgroup } | Record::Knob { cgroup, .. } => Some(cgroup),
        _ => None,
    }
}

/// Records that could not be undone, and the dependencies that keep others.
#[derive(Default)]
struct Failed<'r> {
    stay: Stay,
    /// Cgroups that must keep the controller enabled for remaining changes below.
    above: HashSet<&'r str>,
    /// Groups of threads that could not be moved back; emptying them would lose the threads' origins.
    holding: HashSet<&'r CgroupPath>,
    /// Cgroups that remain in the idle class, without a weight to restore.
    idle: HashSet<&'r CgroupPath>,
}

impl<'r> Failed<'r> {
    fn add(&mut self, record: &'r Record, is_stuck: bool) {
        self.stay.keys.insert(record.key());
        if is_stuck {
            self.stay.stuck.insert(record.key());
        }
        let mut paths = changed(record).into_iter().flat_map(above);
        let _ = paths.try_for_each(|above| self.above.insert(above).then_some(()));
        match record {
            Record::Moved { to, .. } => drop(self.holding.insert(to)),
            Record::Knob { cgroup, knob: Knob::Idle, .. } => drop(self.idle.insert(cgroup)),
            _ => {}
        }
    }

    /// Whether one of these must be undone before `record`.
    fn keeps(&self, record: &Record) -> bool {
        match record {
            Record::Enabled { cgroup, .. } => self.above.contains(cgroup.0.trim_end_matches('/')),
            Record::Created { cgroup } => {
                self.holding.contains(cgroup) || self.above.contains(cgroup.0.trim_end_matches('/'))
            }
            Record::Knob { cgroup, knob: Knob::Weight, .. } => self.idle.contains(cgroup),
            _ => false,
        }
    }
}

/// The cgroups above one, as [`CgroupPath::at_and_above`] returns them.
fn above(cgroup: &CgroupPath) -> impl Iterator<Item = &str> {
    cgroup.at_and_above().skip(1)
}

/// The cgroups above the changed ones, which enable the controller for them, as [`CgroupPath::at_and_above`] returns them.
pub(crate) fn above_changed<'r>(records: impl Iterator<Item = &'r Record>) -> HashSet<&'r str> {
    let mut all = HashSet::new();
    for cgroup in records.filter_map(changed) {
        // Stop at the first known cgroup: those above it are known, too.
        let _ = above(cgroup).try_for_each(|above| all.insert(above).then_some(()));
    }
    all
}
