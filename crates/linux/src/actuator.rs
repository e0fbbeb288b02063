//! The only way to change the host: each change is journaled, then made.
//!
//! ```text
//! Actuator::open ──► restores what a killed run left ──► create_group, move_thread, set_weight, …
//!        │                                                          │
//!        └── locks the state directory                   restore, or drop ──► all as before
//! ```
//!
//! Only the first change of a thing waits for the disk. Each later one first reads what is there: what is none of the values
//! that were written is somebody else's, and from then on that is put back in the end, while what is asked for here is in force
//! until then ([`Actuator::take_foreign`] tells). Cgroups that this actuator made need no record of their weights, since they go
//! whole.
//! Threads and cgroups may vanish at any moment: for threads that is an [`Outcome`], for cgroups an
//! error of which [`ActuatorError::is_gone`] is true; in neither case is there anything to undo.
//!
//! What this does not do: decide. It does not check who owns a cgroup or whether a VM was selected.

mod foreign;
mod heirs;
mod knobs;
mod owners;
mod release;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_model::{Knob as Setting, Nanos, Nice, PcpuSet};
use thiserror::Error;

pub use crate::actuator::foreign::Foreign;
pub use crate::actuator::heirs::Inheritance;
pub use crate::actuator::release::Held;
use crate::affinity::{AffinityError, HostThreads, Threads};
use crate::cgroup::{
    CgroupError, CgroupId, CgroupPath, CpuController, Knob, check_length, check_name,
};
use crate::disk::{Disk, HostDisk};
use crate::journal::{Entry, Journal, JournalError, Key, Record, Stamp};
use crate::procfs::ProcFs;
use crate::restore::{RestoreReport, restore_pending};
use crate::sched_attr::SchedAttrError;
use crate::thread::ThreadRef;
use crate::undo::{Emptying, Undo, identities};

/// For want of room in the journal, threads that ended are looked for once in so long: that takes a look at each.
const LOOK_FOR_ENDED: Duration = Duration::from_secs(1);

/// So long a restore tries groups in which somebody still is, all of them together: a moment is what threads that are about to end need.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

/// After the first try; each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Why a change was not made.
#[derive(Debug, Error)]
pub enum ActuatorError {
    /// It could not be journaled, so it was not tried.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The cgroup refused.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The affinity mask could not be set.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// A nice value or slice could not be set.
    #[error(transparent)]
    SchedAttr(#[from] SchedAttrError),
}

impl ActuatorError {
    /// Whether the thread or cgroup merely ceased to exist.
    pub fn is_gone(&self) -> bool {
        match self {
            ActuatorError::Journal(_) => false,
            ActuatorError::Cgroup(error) => error.is_gone(),
            ActuatorError::Affinity(error) => error.is_gone(),
            ActuatorError::SchedAttr(error) => error.is_gone(),
        }
    }
}

/// What came of a change to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is as asked.
    Done,
    /// The thread ended before.
    Gone,
}

/// Changes the host and can put it back.
pub struct Actuator {
    controller: Arc<dyn CpuController>,
    threads: Box<dyn Threads>,
    journal: Journal,
    /// Which cgroups they are that were made here.
    groups: HashMap<CgroupPath, CgroupId>,
    /// The users for whose VMs cgroups are changed, by the cgroups' paths without slashes at their ends.
    owners: HashMap<String, u32>,
    /// What a killed run left of cgroups, by their paths without slashes at their ends: it counts for nobody until somebody says for whom they are
    /// changed.
    left: BTreeMap<String, Vec<Key>>,
    /// The texts of knobs that somebody else set.
    foreign: BTreeMap<(CgroupPath, Knob), String>,
    /// When room was made for a change last by looking for threads that ended.
    looked_for_ended: Option<Instant>,
    abandoned: bool,
}

impl Actuator {
    /// Takes the lock of `state_dir` and restores what an earlier, killed run left. Where nothing can be journaled that is an
    /// error, after all is restored.
    pub fn open(
        controller: impl Into<Arc<dyn CpuController>>,
        state_dir: &Path,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        let (actuator, report) = Actuator::open_to_restore(controller.into(), state_dir)?;
        actuator.journal.check_writable()?;
        Ok((actuator, report))
    }

    /// The same where the journal only has to be read.
    fn open_to_restore(
        controller: Arc<dyn CpuController>,
        state_dir: &Path,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        // Without one, all boots look the same, and start times alone tell threads apart.
        let boot = ProcFs::host().boot_id().unwrap_or_default();
        let threads = Box::new(HostThreads::default());
        Actuator::open_shared(Box::new(HostDisk), controller, threads, state_dir, &boot)
    }

    /// The same for threads that need not be this machine's, on the boot named `boot`.
    pub fn open_with(
        controller: Box<dyn CpuController>,
        threads: Box<dyn Threads>,
        state_dir: &Path,
        boot: &str,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        Actuator::open_on(Box::new(HostDisk), controller, threads, state_dir, boot)
    }

    /// The same on a disk that need not be this machine's; whether anything can be journaled its first change tells.
    pub fn open_on(
        disk: Box<dyn Disk>,
        controller: Box<dyn CpuController>,
        threads: Box<dyn Threads>,
        state_dir: &Path,
        boot: &str,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        Actuator::open_shared(disk, controller.into(), threads, state_dir, boot)
    }

    fn open_shared(
        disk: Box<dyn Disk>,
        controller: Arc<dyn CpuController>,
        threads: Box<dyn Threads>,
        state_dir: &Path,
        boot: &str,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        let stamp =
            Stamp::new(boot.to_owned(), controller.version(), controller.mount().to_owned());
        let journal = Journal::open_on(disk, state_dir, stamp)?;
        let mut actuator = Actuator {
            controller,
            threads,
            groups: identities(&journal),
            journal,
            owners: HashMap::new(),
            left: BTreeMap::new(),
            foreign: BTreeMap::new(),
            looked_for_ended: None,
            abandoned: false,
        };
        let report = actuator.restore();
        actuator.count_what_stayed();
        Ok((actuator, report))
    }

    /// The controller, for looking only.
    pub fn controller(&self) -> &dyn CpuController {
        &*self.controller
    }

    /// The same for another thread. What that changes has to be journaled here first.
    pub fn shared_controller(&self) -> Arc<dyn CpuController> {
        Arc::clone(&self.controller)
    }

    /// Makes a cgroup for threads of the processes in `parent`; one that this actuator made before
    /// is returned as it is.
    pub fn create_group(
        &mut self,
        parent: &CgroupPath,
        name: &str,
    ) -> Result<CgroupPath, ActuatorError> {
        check_name(parent, name)?;
        // A group of ours in one of ours may be a little longer.
        if !self.journal.knows(&Key::Created(parent.clone())) {
            check_length(parent)?;
        }
        let group = parent.child(name);
        let key = Key::Created(group.clone());
        match self.made(&group) {
            Made::Ours => return Ok(group),
            Made::Others => return Err(CgroupError::Exists(group).into()),
            Made::Gone => {}
        }
        // Somebody may have made another in the place of one of ours.
        let is_ours = |of: &CgroupPath| matches!(self.made(of), Made::Ours);
        if self.journal.knows(&Key::Created(parent.clone())) && !is_ours(parent) {
            return Err(CgroupError::Gone(parent.clone()).into());
        }
        self.controller.check_parent(parent)?;
        self.enable_above(&group)?;
        let (cgroup, user) = (group.clone(), self.counted_for(&group));
        // Which one was there before says nothing of the one that is made now.
        if let Some(id) = self.groups.remove(&group) {
            self.journal.forget(&Key::Enabled(cgroup.clone(), id))?;
        }
        self.append_of(Record::Created { cgroup }, user)?;
        let created = self.controller.create_child(parent, name);
        let created = created.map_err(ActuatorError::from);
        let created = created.and_then(|group| self.identify(group));
        if let Err(error) = &created {
            // One that was made in part goes, or stays journaled. Where none was made, one that somebody else makes there later is
            // not ours. Why it was not made says more than what is wrong with the journal.
            let is_ours = !matches!(error, ActuatorError::Cgroup(CgroupError::Exists(_)));
            if !(is_ours && self.controller.remove(&group).is_err()) {
                let _ = self.journal.forget(&key);
            }
            self.disable_unneeded(&mut RestoreReport::default());
        }
        created
    }

    /// Journals which cgroup it is that was made there, by a record that an earlier version reads, too (`crate::undo`).
    fn identify(&mut self, group: CgroupPath) -> Result<CgroupPath, ActuatorError> {
        let id = self.controller.id(&group)?;
        let (cgroup, user) = (group.clone(), self.counted_for(&group));
        self.append_of(Record::Enabled { cgroup, id }, user)?;
        self.groups.insert(group.clone(), id);
        Ok(group)
    }

    /// What is at this path: the cgroup that was made here, or that the journal of an earlier version or of a killed run says was, or another.
    fn made(&self, group: &CgroupPath) -> Made {
        let id = self.controller.id(group);
        let is_made = self.journal.knows(&Key::Created(group.clone()));
        match (id, self.groups.get(group)) {
            (Err(error), _) if error.is_gone() => Made::Gone,
            (Ok(now), Some(id)) if now != *id => Made::Others,
            _ if is_made => Made::Ours,
            _ => Made::Others,
        }
    }

    /// Journals a cgroup that the caller is about to make, and to remove again, by itself, and lets the cpu controller down to it.
    pub fn prepare_group(&mut self, group: &CgroupPath) -> Result<(), ActuatorError> {
        self.enable_above(group)?;
        self.groups.remove(group);
        let (cgroup, user) = (group.clone(), self.counted_for(group));
        self.append_of(Record::Created { cgroup }, user)
    }

    /// Moves one thread.
    pub fn move_thread(
        &mut self,
        thread: &ThreadRef,
        to: &CgroupPath,
    ) -> Result<Outcome, ActuatorError> {
        if !self.threads.is_alive(thread) {
            return Ok(Outcome::Gone);
        }
        let now = match self.controller.cgroup_of(thread) {
            Err(CgroupError::Thread(error)) if error.is_gone() => return Ok(Outcome::Gone),
            other => other?,
        };
        if now == *to {
            return Ok(Outcome::Done);
        }
        let key = Key::Moved(thread.tid, thread.start, to.clone());
        if !self.journal.knows(&key) {
            let from = self.origin(thread, now);
            check_length(&from)?;
            self.append(Record::Moved { thread: *thread, from, to: to.clone() })?;
        }
        match self.controller.move_thread(thread.tid, to) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                // A record that cannot be forgotten does no harm: the thread is not where it says.
                let _ = self.journal.forget(&key);
                match error {
                    CgroupError::ThreadGone(_) => Ok(Outcome::Gone),
                    error => Err(error.into()),
                }
            }
        }
    }

    /// Where a thread belongs that is in `now`: where we took it from, if we put it there; above
    /// the group, if it was started in one of ours; else where the operator has it.
    fn origin(&self, thread: &ThreadRef, now: CgroupPath) -> CgroupPath {
        let key = Key::Moved(thread.tid, thread.start, now.clone());
        match self.journal.record(&key) {
            Some(Record::Moved { from, .. }) => from.clone(),
            _ if self.journal.knows(&Key::Created(now.clone())) => {
                now.parent().unwrap_or_else(CgroupPath::root)
            }
            _ => now,
        }
    }

    /// Lets a thread run on these pCPUs only.
    pub fn set_affinity(
        &mut self,
        thread: &ThreadRef,
        pcpus: &PcpuSet,
    ) -> Result<Outcome, ActuatorError> {
        let affinity = affinity_of(thread);
        let outcome = self.set_attribute(
            thread,
            affinity(pcpus.clone()),
            |threads| Ok(affinity(threads.affinity(thread.tid)?)),
            |threads| threads.set_affinity(thread.tid, pcpus),
        )?;
        // The kernel leaves those that are in the thread's cpuset.
        if outcome == Outcome::Done
            && let Ok(now) = self.threads.affinity(thread.tid)
            && now != *pcpus
        {
            // Where this cannot be journaled, it counts as somebody else's and stays, which is in nobody's way.
            let _ = self.journal.will_write(affinity(now));
        }
        Ok(outcome)
    }

    /// Journals where a thread may run, and that from now on it may be found on any one of these pCPUs, or on all, for whoever then changes
    /// that by itself. The journal keeps [`KEPT_AFFINITIES`](crate::journal::KEPT_AFFINITIES) of them.
    pub fn prepare_affinity(
        &mut self,
        thread: &ThreadRef,
        pcpus: &PcpuSet,
    ) -> Result<Outcome, ActuatorError> {
        let affinity = affinity_of(thread);
        let outcome = self.set_attribute(
            thread,
            affinity(pcpus.clone()),
            |threads| Ok::<_, AffinityError>(affinity(threads.affinity(thread.tid)?)),
            |_| Ok(()),
        )?;
        if outcome == Outcome::Done {
            for pcpu in pcpus.iter() {
                self.will_write(affinity([pcpu].into_iter().collect()))?;
            }
        }
        Ok(outcome)
    }

    /// Gives a thread a nice value.
    pub fn set_nice(&mut self, thread: &ThreadRef, nice: Nice) -> Result<Outcome, ActuatorError> {
        let record = |original| Record::Nice { thread: *thread, original };
        self.set_attribute(
            thread,
            record(nice),
            |threads| Ok(record(threads.nice(thread.tid)?)),
            |threads| threads.set_nice(thread.tid, nice),
        )
    }

    /// Gives a thread a slice of its own, or the scheduler's again.
    pub fn set_slice(
        &mut self,
        thread: &ThreadRef,
        slice: Option<Nanos>,
    ) -> Result<Outcome, ActuatorError> {
        let record = |original| Record::Slice { thread: *thread, original };
        self.set_attribute(
            thread,
            record(slice),
            |threads| Ok(record(threads.slice(thread.tid)?)),
            |threads| threads.set_slice(thread.tid, slice),
        )
    }

    /// Journals what `read` says of a thread, unless that is known and ours, and what it gets, and then makes the change.
    fn set_attribute<E: Into<ActuatorError>>(
        &mut self,
        thread: &ThreadRef,
        written: Record,
        read: impl FnOnce(&dyn Threads) -> Result<Record, E>,
        set: impl FnOnce(&dyn Threads) -> Result<(), E>,
    ) -> Result<Outcome, ActuatorError> {
        if !self.threads.is_alive(thread) {
            return Ok(Outcome::Gone);
        }
        let or_gone = |error: E| match error.into() {
            error if error.is_gone() => Ok(Outcome::Gone),
            error => Err(error),
        };
        let key = written.key();
        let is_new = !self.journal.knows(&key);
        match read(&*self.threads) {
            Ok(now) if is_new => self.append(now)?,
            Ok(now) if self.journal.is_ours(&now) => self.journal.still_has(now)?,
            Ok(now) => self.journal.replace_original(now)?,
            Err(error) => return or_gone(error),
        }
        self.will_write(written)?;
        match set(&*self.threads) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                // Where neither can be journaled: what is there is what was there.
                match is_new {
                    true => drop(self.journal.forget(&key)),
                    false => self.journal.was_not_written(&key),
                }
                or_gone(error)
            }
        }
    }

    /// Somebody else changed this setting of a thread: it is no longer ours to put back.
    pub fn forget_thread(
        &mut self,
        thread: &ThreadRef,
        setting: Setting,
    ) -> Result<(), ActuatorError> {
        let (tid, start) = (thread.tid, thread.start);
        let key = match setting {
            Setting::Affinity => Key::Affinity(tid, start),
            Setting::Nice => Key::Nice(tid, start),
            Setting::Slice => Key::Slice(tid, start),
            // Of cgroups.
            Setting::Weight | Setting::Idle | Setting::Division => return Ok(()),
        };
        Ok(self.journal.forget(&key)?)
    }

    /// Undoes every change, the last first, and empties the journal but for what failed. Groups in which somebody still is come after all
    /// else, and have a second together.
    pub fn restore(&mut self) -> RestoreReport {
        let mut report = RestoreReport::default();
        let undo = self.undo(Emptying::Not);
        let mut stay = undo.undo_all(self.journal.records(), &[], &mut report);
        let end = Instant::now() + BUSY_PATIENCE;
        let mut pause = FIRST_PAUSE;
        while !report.busy.is_empty() {
            report.busy.clear();
            let is_left = |record: &&Record| stay.keys.contains(&record.key());
            let left = self.journal.records().filter(is_left);
            let (stuck, again): (Vec<&Record>, Vec<&Record>) =
                left.partition(|record| stay.stuck.contains(&record.key()));
            let undo = self.undo(Emptying::Until(end));
            stay = undo.undo_all(again, &stuck, &mut report);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !report.busy.is_empty() {
                sleep(pause.min(left));
                pause *= 2;
            }
        }
        report.failures.append(&mut report.busy);
        if let Err(error) = self.journal.keep(|record| stay.keys.contains(&record.key())) {
            report.keeps_journal(&error);
        }
        report
    }

    /// Ends without restoring and leaves the journal to the next [`Actuator::open`], as kill -9
    /// would.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }

    fn undo(&self, emptying: Emptying) -> Undo<'_> {
        Undo {
            controller: &*self.controller,
            threads: &*self.threads,
            journal: &self.journal,
            groups: &self.groups,
            emptying,
        }
    }

    /// Makes a record durable. Where the journal has grown, or this thread's process has too much in it, it is rid of threads that
    /// ended first.
    fn append(&mut self, record: Record) -> Result<(), ActuatorError> {
        let user = record.thread().and_then(|thread| self.user_of(thread.pid));
        self.append_of(record, user)
    }

    /// The same, for this user, unless there is a record about the same thing.
    fn append_of(&mut self, record: Record, user: Option<u32>) -> Result<(), ActuatorError> {
        let is_due = |at: Instant| at.elapsed() >= LOOK_FOR_ENDED;
        if self.journal.knows(&record.key()) {
            return Ok(());
        }
        if self.journal.check_room(&record, user).is_err()
            && self.looked_for_ended.is_none_or(is_due)
        {
            self.looked_for_ended = Some(Instant::now());
            self.forget_ended();
        }
        self.journal.append_of(record, user)?;
        self.compact_if_due();
        Ok(())
    }

    fn will_write(&mut self, record: Record) -> Result<(), ActuatorError> {
        self.journal.will_write(record)?;
        self.compact_if_due();
        Ok(())
    }

    fn compact_if_due(&mut self) {
        self.compact_if_due_at(Instant::now());
    }

    /// Brings the journal's file down to what counts, if that is due at this time. Each change looks after it, too; so this is for whoever may
    /// change nothing for long.
    pub fn compact_if_due_at(&mut self, now: Instant) {
        if self.journal.wants_compaction_at(now) {
            self.forget_ended();
            // Where there is no room, it grows on for as long as there is some.
            let _ = self.journal.compact();
        }
    }

    /// Lets the cpu controller down to `cgroup`, where v2 needs that.
    fn enable_above(&mut self, cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        let user = self.counted_for(cgroup);
        for above in self.controller.missing_enables(cgroup)? {
            let id = self.controller.id(&above)?;
            let key = Key::Enabled(above.clone(), id);
            let cgroup = above.clone();
            self.append_of(Record::Enabled { cgroup, id }, user)?;
            if let Err(error) = self.controller.enable(&above) {
                if !self.journal.knows(&Key::Created(above)) {
                    let _ = self.journal.forget(&key);
                }
                self.disable_unneeded(&mut RestoreReport::default());
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Undoes some of the records and forgets those that were undone.
    fn undo_where(&mut self, report: &mut RestoreReport, which: impl Fn(&Record) -> bool) {
        let chosen: Vec<&Record> = self.journal.records().filter(|r| which(r)).collect();
        let stay = self.undo(Emptying::Not).undo_all(chosen, &[], report);
        let is_kept = |record: &Record| !which(record) || stay.keys.contains(&record.key());
        if let Err(error) = self.journal.keep(is_kept) {
            report.keeps_journal(&error);
        }
    }

    /// Drops the records of threads that ended, so that a journal of a long life stays short.
    fn forget_ended(&mut self) {
        let threads = &*self.threads;
        self.journal
            .forget_ended(|record| record.thread().is_some_and(|thread| !threads.is_alive(thread)));
    }
}

impl Drop for Actuator {
    /// Leaving early, on an error or a panic, must not leave the host changed. What cannot be put
    /// back now stays in the journal.
    fn drop(&mut self) {
        if !self.abandoned {
            self.restore();
        }
    }
}

/// Puts back everything that the journal in `state_dir` lists, for when no daemon runs. It only has to be readable; without a
/// journal there is nothing to do.
pub fn restore_all(
    controller: impl Into<Arc<dyn CpuController>>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    restore_pending(state_dir, |state_dir| Actuator::open_to_restore(controller.into(), state_dir))
}

/// What is at the path of a cgroup that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// That one.
    Ours,
    /// Another.
    Others,
    /// Nothing.
    Gone,
}

/// What is journaled of where a thread may run.
fn affinity_of(thread: &ThreadRef) -> impl Fn(PcpuSet) -> Record + Copy {
    let thread = *thread;
    move |original| Record::Affinity { thread, original }
}
