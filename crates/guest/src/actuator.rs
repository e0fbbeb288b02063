//! The only way to change the VM: each change is journaled, then made, and put back in the end.
//!
//! [`Actuator::open`] first puts back what a killed agent left behind. Cgroups, processes and threads may vanish
//! at any moment; then there is nothing left to undo.

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

/// How often a group that still holds ending processes is looked at again.
const REMOVE_TRIES: u32 = 50;

/// How long to wait in between.
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// Why a change was not made.
#[derive(Debug, Error)]
pub enum ActuatorError {
    /// It could not be journaled, so it was not tried.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The cgroup refused.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A thread's vCPUs could not be read.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// A kernel parameter could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Parameter {
        /// What was tried.
        action: &'static str,
        /// Its file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A thread is not scheduled otherwise.
    #[error(transparent)]
    Scheduling(#[from] SchedAttrError),
    /// A thread's timers are not later.
    #[error("cannot set the timer slack of {thread}: {source}; it takes root, or CAP_SYS_NICE")]
    TimerSlack {
        /// Which thread.
        thread: ThreadRef,
        /// What the kernel said.
        source: io::Error,
    },
    /// What a thread's timer slack is, is not told.
    #[error(
        "cannot read the timer slack of thread {tid}: {source}; it takes root, or CAP_SYS_NICE, and Linux 4.6 or later"
    )]
    TimerSlackUnread {
        /// Which thread.
        tid: Tid,
        /// What the kernel said.
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

/// Changes the VM and can put it back.
#[derive(Debug)]
pub struct Actuator {
    cpusets: Cpusets,
    procfs: ProcFs,
    threads: HostThreads,
    journal: Journal<Change>,
    /// Where the workload is.
    workload: Option<CgroupPath>,
    is_restored: bool,
}

impl Actuator {
    /// Takes the lock of `state_dir` and puts back what an earlier, killed agent left.
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

    /// Whether anything can be journaled, and so changed.
    pub fn check_writable(&self) -> Result<(), ActuatorError> {
        Ok(self.journal.check_writable()?)
    }

    /// Threads in this cgroup may inherit what others of it were given.
    pub fn workload_is_in(&mut self, cgroup: &CgroupPath) {
        self.workload = Some(cgroup.clone());
    }

    /// The cpuset hierarchy, to look at.
    pub fn cpusets(&self) -> &Cpusets {
        &self.cpusets
    }

    /// Makes sure that `cgroup`, which need not exist, has the cpuset controller.
    pub fn enable_down_to(&mut self, cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        for above in self.cpusets.missing_enables(cgroup)? {
            let id = self.cpusets.id(&above)?;
            self.journal.append(Change::Enabled { cgroup: above.clone(), id })?;
            self.cpusets.enable(&above)?;
        }
        Ok(())
    }

    /// Makes a cgroup with the vCPUs of the one above, of this name or, where somebody has that, of the name with a
    /// number. What is left in it in the end goes to `home`.
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

    /// Moves processes to the agent's own cgroup; those that end meanwhile do not matter.
    pub fn admit(&mut self, pids: &[Pid], cgroup: &CgroupPath) -> Result<(), ActuatorError> {
        for &pid in pids {
            match self.cpusets.move_process(pid, cgroup) {
                Err(error) if !error.is_gone() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets the processes of a cgroup use these vCPUs only.
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
            self.journal.was_not_written(&key);
        }
        Ok(written?)
    }

    /// Journals what is there, unless it came of what was written here before, and what is about to be.
    fn before(&mut self, now: Change, written: Change) -> Result<Key, ActuatorError> {
        let key = now.key();
        if !self.journal.knows(&key) {
            self.journal.append(now)?;
        } else if self.journal.is_ours(&now) {
            self.journal.still_has(now)?;
        } else {
            self.journal.replace_original(now)?;
        }
        self.journal.will_write(written)?;
        self.compact_if_due();
        Ok(key)
    }

    /// Threads that ended leave the journal when it has grown.
    fn compact_if_due(&mut self) {
        if self.journal.wants_compaction() {
            let threads = &self.threads;
            let has_ended =
                |change: &Change| change.thread().is_some_and(|thread| !threads.is_alive(thread));
            self.journal.forget_ended(has_ended);
            // Where there is no room, it grows on for as long as there is some.
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
            self.journal.was_not_written(&key);
        }
        written.map_err(failed("write"))
    }

    /// Puts everything back; what fails stays in the journal.
    pub fn restore(&mut self) -> RestoreReport {
        self.is_restored = true;
        let mut report = RestoreReport::default();
        self.put_back_heirs(&mut report);
        // Threads last: a thread can only be bound to vCPUs that its cgroup has again.
        let is_thread = |change: &&Change| matches!(change, Change::Affinity { .. });
        let records = self.journal.records().rev();
        let others = records.clone().filter(|change| !is_thread(change));
        let ordered = others.chain(records.filter(is_thread));
        let failed = undo_each(ordered, &mut report, |change, _| self.undo(change));
        // Those that were born meanwhile, of threads that were not put back yet.
        self.put_back_heirs(&mut report);
        if let Err(error) = self.journal.keep(|record| failed.contains(record)) {
            report.keeps_journal(&error);
        }
        report
    }

    fn undo(&self, change: &Change) -> Result<Undone, String> {
        match change {
            Change::Affinity { thread, original } => self.undo_affinity(thread, original),
            Change::TimerSlack { .. } | Change::Scheduling { .. } => self.undo_delay(change),
            // Whatever stands in a journal, no other file is ever written.
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
                    self.cpusets.put_back_text(cgroup, original)?;
                    Ok(Undone::PutBack)
                }))
            }
            Change::Created { cgroup, home } => match self.cpusets.exists(cgroup) {
                true => gone_is_fine(self.remove_group(cgroup, home)),
                false => Ok(Undone::Nothing),
            },
            Change::Enabled { cgroup, id } => {
                gone_is_fine(self.cpusets.id(cgroup).and_then(|now| {
                    if now != *id {
                        return Ok(Undone::Nothing);
                    }
                    // Those that had no vCPUs of their own need none.
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

    /// Empties and removes a cgroup. What is in it goes to `home`, or the lowest above it that still exists. More may start meanwhile, and
    /// ending processes hold on to the cgroup for a moment, so this may take a few rounds; with cgroups below it there is no point in waiting.
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

/// What is there was set by somebody else.
fn foreign(what: &str) -> Undone {
    Undone::Left(format!("{what} stays: somebody else set it meanwhile"))
}

/// The name, or the name with the first number that nobody has. A number of a process that was killed, with its
/// journal lost, comes back sooner or later.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> Option<String> {
    let numbered = (2..=100).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken(name))
}

/// The threads of a process; none if it is gone.
pub fn threads_of(procfs: &ProcFs, pid: Pid) -> Vec<Tid> {
    let Ok(tasks) = fs::read_dir(procfs.process(pid).join("task")) else {
        return Vec::new();
    };
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let mut tids: Vec<Tid> = numbers.map(Tid).collect();
    tids.sort_unstable();
    tids
}

/// Puts back what the journal in `state_dir` lists, for when no agent runs. Without one there is nothing to do.
pub fn restore_all(procfs: &ProcFs, state_dir: &Path) -> Result<RestoreReport, ActuatorError> {
    restore_pending(state_dir, |state_dir| Actuator::open(procfs, state_dir))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        assert_eq!(free_name("a", |_| false).as_deref(), Some("a"));
        let taken = |name: &str| ["a", "a-2"].contains(&name);
        assert_eq!(free_name("a", taken).as_deref(), Some("a-3"));
        assert_eq!(free_name("a", |_| true), None);
    }

    /// A VM of files, with cpusets of v2 and haltpoll.
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
    fn a_planted_parameter_is_not_written() {
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
    fn what_somebody_else_sets_stays_and_the_rest_is_put_back() {
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
