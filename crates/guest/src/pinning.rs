//! Per-thread vCPUs on a live VM: new threads of the workload are bound as they are seen.
//!
//! Which vCPU is the policy's business ([`tandem_policy::per_thread`]). Threads are looked for at every period of the
//! agent; a thread that lives for less is never bound, nor would it be worth it. Threads of the kernel are not in
//! the workload's cgroup and are left alone. The guest's load balancing needs no switch of its own: it does not move
//! a thread that may run on a single vCPU.

use tandem_host::ProcFs;
use tandem_host::thread::Pid;
use tandem_host::thread::ThreadRef;
use tandem_policy::PcpuSet;
use tandem_policy::per_thread::PerThread;

use crate::actuator::Actuator;
use crate::actuator::ActuatorError;
use crate::actuator::threads_of;

/// Binds threads.
#[derive(Debug)]
pub struct Pinning {
    procfs: ProcFs,
    policy: PerThread<ThreadRef>,
}

impl Pinning {
    /// To these vCPUs.
    pub fn new(procfs: &ProcFs, vcpus: &PcpuSet) -> Pinning {
        Pinning {
            procfs: procfs.clone(),
            policy: PerThread::new(vcpus),
        }
    }

    /// Binds the threads of these processes that are new; how many those were.
    pub fn bind_new(
        &mut self,
        actuator: &mut Actuator,
        processes: &[Pid],
    ) -> Result<usize, ActuatorError> {
        let mut threads = Vec::new();
        for &pid in processes {
            let tids = threads_of(&self.procfs, pid).into_iter();
            threads.extend(tids.filter_map(|tid| ThreadRef::read(&self.procfs, pid, tid).ok()));
        }
        let placed = self.policy.place(&threads);
        for (thread, vcpu) in &placed {
            let one: PcpuSet = [*vcpu].into_iter().collect();
            match actuator.bind(*thread, &one) {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        Ok(placed.len())
    }
}
