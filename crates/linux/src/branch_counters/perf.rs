//! The processor's counters of a vCPU's guest, through perf_event_open(2).
//!
//! Each vCPU thread has one group of three events: instructions, branch instructions and branch misses.
//! The kernel schedules a group onto the PMU as a whole, so the three counts cover the same time even if the PMU is shared.
//! `time_enabled` ÷ `time_running` scales the counts (multiplexing).
//! The group counts the guest in user and kernel mode, and not the host (`exclude_host`).
//!
//! Not measured on hardware, because the development machines have no PMU.
//! Tests cover threads, readings and errors with recorded counters.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter, Group};
use tandem_model::VcpuId;
use tandem_model::branch_counters::{BranchCounts, Counted, CounterSource};

use super::source::{BranchCounters, CounterError};
use crate::procfs::ProcFs;
use crate::thread::ThreadRef;

/// The counts of a group since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Instructions retired.
    pub instructions: u64,
    /// Branches retired.
    pub branches: u64,
    /// Branch misses.
    pub mispredicted: u64,
    /// Run time of the thread with the group enabled.
    pub enabled: Duration,
    /// Part of that time in which the group was on the PMU.
    pub running: Duration,
}

impl Reading {
    /// The counts since `before`, scaled to the thread's whole run time; `None` if it did not run.
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

/// A thread's group of events.
trait Events {
    /// Reads the counts since the group was opened.
    fn read(&mut self) -> io::Result<Reading>;
}

/// Opens the group of the thread with this ID; 0 for the calling thread.
type Open = Box<dyn FnMut(i32) -> io::Result<Box<dyn Events>>>;

/// The kernel's counters of one thread.
struct KernelEvents {
    group: Group,
    instructions: Counter,
    branches: Counter,
    mispredicted: Counter,
}

impl KernelEvents {
    fn open(tid: i32) -> io::Result<KernelEvents> {
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
        Ok(KernelEvents { group, instructions, branches, mispredicted })
    }
}

impl Events for KernelEvents {
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

/// The counters of the threads read so far.
pub struct PerfCounters {
    procfs: ProcFs,
    open: Open,
    threads: BTreeMap<ThreadRef, (Box<dyn Events>, Reading)>,
}

impl PerfCounters {
    /// Opens the counters on this thread, so that a missing prerequisite shows before the first period.
    pub fn open(procfs: ProcFs) -> Result<PerfCounters, CounterError> {
        let kernel = |tid| Ok(Box::new(KernelEvents::open(tid)?) as Box<dyn Events>);
        PerfCounters::with(procfs, Box::new(kernel))
    }

    fn with(procfs: ProcFs, mut open: Open) -> Result<PerfCounters, CounterError> {
        match open(0) {
            Ok(_) => Ok(PerfCounters { procfs, open, threads: BTreeMap::new() }),
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
    ) -> Result<Option<Counted>, CounterError> {
        let wrong = |cause| CounterError::of(cause, &self.procfs);
        match self.threads.get_mut(thread) {
            Some((events, last)) => {
                let now = events.read().map_err(wrong)?;
                let counts = now.since(&std::mem::replace(last, now))?;
                Ok(counts.map(|counts| Counted {
                    counts,
                    source: CounterSource::Hardware,
                    truth: None,
                }))
            }
            // The first reading of a thread, for example of a hot-plugged vCPU.
            None => {
                let mut events = (self.open)(thread.tid.0 as i32).map_err(wrong)?;
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
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use rustix::io::Errno;

    use super::*;
    use crate::thread::{Pid, StartTime, Tid};

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
    fn counts_are_differences() {
        let (before, now) = (reading([1000, 300, 3], 10, 10), reading([5000, 1300, 13], 50, 50));
        let counts = now.since(&before).unwrap().unwrap();
        assert_eq!((counts.instructions, counts.branches, counts.mispredicted), (4000, 1000, 10));
    }

    #[test]
    fn multiplexed_counts_are_scaled() {
        // The group was on the PMU for 10 of 40 ms.
        let (before, now) = (reading([1000, 300, 3], 10, 10), reading([5000, 1300, 13], 50, 20));
        let counts = now.since(&before).unwrap().unwrap();
        assert_eq!((counts.instructions, counts.branches, counts.mispredicted), (16_000, 4000, 40));
    }

    #[test]
    fn no_pmu_time_is_an_error() {
        let before = reading([1000, 300, 3], 10, 10);
        let shut_out = reading([1000, 300, 3], 50, 10).since(&before);
        assert!(matches!(shut_out, Err(CounterError::NotScheduled)));
        assert!(before.since(&before).unwrap().is_none());
    }

    /// The kernel's results for a thread: the error of opening, or successive readings.
    type Recorded = Result<Vec<Result<Reading, Errno>>, Errno>;

    struct RecordedEvents(VecDeque<Result<Reading, Errno>>);

    impl Events for RecordedEvents {
        fn read(&mut self) -> io::Result<Reading> {
            let next = self.0.pop_front().expect("a reading for each call");
            next.map_err(io::Error::from)
        }
    }

    /// Counters of a host with these results by thread; the returned map can be extended during the test.
    fn recorded(
        threads: &[(i32, Recorded)],
    ) -> (PerfCounters, Rc<RefCell<BTreeMap<i32, Recorded>>>) {
        let answers: BTreeMap<i32, Recorded> = threads.iter().cloned().collect();
        let answers = Rc::new(RefCell::new(answers));
        let of_thread = Rc::clone(&answers);
        let open = move |tid: i32| match of_thread.borrow().get(&tid) {
            Some(Ok(readings)) => {
                let readings = readings.iter().copied().collect();
                Ok(Box::new(RecordedEvents(readings)) as Box<dyn Events>)
            }
            Some(Err(errno)) => Err(io::Error::from(*errno)),
            // The probe of the PMU in `open`.
            None if tid == 0 => Ok(Box::new(RecordedEvents(VecDeque::new())) as Box<dyn Events>),
            None => Err(io::Error::from(Errno::SRCH)),
        };
        let counters = PerfCounters::with(ProcFs::host(), Box::new(open));
        (counters.expect("it has a PMU"), answers)
    }

    fn thread(tid: u32) -> ThreadRef {
        ThreadRef { pid: Pid(100), tid: Tid(tid), start: StartTime(1) }
    }

    #[test]
    fn two_vcpus_are_counted_per_period() {
        let of = |spins| {
            let of_period = move |n: u64| {
                let counts = if spins {
                    [3_000_000 * n, 1_000_000 * n, 100 * n]
                } else {
                    [6_000_000 * n, 1_000_000 * n, 20_000 * n]
                };
                Ok(reading(counts, 100 * n, 100 * n))
            };
            Ok((1..=3).map(of_period).collect())
        };
        let (mut counters, _) = recorded(&[(7, of(true)), (8, of(false))]);
        let mut count = |tid: u32| counters.count(VcpuId(tid - 7), &thread(tid));
        assert!(count(7).unwrap().is_none() && count(8).unwrap().is_none());
        for _ in 0..2 {
            let (spun, worked) = (count(7).unwrap().unwrap(), count(8).unwrap().unwrap());
            assert_eq!((spun.counts.branches, spun.counts.mispredicted), (1_000_000, 100));
            assert_eq!(worked.counts.instructions, 6_000_000);
            assert_eq!((spun.source, spun.truth), (CounterSource::Hardware, None));
        }
    }

    #[test]
    fn missing_pmu_differs_from_missing_permission() {
        let try_open = |errno: Errno| {
            let open = move |_| Err(io::Error::from(errno));
            PerfCounters::with(ProcFs::host(), Box::new(open)).err()
        };
        for errno in [Errno::NOENT, Errno::NODEV, Errno::OPNOTSUPP, Errno::NOSYS] {
            assert!(matches!(try_open(errno), Some(CounterError::NoPmu { .. })));
        }
        for errno in [Errno::ACCESS, Errno::PERM] {
            let error = try_open(errno).unwrap();
            assert!(matches!(error, CounterError::NotAllowed { .. }), "{error}");
            assert!(error.to_string().contains("perf_event_paranoid"), "{error}");
        }
    }

    #[test]
    fn counting_resumes_once_the_pmu_is_free() {
        let readings = vec![
            Ok(reading([1000, 300, 3], 10, 10)),
            Ok(reading([1000, 300, 3], 50, 10)),
            // The group was on the PMU for half of the time.
            Ok(reading([3000, 800, 8], 90, 30)),
        ];
        let (mut counters, _) = recorded(&[(7, Ok(readings))]);
        let mut count = || counters.count(VcpuId(0), &thread(7));
        assert!(count().unwrap().is_none());
        let error = count().unwrap_err();
        assert!(matches!(error, CounterError::NotScheduled), "{error}");
        let counts = count().unwrap().unwrap().counts;
        assert_eq!((counts.instructions, counts.branches), (4000, 1000));
    }

    #[test]
    fn hotplugged_vcpus_are_followed() {
        let readings = |from: u64| {
            let at = |n: u64| Ok(reading([n * 1000, n * 100, n], n, n));
            Ok(vec![at(from), at(from + 1)])
        };
        let (mut counters, answers) = recorded(&[(7, readings(1))]);
        assert!(counters.count(VcpuId(0), &thread(7)).unwrap().is_none());
        // Unplugged between discovery and opening.
        let gone = counters.count(VcpuId(1), &thread(8)).unwrap_err();
        assert!(gone.is_gone(), "{gone}");
        // Plugged in: counted from its second period on, like all vCPUs.
        answers.borrow_mut().insert(9, readings(5));
        assert!(counters.count(VcpuId(1), &thread(9)).unwrap().is_none());
        let counts = counters.count(VcpuId(1), &thread(9)).unwrap().unwrap().counts;
        assert_eq!((counts.instructions, counts.mispredicted), (1000, 1));
        // A reused TID is another thread.
        counters.forget(&thread(9));
        assert!(counters.count(VcpuId(1), &thread(9)).unwrap().is_none());
    }

    #[test]
    fn file_limit_and_other_errors_are_named() {
        let (mut counters, _) = recorded(&[
            (7, Err(Errno::MFILE)),
            (8, Err(Errno::INVAL)),
            (9, Ok(vec![Err(Errno::IO)])),
        ]);
        let mut error = |tid: u32| counters.count(VcpuId(0), &thread(tid)).unwrap_err();
        assert!(matches!(error(7), CounterError::TooManyFiles));
        assert!(error(8).to_string().contains("Invalid argument"));
        assert!(error(9).to_string().contains("cannot count branches"));
    }

    /// Opens the PMU if there is one; otherwise the error names the missing prerequisite.
    #[test]
    fn missing_pmu_is_named() {
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
