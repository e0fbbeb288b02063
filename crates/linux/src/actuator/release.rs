//! Releases the settings of VMs that are gone or no longer selected.
//!
//! However many VMs end at once, the journal is scanned once and written once, and no thread of another VM is read.
//! The actuator first reverts everything, then forgets it.
//! If it is killed in between, the journal lists changes that are already undone; undoing them again changes nothing (`crate::restore`).
//! Failures stay in the journal.
//!
//! A group with threads in it is busy ([`RestoreReport::busy`]): the release does not wait, and the caller retries.
//!
//! An ended thread has nothing to revert.
//! If only threads ended, the file stays as it is, and their records go with the next compaction.

use std::collections::{HashMap, HashSet};

use super::{Actuator, ActuatorError};
use crate::cgroup::CgroupPath;
use crate::journal::{Entry, Key, Record};
use crate::restore::RestoreReport;
use crate::thread::ThreadRef;
use crate::undo::{Emptying, above_changed, is_identity};

/// Maximum number of threads that a release moves out of groups, for all VMs together.
const MAX_MOVED: usize = 1024;

/// Minimum number of those for each VM, so that one with full groups does not use up the maximum each time.
const MIN_SHARE: usize = 16;

/// The changed threads and cgroups of a VM, or of some of its vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Threads whose affinity, nice value and slice are reverted.
    pub threads: Vec<ThreadRef>,
    /// Cgroups, with those below them.
    /// A group of the actuator is emptied (threads return to their origin) and removed; the knobs of other cgroups are reverted.
    pub cgroups: Vec<CgroupPath>,
    /// A cgroup of another creator whose knobs are reverted, without those below it, which may belong to other VMs.
    pub own: Option<CgroupPath>,
}

/// The records that belong to each of `all`, by index.
fn shares<'r>(
    records: impl Iterator<Item = &'r Record> + Clone,
    is_identity: impl Fn(&Record) -> bool,
    all: &[&Held],
    kept: &HashSet<CgroupPath>,
) -> Vec<Vec<&'r Record>> {
    let mut threads: HashMap<ThreadRef, usize> = HashMap::new();
    let (mut cgroups, mut own) = (HashMap::new(), HashMap::new());
    // Kept cgroups, and those below, belong to none of them.
    let paths = kept.iter();
    cgroups.extend(paths.map(|cgroup| (cgroup.0.trim_end_matches('/'), None)));
    for (number, held) in all.iter().enumerate() {
        threads.extend(held.threads.iter().map(|thread| (*thread, number)));
        let paths = held.cgroups.iter();
        cgroups.extend(paths.map(|cgroup| (cgroup.0.trim_end_matches('/'), Some(number))));
        let path = held.own.iter();
        own.extend(path.map(|cgroup| (cgroup.0.trim_end_matches('/'), number)));
    }
    let inside = |cgroup: &CgroupPath| -> Option<usize> {
        let mut paths = cgroup.at_and_above();
        match own.get(cgroup.0.trim_end_matches('/')) {
            Some(number) => Some(*number),
            None => paths.find_map(|path| cgroups.get(path).copied())?,
        }
    };
    // If a thread that was moved there has ended, all its records go.
    for record in records.clone() {
        if let Record::Moved { thread, to, .. } = record
            && let Some(number) = inside(to)
        {
            threads.entry(*thread).or_insert(number);
        }
    }
    let mut shares = vec![Vec::new(); all.len()];
    for record in records {
        let number = match record {
            Record::Created { cgroup } | Record::Knob { cgroup, .. } => inside(cgroup),
            Record::Moved { thread, to, .. } => inside(to).or(threads.get(thread).copied()),
            Record::Affinity { thread, .. }
            | Record::Nice { thread, .. }
            | Record::Slice { thread, .. } => threads.get(thread).copied(),
            Record::Enabled { cgroup, .. } if is_identity(record) => inside(cgroup),
            Record::Enabled { .. } => None,
        };
        if let Some(number) = number {
            shares[number].push(record);
        }
    }
    shares
}

impl Held {
    /// Whether to undo this record of a live thread or a cgroup.
    fn holds(&self, record: &Record, threads: &HashSet<ThreadRef>) -> bool {
        match record {
            Record::Moved { to, .. } => {
                self.own.as_ref() == Some(to)
                    || self.cgroups.iter().any(|cgroup| to.is_within(cgroup))
            }
            other => other.thread().is_none_or(|thread| threads.contains(thread)),
        }
    }
}

impl Actuator {
    /// Releases these in order, while `goes_on` returns true before each; returns a report for each released one.
    /// The journal forgets reverted changes and ended threads.
    pub fn release(&mut self, all: &[&Held], goes_on: impl FnMut() -> bool) -> Vec<RestoreReport> {
        self.release_except(all, &HashSet::new(), goes_on)
    }

    /// Like [`Actuator::release`], except for the cgroups in `kept` and below, which may lie below released ones.
    pub fn release_except(
        &mut self,
        all: &[&Held],
        kept: &HashSet<CgroupPath>,
        goes_on: impl FnMut() -> bool,
    ) -> Vec<RestoreReport> {
        self.release_emptying(MAX_MOVED, all, kept, goes_on)
    }

    /// Releases all of these, but moves no threads out of groups: a group with threads stays busy.
    pub fn release_empty(&mut self, all: &[&Held]) -> Vec<RestoreReport> {
        self.release_emptying(0, all, &HashSet::new(), || true)
    }

    fn release_emptying(
        &mut self,
        mut most_moved: usize,
        all: &[&Held],
        kept: &HashSet<CgroupPath>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Vec<RestoreReport> {
        let mut reports = Vec::new();
        let (mut undone, mut ended) = (HashSet::new(), HashSet::new());
        let mut gave_up_cgroups = false;
        let is_identity = |record: &Record| is_identity(&self.journal, record);
        let shares = shares(self.journal.records(), is_identity, all, kept);
        for (number, (held, share)) in all.iter().zip(shares).enumerate() {
            if !goes_on() {
                break;
            }
            let mut report = RestoreReport::default();
            let (of_ended, mut others) = self.split_ended(share);
            report.nothing_to_do += of_ended.len();
            ended.extend(of_ended);
            let threads: HashSet<ThreadRef> = held.threads.iter().copied().collect();
            others.retain(|record| held.holds(record, &threads));
            let keys: Vec<Key> = others.iter().map(|record| record.key()).collect();
            let may_move = (most_moved / (all.len() - number)).max(MIN_SHARE).min(most_moved);
            let undo = self.undo(Emptying::most(may_move));
            let stay = undo.undo_all(others, &[], &mut report).keys;
            most_moved -= may_move - undo.emptying.left();
            undone.extend(keys.into_iter().filter(|key| !stay.contains(key)));
            gave_up_cgroups |= !held.cgroups.is_empty() || held.own.is_some();
            reports.push(report);
        }
        for cgroup in
            all.iter().take(reports.len()).flat_map(|held| held.cgroups.iter().chain(&held.own))
        {
            self.stop_charging(cgroup);
        }
        let Some(last) = reports.last_mut() else {
            return reports;
        };
        if undone.is_empty() && !gave_up_cgroups {
            self.journal.forget_ended(|record| ended.contains(&record.key()));
            self.compact_if_due();
            return reports;
        }
        undone.extend(ended);
        if gave_up_cgroups {
            let kept = |record: &&Record| !undone.contains(&record.key());
            let unneeded = self.undo_unneeded(kept, last);
            undone.extend(unneeded);
        }
        let is_kept = |record: &Record| !undone.contains(&record.key());
        if let Err(error) = self.journal.keep(is_kept) {
            last.note_kept_journal(&error);
        }
        for key in &undone {
            if let Key::Created(group) = key {
                self.groups.remove(group);
            }
        }
        reports
    }

    /// Splits off the keys of records of ended threads; checks each thread once.
    fn split_ended<'r>(&self, records: Vec<&'r Record>) -> (Vec<Key>, Vec<&'r Record>) {
        let mut alive: HashMap<ThreadRef, bool> = HashMap::new();
        let (mut of_ended, mut others) = (Vec::new(), Vec::new());
        for record in records {
            let is_alive = record.thread().is_none_or(|thread| {
                let known = alive.entry(*thread);
                *known.or_insert_with(|| self.threads.is_alive(thread))
            });
            if is_alive { others.push(record) } else { of_ended.push(record.key()) }
        }
        (of_ended, others)
    }

    fn release_one(&mut self, held: &Held) -> RestoreReport {
        self.release(&[held], || true).pop().unwrap_or_default()
    }

    /// Releases a cgroup and those below it, like [`Actuator::release`].
    pub fn release_group(&mut self, cgroup: &CgroupPath) -> Result<RestoreReport, ActuatorError> {
        Ok(self.release_one(&Held { cgroups: vec![cgroup.clone()], ..Held::default() }))
    }

    /// Reverts a thread's affinity mask, nice value and slice, unless it has ended, and forgets them.
    pub fn release_thread(&mut self, thread: &ThreadRef) -> Result<RestoreReport, ActuatorError> {
        Ok(self.release_one(&Held { threads: vec![*thread], ..Held::default() }))
    }

    /// Disables the cpu controller below cgroups where no change of ours needs it.
    pub(super) fn disable_unneeded(&mut self, report: &mut RestoreReport) {
        let undone = self.undo_unneeded(|_| true, report);
        if let Err(error) = self.journal.keep(|record| !undone.contains(&record.key())) {
            report.note_kept_journal(&error);
        }
    }

    /// Disables the cpu controller below cgroups where none of the `kept` changes needs it; returns the undone records.
    fn undo_unneeded(
        &self,
        kept: impl Fn(&&Record) -> bool,
        report: &mut RestoreReport,
    ) -> HashSet<Key> {
        let is_enabled = |record: &&Record| {
            matches!(record, Record::Enabled { .. }) && !is_identity(&self.journal, record)
        };
        let enabled: Vec<&Record> = self.journal.records().filter(is_enabled).collect();
        if enabled.is_empty() {
            return HashSet::new();
        }
        let needed = above_changed(self.journal.records().filter(kept));
        let is_unneeded = |record: &&Record| match record {
            Record::Enabled { cgroup, .. } => !needed.contains(cgroup.0.trim_end_matches('/')),
            _ => false,
        };
        let unneeded: Vec<&Record> = enabled.into_iter().filter(is_unneeded).collect();
        let mut undone: HashSet<Key> = unneeded.iter().map(|record| record.key()).collect();
        let undo = self.undo(Emptying::Not);
        for stays in undo.undo_all(unneeded, &[], report).keys {
            undone.remove(&stays);
        }
        undone
    }
}
