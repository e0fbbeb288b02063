//! The processor's counters of what a vCPU's guest runs, by perf_event_open(2).
//!
//! Per vCPU thread one group of three events (instructions, branch instructions, branch misses), read at once, so that the three
//! are of the same time and their ratios hold also where the PMU is shared: the kernel gives a group the PMU as a whole or not at
//! all, and `time_enabled` ÷ `time_running` scales what was counted meanwhile (multiplexing). The guest is counted in user and kernel mode, the host
//! is not (`exclude_host`).
//!
//! Not measured on hardware: the machines that this was written on have no PMU. What it does with readings is tested with recorded ones.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use perf_event::Builder;
use perf_event::Counter;
use perf_event::Group;
use perf_event::events::Hardware;
use tandem_policy::VcpuId;
use tandem_policy::flexs::BranchCounts;
use tandem_policy::flexs::CounterSource;

use super::source::BranchCounters;
use super::source::CounterError;
use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// What a group counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Instructions retired.
    pub instructions: u64,
    /// Of these, branches.
    pub branches: u64,
    /// Of these, mispredicted.
    pub mispredicted: u64,
    /// For how long the thread ran with the group enabled.
    pub enabled: Duration,
    /// For how long of that the group had the PMU.
    pub running: Duration,
}

impl Reading {
    /// What was counted since `before`, scaled to all of the time in which the thread ran; `None` if it did not run.
    pub fn since(&self, before: &Reading) -> Result<Option<BranchCounts>, CounterError> {
        let enabled = self.enabled.saturating_sub(before.enabled).as_nanos();
        let running = self.running.saturating_sub(before.running).as_nanos();
        if enabled == 0 {
            return Ok(None);
        }
        if running == 0 {
            return Err(CounterError::NotScheduled);
        }
        let scaled = |now: u64, then: u64| {
            let counted = u128::from(now.saturating_sub(then));
            let scaled = counted.saturating_mul(enabled.max(running)) / running;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Ok(Some(BranchCounts {
            instructions: scaled(self.instructions, before.instructions),
            branches: scaled(self.branches, before.branches),
            mispredicted: scaled(self.mispredicted, before.mispredicted),
        }))
    }
}

/// The counters of one thread.
struct Events {
    group: Group,
    instructions: Counter,
    branches: Counter,
    mispredicted: Counter,
}

impl Events {
    fn open(tid: i32) -> io::Result<Events> {
        let mut group = Group::builder().observe_pid(tid).any_cpu().build_group()?;
        let mut add = |event: Hardware| {
            let mut builder = Builder::new(event);
            let builder = builder.observe_pid(tid).any_cpu();
            builder.include_kernel().exclude_host(true);
            group.add(builder)
        };
        let instructions = add(Hardware::INSTRUCTIONS)?;
        let branches = add(Hardware::BRANCH_INSTRUCTIONS)?;
        let mispredicted = add(Hardware::BRANCH_MISSES)?;
        group.enable()?;
        Ok(Events {
            group,
            instructions,
            branches,
            mispredicted,
        })
    }

    fn read(&mut self) -> io::Result<Reading> {
        let data = self.group.read()?;
        let value = |counter: &Counter| data.get(counter).map_or(0, |entry| entry.value());
        Ok(Reading {
            instructions: value(&self.instructions),
            branches: value(&self.branches),
            mispredicted: value(&self.mispredicted),
            enabled: data.time_enabled().unwrap_or_default(),
            running: data.time_running().unwrap_or_default(),
        })
    }
}

/// The counters of the threads that were asked about.
pub struct PerfCounters {
    procfs: ProcFs,
    threads: BTreeMap<ThreadRef, (Events, Reading)>,
}

impl PerfCounters {
    /// Tries the counters on this thread, so that what is missing is known before the first period.
    pub fn open(procfs: ProcFs) -> Result<PerfCounters, CounterError> {
        match Events::open(0) {
            Ok(_) => Ok(PerfCounters {
                procfs,
                threads: BTreeMap::new(),
            }),
            Err(cause) => Err(CounterError::of(cause, &procfs)),
        }
    }
}

impl BranchCounters for PerfCounters {
    fn source(&self) -> CounterSource {
        CounterSource::Hardware
    }

    fn count(
        &mut self,
        _vcpu: VcpuId,
        thread: &ThreadRef,
    ) -> Result<Option<BranchCounts>, CounterError> {
        let wrong = |cause| CounterError::of(cause, &self.procfs);
        match self.threads.get_mut(thread) {
            Some((events, last)) => {
                let now = events.read().map_err(wrong)?;
                now.since(&std::mem::replace(last, now))
            }
            // A vCPU that was plugged in has a thread that nobody asked about before.
            None => {
                let mut events = Events::open(thread.tid.0 as i32).map_err(wrong)?;
                let now = events.read().map_err(wrong)?;
                self.threads.insert(*thread, (events, now));
                Ok(None)
            }
        }
    }

    fn forget(&mut self, thread: &ThreadRef) {
        self.threads.remove(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(counts: [u64; 3], enabled_ms: u64, running_ms: u64) -> Reading {
        Reading {
            instructions: counts[0],
            branches: counts[1],
            mispredicted: counts[2],
            enabled: Duration::from_millis(enabled_ms),
            running: Duration::from_millis(running_ms),
        }
    }

    #[test]
    fn what_was_counted_is_a_difference() {
        let (before, now) = (
            reading([1000, 300, 3], 10, 10),
            reading([5000, 1300, 13], 50, 50),
        );
        let counts = now.since(&before).unwrap().unwrap();
        assert_eq!(
            (counts.instructions, counts.branches, counts.mispredicted),
            (4000, 1000, 10)
        );
    }

    #[test]
    fn a_shared_pmu_is_accounted_for_and_ratios_stay() {
        // Of 40 ms the group had the PMU for 10.
        let (before, now) = (
            reading([1000, 300, 3], 10, 10),
            reading([5000, 1300, 13], 50, 20),
        );
        let counts = now.since(&before).unwrap().unwrap();
        assert_eq!(
            (counts.instructions, counts.branches, counts.mispredicted),
            (16_000, 4000, 40)
        );
    }

    #[test]
    fn no_time_on_the_pmu_is_said_and_no_time_at_all_is_nothing() {
        let before = reading([1000, 300, 3], 10, 10);
        let shut_out = reading([1000, 300, 3], 50, 10).since(&before);
        assert!(matches!(shut_out, Err(CounterError::NotScheduled)));
        assert!(before.since(&before).unwrap().is_none());
    }

    /// Where there is a PMU this opens it; where there is none, what is missing is said in words.
    #[test]
    fn a_host_without_a_pmu_says_so() {
        match PerfCounters::open(ProcFs::host()) {
            Ok(_) => println!("this host has a PMU"),
            Err(error @ (CounterError::NoPmu { .. } | CounterError::NotAllowed { .. })) => {
                let text = error.to_string();
                assert!(text.contains("PMU") || text.contains("paranoid"), "{text}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}
