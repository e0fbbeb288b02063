//! Per-thread vCPUs on a live VM: new threads of the workload are bound as they are born.
//!
//! Which vCPU is the policy's business ([`tandem_policy::per_thread`]). Who is born the kernel tells ([`Births`]): a
//! thread is the workload's if its process is, and a new process if its parent is. At every period of the agent all
//! threads are looked at as well: that finds those of whom nothing was heard, and says who is no longer there.
//! Threads of the kernel are not in the workload's cgroup and are left alone. The guest's load balancing needs no
//! switch of its own: it does not move a thread that may run on a single vCPU.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use tandem_linux::ProcFs;
use tandem_linux::affinity::{AffinityError, affinity};
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_model::{PcpuId, PcpuSet};
use tandem_policy::per_thread::PerThread;

use crate::actuator::{Actuator, ActuatorError, threads_of};
use crate::births::Births;
use crate::cpusets::parent_of;

/// So many births are handled in a period, for each costs the agent some 0.3 ms. Where more are born most are gone
/// before they could be bound; those that stay are found when the period ends.
const MOST_BIRTHS: usize = 32;

/// Binds threads.
#[derive(Debug)]
pub struct Pinning {
    procfs: ProcFs,
    policy: PerThread<ThreadRef>,
    births: Result<Births, Errno>,
    /// The workload's processes.
    processes: BTreeSet<Pid>,
    /// Births handled in this period.
    handled: usize,
    /// By process: what its threads were bound to, and the affinity they had before. A thread that they create inherits
    /// the former; the latter is restored.
    given: BTreeMap<Pid, Vec<(PcpuSet, PcpuSet)>>,
}

impl Pinning {
    /// To these vCPUs. What the workload makes from now on is heard of.
    pub fn new(procfs: &ProcFs, vcpus: &PcpuSet) -> Pinning {
        Pinning {
            procfs: procfs.clone(),
            policy: PerThread::new(vcpus),
            births: Births::listen(),
            processes: BTreeSet::new(),
            handled: 0,
            given: BTreeMap::new(),
        }
    }

    /// Why births are not announced, if they are not.
    pub fn births_error(&self) -> Option<Errno> {
        self.births.as_ref().err().copied()
    }

    /// A file that can be read once a thread was born; none if enough were in this period.
    pub fn births_file(&self) -> Option<BorrowedFd<'_>> {
        let births = self.births.as_ref().ok();
        births.filter(|_| self.handled < MOST_BIRTHS).map(AsFd::as_fd)
    }

    /// Binds the threads that were born into the workload; how many those were.
    pub fn bind_born(&mut self, actuator: &mut Actuator) -> Result<u64, ActuatorError> {
        let Ok(births) = &self.births else {
            return Ok(0);
        };
        let born = match births.take() {
            Ok(born) => born,
            Err(error) => {
                self.births = Err(error);
                return Ok(0);
            }
        };
        let mut bound = 0;
        for birth in born {
            let is_heir = birth.is_process() && self.processes.contains(&birth.parent);
            if !is_heir && !self.processes.contains(&birth.process) {
                continue;
            }
            self.processes.insert(birth.process);
            self.handled += 1;
            if self.handled > MOST_BIRTHS {
                break;
            }
            // It may have ended since.
            let Ok(thread) = ThreadRef::read(&self.procfs, birth.process, birth.thread) else {
                continue;
            };
            if let Some(vcpu) = self.policy.add(thread) {
                self.bind(actuator, thread, vcpu, Some(birth.parent))?;
                bound += 1;
            }
        }
        Ok(bound)
    }

    /// Binds the threads of these processes, which are all of the workload's, that are new; how many those were.
    pub fn bind_new(
        &mut self,
        actuator: &mut Actuator,
        processes: &[Pid],
    ) -> Result<u64, ActuatorError> {
        self.processes = processes.iter().copied().collect();
        self.handled = 0;
        let mut threads = Vec::new();
        for &pid in processes {
            let tids = threads_of(&self.procfs, pid).into_iter();
            threads.extend(tids.filter_map(|tid| ThreadRef::read(&self.procfs, pid, tid).ok()));
        }
        let placed = self.policy.place(&threads);
        for &(thread, vcpu) in &placed {
            let parent = parent_of(&self.procfs, thread.pid);
            self.bind(actuator, thread, vcpu, parent)?;
        }
        self.given.retain(|pid, _| self.processes.contains(pid));
        Ok(placed.len() as u64)
    }

    /// A thread that is gone needs no vCPU.
    fn bind(
        &mut self,
        actuator: &mut Actuator,
        thread: ThreadRef,
        vcpu: PcpuId,
        parent: Option<Pid>,
    ) -> Result<(), ActuatorError> {
        let has = match affinity(thread.tid) {
            Err(AffinityError::Gone(_)) => return Ok(()),
            has => has?,
        };
        let one: PcpuSet = [vcpu].into_iter().collect();
        let original = self.before(thread.pid, parent, &has);
        match actuator.bind(thread, &one, original.clone()) {
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
        let given = self.given.entry(thread.pid).or_default();
        if !given.contains(&(one.clone(), original.clone())) {
            given.push((one, original));
        }
        Ok(())
    }

    /// What a new thread that has these vCPUs is to have back: if it has them from who made it, what that one had.
    fn before(&self, process: Pid, parent: Option<Pid>, has: &PcpuSet) -> PcpuSet {
        let makers = [Some(process), parent].into_iter().flatten();
        let mut given = makers.filter_map(|pid| self.given.get(&pid)).flatten();
        let inherited = given.find(|(bound, _)| bound == has);
        inherited.map_or_else(|| has.clone(), |(_, original)| original.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inherited_is_not_what_is_given_back() {
        let set = |list: &str| list.parse::<PcpuSet>().unwrap();
        let mut pinning = Pinning::new(&ProcFs::host(), &set("0-3"));
        pinning.given.insert(Pid(10), vec![(set("2"), set("0-3")), (set("1"), set("0-1"))]);
        // A thread of that process, and a child of it.
        assert_eq!(pinning.before(Pid(10), None, &set("2")), set("0-3"));
        assert_eq!(pinning.before(Pid(11), Some(Pid(10)), &set("1")), set("0-1"));
        // Bound by itself; and somebody else's child.
        assert_eq!(pinning.before(Pid(11), Some(Pid(10)), &set("3")), set("3"));
        assert_eq!(pinning.before(Pid(11), Some(Pid(1)), &set("2")), set("2"));
    }
}
