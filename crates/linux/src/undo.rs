//! How each kind of the daemon's journal records is undone.
//!
//! Records are undone from the last to the first, so that each finds the host as it was left, but for the idle class: it goes
//! first. In it a cgroup has no weight to put back, and the kernel sets the default when a cgroup leaves it. A controller that
//! was enabled for a cgroup stays enabled while a change below that could not be undone needs it, and a cgroup stays while a thread could not be
//! moved out of it to where it came from.
//!
//! **Which cgroup was made.** Who owns the cgroup above can remove one that Tandem made and make another of its name: that is not Tandem's to
//! remove, nor to look through. So once a cgroup is made, the journal says which it is, in the words of [`Record::Enabled`]: that record has
//! the number, and earlier versions read it as a controller that may have been enabled below, find nothing to undo, and go on. Here
//! it goes with the cgroup, whose controllers go with it. Of a cgroup without one (an earlier version made it, or a run that was killed in
//! between) the path counts.
//!
//! **Groups that are not empty.** Threads that others started in a group of Tandem's are moved to the cgroup above, but no more at once than
//! [`Emptying`] says, and nobody is waited for: the group is busy then, and is to be tried again. So it is with one in which a group of another VM
//! of Tandem's is, because a thread of the one started the other. In a restore all else is put back
//! first.
//!
//! A setting that is none of those that the journal says Tandem made is somebody else's, and stays.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::affinity::Threads;
use crate::cgroup::{CgroupError, CgroupId, CgroupPath, CpuController, Knob};
use crate::ids::Tid;
use crate::journal::{Entry, Journal, Key, Record};
use crate::restore::{RestoreReport, Undone, gone_is_fine, nearest, restore_affinity};
use crate::sched_attr::SchedAttrError;

/// Undoes records: what they are about.
pub(crate) struct Undo<'a> {
    pub(crate) controller: &'a dyn CpuController,
    pub(crate) threads: &'a dyn Threads,
    /// What was written.
    pub(crate) journal: &'a Journal,
    /// Which cgroups they are that were made.
    pub(crate) groups: &'a HashMap<CgroupPath, CgroupId>,
    /// How far groups that are not empty are emptied.
    pub(crate) emptying: Emptying,
}

/// How far groups are emptied.
pub(crate) enum Emptying {
    /// Not at all: one in which somebody is is busy.
    Not,
    /// So many threads more are moved out of all groups together.
    Most(Cell<usize>),
    /// Until then.
    Until(Instant),
}

impl Emptying {
    /// At most so many threads.
    pub(crate) fn most(threads: usize) -> Emptying {
        Emptying::Most(Cell::new(threads))
    }

    /// How many more threads may be moved, if that is bounded.
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

/// What stays in the journal.
#[derive(Debug, Default)]
pub(crate) struct Stay {
    /// All of it.
    pub(crate) keys: HashSet<Key>,
    /// What failed; the rest waits or is busy.
    pub(crate) stuck: HashSet<Key>,
}

impl Undo<'_> {
    /// Undoes these records, which are in the journal's order, the last first, and returns which stay. Those that are `stuck` stay, too.
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
                match self.journal.is_ours(&now) {
                    true => restore_affinity(self.threads, thread, original),
                    false => Ok(foreign(&now)),
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
                    // In another that somebody made in its place it is where somebody else put it.
                    if now != *to || !self.is_ours(to)? {
                        return Ok(Undone::Nothing);
                    }
                    let from = nearest(from, |cgroup| self.controller.exists(cgroup));
                    self.controller.move_thread(thread.tid, &from).map(|()| Undone::PutBack)
                }))
            }
            Record::Knob { cgroup, id, knob, original } => {
                gone_is_fine(self.controller.id(cgroup).and_then(|now| {
                    // Without the controller there is no knob, and its value went with it; a restore
                    // that was killed half-way may have got that far.
                    if now != *id || !self.controller.missing_enables(cgroup)?.is_empty() {
                        return Ok(Undone::Nothing);
                    }
                    let now = self.controller.read_knob(cgroup, *knob)?;
                    if now == *original {
                        return Ok(Undone::Nothing);
                    }
                    // Ours is undone before: somebody else put it into the idle class, where there is no weight.
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
            Record::Created { cgroup } => match self.controller.exists(cgroup) {
                true => gone_is_fine(self.is_ours(cgroup).and_then(|is_ours| {
                    if is_ours { self.remove_group(cgroup) } else { Ok(Undone::Nothing) }
                })),
                false => Ok(Undone::Nothing),
            },
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

    /// Puts back an attribute of a thread, if the thread is still there and has another that is ours.
    fn of_thread(
        &self,
        record: &Record,
        now: impl Fn(Tid) -> Result<Record, SchedAttrError>,
        put_back: impl Fn(Tid) -> Result<(), SchedAttrError>,
    ) -> Result<Undone, String> {
        let Some(thread) = record.thread().filter(|thread| self.threads.is_alive(thread)) else {
            return Ok(Undone::Nothing);
        };
        let undone = now(thread.tid).and_then(|now| {
            if now == *record {
                return Ok(Undone::Nothing);
            }
            match self.journal.is_ours(&now) {
                true => put_back(thread.tid).map(|()| Undone::PutBack),
                false => Ok(foreign(&now)),
            }
        });
        match undone {
            Err(error) if error.is_gone() => Ok(Undone::Nothing),
            other => other.map_err(|error| error.to_string()),
        }
    }

    /// Whether what is there now is the cgroup that was made, as far as that is known.
    fn is_ours(&self, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
        match self.groups.get(cgroup) {
            Some(id) => Ok(self.controller.id(cgroup)? == *id),
            None => Ok(true),
        }
    }

    /// Empties and removes a group. What is in it now are threads that vCPU threads started, which
    /// begin where their maker is; they go to the cgroup above.
    fn remove_group(&self, cgroup: &CgroupPath) -> Result<Undone, CgroupError> {
        let try_it = || match self.controller.remove(cgroup) {
            Ok(()) => Ok(None),
            Err(busy @ CgroupError::Busy { .. }) => Ok(Some(busy)),
            Err(error) => Err(error),
        };
        let Some(busy) = try_it()? else {
            return Ok(Undone::PutBack);
        };
        // What is below it is somebody else's, could not be removed, or was made for another VM, which has it still.
        if let Some(below) = self.controller.some_children(cgroup, 1)?.into_iter().next() {
            return match self.journal.knows(&Key::Created(below)) {
                true => Ok(Undone::Busy(busy.to_string())),
                false => Err(busy),
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
        Ok(match try_it()? {
            None => Undone::PutBack,
            Some(busy) => Undone::Busy(busy.to_string()),
        })
    }
}

/// What is there was set by somebody else.
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
    Undone::Left(format!("{stays} stays: somebody else set it meanwhile"))
}

/// Whether a record says which cgroup it was that was made.
pub(crate) fn is_identity(journal: &Journal, record: &Record) -> bool {
    match record {
        Record::Enabled { cgroup, .. } => journal.knows(&Key::Created(cgroup.clone())),
        _ => false,
    }
}

/// Which cgroups they are that a journal says were made.
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

/// What could not be undone, and what that keeps from being undone.
#[derive(Default)]
struct Failed<'r> {
    stay: Stay,
    /// The cgroups that the controller has to reach, from above, for what is left below.
    above: HashSet<&'r str>,
    /// Where threads are that could not be moved back: emptied, the cgroup would not tell any more where each came from.
    holding: HashSet<&'r CgroupPath>,
    /// In the idle class, where there is no weight to put back.
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

    /// Whether one of these has to be undone before this one.
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

/// The cgroups above one, as [`CgroupPath::at_and_above`] has them.
fn above(cgroup: &CgroupPath) -> impl Iterator<Item = &str> {
    cgroup.at_and_above().skip(1)
}

/// The cgroups from which those that these records are about have their knobs, as [`CgroupPath::at_and_above`] has them.
pub(crate) fn above_changed<'r>(records: impl Iterator<Item = &'r Record>) -> HashSet<&'r str> {
    let mut all = HashSet::new();
    for cgroup in records.filter_map(changed) {
        // What is above one that is known is known.
        let _ = above(cgroup).try_for_each(|above| all.insert(above).then_some(()));
    }
    all
}
