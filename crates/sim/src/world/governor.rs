//! The steal governor of a guest kernel, and preferred CPUs.
//!
//! Source: Linux 7.4, "sched, steal_governor: Introduce preferred CPUs and steal-driven vCPU backoff" (Shrikanth Hegde, v14 of
//! 2026-09-28, applied to tip/sched/core), and Documentation/scheduler/sched-paravirt.rst.
//!
//! Once per interval, the driver computes the vCPUs' steal time as a fraction of their time (compute_preferred_cpus_work).
//! Above the high threshold, the last preferred core is no longer preferred; up to the low one, the first other core becomes preferred.
//! A simulated guest's core has one vCPU, so the preferred vCPUs are the VM's first, and the first one always is.
//!
//! The guest's scheduler honours the set in three places:
//!
//! - A wake-up chooses as always, idle vCPUs that are not preferred included.
//!   If the choice is not preferred, select_fallback_rq takes the first preferred vCPU (is_cpu_allowed).
//!   A sleeper that is still queued wakes in place (ttwu_runnable).
//! - A tick on another vCPU pushes its thread to the first preferred vCPU, through the stopper thread.
//!   Waiting threads stay until they run at a tick.
//! - Load balancing moves threads only between preferred vCPUs (sched_balance_rq, sched_balance_newidle).
//!
//! Pinned threads stay.
//! The sampling itself costs no time here.

use tandem_model::Nanos;

use crate::scenario::GovernorConfig;

use super::calendar::Event;
use super::simulation::World;
use super::state::{KERNEL, NONE};

/// The governor of a VM, with its last sample.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    config: GovernorConfig,
    /// Time of the last sample, ns.
    at: u64,
    /// Steal time of all vCPUs until then, ns.
    stolen: u64,
}

impl Governor {
    /// The governor of a VM that starts at `starts`.
    pub fn new(config: GovernorConfig, starts: Nanos) -> Governor {
        Governor { config, at: starts.0, stolen: 0 }
    }

    /// Takes a sample of a VM with `vcpus` vCPUs, and returns the new number of preferred ones.
    fn sample(&mut self, now: u64, stolen: u64, preferred: u32, vcpus: u32) -> u32 {
        let since = now - std::mem::replace(&mut self.at, now);
        let delta = stolen - std::mem::replace(&mut self.stolen, stolen);
        let ratio = delta as f64 / (since.max(1) as f64 * f64::from(vcpus));
        if ratio > self.config.high {
            (preferred - 1).max(1)
        } else if ratio <= self.config.low {
            (preferred + 1).min(vcpus)
        } else {
            preferred
        }
    }
}

impl World {
    /// A VM's governor takes a sample.
    pub(crate) fn governor(&mut self, vm: u32) {
        let state = &self.vms[vm as usize];
        let (first, size) = (state.first_vcpu, state.vcpus);
        for v in first..first + size {
            self.sync(v);
        }
        let stolen = (first..first + size).map(|v| self.stolen(v)).sum();
        let state = &mut self.vms[vm as usize];
        let Some(governor) = &mut state.governor else {
            return;
        };
        self.calendar.set(Event::Governor, vm, self.now + governor.config.interval.0);
        let preferred = governor.sample(self.now, stolen, state.preferred, size);
        self.set_preferred(vm, preferred);
    }

    /// Makes the VM's first vCPUs the preferred ones (set_cpu_preferred).
    fn set_preferred(&mut self, vm: u32, preferred: u32) {
        let state = &mut self.vms[vm as usize];
        state.preferred = preferred;
        for v in state.first_vcpu..state.first_vcpu + state.vcpus {
            self.note_load(v);
        }
    }

    /// Whether a vCPU is preferred (cpu_preferred).
    pub(crate) fn is_preferred(&self, v: u32) -> bool {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        v - vm.first_vcpu < vm.preferred
    }

    /// At a tick, asks for the push of the current thread of a vCPU that is not preferred (sched_push_current_non_preferred_cpu).
    pub(crate) fn begin_push(&mut self, v: u32) {
        let t = self.vcpus[v as usize].thread;
        if self.is_preferred(v) || self.threads[t as usize].pin != NONE {
            return;
        }
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.push_pending = true;
        vcpu.need_resched = true;
    }

    /// Pushes the thread that has just left a vCPU, at the cost of a switch to the stopper thread.
    pub(crate) fn push(&mut self, t: u32, v: u32) {
        if t == NONE || self.is_preferred(v) || self.is_stuck(t) {
            return;
        }
        self.owe(v, KERNEL, self.costs.thread_switch + self.costs.nested_switch);
        let to = self.fallback(v);
        self.move_thread(t, v, to);
        self.arrived(t, to, v);
    }

    /// The vCPU for a thread that may not be on `v` (select_fallback_rq): `v` if it is preferred, or the first one.
    pub(crate) fn fallback(&self, v: u32) -> u32 {
        if self.is_preferred(v) {
            return v;
        }
        self.vms[self.vcpus[v as usize].vm as usize].first_vcpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;
    use crate::world::state::Idle;

    const MS: u64 = 1_000_000;

    fn governor() -> Governor {
        Governor::new(GovernorConfig::default(), Nanos::ZERO)
    }

    /// Steal time of four vCPUs in a second, in percent of their time.
    fn after(percent: u64, preferred: u32) -> u32 {
        governor().sample(1_000 * MS, percent * 40 * MS, preferred, 4)
    }

    #[test]
    fn steal_above_high_threshold_shrinks_set() {
        assert_eq!(after(6, 4), 3);
        assert_eq!(after(80, 4), 3, "one core at a time");
        assert_eq!(after(80, 1), 1, "the first core stays preferred");
    }

    #[test]
    fn steal_up_to_low_threshold_grows_set() {
        assert_eq!(after(2, 2), 3);
        assert_eq!(after(0, 4), 4);
        assert_eq!([after(3, 2), after(5, 2)], [2, 2], "between the thresholds");
    }

    #[test]
    fn sample_counts_steal_since_the_last_one() {
        let mut governor = governor();
        assert_eq!(governor.sample(1_000 * MS, 400 * MS, 4, 4), 3);
        assert_eq!(governor.sample(2_000 * MS, 420 * MS, 3, 4), 4);
    }

    /// A VM of four vCPUs with threads that compute, or sleep most of the time.
    fn world(threads: &str, step: &str, pcpus: u32, more: &str) -> World {
        let text = format!(
            "duration = \"60s\"\n[machine]\npcpus = {pcpus}\n
            [[workload]]\nname = \"w\"\n[[workload.role]]\nthreads = \"{threads}\"\n{more}
            program = [ {{ forever = [ {step} ] }} ]
            [[vm]]\nname = \"a\"\nvcpus = 4\npreferred = true\nworkload = \"w\"\n"
        );
        World::new(&load::from_text("s.toml", &text).unwrap())
    }

    fn per_vcpu(world: &World) -> Vec<u32> {
        (0..4).map(|v| world.runnable_threads(v)).collect()
    }

    #[test]
    fn tick_pushes_thread_off_other_vcpu() {
        let mut world = world("1 per vcpu", "{ compute = \"1ms\" }", 4, "");
        world.run_until(Nanos::from_millis(10));
        world.set_preferred(0, 2);
        assert_eq!(per_vcpu(&world), [1, 1, 1, 1], "not before the tick");
        world.run_until(Nanos::from_millis(20));
        assert_eq!(per_vcpu(&world)[2..], [0, 0]);
        assert_eq!(per_vcpu(&world)[..2].iter().sum::<u32>(), 4);
    }

    #[test]
    fn balancing_spreads_threads_over_preferred_vcpus_only() {
        let mut world = world("2 per vcpu", "{ compute = \"1ms\" }", 4, "");
        world.run_until(Nanos::from_millis(10));
        world.set_preferred(0, 2);
        world.run_until(Nanos::from_millis(400));
        assert_eq!(per_vcpu(&world), [4, 4, 0, 0]);
        world.set_preferred(0, 4);
        world.run_until(Nanos::from_millis(800));
        assert_eq!(per_vcpu(&world), [2, 2, 2, 2]);
    }

    #[test]
    fn pinned_threads_stay() {
        let mut world = world("1 per vcpu", "{ compute = \"1ms\" }", 4, "pins = [0, 1, 2, 3]");
        world.run_until(Nanos::from_millis(10));
        world.set_preferred(0, 1);
        world.run_until(Nanos::from_millis(100));
        assert_eq!(per_vcpu(&world), [1, 1, 1, 1]);
    }

    #[test]
    fn sleepers_wake_on_preferred_vcpus() {
        let mut world = world("1 per vcpu", "{ compute = \"50us\" }, { sleep = \"1ms\" }", 4, "");
        world.run_until(Nanos::from_millis(10));
        world.set_preferred(0, 2);
        world.run_until(Nanos::from_millis(20));
        assert!(world.threads.iter().all(|thread| thread.vcpu < 2));
        assert!((2..4).all(|v| world.vcpus[v].idle == Idle::Halted), "their timers woke others");
    }

    #[test]
    fn vm_shrinks_to_its_share_of_pcpus() {
        // Four busy vCPUs on two pCPUs: half of the time is stolen while more than two are used.
        let mut world = world("1 per vcpu", "{ compute = \"1ms\" }", 2, "");
        world.run_until(Nanos::from_millis(1_500));
        assert_eq!(world.vms[0].preferred, 3);
        world.run_until(Nanos::from_secs(10));
        assert!((2..=3).contains(&world.vms[0].preferred), "{}", world.vms[0].preferred);
        assert_eq!(per_vcpu(&world)[3], 0);
    }
}
