//! Affinity and cgroups of threads and processes.
//!
//! A cgroup is read again after [`REREAD_CGROUP`] intervals, since that reads a file. The affinity of a process is the union over its threads.
//! For a process with little run time, the affinity of its first thread is used, which costs one call. For one above [`MUCH`], all threads
//! are read, every [`REREAD`] intervals. Run times of its threads are unknown here, so it counts as spread evenly.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{Nanos, PcpuSet};

use super::tasks::numbered;

/// Number of intervals after which the affinity of a process is read again.
const REREAD: u64 = 8;

/// Number of intervals after which a thread's cgroup is read again.
const REREAD_CGROUP: u64 = 32;

/// Reciprocal of the part of an interval (a hundredth of a pCPU) from which a process's threads are read individually.
const MUCH: u64 = 100;

/// A cached value, with the intervals of its next reading and its last use.
#[derive(Debug)]
struct Kept<T> {
    value: T,
    due: u64,
    used: u64,
}

/// A cache of affinities and cgroups.
#[derive(Debug)]
pub(super) struct Places {
    procfs: ProcFs,
    round: u64,
    cgroups: HashMap<ThreadRef, Kept<Option<Arc<CgroupPath>>>>,
    processes: BTreeMap<ThreadRef, Kept<PcpuSet>>,
}

impl Places {
    pub(super) fn new(procfs: ProcFs) -> Places {
        Places { procfs, round: 0, cgroups: HashMap::new(), processes: BTreeMap::new() }
    }

    /// Begins an interval. Drops values that were not used for a while.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
        let oldest = self.round.saturating_sub(REREAD_CGROUP);
        self.cgroups.retain(|_, kept| kept.used >= oldest);
        self.processes.retain(|_, kept| kept.used >= oldest);
    }

    /// Returns the affinity of a thread; empty if it exited.
    pub(super) fn allowed(&self, thread: &ThreadRef) -> PcpuSet {
        self.allowed_by_number(thread.pid, thread.tid)
    }

    fn allowed_by_number(&self, pid: Pid, tid: Tid) -> PcpuSet {
        if self.procfs == ProcFs::host() {
            return affinity(tid).unwrap_or_default();
        }
        let status = read_text(&self.procfs.task(pid, tid).join("status")).unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.and_then(|list| list.trim().parse().ok()).unwrap_or_default()
    }

    /// Returns the affinity of a process with this run time in an interval of this length.
    pub(super) fn allowed_process(
        &mut self,
        process: &ThreadRef,
        ran: Nanos,
        length: Nanos,
    ) -> PcpuSet {
        if ran.0.saturating_mul(MUCH) < length.0 {
            return self.allowed(process);
        }
        let (round, due) = (self.round, self.due(process.tid, REREAD));
        if let Some(kept) = self.processes.get_mut(process)
            && kept.due > round
        {
            kept.used = round;
            return kept.value.clone();
        }
        let mut allowed = self.allowed(process);
        let folder = self.procfs.process(process.pid).join("task");
        for (number, _) in numbered(&folder).unwrap_or_default() {
            allowed.extend(&self.allowed_by_number(process.pid, Tid(number)));
        }
        let kept = Kept { value: allowed.clone(), due, used: round };
        self.processes.insert(*process, kept);
        allowed
    }

    /// Returns the cgroup of a thread in the cpu controller's hierarchy, possibly from the cache.
    pub(super) fn cgroup(
        &mut self,
        controller: Option<&dyn CpuController>,
        thread: &ThreadRef,
    ) -> Option<Arc<CgroupPath>> {
        let (round, due) = (self.round, self.due(thread.tid, REREAD_CGROUP));
        if let Some(kept) = self.cgroups.get_mut(thread)
            && kept.due > round
        {
            kept.used = round;
            return kept.value.clone();
        }
        let value = controller?.cgroup_of(thread).ok().map(Arc::new);
        let kept = Kept { value: value.clone(), due, used: round };
        self.cgroups.insert(*thread, kept);
        value
    }

    /// Returns the last known cgroup of a thread that did not run since.
    pub(super) fn cgroup_as_was(
        &mut self,
        controller: Option<&dyn CpuController>,
        thread: &ThreadRef,
    ) -> Option<Arc<CgroupPath>> {
        match self.cgroups.get_mut(thread) {
            Some(kept) => {
                kept.used = self.round;
                kept.value.clone()
            }
            None => self.cgroup(controller, thread),
        }
    }

    /// Returns the interval of the next reading. Readings are spread over intervals.
    fn due(&self, tid: Tid, after: u64) -> u64 {
        let turn = (self.round + u64::from(tid.0)) % after;
        self.round + after - turn
    }
}
