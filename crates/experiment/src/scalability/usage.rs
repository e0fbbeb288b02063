//! Times of the simulator as inputs of scalability by utilization efficiency.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 4; the formulas are those of `tandem_policy::scalability`.
//!
//! - Idle time of a physical machine: time in which its cores did not run, including polling idle loops.
//! - Busy-waiting: all spinning, and waiting for other CPUs to flush their TLBs.
//! - Switching of a VM: time of its VM exits, including the hypervisor's work, and time that its vCPUs spun or polled.
//! - Unused time of a VM: the part of its allocation that it did not receive because its vCPUs were not runnable.
//! - Allocation of a VM: its fair share, or the received time if that is more because other VMs left time unused.
//!
//! All times are ns within one measured span.
//! Costs of caches, page tables and the guest's kernel count as used.

use serde::Serialize;
use tandem_model::{Nanos, Weight};
use tandem_policy::fair_share::{Claim, fair_shares};
use tandem_policy::scalability::{Features, PhysicalRun, VirtualRun};
use tandem_sim::Scenario;
use tandem_sim::results::VmResults;
use tandem_sim::scenario::Mode;

use crate::metrics;

/// Use of the CPUs of a machine or VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Number of CPUs or vCPUs, N.
    pub cpus: u32,
    /// Threads of the application.
    pub threads: u32,
    /// The measured span, ns.
    pub measured: Nanos,
    /// CPU time, summed over the CPUs.
    pub received: Nanos,
    /// Time spinning for locks and barriers, or waiting for TLB flushes.
    pub spinning: Nanos,
    /// Polling time of the idle loop.
    pub idle_polling: Nanos,
    /// Time of VM exits.
    pub exits: Nanos,
    /// Number of voluntary switches of threads.
    pub voluntary_switches: f64,
    /// Completed units of work.
    pub work: f64,
}

impl Usage {
    /// Returns the use of a VM, or of the machine in native mode.
    pub fn of(vm: &VmResults, measured: Nanos) -> Usage {
        let ran = metrics::ran(vm);
        Usage {
            cpus: vm.vcpus.len() as u32,
            threads: vm.roles.iter().map(|role| role.threads).sum(),
            measured,
            received: vm.received,
            spinning: ran.spin_user + ran.spin_kernel + ran.shootdown_wait,
            idle_polling: ran.idle_poll,
            exits: ran.exits,
            voluntary_switches: vm.counts.voluntary_switches as f64,
            work: vm.work as f64,
        }
    }

    /// Returns the use as a run on a physical machine.
    pub fn physical(&self) -> PhysicalRun {
        let all = Nanos(self.measured.0.saturating_mul(u64::from(self.cpus)));
        PhysicalRun {
            cores: self.cpus,
            execution: self.measured,
            idle: all.saturating_sub(self.received) + self.idle_polling,
            busy_waiting: self.spinning,
        }
    }

    /// Returns the use as a run in a VM whose fair share of the host was `fair` in this span.
    pub fn virtual_run(&self, fair: Nanos) -> VirtualRun {
        let allocated = fair.max(self.received);
        VirtualRun {
            vcpus: self.cpus,
            allocated,
            switching: self.exits + self.spinning + self.idle_polling,
            unused: allocated.saturating_sub(self.received),
        }
    }

    /// Returns the features of the application, if this is the use of a physical machine.
    pub fn features(&self, timeslice: Nanos) -> Features {
        let seconds = self.measured.as_secs_f64();
        let running = self.received.saturating_sub(self.idle_polling);
        Features {
            units: self.cpus,
            active: running.as_secs_f64() / seconds,
            voluntary_switches_per_second: self.voluntary_switches
                / seconds
                / f64::from(self.threads.max(1)),
            timeslice,
        }
    }

    /// Returns the units of work per second.
    pub fn work_rate(&self) -> f64 {
        self.work / self.measured.as_secs_f64()
    }
}

/// Returns the fair share of each VM in a span: by weight, up to the capacity of its vCPUs.
pub fn fair(scenario: &Scenario, span: Nanos) -> Vec<Nanos> {
    let times = |count: u32| Nanos(span.0.saturating_mul(u64::from(count)));
    let claims: Vec<Claim> = scenario
        .vms
        .iter()
        .map(|vm| Claim::always_runnable(vm.weight, times(vm.vcpus), span))
        .collect();
    fair_shares(times(scenario.machine.pcpus), span, &claims)
}

/// Returns the scenario with one of its VMs alone on `cpus` physical CPUs; `None` if its program does not fit.
pub fn on_hardware(scenario: &Scenario, vm: usize, cpus: u32) -> Option<Scenario> {
    let mut alone = scenario.clone();
    let mut vm = alone.vms.get(vm)?.clone();
    tandem_sim::workload::parse::fits(&vm.workload, cpus, cpus).ok()?;
    vm.vcpus = cpus;
    vm.weight = Weight::constant(1024.0);
    vm.starts = Nanos::ZERO;
    vm.pins.clear();
    vm.vcpu_weights.clear();
    alone.vms = vec![vm];
    alone.machine.mode = Mode::Native;
    alone.machine.pcpus = cpus;
    alone.machine.layout = None;
    alone.machine.pcpus_per_llc = alone.machine.pcpus_per_llc.min(cpus);
    alone.policies = tandem_sim::scenario::Policies::default();
    alone.host.cap = false;
    Some(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> Usage {
        Usage {
            cpus: 4,
            threads: 8,
            measured: Nanos::from_secs(2),
            received: Nanos::from_secs(5),
            spinning: Nanos::from_secs(1),
            idle_polling: Nanos::from_millis(500),
            exits: Nanos::from_millis(250),
            voluntary_switches: 3200.0,
            work: 10.0,
        }
    }

    #[test]
    fn physical_speedup_excludes_idle_and_spinning() {
        let run = usage().physical();
        assert_eq!(run.idle, Nanos::from_millis(3500));
        // 4 − (3.5 s + 1 s) ÷ 2 s.
        assert_eq!(run.speedup().unwrap().0, 1.75);
    }

    #[test]
    fn vm_speedup_excludes_switching_and_unused_share() {
        let run = usage().virtual_run(Nanos::from_secs(7));
        assert_eq!(run.unused, Nanos::from_secs(2));
        // 4 − 4 × (1.75 s + 2 s) ÷ 7 s.
        assert!((run.speedup().unwrap().0 - (4.0 - 4.0 * 3.75 / 7.0)).abs() < 1e-12);
        let given_more = usage().virtual_run(Nanos::from_secs(3));
        assert_eq!(given_more.allocated, Nanos::from_secs(5));
        assert_eq!(given_more.unused, Nanos::ZERO);
    }

    #[test]
    fn features_are_per_thread_and_second() {
        let features = usage().features(Nanos::from_millis(6));
        assert_eq!(features.active, 2.25);
        assert_eq!(features.voluntary_switches_per_second, 200.0);
        assert_eq!(features.class().number(), 2);
    }
}
