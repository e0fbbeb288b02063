//! Per-thread vCPUs on a live VM: binds new threads of the workload at their creation.
//!
//! The policy chooses the vCPU ([`tandem_policy::per_thread`]), and the kernel reports new threads ([`Births`]).
//! A thread belongs to the workload if its process does, and a new process if its parent does.
//! At the end of each period the agent also lists all threads, to find those without a report and to drop exited ones.
//! Kernel threads are not in the workload's cgroup and are not bound.
//! The guest's load balancing never moves a thread that is bound to a single vCPU, so it stays on.

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

/// Maximum number of births handled per period; each costs the agent about 0.3 ms.
/// In a fork storm most threads exit before they could be bound, and the end of the period finds the rest.
const MAX_BIRTHS: usize = 32;

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
    /// By process: affinities that its threads got, with their originals.
    /// A new thread inherits the former, and the latter is restored.
    given: BTreeMap<Pid, Vec<(PcpuSet, PcpuSet)>>,
}

impl Pinning {
    /// Binds to these vCPUs, and subscribes to thread creation.
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

    /// Returns the reason why the process connector is unavailable, if it is.
    pub fn births_error(&self) -> Option<Errno> {
        self.births.as_ref().err().copied()
    }

    /// Returns a file that becomes readable at a thread's creation; none once a period has reached the maximum.
    pub fn births_file(&self) -> Option<BorrowedFd<'_>> {
        let births = self.births.as_ref().ok();
        births.filter(|_| self.handled < MAX_BIRTHS).map(AsFd::as_fd)
    }

    /// Binds new threads of the workload and returns their number.
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
            if self.handled > MAX_BIRTHS {
                break;
            }
            // It may have exited since.
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

    /// Binds the new threads of `processes`, which are all of the workload's, and returns their number.
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

    /// Binds a thread to a vCPU; ignores one that has exited.
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

    /// Returns the original affinity of a new thread: its creator's original if it inherited `has`, else `has`.
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
    fn inherited_affinity_is_not_original() {
        let set = |list: &str| list.parse::<PcpuSet>().unwrap();
        let mut pinning = Pinning::new(&ProcFs::host(), &set("0-3"));
        pinning.given.insert(Pid(10), vec![(set("2"), set("0-3")), (set("1"), set("0-1"))]);
        // A thread of that process, and a child process.
        assert_eq!(pinning.before(Pid(10), None, &set("2")), set("0-3"));
        assert_eq!(pinning.before(Pid(11), Some(Pid(10)), &set("1")), set("0-1"));
        // One bound itself, one is the child of another process.
        assert_eq!(pinning.before(Pid(11), Some(Pid(10)), &set("3")), set("3"));
        assert_eq!(pinning.before(Pid(11), Some(Pid(1)), &set("2")), set("2"));
    }
}
