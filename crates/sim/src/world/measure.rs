//! Results: reset at the end of the warm-up, computed on demand.

use tandem_model::Nanos;

use crate::results::{
    Counts, Histogram, PcpuResults, Results, RoleResults, VcpuResults, VmResults,
};
use crate::trace::ThreadState;

use super::simulation::World;
use super::state::Thread;

impl World {
    /// Accounts all time up to now.
    pub(crate) fn settle(&mut self) {
        for v in 0..self.vcpus.len() as u32 {
            self.sync(v);
            let state = self.vcpus[v as usize].state;
            self.vcpu_state(v, state);
        }
        for p in 0..self.pcpus.len() as u32 {
            let state = self.pcpus[p as usize].state;
            self.pcpu_state(p, state);
        }
        self.count_forced_idle();
        if self.trace.is_some() {
            for t in 0..self.threads.len() as u32 {
                // A thread of a VM that has not started has no state.
                let Thread { vm, state, .. } = self.threads[t as usize];
                if self.vms[vm as usize].started > self.now {
                    continue;
                }
                // Close the thread's present state in the trace.
                let other = match state {
                    ThreadState::Ended => ThreadState::Running,
                    _ => ThreadState::Ended,
                };
                self.thread_state(t, other);
                self.threads[t as usize].state = state;
            }
        }
    }

    /// Ends the warm-up: resets all counters.
    pub(crate) fn begin_measuring(&mut self) {
        self.settle();
        self.forget_waits();
        self.measured_from = self.now;
        for vcpu in &mut self.vcpus {
            vcpu.results = VcpuResults::default();
            vcpu.polled = 0;
        }
        for pcpu in &mut self.pcpus {
            pcpu.results = PcpuResults::default();
        }
        for vm in &mut self.vms {
            vm.counts = Counts::default();
            vm.request_time = Histogram::default();
            vm.wake_latency = Histogram::default();
            vm.ipi_latency = Histogram::default();
            vm.shootdown_latency = Histogram::default();
            vm.lock_wait = Histogram::default();
        }
        for thread in &mut self.threads {
            (thread.work, thread.computed) = (0, 0);
        }
        self.forget_states();
    }

    /// Returns the results since the warm-up.
    pub fn results(&mut self) -> Results {
        self.settle();
        self.count_waits();
        let pcpus: Vec<PcpuResults> = self.pcpus.iter().map(|pcpu| pcpu.results).collect();
        let energy = pcpus.iter().map(|pcpu| self.energy(pcpu)).sum::<u128>();
        Results {
            scenario: self.name.clone(),
            seed: self.seed,
            measured: Nanos(self.now - self.measured_from),
            events: self.events,
            vms: (0..self.vms.len()).map(|vm| self.vm_results(vm)).collect(),
            pcpus,
            observed: self.observed(),
            energy_mj: (energy / 1_000_000_000) as u64,
        }
    }

    /// Energy of a pCPU in milliwatt nanoseconds.
    fn energy(&self, pcpu: &PcpuResults) -> u128 {
        [
            (pcpu.busy, self.costs.active_mw),
            (pcpu.polling, self.costs.polling_mw),
            (pcpu.idle, self.costs.idle_mw),
        ]
        .into_iter()
        .map(|(time, power)| u128::from(time.0) * u128::from(power))
        .sum()
    }

    fn vm_results(&self, number: usize) -> VmResults {
        let vm = &self.vms[number];
        let threads =
            &self.threads[vm.first_thread as usize..(vm.first_thread + vm.threads) as usize];
        let vcpus: Vec<VcpuResults> = self.vcpus
            [vm.first_vcpu as usize..(vm.first_vcpu + vm.vcpus) as usize]
            .iter()
            .map(|vcpu| vcpu.results.clone())
            .collect();
        let mut roles: Vec<RoleResults> = self.roles[number]
            .iter()
            .map(|name| RoleResults { name: name.clone(), ..RoleResults::default() })
            .collect();
        for thread in threads {
            let role = &mut roles[thread.role as usize];
            role.threads += 1;
            role.work += thread.work;
            role.computed += Nanos(thread.computed);
            role.finished = match (role.threads, role.finished, thread.ended) {
                (1, _, ended) => ended.map(|at| Nanos(at - vm.started)),
                (_, Some(latest), Some(at)) => Some(latest.max(Nanos(at - vm.started))),
                _ => None,
            };
        }
        VmResults {
            name: self.names[number].clone(),
            work: roles.iter().map(|role| role.work).sum(),
            finished: vm.finished.map(|at| Nanos(at - vm.started)),
            received: vcpus.iter().map(|vcpu| vcpu.ran.total()).sum(),
            vcpus,
            roles,
            counts: vm.counts,
            windows: vm.windows.clone(),
            gleaner: match &self.agents[number] {
                Some(agent) => agent.choices.clone(),
                None => Vec::new(),
            },
            request_time: vm.request_time.clone(),
            wake_latency: vm.wake_latency.clone(),
            ipi_latency: vm.ipi_latency.clone(),
            shootdown_latency: vm.shootdown_latency.clone(),
            lock_wait: vm.lock_wait.clone(),
            waits: self.waits_of(number),
        }
    }
}
