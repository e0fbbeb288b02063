//! Affinities of threads: recorded, changed and reverted.
//!
//! A thread runs on the vCPUs that are both in its requested affinity and in its cpuset.
//! Since Linux 6.2 the kernel keeps the requested affinity while a cpuset shrinks and grows (8f9ea86fdf99).
//! There, only affinities that the agent set are journaled and reverted.
//! Earlier kernels lose the request, so affinities of bound threads are journaled at the start and set again later.

use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::journal::Entry;
use tandem_linux::kernel_release;
use tandem_linux::restore::{Undone, restore_affinity};
use tandem_linux::thread::ThreadRef;
use tandem_model::PcpuSet;

use super::{Actuator, ActuatorError, foreign, threads_of};
use crate::journal::Change;

/// First release that keeps a thread's requested affinity while its cpuset shrinks and grows.
const KEEPS_REQUESTED_AFFINITY: (u32, u32) = (6, 2);

impl Actuator {
    /// Journals affinities that differ from `all`, on kernels that lose them when a cpuset shrinks.
    pub fn note_bound_threads(
        &mut self,
        cgroup: &CgroupPath,
        all: &PcpuSet,
    ) -> Result<(), ActuatorError> {
        if kernel_release::is_since(KEEPS_REQUESTED_AFFINITY) {
            return Ok(());
        }
        for pid in self.cpusets.processes_within(cgroup)? {
            for tid in threads_of(&self.procfs, pid) {
                let Ok(original) = self.threads.affinity(tid) else {
                    continue;
                };
                if original == *all {
                    continue;
                }
                if let Ok(thread) = ThreadRef::read(&self.procfs, pid, tid) {
                    self.note_affinity(thread, original)?;
                }
            }
        }
        Ok(())
    }

    fn note_affinity(&mut self, thread: ThreadRef, original: PcpuSet) -> Result<(), ActuatorError> {
        self.journal.append(Change::Affinity { thread, original })?;
        self.compact_if_due();
        Ok(())
    }

    /// Sets affinities again that the kernel lost, except of threads that the agent bound.
    pub fn rebind_threads(&mut self) {
        for record in self.journal.records() {
            if let Change::Affinity { thread, original } = record
                && self.journal.written(&record.key()).is_empty()
                && self.threads.is_alive(thread)
            {
                let _ = self.threads.set_affinity(thread.tid, original);
            }
        }
    }

    /// Binds a thread to these vCPUs.
    /// The original affinity is restored later, unless another process changes it meanwhile.
    pub fn bind(
        &mut self,
        thread: ThreadRef,
        vcpus: &PcpuSet,
        original: PcpuSet,
    ) -> Result<(), ActuatorError> {
        self.note_affinity(thread, original)?;
        let record = Change::Affinity { thread, original: vcpus.clone() };
        let key = record.key();
        self.journal.will_write(record)?;
        let bound = self.threads.set_affinity(thread.tid, vcpus);
        if bound.is_err() {
            self.journal.write_failed(&key);
        }
        Ok(bound?)
    }

    /// Restores the affinity of a thread.
    pub(super) fn undo_affinity(
        &self,
        thread: &ThreadRef,
        original: &PcpuSet,
    ) -> Result<Undone, String> {
        if !self.threads.is_alive(thread) {
            return Ok(Undone::Nothing);
        }
        let now = match self.threads.affinity(thread.tid) {
            Err(AffinityError::Gone(_)) => return Ok(Undone::Nothing),
            now => now.map_err(|error| error.to_string())?,
        };
        let found = Change::Affinity { thread: *thread, original: now.clone() };
        // On kernels that lose the request, the current affinity does not identify its writer.
        if kernel_release::is_since(KEEPS_REQUESTED_AFFINITY) && !self.journal.is_ours(&found) {
            return Ok(foreign(&format!("{thread}, bound to vCPUs {now},")));
        }
        restore_affinity(&self.threads, thread, original)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tandem_linux::affinity::{affinity, set_affinity};
    use tandem_linux::procfs::ProcFs;
    use tandem_linux::thread::Pid;

    use super::*;

    /// Affinity of a bound process after the restore, if another process sets `theirs` meanwhile.
    fn restored(theirs: Option<&PcpuSet>, one: &PcpuSet, all: &PcpuSet) -> PcpuSet {
        let (_root, procfs) = crate::actuator::tests::vm();
        let state = tempfile::tempdir().unwrap();
        let (mut actuator, _) = Actuator::open(&procfs, state.path()).unwrap();
        // The fake procfs has no threads.
        actuator.threads = tandem_linux::affinity::HostThreads::new(ProcFs::host());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let thread = ThreadRef::of_process(&ProcFs::host(), Pid(child.id())).unwrap();
        actuator.bind(thread, one, all.clone()).unwrap();
        assert_eq!(affinity(thread.tid).unwrap(), *one);
        if let Some(theirs) = theirs {
            set_affinity(thread.tid, theirs).unwrap();
        }
        let report = actuator.restore();
        assert!(report.is_complete(), "{report}");
        let has = affinity(thread.tid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        has
    }

    #[test]
    fn restore_keeps_foreign_affinity() {
        let me = ThreadRef::of_process(&ProcFs::host(), Pid(std::process::id())).unwrap();
        let all = affinity(me.tid).unwrap();
        let mut vcpus = all.iter().map(|vcpu| [vcpu].into_iter().collect());
        let (Some(one), Some(other)) = (vcpus.next(), vcpus.next()) else {
            println!("skipped: it takes two CPUs");
            return;
        };
        assert_eq!(restored(None, &one, &all), all);
        // Earlier kernels do not identify the writer, so the restore overwrites it.
        let kept = if kernel_release::is_since(KEEPS_REQUESTED_AFFINITY) { &other } else { &all };
        assert_eq!(restored(Some(&other), &one, &all), *kept);
    }
}
