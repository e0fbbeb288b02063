//! Which vCPUs threads are bound to: noted, changed and undone.
//!
//! A thread that is bound asks for some vCPUs, and runs on those of them that its cpuset has. Kernels from 6.2 on keep what was asked
//! for while a cpuset shrinks and grows (8f9ea86fdf99), whoever asked and whenever, so there is nothing to note, and nothing to put back but what
//! the agent itself asked for. Earlier ones forget it: threads that were bound when the agent began are noted, and have that again.

use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::journal::Entry;
use tandem_linux::kernel_release;
use tandem_linux::restore::{Undone, restore_affinity};
use tandem_linux::thread::ThreadRef;
use tandem_model::PcpuSet;

use super::{Actuator, ActuatorError, foreign, threads_of};
use crate::journal::Change;

/// The first release that keeps what a thread asked for while its cpuset shrinks and grows.
const KEEPS_WHAT_WAS_ASKED_FOR: (u32, u32) = (6, 2);

impl Actuator {
    /// Notes the vCPUs of threads that are bound to some of `all` only, where the kernel forgets that when a cpuset shrinks.
    pub fn note_bound_threads(
        &mut self,
        cgroup: &CgroupPath,
        all: &PcpuSet,
    ) -> Result<(), ActuatorError> {
        if kernel_release::is_since(KEEPS_WHAT_WAS_ASKED_FOR) {
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

    /// Gives back to threads what the kernel forgot that they were bound to. Those that the agent bound stay so.
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

    /// Binds a thread to these vCPUs; it is to have the original ones back, unless somebody else binds it meanwhile.
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
            self.journal.was_not_written(&key);
        }
        Ok(bound?)
    }

    /// Puts back what a thread was bound to.
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
        // Where the kernel forgets what is asked for, what is there tells nothing of who asked.
        if kernel_release::is_since(KEEPS_WHAT_WAS_ASKED_FOR) && !self.journal.is_ours(&found) {
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

    /// What a bound process has once all is put back, if somebody else binds it to this meanwhile.
    fn put_back(theirs: Option<&PcpuSet>, one: &PcpuSet, all: &PcpuSet) -> PcpuSet {
        let (_root, procfs) = crate::actuator::tests::vm();
        let state = tempfile::tempdir().unwrap();
        let (mut actuator, _) = Actuator::open(&procfs, state.path()).unwrap();
        // The tree of files has no threads.
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
    fn threads_that_somebody_else_binds_stay_so() {
        let me = ThreadRef::of_process(&ProcFs::host(), Pid(std::process::id())).unwrap();
        let all = affinity(me.tid).unwrap();
        let mut vcpus = all.iter().map(|vcpu| [vcpu].into_iter().collect());
        let (Some(one), Some(other)) = (vcpus.next(), vcpus.next()) else {
            println!("skipped: it takes two CPUs");
            return;
        };
        assert_eq!(put_back(None, &one, &all), all);
        let kept = match kernel_release::is_since(KEEPS_WHAT_WAS_ASKED_FOR) {
            true => &other,
            // Whose it is cannot be told there.
            false => &all,
        };
        assert_eq!(put_back(Some(&other), &one, &all), *kept);
    }
}
