//! The only way to change the host: the actuator journals each change, then makes it.
//!
//! ```text
//! Actuator::open ──► restores after a killed run ──► create_group, move_thread, set_weight, …
//!        │                                                      │
//!        └── locks the state directory               restore, or drop ──► all as before
//! ```
//!
//! Only the first change of a setting waits for the disk.
//! Each later one first reads the current value.
//! If that is none of the values that Tandem wrote, it is foreign and becomes the original, which the restore reverts to.
//! Until then the value that the caller asked for applies ([`Actuator::take_foreign`] lists the foreign ones).
//! Weights of cgroups that this actuator created need no record, because those cgroups are removed.
//! Threads and cgroups may vanish at any moment.
//! For threads the result is an [`Outcome`], for cgroups an error with [`ActuatorError::is_gone`]; nothing is left to undo.
//!
//! Non-goal: decisions. The actuator checks neither the owner of a cgroup nor whether a VM was selected.

mod foreign;
mod heirs;
mod knobs;
mod owners;
mod release;
mod switches;

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
pub use crate::actuator::switches::{IdleSwitch, Moved, Slots};
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

/// Minimum time between scans for ended threads when the journal is full: a scan checks each thread.
const ENDED_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time that a restore retries busy groups, all of them together: threads that are about to end need a moment.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after the first attempt; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Why a change was not made.
#[derive(Debug, Error)]
pub enum ActuatorError {
    /// The change could not be journaled, so it was not attempted.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The cgroup could not be changed.
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
    /// Whether the thread or cgroup no longer exists.
    pub fn is_gone(&self) -> bool {
        match self {
            ActuatorError::Journal(_) => false,
            ActuatorError::Cgroup(error) => error.is_gone(),
            ActuatorError::Affinity(error) => error.is_gone(),
            ActuatorError::SchedAttr(error) => error.is_gone(),
        }
    }
}

/// The result of a change to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The setting has the requested value.
    Done,
    /// The thread has ended.
    Gone,
}

/// Changes the host and reverts the changes.
pub struct Actuator {
    controller: Arc<dyn CpuController>,
    threads: Box<dyn Threads>,
    journal: Journal,
    /// IDs of the cgroups that this actuator created.
    groups: HashMap<CgroupPath, CgroupId>,
    /// Users of the VMs that cgroups are changed for, by cgroup path without trailing slashes.
    owners: HashMap<String, u32>,
    /// Records about cgroups that a killed run left, by cgroup path without trailing slashes.
    /// They are charged to no user until the caller names one for the cgroup.
    left: BTreeMap<String, Vec<Key>>,
    /// Texts of knobs that another process set.
    foreign: BTreeMap<(CgroupPath, Knob), String>,
    /// Time of the last scan for ended threads to make room for a record.
    last_ended_scan: Option<Instant>,
    abandoned: bool,
}

impl Actuator {
    /// Locks `state_dir` and restores the changes of an earlier, killed run.
    /// If the journal cannot be written, returns an error after the restore.
    pub fn open(
        controller: impl Into<Arc<dyn CpuController>>,
        state_dir: &Path,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        let (actuator, report) = Actuator::open_to_restore(controller.into(), state_dir)?;
        actuator.journal.check_writable()?;
        Ok((actuator, report))
    }

    /// Like [`Actuator::open`], but the journal only has to be readable.
    fn open_to_restore(
        controller: Arc<dyn CpuController>,
        state_dir: &Path,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        // Without a boot ID, start times alone tell threads apart.
        let boot = ProcFs::host().boot_id().unwrap_or_default();
        let threads = Box::new(HostThreads::default());
        Actuator::open_shared(Box::new(HostDisk), controller, threads, state_dir, &boot)
    }

    /// Like [`Actuator::open`], with any [`Threads`], on the boot named `boot`.
    pub fn open_with(
        controller: Box<dyn CpuController>,
        threads: Box<dyn Threads>,
        state_dir: &Path,
        boot: &str,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        Actuator::open_on(Box::new(HostDisk), controller, threads, state_dir, boot)
    }

    /// Like [`Actuator::open_with`], on any [`Disk`]; the first change fails if the journal cannot be written.
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
            last_ended_scan: None,
            abandoned: false,
        };
        let report = actuator.restore();
        actuator.charge_leftovers();
        Ok((actuator, report))
    }

    /// The controller, for reading only.
    pub fn controller(&self) -> &dyn CpuController {
        &*self.controller
    }

    /// The host's threads, for reading only.
    pub fn threads(&self) -> &dyn Threads {
        &*self.threads
    }

    /// The controller for another thread, whose changes must be journaled here first.
    pub fn shared_controller(&self) -> Arc<dyn CpuController> {
        Arc::clone(&self.controller)
    }

    /// Creates a cgroup for threads of the processes in `parent`, unless this actuator created it before.
    pub fn create_group(
        &mut self,
        parent: &CgroupPath,
        name: &str,
    ) -> Result<CgroupPath, ActuatorError> {
        check_name(parent, name)?;
        // A group inside one of our groups may exceed the limit by its name.
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
        // Another process may have replaced our parent group.
        let is_ours = |of: &CgroupPath| matches!(self.made(of), Made::Ours);
        if self.journal.knows(&Key::Created(parent.clone())) && !is_ours(parent) {
            return Err(CgroupError::Gone(parent.clone()).into());
        }
        self.controller.check_parent(parent)?;
        self.enable_above(&group)?;
        let (cgroup, user) = (group.clone(), self.charged_user(&group));
        // The ID of a former group at this path does not identify the new one.
        if let Some(id) = self.groups.remove(&group) {
            self.journal.forget(&Key::Enabled(cgroup.clone(), id))?;
        }
        self.append_of(Record::Created { cgroup }, user)?;
        let created = self.controller.create_child(parent, name);
        let created = created.map_err(ActuatorError::from);
        let created = created.and_then(|group| self.identify(group));
        if let Err(error) = &created {
            // Remove a partly made group, or keep its record.
            // If none was made, a group that another process makes there later is not ours.
            // The error of the creation takes precedence over that of the journal.
            let is_ours = !matches!(error, ActuatorError::Cgroup(CgroupError::Exists(_)));
            if !(is_ours && self.controller.remove(&group).is_err()) {
                let _ = self.journal.forget(&key);
            }
            self.disable_unneeded(&mut RestoreReport::default());
        }
        created
    }

    /// Journals the ID of a new cgroup, in a record that earlier versions also read (`crate::undo`).
    fn identify(&mut self, group: CgroupPath) -> Result<CgroupPath, ActuatorError> {
        let id = self.controller.id(&group)?;
        let (cgroup, user) = (group.clone(), self.charged_user(&group));
        self.append_of(Record::Enabled { cgroup, id }, user)?;
        self.groups.insert(group.clone(), id);
        Ok(group)
    }

    /// Compares the cgroup at this path with the created one.
    /// Without an ID (an earlier version, or a run killed before it journaled the ID), the path alone counts.
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

    /// Journals a cgroup that the caller itself will create and remove, and enables the cpu controller for it.
    pub fn prepare_group(&mut self, group: &CgroupPath) -> Result<(), ActuatorError> {
        self.enable_above(group)?;
        self.groups.remove(group);
        let (cgroup, user) = (group.clone(), self.charged_user(group));
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
        let from = self.origin(thread, now);
        check_length(&from)?;
        let moved = Record::Moved { thread: *thread, from, to: to.clone() };
        match self.journal.record(&key) {
            None => self.append(moved)?,
            // Another process has moved it since, to its new origin.
            Some(known) if *known != moved => self.journal.replace_original(moved)?,
            Some(_) => {}
        }
        match self.controller.move_thread(thread.tid, to) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                // A record that cannot be forgotten is harmless: the thread is not in its target cgroup.
                let _ = self.journal.forget(&key);
                match error {
                    CgroupError::ThreadGone(_) => Ok(Outcome::Gone),
                    error => Err(error.into()),
                }
            }
        }
    }

    /// The home cgroup of a thread that is in `now`: its origin if we moved it there; the parent if it started
    /// in one of our groups; else `now`, where the operator has it.
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

    /// Restricts a thread to these pCPUs.
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
        // The kernel drops pCPUs outside the thread's cpuset.
        if outcome == Outcome::Done
            && let Ok(now) = self.threads.affinity(thread.tid)
            && now != *pcpus
        {
            // If this cannot be journaled, the value counts as foreign and stays, which is harmless.
            let _ = self.journal.will_write(affinity(now));
        }
        Ok(outcome)
    }

    /// Journals a thread's affinity for a caller that will itself set it to any one of these pCPUs, or to all of them.
    /// The journal keeps [`KEPT_AFFINITIES`](crate::journal::KEPT_AFFINITIES) of the announced masks.
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

    /// Sets a thread's nice value.
    pub fn set_nice(&mut self, thread: &ThreadRef, nice: Nice) -> Result<Outcome, ActuatorError> {
        let record = |original| Record::Nice { thread: *thread, original };
        self.set_attribute(
            thread,
            record(nice),
            |threads| Ok(record(threads.nice(thread.tid)?)),
            |threads| threads.set_nice(thread.tid, nice),
        )
    }

    /// Sets a thread's custom slice; `None` resets it to the scheduler's.
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

    /// Journals the current value that `read` returns, unless it is known and ours; then the new value; then sets it.
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
            Ok(now) if self.journal.is_ours(&now) => self.journal.keep_current(now)?,
            Ok(now) => self.journal.replace_original(now)?,
            Err(error) => return or_gone(error),
        }
        self.will_write(written)?;
        match set(&*self.threads) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                // If neither can be journaled, the value is still the former one.
                if is_new {
                    drop(self.journal.forget(&key))
                } else {
                    self.journal.write_failed(&key)
                }
                or_gone(error)
            }
        }
    }

    /// Forgets a setting of a thread that another process changed: a restore leaves it.
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
            // Settings of cgroups.
            Setting::Weight | Setting::Idle | Setting::Division => return Ok(()),
        };
        Ok(self.journal.forget(&key)?)
    }

    /// Undoes every change, the last first, and empties the journal except for failures.
    /// Busy groups come after everything else and are retried for one second altogether.
    pub fn restore(&mut self) -> RestoreReport {
        let mut report = RestoreReport::default();
        let undo = self.undo(Emptying::Not);
        let mut stay = undo.undo_all(self.journal.records(), &[], &mut report);
        let end = Instant::now() + BUSY_TIMEOUT;
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
            report.note_kept_journal(&error);
        }
        report
    }

    /// Ends without restoring and leaves the journal to the next [`Actuator::open`], like kill -9.
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

    /// Makes a record durable.
    /// If there is no room for it, drops the records of ended threads first.
    fn append(&mut self, record: Record) -> Result<(), ActuatorError> {
        let user = record.thread().and_then(|thread| self.user_of(thread.pid));
        self.append_of(record, user)
    }

    /// Like [`Self::append`], for this user, unless the key has a record.
    fn append_of(&mut self, record: Record, user: Option<u32>) -> Result<(), ActuatorError> {
        let is_due = |at: Instant| at.elapsed() >= ENDED_SCAN_INTERVAL;
        if self.journal.knows(&record.key()) {
            return Ok(());
        }
        if self.journal.check_room(&record, user).is_err()
            && self.last_ended_scan.is_none_or(is_due)
        {
            self.last_ended_scan = Some(Instant::now());
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

    /// Compacts the journal's file if that is due, or writes it again if it was removed.
    /// Each change does this, too; callers that may change nothing for long must call it.
    pub fn compact_if_due(&mut self) {
        if self.journal.wants_compaction() {
            self.forget_ended();
            // If the disk is full, the old file keeps growing while it can.
            let _ = self.journal.compact();
        }
    }

    /// Enables the cpu controller down to `cgroup`, as v2 requires.
    fn enable_above(&mut self, cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        let user = self.charged_user(cgroup);
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

    /// Undoes the records that `which` selects and forgets those that were undone.
    fn undo_where(&mut self, report: &mut RestoreReport, which: impl Fn(&Record) -> bool) {
        let chosen: Vec<&Record> = self.journal.records().filter(|r| which(r)).collect();
        let stay = self.undo(Emptying::Not).undo_all(chosen, &[], report);
        let is_kept = |record: &Record| !which(record) || stay.keys.contains(&record.key());
        if let Err(error) = self.journal.keep(is_kept) {
            report.note_kept_journal(&error);
        }
    }

    /// Drops the records of ended threads, which keeps the journal of a long-running daemon short.
    fn forget_ended(&mut self) {
        let threads = &*self.threads;
        self.journal
            .forget_ended(|record| record.thread().is_some_and(|thread| !threads.is_alive(thread)));
    }
}

impl Drop for Actuator {
    /// Restores, so that an early exit on an error or a panic does not leave the host changed.
    /// Failures stay in the journal.
    fn drop(&mut self) {
        if !self.abandoned {
            self.restore();
        }
    }
}

/// Restores everything that the journal in `state_dir` lists, while no daemon runs.
/// The journal only has to be readable, and may be missing.
pub fn restore_all(
    controller: impl Into<Arc<dyn CpuController>>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    restore_pending(state_dir, |state_dir| Actuator::open_to_restore(controller.into(), state_dir))
}

/// State of the path of a cgroup that Tandem created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// The created cgroup is there.
    Ours,
    /// Another cgroup is there.
    Others,
    /// No cgroup is there.
    Gone,
}

/// Constructor of a thread's affinity records.
fn affinity_of(thread: &ThreadRef) -> impl Fn(PcpuSet) -> Record + Copy {
    let thread = *thread;
    move |original| Record::Affinity { thread, original }
}
