//! The only way to change the host: each change is journaled, then made.
//!
//! ```text
//! Actuator::open ──► restores what a killed run left ──► create_group, move_thread, set_weight, …
//!        │                                                          │
//!        └── locks the state directory                   restore, or drop ──► all as before
//! ```
//!
//! Only the first change of a thing costs a record on disk; setting a weight again is one write to
//! one file. Cgroups that this actuator made need no record of their weights, since they go whole.
//! Threads and cgroups may vanish at any moment: for threads that is an [`Outcome`], for cgroups an
//! error of which [`ActuatorError::is_gone`] is true; in neither case is there anything to undo.
//!
//! What this does not do: decide. It does not check who owns a cgroup or whether a VM was selected.

use std::collections::HashSet;
use std::path::Path;

use tandem_policy::Knob as Setting;
use tandem_policy::Nanos;
use tandem_policy::Nice;
use tandem_policy::PcpuSet;
use tandem_policy::Weight;
use thiserror::Error;

use crate::affinity::AffinityError;
use crate::affinity::HostThreads;
use crate::affinity::Threads;
use crate::cgroup::CgroupError;
use crate::cgroup::CgroupPath;
use crate::cgroup::CpuController;
use crate::cgroup::Knob;
use crate::cgroup::Quota;
use crate::cgroup::check_name;
use crate::journal::Entry;
use crate::journal::Journal;
use crate::journal::JournalError;
use crate::journal::Key;
use crate::journal::Record;
use crate::journal::Stamp;
use crate::procfs::ProcFs;
use crate::restore::RestoreReport;
use crate::restore::restore_pending;
use crate::sched_attr::SchedAttrError;
use crate::thread::ThreadRef;
use crate::undo::Undo;
use crate::undo::needs_controller;

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
    controller: Box<dyn CpuController>,
    threads: Box<dyn Threads>,
    journal: Journal,
    abandoned: bool,
}

impl Actuator {
    /// Takes the lock of `state_dir` and restores what an earlier, killed run left.
    pub fn open(
        controller: Box<dyn CpuController>,
        state_dir: &Path,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        // Without one, all boots look the same, and start times alone tell threads apart.
        let boot = ProcFs::host().boot_id().unwrap_or_default();
        Actuator::open_with(
            controller,
            Box::new(HostThreads::default()),
            state_dir,
            &boot,
        )
    }

    /// The same for threads that need not be this machine's, on the boot named `boot`.
    pub fn open_with(
        controller: Box<dyn CpuController>,
        threads: Box<dyn Threads>,
        state_dir: &Path,
        boot: &str,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        let stamp = Stamp::new(
            boot.to_owned(),
            controller.version(),
            controller.mount().to_owned(),
        );
        let mut actuator = Actuator {
            controller,
            threads,
            journal: Journal::open(state_dir, stamp)?,
            abandoned: false,
        };
        let report = actuator.restore()?;
        Ok((actuator, report))
    }

    /// The controller, for looking only.
    pub fn controller(&self) -> &dyn CpuController {
        &*self.controller
    }

    /// Makes a cgroup for threads of the processes in `parent`; one that this actuator made before
    /// is returned as it is.
    pub fn create_group(
        &mut self,
        parent: &CgroupPath,
        name: &str,
    ) -> Result<CgroupPath, ActuatorError> {
        check_name(parent, name)?;
        let group = parent.child(name);
        let key = Key::Created(group.clone());
        if self.controller.exists(&group) {
            return match self.journal.knows(&key) {
                true => Ok(group),
                false => Err(CgroupError::Exists(group).into()),
            };
        }
        self.controller.check_parent(parent)?;
        self.enable_above(&group)?;
        let cgroup = group.clone();
        self.journal.note(Record::Created { cgroup })?;
        let created = self.controller.create_child(parent, name);
        if created.is_err() {
            // No group was made, and one that somebody else makes there later is not ours.
            self.forget(&key)?;
            self.disable_unneeded(&mut RestoreReport::default())?;
        }
        Ok(created?)
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
            self.journal.append(Record::Moved {
                thread: *thread,
                from,
                to: to.clone(),
            })?;
        }
        match self.controller.move_thread(thread.tid, to) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                self.forget(&key)?;
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
        let moved_here = self
            .journal
            .records()
            .iter()
            .find_map(|record| match record {
                Record::Moved {
                    thread: t,
                    from,
                    to,
                } if t == thread && *to == now => Some(from.clone()),
                _ => None,
            });
        match moved_here {
            Some(from) => from,
            None if self.journal.knows(&Key::Created(now.clone())) => {
                now.parent().unwrap_or_else(CgroupPath::root)
            }
            None => now,
        }
    }

    /// Sets a cgroup's weight, rounded and brought into range; returns what was written.
    pub fn set_weight(
        &mut self,
        cgroup: &CgroupPath,
        weight: Weight,
    ) -> Result<Weight, ActuatorError> {
        self.before_knob(cgroup, Knob::Weight)?;
        Ok(self.controller.set_weight(cgroup, weight)?)
    }

    /// Sets a cgroup's hard cap, or takes it away.
    pub fn set_quota(
        &mut self,
        cgroup: &CgroupPath,
        quota: Option<Quota>,
    ) -> Result<(), ActuatorError> {
        self.before_knob(cgroup, Knob::Quota)?;
        Ok(self.controller.set_quota(cgroup, quota)?)
    }

    /// Journals a knob's value, unless the cgroup is ours or the value is known.
    fn before_knob(&mut self, cgroup: &CgroupPath, knob: Knob) -> Result<(), ActuatorError> {
        if self.journal.knows(&Key::Created(cgroup.clone())) {
            return Ok(());
        }
        let id = self.controller.id(cgroup)?;
        if self.journal.knows(&Key::Knob(cgroup.clone(), id, knob)) {
            return Ok(());
        }
        if cgroup.is_root() {
            return Err(CgroupError::RootHasNone(knob).into());
        }
        self.enable_above(cgroup)?;
        let mut original = self.controller.read_knob(cgroup, knob)?;
        // In the idle class the file shows what cannot be written: the kernel gives the default to a cgroup that leaves it.
        if knob == Knob::Weight && self.controller.is_idle(cgroup)? == Some(true) {
            original = format!("{:.0}", self.controller.default_weight().0);
        }
        self.journal.append(Record::Knob {
            cgroup: cgroup.clone(),
            id,
            knob,
            original,
        })?;
        Ok(())
    }

    /// Lets a thread run on these pCPUs only.
    pub fn set_affinity(
        &mut self,
        thread: &ThreadRef,
        pcpus: &PcpuSet,
    ) -> Result<Outcome, ActuatorError> {
        self.change_affinity(thread, |threads| threads.set_affinity(thread.tid, pcpus))
    }

    /// Journals where a thread may run, for whoever then changes that by itself.
    pub fn prepare_affinity(&mut self, thread: &ThreadRef) -> Result<Outcome, ActuatorError> {
        self.change_affinity(thread, |_| Ok(()))
    }

    fn change_affinity(
        &mut self,
        thread: &ThreadRef,
        change: impl FnOnce(&dyn Threads) -> Result<(), AffinityError>,
    ) -> Result<Outcome, ActuatorError> {
        self.set_attribute(
            thread,
            Key::Affinity(thread.tid, thread.start),
            |threads| {
                let original = threads.affinity(thread.tid)?;
                Ok(Record::Affinity {
                    thread: *thread,
                    original,
                })
            },
            change,
        )
    }

    /// Puts a cgroup into the idle class, or takes it out. Out of it, it has the kernel's default weight: the caller sets its own
    /// again.
    pub fn set_idle(&mut self, cgroup: &CgroupPath, idle: bool) -> Result<(), ActuatorError> {
        self.prepare_idle(cgroup)?;
        Ok(self.controller.set_idle(cgroup, idle)?)
    }

    /// Journals what putting a cgroup into the idle class changes, for whoever then does so by itself.
    pub fn prepare_idle(&mut self, cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        // In this order: taking it out of the class loses the weight, which is undone after that.
        self.before_knob(cgroup, Knob::Weight)?;
        if self.controller.is_idle(cgroup)?.is_none() {
            return Err(CgroupError::NoIdleClass.into());
        }
        self.before_knob(cgroup, Knob::Idle)
    }

    /// Gives a thread a nice value.
    pub fn set_nice(&mut self, thread: &ThreadRef, nice: Nice) -> Result<Outcome, ActuatorError> {
        self.set_attribute(
            thread,
            Key::Nice(thread.tid, thread.start),
            |threads| {
                let original = threads.nice(thread.tid)?;
                Ok(Record::Nice {
                    thread: *thread,
                    original,
                })
            },
            |threads| threads.set_nice(thread.tid, nice),
        )
    }

    /// Gives a thread a slice of its own, or the scheduler's again.
    pub fn set_slice(
        &mut self,
        thread: &ThreadRef,
        slice: Option<Nanos>,
    ) -> Result<Outcome, ActuatorError> {
        self.set_attribute(
            thread,
            Key::Slice(thread.tid, thread.start),
            |threads| {
                let original = threads.slice(thread.tid)?;
                Ok(Record::Slice {
                    thread: *thread,
                    original,
                })
            },
            |threads| threads.set_slice(thread.tid, slice),
        )
    }

    /// Journals what `read` says of a thread, unless that is known, and then makes the change.
    fn set_attribute<E: Into<ActuatorError>>(
        &mut self,
        thread: &ThreadRef,
        key: Key,
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
        let is_new = !self.journal.knows(&key);
        if is_new {
            match read(&*self.threads) {
                Ok(record) => self.journal.append(record)?,
                Err(error) => return or_gone(error),
            }
        }
        match set(&*self.threads) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                if is_new {
                    self.forget(&key)?;
                }
                or_gone(error)
            }
        }
    }

    /// Gives a cgroup and those below it up, because its VM is gone or no longer selected. One that this actuator made
    /// is emptied (threads go back to where they came from) and removed; one that was there before
    /// gets its own values back. The journal forgets both, and threads that ended.
    pub fn release_group(&mut self, cgroup: &CgroupPath) -> Result<RestoreReport, ActuatorError> {
        let mut report = RestoreReport::default();
        self.undo_where(&mut report, |record| match record {
            Record::Created { cgroup: c } | Record::Knob { cgroup: c, .. } => c.is_within(cgroup),
            Record::Moved { to, .. } => to.is_within(cgroup),
            Record::Enabled { .. }
            | Record::Affinity { .. }
            | Record::Nice { .. }
            | Record::Slice { .. } => false,
        })?;
        self.disable_unneeded(&mut report)?;
        self.forget_ended()?;
        Ok(report)
    }

    /// Gives one knob of a cgroup its own value back, and forgets it. A weight is none in the idle class, so that goes with it.
    pub fn release_knob(
        &mut self,
        cgroup: &CgroupPath,
        knob: Knob,
    ) -> Result<RestoreReport, ActuatorError> {
        let mut report = RestoreReport::default();
        let goes = |k: Knob| k == knob || (knob == Knob::Weight && k == Knob::Idle);
        self.undo_where(
            &mut report,
            |record| matches!(record, Record::Knob { cgroup: c, knob: k, .. } if c == cgroup && goes(*k)),
        )?;
        self.disable_unneeded(&mut report)?;
        Ok(report)
    }

    /// Puts a thread's affinity mask, nice value and slice back, and forgets them.
    pub fn release_thread(&mut self, thread: &ThreadRef) -> Result<RestoreReport, ActuatorError> {
        let (tid, start) = (thread.tid, thread.start);
        let keys = [
            Key::Affinity(tid, start),
            Key::Nice(tid, start),
            Key::Slice(tid, start),
        ];
        let mut report = RestoreReport::default();
        self.undo_where(&mut report, |record| keys.contains(&record.key()))?;
        Ok(report)
    }

    /// Somebody else changed this setting of a thread: it is no longer ours to put back.
    pub fn forget_thread(
        &mut self,
        thread: &ThreadRef,
        setting: Setting,
    ) -> Result<(), ActuatorError> {
        let (tid, start) = (thread.tid, thread.start);
        match setting {
            Setting::Affinity => self.forget(&Key::Affinity(tid, start)),
            Setting::Nice => self.forget(&Key::Nice(tid, start)),
            Setting::Slice => self.forget(&Key::Slice(tid, start)),
            // Of cgroups.
            Setting::Weight | Setting::Idle | Setting::Division => Ok(()),
        }
    }

    /// The operator changed a knob of a cgroup that is not ours: it is not ours to put back.
    pub fn forget_knob(&mut self, cgroup: &CgroupPath, knob: Knob) -> Result<(), ActuatorError> {
        let id = self.controller.id(cgroup)?;
        self.forget(&Key::Knob(cgroup.clone(), id, knob))
    }

    /// Undoes every change, the last first, and empties the journal but for what failed.
    pub fn restore(&mut self) -> Result<RestoreReport, ActuatorError> {
        let mut report = RestoreReport::default();
        let failed = self.undo().undo_all(self.journal.records(), &mut report);
        self.journal.rewrite(failed)?;
        Ok(report)
    }

    /// Ends without restoring and leaves the journal to the next [`Actuator::open`], as kill -9
    /// would.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }

    fn undo(&self) -> Undo<'_> {
        Undo {
            controller: &*self.controller,
            threads: &*self.threads,
        }
    }

    fn forget(&mut self, key: &Key) -> Result<(), ActuatorError> {
        if self.journal.knows(key) {
            let kept = self.journal.records().iter();
            let kept = kept
                .filter(|record| record.key() != *key)
                .cloned()
                .collect();
            self.journal.rewrite(kept)?;
        }
        Ok(())
    }

    /// Lets the cpu controller down to `cgroup`, where v2 needs that.
    fn enable_above(&mut self, cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        for above in self.controller.missing_enables(cgroup)? {
            let id = self.controller.id(&above)?;
            let key = Key::Enabled(above.clone(), id);
            let cgroup = above.clone();
            self.journal.note(Record::Enabled { cgroup, id })?;
            if let Err(error) = self.controller.enable(&above) {
                self.forget(&key)?;
                self.disable_unneeded(&mut RestoreReport::default())?;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Takes the cpu controller back from below cgroups where no change of ours needs it.
    fn disable_unneeded(&mut self, report: &mut RestoreReport) -> Result<(), ActuatorError> {
        let needed: Vec<Record> = self.journal.records().to_vec();
        self.undo_where(report, |record| match record {
            Record::Enabled { cgroup, .. } => !needs_controller(&needed, cgroup),
            _ => false,
        })
    }

    /// Undoes some of the records and forgets those that were undone.
    fn undo_where(
        &mut self,
        report: &mut RestoreReport,
        which: impl Fn(&Record) -> bool,
    ) -> Result<(), ActuatorError> {
        let records = self.journal.records().iter();
        let chosen: Vec<Record> = records.filter(|record| which(record)).cloned().collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let failed = self.undo().undo_all(&chosen, report);
        let failed: HashSet<Key> = failed.iter().map(Record::key).collect();
        let records = self.journal.records().iter();
        let kept = records
            .filter(|record| !which(record) || failed.contains(&record.key()))
            .cloned()
            .collect();
        Ok(self.journal.rewrite(kept)?)
    }

    /// Drops the records of threads that ended, so that a journal of a long life stays short.
    fn forget_ended(&mut self) -> Result<(), ActuatorError> {
        let records = self.journal.records().iter();
        let kept = records
            .filter(|record| match record {
                Record::Moved { thread, .. }
                | Record::Affinity { thread, .. }
                | Record::Nice { thread, .. }
                | Record::Slice { thread, .. } => self.threads.is_alive(thread),
                _ => true,
            })
            .cloned()
            .collect();
        Ok(self.journal.rewrite(kept)?)
    }
}

impl Drop for Actuator {
    /// Leaving early, on an error or a panic, must not leave the host changed. What cannot be put
    /// back now stays in the journal.
    fn drop(&mut self) {
        if !self.abandoned {
            let _ = self.restore();
        }
    }
}

/// Puts back everything that the journal in `state_dir` lists, for when no daemon runs. Without a
/// journal there is nothing to do.
pub fn restore_all(
    controller: Box<dyn CpuController>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    restore_pending(state_dir, |state_dir| Actuator::open(controller, state_dir))
}
