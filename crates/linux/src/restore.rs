//! Putting things back: how each kind of journal record is undone, and what came of it.
//!
//! Records are undone from the last to the first, so that each finds the world as it was left. An
//! undo compares before it acts: what is not as Tandem made it (a thread that ended or was moved
//! away by the operator, a cgroup that was removed and made again) is no longer ours and is left
//! alone. Undoing twice is the same as once, so a restore that is itself killed can be repeated.
//!
//! What fails stays in the journal and is tried again by the next restore.

use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;
use tandem_policy::PcpuSet;

use crate::actuator::Actuator;
use crate::actuator::ActuatorError;
use crate::affinity::Threads;
use crate::cgroup::CgroupError;
use crate::cgroup::CgroupPath;
use crate::cgroup::CpuController;
use crate::journal::Record;
use crate::journal::is_pending;
use crate::thread::ThreadRef;

/// How often a group that still holds ending threads is looked at again.
const REMOVE_TRIES: u32 = 50;

/// How long to wait in between.
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// One change that could not be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoreFailure {
    /// What was to be put back.
    pub what: String,
    /// Why it was not.
    pub error: String,
}

/// What a restore did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// Changes undone.
    pub put_back: usize,
    /// Changes that needed no undoing: their thread or cgroup is gone, or is as it was.
    pub nothing_to_do: usize,
    /// Controllers left enabled because somebody else uses them by now.
    pub left: Vec<String>,
    /// What could not be undone; it stays in the journal.
    pub failures: Vec<RestoreFailure>,
}

impl RestoreReport {
    /// Whether everything is as it was before.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }

    /// Counts one change, `what`, that was or was not undone. True if it was not.
    pub fn count(&mut self, undone: Result<Undone, String>, what: impl FnOnce() -> String) -> bool {
        match undone {
            Ok(Undone::PutBack) => self.put_back += 1,
            Ok(Undone::Nothing) => self.nothing_to_do += 1,
            Ok(Undone::Left(why)) => self.left.push(why),
            Err(error) => {
                self.failures.push(RestoreFailure {
                    what: what(),
                    error,
                });
                return true;
            }
        }
        false
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} changes put back, {} needed no undoing",
            self.put_back, self.nothing_to_do
        )?;
        for left in &self.left {
            write!(f, "; {left}")?;
        }
        for failure in &self.failures {
            write!(
                f,
                "; {} could not be put back: {}",
                failure.what, failure.error
            )?;
        }
        Ok(())
    }
}

/// Puts back everything that the journal in `state_dir` lists, for when no daemon runs. Without a
/// journal there is nothing to do.
pub fn restore_all(
    controller: Box<dyn CpuController>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    if !is_pending(state_dir) {
        return Ok(RestoreReport::default());
    }
    let (_actuator, report) = Actuator::open(controller, state_dir)?;
    Ok(report)
}

/// How a change was undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It is as it was.
    PutBack,
    /// It was as it had been, or is gone.
    Nothing,
    /// It stays, for this reason.
    Left(String),
}

/// The world that records are about.
pub(crate) struct World<'a> {
    pub(crate) controller: &'a dyn CpuController,
    pub(crate) threads: &'a dyn Threads,
}

impl World<'_> {
    /// Undoes these records, the last first, and returns those that failed, in their order.
    pub(crate) fn undo_all(&self, records: &[Record], report: &mut RestoreReport) -> Vec<Record> {
        let mut failed: Vec<Record> = Vec::new();
        for record in records.iter().rev() {
            if let Record::Enabled { cgroup, .. } = record
                && needs_controller(&failed, cgroup)
            {
                failed.push(record.clone());
                continue;
            }
            if report.count(self.undo(record), || describe(record)) {
                failed.push(record.clone());
            }
        }
        failed.reverse();
        failed
    }

    fn undo(&self, record: &Record) -> Result<Undone, String> {
        match record {
            Record::Affinity { thread, original } => {
                restore_affinity(self.threads, thread, original)
            }
            Record::Moved { thread, from, to } => {
                if !self.threads.is_alive(thread) {
                    return Ok(Undone::Nothing);
                }
                gone_is_fine(self.controller.cgroup_of(thread).and_then(|now| {
                    match now == *to {
                        true => self
                            .controller
                            .move_thread(
                                thread.tid,
                                &nearest(from, |cgroup| self.controller.exists(cgroup)),
                            )
                            .map(|()| Undone::PutBack),
                        false => Ok(Undone::Nothing),
                    }
                }))
            }
            Record::Knob {
                cgroup,
                id,
                knob,
                original,
            } => gone_is_fine(self.controller.id(cgroup).and_then(|now| {
                // Without the controller there is no knob, and its value went with it; a restore
                // that was killed half-way may have got that far.
                if now != *id || !self.controller.missing_enables(cgroup)?.is_empty() {
                    return Ok(Undone::Nothing);
                }
                if self.controller.read_knob(cgroup, *knob)? == *original {
                    return Ok(Undone::Nothing);
                }
                self.controller.write_knob(cgroup, *knob, original)?;
                Ok(Undone::PutBack)
            })),
            Record::Created { cgroup } => match self.controller.exists(cgroup) {
                true => gone_is_fine(self.remove_group(cgroup)),
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

    /// Empties and removes a group. What is in it now are threads that vCPU threads started, which
    /// begin where their maker is; they go to the cgroup above.
    fn remove_group(&self, cgroup: &CgroupPath) -> Result<Undone, CgroupError> {
        let above = cgroup.parent().unwrap_or_else(CgroupPath::root);
        empty_and_remove(
            || self.controller.threads(cgroup),
            |tid| self.controller.move_thread(tid, &above),
            || self.controller.remove(cgroup),
            || self.controller.children(cgroup),
        )
    }
}

/// Gives a thread its mask again, if it is still there.
pub fn restore_affinity(
    threads: &dyn Threads,
    thread: &ThreadRef,
    original: &PcpuSet,
) -> Result<Undone, String> {
    if !threads.is_alive(thread) {
        return Ok(Undone::Nothing);
    }
    match threads.restore_affinity(thread.tid, original) {
        Err(error) if error.is_gone() => Ok(Undone::Nothing),
        other => other
            .map(|()| Undone::PutBack)
            .map_err(|error| error.to_string()),
    }
}

/// The cgroup, or the lowest above it that still exists.
pub fn nearest(cgroup: &CgroupPath, exists: impl Fn(&CgroupPath) -> bool) -> CgroupPath {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(exists)
        .unwrap_or_else(CgroupPath::root)
}

/// Moves the `members` of a cgroup out of it and removes it. More may start meanwhile, and ending ones hold on to
/// the cgroup for a moment, so this may take a few rounds; with cgroups below it there is no point in waiting.
pub fn empty_and_remove<M>(
    members: impl Fn() -> Result<Vec<M>, CgroupError>,
    move_out: impl Fn(M) -> Result<(), CgroupError>,
    remove: impl Fn() -> Result<(), CgroupError>,
    children: impl Fn() -> Result<Vec<CgroupPath>, CgroupError>,
) -> Result<Undone, CgroupError> {
    let mut tries = 0;
    loop {
        for member in members()? {
            match move_out(member) {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        match remove() {
            Ok(()) => return Ok(Undone::PutBack),
            Err(CgroupError::Busy { .. }) if tries < REMOVE_TRIES && children()?.is_empty() => {
                tries += 1;
                sleep(REMOVE_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is about a cgroup or thread that is gone needs no undoing.
pub fn gone_is_fine(undone: Result<Undone, CgroupError>) -> Result<Undone, String> {
    match undone {
        Err(error) if error.is_gone() => Ok(Undone::Nothing),
        other => other.map_err(|error| error.to_string()),
    }
}

/// Whether one of these records is about a cgroup that has its knobs from `above`.
pub(crate) fn needs_controller(records: &[Record], above: &CgroupPath) -> bool {
    records.iter().any(|record| match record {
        Record::Created { cgroup } | Record::Knob { cgroup, .. } => {
            cgroup != above && cgroup.is_within(above)
        }
        _ => false,
    })
}

fn describe(record: &Record) -> String {
    match record {
        Record::Enabled { cgroup, .. } => format!("the cpu controller below {cgroup}"),
        Record::Created { cgroup } => format!("the new cgroup {cgroup}"),
        Record::Knob {
            cgroup,
            knob,
            original,
            ..
        } => format!("the {knob} '{original}' of cgroup {cgroup}"),
        Record::Moved { thread, from, .. } => format!("{thread} to cgroup {from}"),
        Record::Affinity { thread, original } => format!("{thread} to pCPUs {original}"),
    }
}
