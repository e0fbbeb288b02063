//! Restore: the code that daemon and agent share, independent of their records.
//!
//! An undo compares before it acts, and leaves settings that are no longer as Tandem set them.
//! Examples are a thread that ended or that the operator moved, a cgroup that was replaced, and a weight that Tandem did not write.
//! Undoing twice equals undoing once.
//! A restore that is killed can therefore be repeated, and a journal that cannot be written only has to be readable.
//!
//! Failures stay in the journal, and the next restore retries them.
//!
//! A cgroup can only be removed once it is empty, and threads that are about to end hold on to it.
//! That usually takes a moment, but a tenant can prolong it at will.
//! The daemon's undo does not wait for such threads ([`Undone::Busy`], `crate::undo`).

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tandem_model::PcpuSet;

use crate::affinity::Threads;
use crate::cgroup::{CgroupError, CgroupPath};
use crate::journal::state_dir::check_dir;
use crate::journal::{Entry, JournalError, is_pending};
use crate::thread::ThreadRef;

/// One change that could not be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoreFailure {
    /// The change that was to be undone.
    pub what: String,
    /// Error of the undo.
    pub error: String,
}

/// Result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// Changes undone.
    pub put_back: usize,
    /// Changes that needed no revert: their thread or cgroup is gone, or has its original value.
    pub nothing_to_do: usize,
    /// Changes that stay: settings that another process changed meanwhile, controllers that another cgroup uses by now.
    pub left: Vec<String>,
    /// Changes that could not be undone; they stay in the journal.
    pub failures: Vec<RestoreFailure>,
    /// Groups that still hold threads; they stay in the journal and are retried, and count as failures at the end of a restore.
    #[serde(skip)]
    pub busy: Vec<RestoreFailure>,
}

impl RestoreReport {
    /// Notes that the journal could not be shortened; its changes are undone nevertheless, and undoing them again changes nothing.
    pub fn note_kept_journal(&mut self, why: &JournalError) {
        self.left.push(format!("the journal stays as it is ({why})"));
    }

    /// Adds the result of another restore.
    pub fn add(&mut self, other: RestoreReport) {
        self.put_back += other.put_back;
        self.nothing_to_do += other.nothing_to_do;
        self.left.extend(other.left);
        self.failures.extend(other.failures);
        self.busy.extend(other.busy);
    }

    /// Whether everything was undone.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.busy.is_empty()
    }

    /// Counts the result of one undo; returns whether the change stays in the journal.
    pub(crate) fn count(
        &mut self,
        undone: Result<Undone, String>,
        what: &impl fmt::Display,
    ) -> bool {
        match undone {
            Ok(Undone::PutBack) => self.put_back += 1,
            Ok(Undone::Nothing) => self.nothing_to_do += 1,
            Ok(Undone::Left(why)) => self.left.push(why),
            Ok(Undone::Waits) => return true,
            Ok(Undone::Busy(error)) => {
                let what = what.to_string();
                self.busy.push(RestoreFailure { what, error });
                return true;
            }
            Err(error) => {
                let what = what.to_string();
                self.failures.push(RestoreFailure { what, error });
                return true;
            }
        }
        false
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes reverted, {} needed no revert", self.put_back, self.nothing_to_do)?;
        for left in &self.left {
            write!(f, "; {left}")?;
        }
        for failure in self.failures.iter().chain(&self.busy) {
            write!(f, "; {} could not be reverted: {}", failure.what, failure.error)?;
        }
        Ok(())
    }
}

/// Result of the undo of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It was undone.
    PutBack,
    /// There was nothing to undo: it has its original value, or is gone.
    Nothing,
    /// It stays, for this reason.
    Left(String),
    /// It stays in the journal, because another change that could not be undone needs it.
    Waits,
    /// It stays in the journal, because the group still has the contents named here.
    Busy(String),
}

/// Undoes records in this order and returns those that stay in the journal, in the same order.
/// `undo` receives a record and those that failed before it.
pub fn undo_each<'r, R: Entry + 'r>(
    records: impl IntoIterator<Item = &'r R>,
    report: &mut RestoreReport,
    undo: impl Fn(&R, &[R]) -> Result<Undone, String>,
) -> Vec<R> {
    let mut failed: Vec<R> = Vec::new();
    for record in records {
        if report.count(undo(record, &failed), record) {
            failed.push(record.clone());
        }
    }
    failed
}

/// Restores from the journal in `state_dir` through `open`, while no daemon or agent runs.
/// The journal may be missing, but a directory in which others could have removed it is an error.
pub fn restore_pending<A, E: From<JournalError>>(
    state_dir: &Path,
    open: impl FnOnce(&Path) -> Result<(A, RestoreReport), E>,
) -> Result<RestoreReport, E> {
    if !is_pending(state_dir) {
        if state_dir.is_dir() {
            check_dir(state_dir)?;
        }
        return Ok(RestoreReport::default());
    }
    let (_actuator, report) = open(state_dir)?;
    Ok(report)
}

/// Restores the affinity mask of a thread, if it still exists.
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
        other => other.map(|()| Undone::PutBack).map_err(|error| error.to_string()),
    }
}

/// The cgroup, or the lowest above it that still exists.
pub fn nearest(cgroup: &CgroupPath, exists: impl Fn(&CgroupPath) -> bool) -> CgroupPath {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(exists)
        .unwrap_or_else(CgroupPath::root)
}

/// Maps errors about a vanished cgroup or thread to [`Undone::Nothing`].
pub fn gone_is_fine(undone: Result<Undone, CgroupError>) -> Result<Undone, String> {
    match undone {
        Err(error) if error.is_gone() => Ok(Undone::Nothing),
        other => other.map_err(|error| error.to_string()),
    }
}
