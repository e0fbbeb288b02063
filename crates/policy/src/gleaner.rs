//! Gleaner: blocked waiters wake sooner if their vCPUs do not halt, or if fewer vCPUs are used.
//!
//! Source: Ding, Gibbons, Kozuch & Shan, "Gleaner: Mitigating the Blocked-Waiter Wakeup Problem
//! for Virtualized Multicore Applications", USENIX ATC 2014. A thread that blocks lets its vCPU
//! halt; waking it then costs an exit, an interrupt and a reschedule.
//! The owner of a VM has two remedies, both without kernel changes:
//!
//! - [`consolidation`]: runs the workload's threads on fewer vCPUs, so that short idle periods on
//!   many become busy time on few;
//! - [`retention`]: keeps an idle vCPU awake for a time that is worth a halt and its wake-up.
//!
//! On a VM of a single vCPU there is nothing to consolidate: [`delay`] holds woken threads back a little.
//!
//! [`controller`] applies both to one VM, one change at a time.
//! [`progress`] and, for programs that crowd around a lock, [`code`] measure whether a change helped.
//!
//! Both receive an [`Observation`] of the workload's threads and the active vCPUs once a period.
//! They return how many vCPUs the workload may use and for how long an idle one is kept awake.
//! The caller chooses the vCPUs and applies the decision.

use serde::Serialize;

use tandem_model::units::Nanos;

pub mod code;
pub mod consolidation;
pub mod controller;
pub mod delay;
mod harm;
pub mod progress;
pub mod retention;

pub use code::Code;
pub use consolidation::{Consolidation, ConsolidationConfig};
pub use controller::{Controller, ControllerConfig, Decision};
pub use delay::{Delay, DelayConfig};
pub use retention::{Retention, RetentionConfig};

/// Observation of a workload and the vCPUs it may use in one period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// Length of the period. Not zero.
    pub period: Nanos,
    /// The active vCPUs, in any order.
    pub vcpus: Vec<VcpuPeriod>,
    /// Context switches of the workload's threads.
    pub switches: u64,
    /// CPU time of the workload's threads in user mode.
    pub user: Nanos,
    /// Resolution of `user`: a timer tick if the kernel samples it, zero if it is exact.
    pub tick: Nanos,
    /// Their calls of read and write; zero if unknown.
    pub calls: u64,
    /// Messages sent on sockets on these vCPUs, by any process; zero if unknown.
    pub messages: u64,
    /// Total time for which its threads were runnable and waited for a vCPU.
    pub waiting: Nanos,
    /// Number of voluntary sleeps of those threads, and so of wake-ups; zero if unknown.
    pub wakes: u64,
    /// Each of those threads, ascending by `id`; empty if unknown.
    pub threads: Vec<ThreadPeriod>,
}

/// A thread of the workload in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadPeriod {
    /// Identity among the threads.
    pub id: u64,
    /// Number of voluntary sleeps.
    pub wakes: u64,
    /// Number of turns on the vCPU: one after each sleep and each preemption.
    pub turns: u64,
    /// Its CPU time.
    pub ran: Nanos,
    /// Total time for which it was runnable and waited for its turn.
    pub waited: Nanos,
}

impl Observation {
    /// Adds the period after this one, with the same vCPUs.
    pub fn merge(&mut self, next: &Observation) {
        self.period += next.period;
        self.vcpus.resize(self.vcpus.len().max(next.vcpus.len()), VcpuPeriod::default());
        for (sum, vcpu) in self.vcpus.iter_mut().zip(&next.vcpus) {
            sum.work += vcpu.work;
            sum.idle += vcpu.idle;
            sum.idle_periods += vcpu.idle_periods;
            sum.stolen += vcpu.stolen;
        }
        self.switches += next.switches;
        self.user += next.user;
        self.tick = next.tick;
        self.calls += next.calls;
        self.messages += next.messages;
        self.waiting += next.waiting;
        self.wakes += next.wakes;
        for thread in &next.threads {
            match self.threads.binary_search_by_key(&thread.id, |own| own.id) {
                Ok(place) => {
                    self.threads[place].wakes += thread.wakes;
                    self.threads[place].turns += thread.turns;
                    self.threads[place].ran += thread.ran;
                    self.threads[place].waited += thread.waited;
                }
                Err(place) => self.threads.insert(place, *thread),
            }
        }
    }

    /// Merges several periods into one.
    pub fn merged<'a>(periods: impl IntoIterator<Item = &'a Observation>) -> Observation {
        let mut sum = Observation::default();
        for period in periods {
            sum.merge(period);
        }
        sum
    }
}

/// An active vCPU in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VcpuPeriod {
    /// CPU time of the workload's threads on it.
    pub work: Nanos,
    /// Time without a thread, halted or retained.
    pub idle: Nanos,
    /// Number of idle periods.
    pub idle_periods: u64,
    /// Time for which it was runnable and the host ran something else.
    pub stolen: Nanos,
}

/// Averages over the active vCPUs: the paper's three lengths, and other inputs of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Averages {
    /// l_comp: computation on a vCPU between two idle periods, ns. Infinite if none was idle.
    pub computes: f64,
    /// g_comp: computation of a thread between two synchronizations, ns. Infinite without any.
    pub grain: f64,
    /// l_idle: an idle period of a vCPU, ns. Zero if none was idle.
    pub idles: f64,
    /// Fraction of the time in which a vCPU did the workload's work, 0 … 1.
    pub utilization: f64,
    /// Utilization of the busiest vCPU.
    pub busiest: f64,
    /// Fraction of the time in which a vCPU was idle, 0 … 1.
    pub idle: f64,
    /// vCPUs' worth of work, 0 … their number.
    pub work: f64,
    /// vCPUs' worth of work in user mode.
    pub user: f64,
    /// Ticks that found the workload in user mode; infinite if user time is exact.
    pub ticks: f64,
    /// Calls of read and write, 1/s.
    pub calls: f64,
    /// Context switches of the workload's threads, 1/s.
    pub switches: f64,
    /// Average number of threads that wait for a vCPU.
    pub waiting: f64,
    /// Fraction of the active vCPUs' time that the host stole, 0 … 1.
    pub stolen: f64,
}

impl Averages {
    /// Averages of a period; zero or infinite, as documented for each, if there is nothing to average.
    pub fn of(observed: &Observation) -> Averages {
        let period = observed.period.0.max(1) as f64;
        let sum = |of: fn(&VcpuPeriod) -> Nanos| {
            let times = observed.vcpus.iter().map(|vcpu| of(vcpu).0 as f64);
            times.sum::<f64>()
        };
        let vcpus = observed.vcpus.len().max(1) as f64;
        let (work, idle, stolen) = (sum(|v| v.work), sum(|v| v.idle), sum(|v| v.stolen));
        let idle_periods = observed.vcpus.iter().map(|vcpu| vcpu.idle_periods);
        let idle_periods = idle_periods.sum::<u64>() as f64;
        let busiest = observed.vcpus.iter().map(|vcpu| vcpu.work.0).max();
        let each =
            |sum: f64, count: f64, without: f64| if count > 0.0 { sum / count } else { without };
        Averages {
            computes: each(work, idle_periods, f64::INFINITY),
            grain: each(work, observed.switches as f64, f64::INFINITY),
            idles: each(idle, idle_periods, 0.0),
            utilization: work / vcpus / period,
            busiest: busiest.unwrap_or(0) as f64 / period,
            idle: idle / vcpus / period,
            work: work / period,
            user: observed.user.0 as f64 / period,
            ticks: each(observed.user.0 as f64, observed.tick.0 as f64, f64::INFINITY),
            calls: observed.calls as f64 / period * 1e9,
            switches: observed.switches as f64 / period * 1e9,
            waiting: observed.waiting.0 as f64 / period,
            stolen: stolen / vcpus / period,
        }
    }
}
