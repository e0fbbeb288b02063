//! Where threads and processes may run, and in which cgroup they are.
//!
//! A cgroup is read again after [`REREAD_CGROUP`] intervals, since it takes a file. Where a process may run is where any of its threads may: of
//! one that ran little that of its first thread is taken, which costs one call; of one that ran [`MUCH`] or more all threads are looked
//! at, every [`REREAD`] intervals. What each thread of it ran is not known here, so it is taken to have run everywhere alike.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{Nanos, PcpuSet};

use super::tasks::numbered;

/// Where a process may run is looked up again after so many intervals.
const REREAD: u64 = 8;

/// A thread's cgroup is read again after so many.
const REREAD_CGROUP: u64 = 32;

/// From this part of the interval on, one hundredth of a pCPU, a process's threads are looked at one by one.
const MUCH: u64 = 100;

/// What was read, and when it is due again.
#[derive(Debug)]
struct Kept<T> {
    value: T,
    due: u64,
    used: u64,
}

/// Where threads and processes are.
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

    /// Begins an interval. What nobody asked for in a while is forgotten.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
        let oldest = self.round.saturating_sub(REREAD_CGROUP);
        self.cgroups.retain(|_, kept| kept.used >= oldest);
        self.processes.retain(|_, kept| kept.used >= oldest);
    }

    /// Where a thread may run; nowhere if it is gone.
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

    /// Where a process may run that ran so much in an interval of that length.
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

    /// The cgroup of a thread in the hierarchy of the cpu controller, as of lately.
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

    /// The cgroup of a thread that did not run, as it was when it did.
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

    /// When it is due again; not all are in one interval.
    fn due(&self, tid: Tid, after: u64) -> u64 {
        let turn = (self.round + u64::from(tid.0)) % after;
        self.round + after - turn
    }
}
