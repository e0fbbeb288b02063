//! The load of the host other than VMs: processes and kernel threads.
//!
//! A process's CPU clock (see [`tandem_linux::cpu_clock`]) takes one system call, is exact, and includes threads that exited. So each interval
//! lists all processes and reads their clocks; files are read only for processes that are new or ran. A process that starts
//! and exits within an interval is not seen. Test trees of `/proc` have no clocks; there the `schedstat` of the
//! threads is summed up.

use std::collections::BTreeMap;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::{fs, io};

use tandem_linux::cpu_clock::process_cpu_time;
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};
use tandem_model::Nanos;

use crate::source::ObserveError;

/// A process that ran in the interval.
#[derive(Clone, Debug)]
pub(super) struct TaskRan {
    pub(super) process: ThreadRef,
    pub(super) name: String,
    pub(super) kernel: bool,
    pub(super) time: Nanos,
}

#[derive(Debug)]
struct Known {
    inode: u64,
    time: Nanos,
}

/// All processes of the host, with their run times so far.
#[derive(Debug)]
pub(super) struct Tasks {
    procfs: ProcFs,
    has_clocks: bool,
    known: BTreeMap<Pid, Known>,
}

impl Tasks {
    pub(super) fn new(procfs: ProcFs) -> Tasks {
        Tasks { has_clocks: procfs == ProcFs::host(), procfs, known: BTreeMap::new() }
    }

    /// Returns the run time of each process since the last call, by pid, without those in `skip`, whose total run time the caller
    /// passes if known. All run time of a new process counts. After a process leaves `skip`, its run time since the last call
    /// counts.
    pub(super) fn round(
        &mut self,
        skip: &BTreeMap<Pid, Option<Nanos>>,
    ) -> Result<Vec<TaskRan>, ObserveError> {
        let path = self.procfs.resolve("/proc");
        let listed = numbered(&path).map_err(|source| ObserveError::List { path, source })?;
        let listed: BTreeMap<Pid, u64> =
            listed.into_iter().map(|(number, inode)| (Pid(number), inode)).collect();
        self.known.retain(|pid, known| listed.get(pid) == Some(&known.inode));
        let mut all = Vec::new();
        for (pid, inode) in listed {
            let skipped = skip.get(&pid);
            let Some(time) = skipped.copied().flatten().or_else(|| self.cpu_time(pid)) else {
                self.known.remove(&pid);
                continue;
            };
            let known = self.known.get(&pid);
            let before = known.map_or(Nanos::ZERO, |known| known.time);
            if known.is_some() && time == before {
                continue;
            }
            if skipped.is_some() {
                self.known.insert(pid, Known { inode, time });
                continue;
            }
            // Names change: a shell becomes the program it executes, a worker takes the name of its work.
            let Ok(stat) = ThreadStat::read(&self.procfs.process(pid)) else {
                self.known.remove(&pid);
                continue;
            };
            all.push(TaskRan {
                process: ThreadRef { pid, tid: pid.main_thread(), start: stat.start },
                name: if stat.kernel_thread { kernel_name(&stat.comm) } else { stat.comm },
                kernel: stat.kernel_thread,
                time: time.saturating_sub(before),
            });
            self.known.insert(pid, Known { inode, time });
        }
        all.retain(|task| task.time > Nanos::ZERO);
        Ok(all)
    }

    fn cpu_time(&self, pid: Pid) -> Option<Nanos> {
        if self.has_clocks {
            return process_cpu_time(pid);
        }
        let tasks = numbered(&self.procfs.process(pid).join("task")).ok()?;
        let times = tasks.into_iter().filter_map(|(tid, _)| {
            let path = self.procfs.task(pid, Tid(tid)).join("schedstat");
            let text = read_text(&path).ok()?;
            text.split_ascii_whitespace().next()?.parse().ok()
        });
        Some(times.map(Nanos).sum())
    }
}

/// Returns the name of a kernel thread. All workers share one name; other per-pCPU threads keep theirs.
pub(crate) fn kernel_name(comm: &str) -> String {
    if comm.starts_with("kworker/") { "kworker".to_owned() } else { comm.to_owned() }
}

/// Returns the process of a vhost kernel thread named `vhost-PID` (before Linux 6.4; later it is a thread of that process).
pub(crate) fn vhost_of(name: &str) -> Option<Pid> {
    name.strip_prefix("vhost-")?.parse().ok().map(Pid)
}

/// Returns the folders in `path` with numeric names, with their inode numbers.
pub(super) fn numbered(path: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            folders.push((number, entry.ino()));
        }
    }
    folders.sort_unstable();
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_a_name() {
        assert_eq!(kernel_name("kworker/0:1-events"), "kworker");
        assert_eq!(kernel_name("ksoftirqd/3"), "ksoftirqd/3");
        assert_eq!(vhost_of("vhost-4711"), Some(Pid(4711)));
        for name in ["vhost-", "vhost-x", "vhost_task", "kworker"] {
            assert_eq!(vhost_of(name), None, "{name}");
        }
    }

    #[test]
    fn own_process_is_listed_by_name() {
        let mut tasks = Tasks::new(ProcFs::host());
        let me = Pid(std::process::id());
        let first = tasks.round(&BTreeMap::new()).unwrap();
        assert!(first.iter().any(|task| task.process.pid == me));
        loop {
            let ran = tasks.round(&BTreeMap::new()).unwrap();
            if let Some(task) = ran.iter().find(|task| task.process.pid == me) {
                assert!(task.time > Nanos::ZERO && !task.kernel && !task.name.is_empty());
                break;
            }
        }
        let without = tasks.round(&BTreeMap::from([(me, None)])).unwrap();
        assert!(without.iter().all(|task| task.process.pid != me));
    }
}
