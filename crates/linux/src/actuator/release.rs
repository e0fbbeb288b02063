//! Giving up what VMs hold, because they are gone or no longer selected.
//!
//! However many VMs end at once, the journal is looked through once and written once for all of them, and no thread of another VM is looked
//! at: first everything is put back, then all of it is forgotten. Killed in between, the journal lists what is put back already, and to undo
//! that again changes nothing (`crate::restore`). What cannot be put back now stays in the journal.
//!
//! A group that somebody is still in is busy ([`RestoreReport::busy`]): nobody is waited for, and whoever gives it up tries again.
//!
//! Of a thread that ended there is nothing to put back. Where there was nothing else the file stays as it is, and its records go with the next
//! compaction.

use std::collections::{HashMap, HashSet};

use super::{Actuator, ActuatorError};
use crate::cgroup::CgroupPath;
use crate::journal::{Entry, Key, Record};
use crate::restore::RestoreReport;
use crate::thread::ThreadRef;
use crate::undo::{Emptying, above_changed, is_identity};

/// So many threads that others started in VMs' groups are moved out of them in one go, of all VMs together.
const MOST_MOVED: usize = 1024;

/// So many of each VM, where there are many: one whose groups are full must not take all of them each time.
const LEAST_SHARE: usize = 16;

/// What one VM holds, or some of its vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Threads: they get their affinity, nice value and slice back.
    pub threads: Vec<ThreadRef>,
    /// Cgroups, with those below them. One that the actuator made is emptied (threads go back to where they came from) and removed; one that
    /// was there before gets its own values back.
    pub cgroups: Vec<CgroupPath>,
    /// A cgroup that was there before, without those below it, which may be of other VMs: it gets its own values back.
    pub own: Option<CgroupPath>,
}

/// Which of these each record belongs to, by their numbers.
fn shares<'r>(
    records: impl Iterator<Item = &'r Record> + Clone,
    is_identity: impl Fn(&Record) -> bool,
    all: &[&Held],
    kept: &HashSet<CgroupPath>,
) -> Vec<Vec<&'r Record>> {
    let mut threads: HashMap<ThreadRef, usize> = HashMap::new();
    let (mut cgroups, mut own) = (HashMap::new(), HashMap::new());
    // What is there and below belongs to nobody who is given up.
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
    // Of a thread that was moved there and has ended all is forgotten.
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
    /// Whether a record of what still lives is to be undone.
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
    /// Gives these up, one after the other, for as long as `goes_on` says so before each; there is a report of each that was given up. The
    /// journal forgets what was put back, and threads that ended.
    pub fn release(&mut self, all: &[&Held], goes_on: impl FnMut() -> bool) -> Vec<RestoreReport> {
        self.release_beside(all, &HashSet::new(), goes_on)
    }

    /// The same, but for these cgroups and what is below them, which may be below those that are given up.
    pub fn release_beside(
        &mut self,
        all: &[&Held],
        kept: &HashSet<CgroupPath>,
        goes_on: impl FnMut() -> bool,
    ) -> Vec<RestoreReport> {
        self.release_emptying(MOST_MOVED, all, kept, goes_on)
    }

    /// Gives up all of these; but a group in which somebody is is not emptied, and stays busy.
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
            let may_move = (most_moved / (all.len() - number)).max(LEAST_SHARE).min(most_moved);
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
            self.stop_counting(cgroup);
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
            last.keeps_journal(&error);
        }
        for key in &undone {
            if let Key::Created(group) = key {
                self.groups.remove(group);
            }
        }
        reports
    }

    /// The keys of records of threads that ended, and the other records. Each thread is looked at once.
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

    /// Gives up a cgroup and those below it, as [`Actuator::release`] does.
    pub fn release_group(&mut self, cgroup: &CgroupPath) -> Result<RestoreReport, ActuatorError> {
        Ok(self.release_one(&Held { cgroups: vec![cgroup.clone()], ..Held::default() }))
    }

    /// Puts a thread's affinity mask, nice value and slice back, and forgets them; of one that ended there is only the latter to do.
    pub fn release_thread(&mut self, thread: &ThreadRef) -> Result<RestoreReport, ActuatorError> {
        Ok(self.release_one(&Held { threads: vec![*thread], ..Held::default() }))
    }

    /// Takes the cpu controller back from below cgroups where no change of ours needs it.
    pub(super) fn disable_unneeded(&mut self, report: &mut RestoreReport) {
        let undone = self.undo_unneeded(|_| true, report);
        if let Err(error) = self.journal.keep(|record| !undone.contains(&record.key())) {
            report.keeps_journal(&error);
        }
    }

    /// Takes the cpu controller back from below cgroups where none of the changes that are `kept` needs it; returns what was undone.
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
