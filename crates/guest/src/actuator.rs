//! The only writer of VM settings: journals each change before making it, and reverts all changes at exit.
//!
//! [`Actuator::open`] first reverts the changes of a killed agent.
//! Cgroups, processes and threads may vanish at any moment, which leaves nothing to revert.

mod binding;
mod delay;

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

use tandem_linux::ProcFs;
use tandem_linux::affinity::{AffinityError, HostThreads, Threads};
use tandem_linux::cgroup::{CgroupError, CgroupPath};
use tandem_linux::journal::{Entry, Journal, JournalError, Stamp};
use tandem_linux::restore::{
    RestoreReport, Undone, gone_is_fine, nearest, restore_pending, undo_each,
};
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::PcpuSet;
use thiserror::Error;

use crate::cpusets::Cpusets;
use crate::journal::{Change, Key, haltpoll_parameter};

/// Maximum number of retries to remove a cgroup that still holds exiting processes.
const REMOVE_TRIES: u32 = 50;

/// Interval between these retries.
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// Reason why a change was not made.
#[derive(Debug, Error)]
pub enum ActuatorError {
    /// The journal could not be written, so the change was not attempted.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A cgroup operation failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A thread's affinity could not be read or set.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// A kernel parameter could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Parameter {
        /// Failed operation.
        action: &'static str,
        /// File of the parameter.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A thread's scheduling policy could not be read or set.
    #[error(transparent)]
    Scheduling(#[from] SchedAttrError),
    /// A thread's timer slack could not be set.
    #[error("cannot set the timer slack of {thread}: {source}; it takes root, or CAP_SYS_NICE")]
    TimerSlack {
        /// The thread.
        thread: ThreadRef,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A thread's timer slack could not be read.
    #[error(
        "cannot read the timer slack of thread {tid}: {source}; it takes root, or CAP_SYS_NICE, and Linux 4.6 or later"
    )]
    TimerSlackUnread {
        /// The thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The processes of the VM cannot be listed.
    #[error("cannot list the processes of this VM in /proc: {0}")]
    Processes(io::Error),
}

impl ActuatorError {
    /// Whether the process or cgroup merely ceased to exist.
    pub fn is_gone(&self) -> bool {
        match self {
            ActuatorError::Cgroup(error) => error.is_gone(),
            ActuatorError::Affinity(error) => error.is_gone(),
            ActuatorError::Scheduling(error) => error.is_gone(),
            ActuatorError::TimerSlack { source, .. }
            | ActuatorError::TimerSlackUnread { source, .. } => {
                tandem_linux::procfs::is_gone(source)
            }
            _ => false,
        }
    }
}

/// Changes the VM and reverts these changes.
#[derive(Debug)]
pub struct Actuator {
    cpusets: Cpusets,
    procfs: ProcFs,
    threads: HostThreads,
    journal: Journal<Change>,
    /// Cgroup of the workload.
    workload: Option<CgroupPath>,
    is_restored: bool,
}

impl Actuator {
    /// Locks `state_dir` and reverts the changes of a killed agent.
    pub fn open(
        procfs: &ProcFs,
        state_dir: &Path,
    ) -> Result<(Actuator, RestoreReport), ActuatorError> {
        let cpusets = Cpusets::open(procfs)?;
        let boot = ProcFs::host().boot_id().unwrap_or_default();
        let stamp = Stamp::new(boot, cpusets.version(), cpusets.mount().to_owned());
        let mut actuator = Actuator {
            cpusets,
            procfs: procfs.clone(),
            threads: HostThreads::new(procfs.clone()),
            journal: Journal::open(state_dir, stamp)?,
            workload: None,
            is_restored: true,
        };
        let report = actuator.restore();
        actuator.is_restored = false;
        Ok((actuator, report))
    }

    /// Checks that the journal is writable, as each change requires.
    pub fn check_writable(&self) -> Result<(), ActuatorError> {
        Ok(self.journal.check_writable()?)
    }

    /// Sets the workload's cgroup, in which new threads may inherit settings of others.
    pub fn workload_is_in(&mut self, cgroup: &CgroupPath) {
        self.workload = Some(cgroup.clone());
    }

    /// The cpuset hierarchy.
    pub fn cpusets(&self) -> &Cpusets {
        &self.cpusets
    }

    /// Enables the cpuset controller for `cgroup`, which need not exist.
    pub fn enable_down_to(&mut self, cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        for above in self.cpusets.missing_enables(cgroup)? {
            let id = self.cpusets.id(&above)?;
            self.journal.append(Change::Enabled { cgroup: above.clone(), id })?;
            self.cpusets.enable(&above)?;
        }
        Ok(())
    }

    /// Creates a cgroup with the vCPUs of its parent.
    /// If the name exists, a number is appended.
    /// Removal of the cgroup moves its remaining processes to `home`.
    pub fn make_group(
        &mut self,
        parent: &CgroupPath,
        name: &str,
        home: &CgroupPath,
    ) -> Result<CgroupPath, ActuatorError> {
        let taken = |name: &str| self.cpusets.exists(&parent.child(name));
        let Some(name) = free_name(name, taken) else {
            return Err(CgroupError::Exists(parent.child(name)).into());
        };
        let cgroup = parent.child(&name);
        self.enable_down_to(&cgroup)?;
        self.journal.append(Change::Created { cgroup, home: home.clone() })?;
        Ok(self.cpusets.make(parent, &name)?)
    }

    /// Moves processes to the agent's own cgroup, ignoring those that have exited.
    pub fn admit(&mut self, pids: &[Pid], cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        for &pid in pids {
            match self.cpusets.move_process(pid, cgroup) {
                Err(error) if !error.is_gone() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Restricts the processes of a cgroup to these vCPUs.
    pub fn set_vcpus(&mut self, cgroup: &CgroupPath, vcpus: &PcpuSet) -> Result<(), ActuatorError> {
        let is_ours = Change::Created { cgroup: cgroup.clone(), home: CgroupPath::root() };
        let text = vcpus.to_string();
        let mut key = None;
        if !self.journal.knows(&is_ours.key()) {
            let id = self.cpusets.id(cgroup)?;
            let record = |original| Change::Vcpus { cgroup: cgroup.clone(), id, original };
            key = Some(self.before(record(self.cpusets.text(cgroup)?), record(text.clone()))?);
        }
        let written = self.cpusets.set_text(cgroup, &text);
        if let (Some(key), Err(_)) = (key, &written) {
            self.journal.write_failed(&key);
        }
        Ok(written?)
    }

    /// Journals the current value, unless it results from an earlier write of ours, and the value to be written.
    fn before(&mut self, now: Change, written: Change) -> Result<Key, ActuatorError> {
        let key = now.key();
        if !self.journal.knows(&key) {
            self.journal.append(now)?;
        } else if self.journal.is_ours(&now) {
            self.journal.keep_current(now)?;
        } else {
            self.journal.replace_original(now)?;
        }
        self.journal.will_write(written)?;
        self.compact_if_due();
        Ok(key)
    }

    /// Drops exited threads from the journal once it has grown.
    fn compact_if_due(&mut self) {
        if self.journal.wants_compaction() {
            let threads = &self.threads;
            let has_ended =
                |change: &Change| change.thread().is_some_and(|thread| !threads.is_alive(thread));
            self.journal.forget_ended(has_ended);
            // If the disk has no room for the compacted file, the journal keeps growing.
            let _ = self.journal.compact();
        }
    }

    /// Sets a kernel parameter.
    pub fn set_parameter(&mut self, path: &Path, value: &str) -> Result<(), ActuatorError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| ActuatorError::Parameter { action, path, source }
        };
        let now = fs::read_to_string(path).map_err(failed("read"))?;
        let key = self.before(parameter(path, &now), parameter(path, value))?;
        let written = fs::write(path, value);
        if written.is_err() {
            self.journal.write_failed(&key);
        }
        written.map_err(failed("write"))
    }

    /// Reverts all changes; failures stay in the journal.
    pub fn restore(&mut self) -> RestoreReport {
        self.is_restored = true;
        let mut report = RestoreReport::default();
        self.revert_heirs(&mut report);
        // Affinities last: the cgroup must have its vCPUs again first.
        let is_thread = |change: &&Change| matches!(change, Change::Affinity { .. });
        let records = self.journal.records().rev();
        let others = records.clone().filter(|change| !is_thread(change));
        let ordered = others.chain(records.filter(is_thread));
        let failed = undo_each(ordered, &mut report, |change, _| self.undo(change));
        // Threads created meanwhile by threads that were not reverted yet.
        self.revert_heirs(&mut report);
        if let Err(error) = self.journal.keep(|record| failed.contains(record)) {
            report.note_kept_journal(&error);
        }
        report
    }

    fn undo(&self, change: &Change) -> Result<Undone, String> {
        match change {
            Change::Affinity { thread, original } => self.undo_affinity(thread, original),
            Change::TimerSlack { .. } | Change::Scheduling { .. } => self.undo_delay(change),
            // A tampered journal must not make the agent write any other file.
            Change::Parameter { path, .. } if *path != haltpoll_parameter(&self.procfs) => {
                Err(format!("{} is no kernel parameter that Tandem sets", path.display()))
            }
            Change::Parameter { path, original } => match fs::read_to_string(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Undone::Nothing),
                Ok(now) if now.trim_end() == original => Ok(Undone::Nothing),
                Ok(now) if !self.journal.is_ours(&parameter(path, &now)) => {
                    Ok(foreign(&format!("'{}' in {}", now.trim_end(), path.display())))
                }
                _ => fs::write(path, original)
                    .map(|()| Undone::PutBack)
                    .map_err(|error| format!("cannot write {}: {error}", path.display())),
            },
            Change::Vcpus { cgroup, id, original } => {
                gone_is_fine(self.cpusets.id(cgroup).and_then(|now| {
                    if now != *id || !self.cpusets.has_controller(cgroup) {
                        return Ok(Undone::Nothing);
                    }
                    let now = self.cpusets.text(cgroup)?;
                    if now == *original {
                        return Ok(Undone::Nothing);
                    }
                    let found =
                        Change::Vcpus { cgroup: cgroup.clone(), id: *id, original: now.clone() };
                    if !self.journal.is_ours(&found) {
                        return Ok(foreign(&format!("the cpuset.cpus '{now}' of cgroup {cgroup}")));
                    }
                    self.cpusets.restore_text(cgroup, original)?;
                    Ok(Undone::PutBack)
                }))
            }
            Change::Created { cgroup, home } => {
                if self.cpusets.exists(cgroup) {
                    gone_is_fine(self.remove_group(cgroup, home))
                } else {
                    Ok(Undone::Nothing)
                }
            }
            Change::Enabled { cgroup, id } => {
                gone_is_fine(self.cpusets.id(cgroup).and_then(|now| {
                    if now != *id {
                        return Ok(Undone::Nothing);
                    }
                    // These had no cpuset.cpus of their own, so they do not need the controller.
                    let ours = self.journal.records().filter_map(|record| match record {
                        Change::Vcpus { cgroup, original, .. } if original.is_empty() => {
                            Some(cgroup)
                        }
                        _ => None,
                    });
                    let ours: Vec<&CgroupPath> = ours.collect();
                    Ok(match self.cpusets.disable(cgroup, &ours)? {
                        None => Undone::PutBack,
                        Some(user) => Undone::Left(format!(
                            "the cpuset controller stays enabled below {cgroup}: {user} uses it"
                        )),
                    })
                }))
            }
        }
    }

    /// Empties and removes a cgroup.
    /// Its processes move to `home`, or to the nearest existing ancestor.
    /// Processes may still start, and exiting ones keep the cgroup busy for a moment, so this retries.
    /// It does not retry while the cgroup has children.
    fn remove_group(&self, cgroup: &CgroupPath, home: &CgroupPath) -> Result<Undone, CgroupError> {
        let home = nearest(home, |cgroup| self.cpusets.exists(cgroup));
        let mut tries = 0;
        loop {
            for pid in self.cpusets.processes(cgroup)? {
                match self.cpusets.move_process(pid, &home) {
                    Err(error) if !error.is_gone() => return Err(error),
                    _ => {}
                }
            }
            match self.cpusets.remove(cgroup) {
                Ok(()) => return Ok(Undone::PutBack),
                Err(CgroupError::Busy { .. })
                    if tries < REMOVE_TRIES && self.cpusets.children(cgroup)?.is_empty() =>
                {
                    tries += 1;
                    sleep(REMOVE_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Actuator {
    fn drop(&mut self) {
        if !self.is_restored {
            self.restore();
        }
    }
}

fn parameter(path: &Path, text: &str) -> Change {
    Change::Parameter { path: path.to_owned(), original: text.trim_end().to_owned() }
}

/// The current value was set by another process.
fn foreign(what: &str) -> Undone {
    Undone::Left(format!("{what} stays: another process changed it meanwhile"))
}

/// Returns the name, or the name with the first free number.
/// PIDs wrap, so the name of a killed agent whose journal is lost may still exist.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> Option<String> {
    let numbered = (2..=100).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken(name))
}

/// Returns the threads of a process; none if it has exited.
pub fn threads_of(procfs: &ProcFs, pid: Pid) -> Vec<Tid> {
    let Ok(tasks) = fs::read_dir(procfs.process(pid).join("task")) else {
        return Vec::new();
    };
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let mut tids: Vec<Tid> = numbers.map(Tid).collect();
    tids.sort_unstable();
    tids
}

/// Reverts the changes in the journal of `state_dir` while no agent runs.
/// Without a journal, it does nothing.
pub fn restore_all(procfs: &ProcFs, state_dir: &Path) -> Result<RestoreReport, ActuatorError> {
    restore_pending(state_dir, |state_dir| Actuator::open(procfs, state_dir))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn taken_name_gets_number() {
        assert_eq!(free_name("a", |_| false).as_deref(), Some("a"));
        let taken = |name: &str| ["a", "a-2"].contains(&name);
        assert_eq!(free_name("a", taken).as_deref(), Some("a-3"));
        assert_eq!(free_name("a", |_| true), None);
    }

    /// A fake VM of files, with cpusets of v2 and haltpoll.
    pub(crate) fn vm() -> (tempfile::TempDir, ProcFs) {
        let root = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(root.path());
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/mounts", "none /cg cgroup2 rw 0 0\n");
        write("cg/cgroup.controllers", "cpuset cpu\n");
        write("cg/cgroup.subtree_control", "cpuset\n");
        write("cg/a/cpuset.cpus", "0-3\n");
        let parameter = haltpoll_parameter(&procfs);
        fs::create_dir_all(parameter.parent().unwrap()).unwrap();
        fs::write(parameter, "200000\n").unwrap();
        (root, procfs)
    }

    #[test]
    fn planted_parameter_is_not_written() {
        let (root, procfs) = vm();
        let state = tempfile::tempdir().unwrap();
        let victim = root.path().join("victim");
        fs::write(&victim, "theirs").unwrap();
        let boot = ProcFs::host().boot_id().unwrap_or_default();
        let stamp = Stamp::new(boot, tandem_linux::cgroup::Version::V2, "/cg".into());
        let mut journal = Journal::<Change>::open(state.path(), stamp).unwrap();
        journal.append(parameter(&victim, "planted")).unwrap();
        drop(journal);
        let report = restore_all(&procfs, state.path()).unwrap();
        assert!(!report.is_complete());
        assert!(report.to_string().contains("victim"), "{report}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
    }

    #[test]
    fn restore_keeps_foreign_values() {
        for theirs in [false, true] {
            let (_root, procfs) = vm();
            let state = tempfile::tempdir().unwrap();
            let (mut actuator, _) = Actuator::open(&procfs, state.path()).unwrap();
            let parameter = haltpoll_parameter(&procfs);
            let cgroup = CgroupPath("/a".to_owned());
            let cpus = || actuator_text(&procfs, &cgroup);
            for number in 1..4u64 {
                let value = (number * 1000).to_string();
                actuator.set_parameter(&parameter, &value).unwrap();
                let first = format!("0-{}", number - 1).parse().unwrap();
                actuator.set_vcpus(&cgroup, &first).unwrap();
            }
            if theirs {
                fs::write(&parameter, "77\n").unwrap();
                let cpusets = Cpusets::open(&procfs).unwrap();
                cpusets.set_text(&cgroup, "1,3").unwrap();
            }
            let report = actuator.restore();
            assert!(report.is_complete(), "{report}");
            assert_eq!(report.left.len(), if theirs { 2 } else { 0 }, "{report}");
            let value = fs::read_to_string(&parameter).unwrap();
            let wanted = if theirs { ("77", "1,3") } else { ("200000", "0-3") };
            assert_eq!((value.trim_end(), cpus().as_str()), wanted);
        }
    }

    fn actuator_text(procfs: &ProcFs, cgroup: &CgroupPath) -> String {
        let cpusets = Cpusets::open(procfs).unwrap();
        cpusets.text(cgroup).unwrap()
    }
}
