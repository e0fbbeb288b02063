//! Putting things back: what daemon and agent share of it, whatever their records are.
//!
//! An undo compares before it acts: what is not as Tandem made it (a thread that ended or was moved
//! away by the operator, a cgroup that was removed and made again, a weight that is none of those that Tandem wrote) is no
//! longer ours and is left alone. Undoing twice is the same as once, so a restore that is itself killed can be repeated, and one
//! whose journal cannot be written only has to read it.
//!
//! What fails stays in the journal and is tried again by the next restore.
//!
//! A cgroup is only removed once it is empty, and threads that are about to end hold on to it: for a moment as a rule, for as long as they like if
//! somebody wants that. What the daemon undoes waits for none of them ([`Undone::Busy`], `crate::undo`).

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tandem_model::PcpuSet;

use crate::affinity::Threads;
use crate::cgroup::{CgroupError, CgroupPath};
use crate::journal::{Entry, JournalError, is_pending};
use crate::state_dir::check_dir;
use crate::thread::ThreadRef;

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
    /// What stays as it is: settings that somebody else made meanwhile, controllers that somebody else uses by now.
    pub left: Vec<String>,
    /// What could not be undone; it stays in the journal.
    pub failures: Vec<RestoreFailure>,
    /// Groups that somebody is still in. They stay in the journal, too, and are to be tried again; at the end of a restore they are failures.
    #[serde(skip)]
    pub busy: Vec<RestoreFailure>,
}

impl RestoreReport {
    /// The journal could not be shortened: what it lists is put back all the same, and undoing it again changes nothing.
    pub fn keeps_journal(&mut self, why: &JournalError) {
        self.left.push(format!("the journal stays as it is ({why})"));
    }

    /// With what another restore did.
    pub fn add(&mut self, other: RestoreReport) {
        self.put_back += other.put_back;
        self.nothing_to_do += other.nothing_to_do;
        self.left.extend(other.left);
        self.failures.extend(other.failures);
        self.busy.extend(other.busy);
    }

    /// Whether everything is as it was before.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.busy.is_empty()
    }

    /// Counts a change that was or was not undone. True if it stays in the journal.
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
        write!(f, "{} changes put back, {} needed no undoing", self.put_back, self.nothing_to_do)?;
        for left in &self.left {
            write!(f, "; {left}")?;
        }
        for failure in self.failures.iter().chain(&self.busy) {
            write!(f, "; {} could not be put back: {}", failure.what, failure.error)?;
        }
        Ok(())
    }
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
    /// Not yet: another change, which could not be undone, needs it. It stays in the journal.
    Waits,
    /// Not yet: somebody is still in it, which is said here. It stays in the journal.
    Busy(String),
}

/// Undoes records in this order and returns those that stay in the journal, in the order of their attempts. `undo`
/// gets a record and those that failed before it.
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

/// Puts back what the journal in `state_dir` lists, for when nobody runs: `open` does it. Without a
/// journal there is nothing to do; where others could have taken it away, that is an error.
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
        other => other.map(|()| Undone::PutBack).map_err(|error| error.to_string()),
    }
}

/// The cgroup, or the lowest above it that still exists.
pub fn nearest(cgroup: &CgroupPath, exists: impl Fn(&CgroupPath) -> bool) -> CgroupPath {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(exists)
        .unwrap_or_else(CgroupPath::root)
}

/// What is about a cgroup or thread that is gone needs no undoing.
pub fn gone_is_fine(undone: Result<Undone, CgroupError>) -> Result<Undone, String> {
    match undone {
        Err(error) if error.is_gone() => Ok(Undone::Nothing),
        other => other.map_err(|error| error.to_string()),
    }
}
