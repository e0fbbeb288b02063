//! Delayed scheduling with the user-level settings of threads: timer slack and scheduling policy.
//!
//! - **Timer slack** (`/proc/TID/timerslack_ns`, proc_pid_timerslack_ns(5)) is the time by which a sleep, or a wait with a timeout, may end late.
//!   The kernel ends overlapping ones with one interrupt.
//!   Ordinary threads have 50 us.
//!   It applies to nanosleep, poll, select, epoll_wait and futexes with a timeout, but not to timerfd_create, timer_create and setitimer.
//! - **Scheduling** (sched_setattr(2)): SCHED_BATCH and a longer slice, so that a woken thread does not preempt the running one.
//!
//! User level cannot delay a thread that the network, a device or another VM wakes.
//!
//! New threads inherit both settings from their creator, and the agent finds them once per period.
//! Their original values are those of their process's threads, or of the nearest known ancestor.
//! A value that the agent did not set was chosen by the thread or another process, and becomes the thread's original.
//! Real-time and SCHED_IDLE threads are not changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::{fs, io};

use tandem_linux::procfs::read_text;
use tandem_linux::sched_attr::FairScheduling;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, sched_attr};
use tandem_model::Nanos;
use tandem_policy::gleaner::delay::Held;
use thiserror::Error;

use crate::actuator::{Actuator, ActuatorError};
use crate::cpusets::{Cpusets, parent_of};

/// Maximum number of listings until one finds no new thread.
const MAX_PASSES: u32 = 20;

/// Maximum duration of a fork, until the new thread is listed.
const FORK_TIME: Duration = Duration::from_millis(1);

/// Maximum number of ancestors to search for a known process.
const MAX_ANCESTORS: usize = 32;

/// Slice under SCHED_BATCH, relative to the scheduler's base slice.
const SLICE_FACTOR: u64 = 2;

/// Settings of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Had {
    /// Timer slack.
    pub slack: Nanos,
    /// Scheduling policy and slice.
    pub scheduling: FairScheduling,
}

/// A thread of the workload.
#[derive(Clone, Copy, Debug)]
struct Entry {
    thread: ThreadRef,
    had: Had,
    /// Current setting; `None` if the last one failed and is to be retried.
    held: Option<Held>,
}

/// Some threads could not be changed.
#[derive(Debug, Error)]
#[error("{failed} of {of} threads could not be delayed or reverted: {first}")]
pub struct Refused {
    /// Number of threads that failed.
    pub failed: usize,
    /// Number of threads.
    pub of: usize,
    /// Error of the first of them.
    pub first: ActuatorError,
}

impl Refused {
    /// Returns true if at least half of the threads failed.
    pub fn is_most(&self) -> bool {
        self.failed * 2 >= self.of
    }
}

/// Delays threads, and reverts them.
#[derive(Debug)]
pub struct Delaying {
    procfs: ProcFs,
    threads: BTreeMap<Tid, Entry>,
    /// All timer slacks that the agent set; another thread that has one of them inherited it.
    given: BTreeSet<Nanos>,
    given_scheduling: Vec<FairScheduling>,
    /// Original settings of the first thread.
    usual: Option<Had>,
    /// Setting that was requested last.
    asked: Held,
    /// Threads were reverted, and new threads may have inherited the former setting meanwhile.
    has_heirs: bool,
}

/// Reads the timer slack of a thread.
pub fn timer_slack(procfs: &ProcFs, tid: Tid) -> io::Result<Nanos> {
    let folder = procfs.process(Pid(tid.0));
    let text = match read_text(&folder.join("timerslack_ns")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && folder.join("stat").exists() => {
            let why = "this kernel has no /proc/PID/timerslack_ns";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        text => text?,
    };
    let number = text.trim().parse().map(Nanos);
    number.map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("'{}' is no number", text.trim()))
    })
}

/// Sets the timer slack of a thread.
pub fn set_timer_slack(procfs: &ProcFs, tid: Tid, slack: Nanos) -> io::Result<()> {
    let path = procfs.process(Pid(tid.0)).join("timerslack_ns");
    fs::write(path, slack.0.to_string())
}

/// Returns the nearest known process among a process and its ancestors: the creator of its threads.
pub(crate) fn maker(procfs: &ProcFs, pid: Pid, is_known: impl Fn(Pid) -> bool) -> Option<Pid> {
    let of = |pid: &Pid| parent_of(procfs, *pid).filter(|parent| parent.0 > 1);
    let mut ancestors = std::iter::successors(Some(pid), of).take(MAX_ANCESTORS);
    ancestors.find(|pid| is_known(*pid))
}

/// Returns the process of a thread.
fn process_of(procfs: &ProcFs, tid: Tid) -> Option<Pid> {
    let status = read_text(&procfs.process(Pid(tid.0)).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid)
}

/// Returns the scheduling of threads that must not preempt.
fn batch(before: FairScheduling) -> FairScheduling {
    let usual = sched_attr::schedulers_slice();
    FairScheduling {
        batch: true,
        slice: usual.map(|usual| before.slice.unwrap_or(Nanos(usual.0 * SLICE_FACTOR))),
    }
}

impl Delaying {
    /// Starts without delayed threads.
    pub fn new(procfs: &ProcFs) -> Delaying {
        Delaying {
            procfs: procfs.clone(),
            threads: BTreeMap::new(),
            given: BTreeSet::new(),
            given_scheduling: Vec::new(),
            usual: None,
            asked: Held::default(),
            has_heirs: false,
        }
    }

    /// Applies `held` to the workload's threads; `list` returns the current threads, and exited ones are ignored.
    ///
    /// When the setting is reduced, a thread created meanwhile may inherit the former one.
    /// Threads are therefore listed until all have the new setting, and again at the next call, for forks under way ([`Delaying::is_unfinished`]).
    /// A thread that fails does not affect the others and is retried.
    pub fn set(
        &mut self,
        actuator: &mut Actuator,
        threads: &[Tid],
        held: Held,
        list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        let is_less = held.slack < self.asked.slack || self.asked.batch && !held.batch;
        self.asked = held;
        let was_less = std::mem::take(&mut self.has_heirs);
        let (found, mut outcome) = self.pass(actuator, threads, held, was_less);
        let is_untouched = !held.is_any() && self.is_unused();
        if is_untouched || !is_less && !was_less {
            return outcome;
        }
        self.has_heirs = is_less || found > 0;
        for _ in 0..MAX_PASSES {
            let threads = list(actuator.cpusets());
            let (found, again) = self.pass(actuator, &threads, held, true);
            outcome = again;
            if found == 0 {
                break;
            }
            self.has_heirs = true;
        }
        outcome
    }

    /// Reverts all threads before the agent exits.
    pub fn revert(
        &mut self,
        actuator: &mut Actuator,
        list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        if self.is_unused() {
            return Ok(());
        }
        let mut outcome = Ok(());
        self.has_heirs = true;
        for _ in 0..MAX_PASSES {
            let threads = list(actuator.cpusets());
            outcome = self.set(actuator, &threads, Held::default(), list);
            if !self.has_heirs {
                break;
            }
            std::thread::sleep(FORK_TIME);
        }
        outcome
    }

    fn is_unused(&self) -> bool {
        self.given.is_empty() && self.given_scheduling.is_empty()
    }

    /// Returns true if [`Delaying::set`] must be called again with the same setting.
    pub fn is_unfinished(&self) -> bool {
        let is_other = |entry: &Entry| entry.held != Some(self.asked);
        self.has_heirs || self.threads.values().any(is_other)
    }

    /// Applies `held` to these threads; with `all`, also checks threads that are known to have it.
    /// Returns the number of threads that had another setting, and the failures.
    fn pass(
        &mut self,
        actuator: &mut Actuator,
        threads: &[Tid],
        held: Held,
        all: bool,
    ) -> (usize, Result<(), Refused>) {
        if !held.is_any() && self.is_unused() {
            self.threads.clear();
            return (0, Ok(()));
        }
        let now: BTreeSet<Tid> = threads.iter().copied().collect();
        self.threads.retain(|tid, _| now.contains(tid));
        let (mut found, mut failed, mut first) = (0, 0, None);
        for &tid in threads {
            let known = self.threads.get(&tid);
            if !all && known.is_some_and(|entry| entry.held == Some(held)) {
                continue;
            }
            match self.give(actuator, tid, held) {
                Ok(is_other) => found += usize::from(is_other),
                Err(error) if error.is_gone() => {
                    self.threads.remove(&tid);
                }
                Err(error) => {
                    failed += 1;
                    first.get_or_insert(error);
                }
            }
        }
        let of = threads.len();
        let refused = first.map(|first| Refused { failed, of, first });
        (found, refused.map_or(Ok(()), Err))
    }

    /// Returns a thread's current settings and its entry; `None` if it is not in the fair class or has exited.
    fn look(&self, tid: Tid) -> Result<Option<(Had, Entry)>, ActuatorError> {
        let unread = |source| ActuatorError::TimerSlackUnread { tid, source };
        let Some(scheduling) = sched_attr::fair_scheduling(tid)? else {
            return Ok(None);
        };
        let now = Had { slack: timer_slack(&self.procfs, tid).map_err(unread)?, scheduling };
        let known = self.threads.get(&tid).copied();
        let same = known.filter(|entry| entry.thread.is_alive(&self.procfs));
        if let Some(entry) = same {
            let had = self.still(now, entry.had);
            return Ok(Some((now, Entry { had, ..entry })));
        }
        let Some(pid) = process_of(&self.procfs, tid) else {
            return Ok(None);
        };
        let Ok(thread) = ThreadRef::read(&self.procfs, pid, tid) else {
            return Ok(None);
        };
        let is_heir =
            self.given.contains(&now.slack) || self.given_scheduling.contains(&now.scheduling);
        let maker = is_heir.then(|| self.maker_had(tid, pid)).flatten();
        let entry = Entry { thread, had: self.before(now, maker), held: None };
        Ok(Some((now, entry)))
    }

    /// Returns the original settings of the thread's creator.
    fn maker_had(&self, tid: Tid, pid: Pid) -> Option<Had> {
        let others = || self.threads.iter().filter(|(other, _)| **other != tid);
        let of = |pid: Pid| others().find(move |(_, entry)| entry.thread.pid == pid);
        let maker = maker(&self.procfs, pid, |pid| of(pid).is_some());
        let entry = maker.and_then(of).map(|(_, entry)| entry.had);
        entry.or(self.usual)
    }

    /// Returns the original settings of a new thread, from its current ones and its creator's original ones.
    fn before(&self, now: Had, maker: Option<Had>) -> Had {
        self.still(now, maker.unwrap_or(now))
    }

    /// Returns the values to restore: the known originals, or current values that the agent did not set.
    fn still(&self, now: Had, had: Had) -> Had {
        Had {
            slack: if self.given.contains(&now.slack) { had.slack } else { now.slack },
            scheduling: if self.given_scheduling.contains(&now.scheduling) {
                had.scheduling
            } else {
                now.scheduling
            },
        }
    }

    /// Applies `held` to a thread and returns true if it had another setting.
    fn give(
        &mut self,
        actuator: &mut Actuator,
        tid: Tid,
        held: Held,
    ) -> Result<bool, ActuatorError> {
        if let Some(entry) = self.threads.get_mut(&tid) {
            entry.held = None;
        }
        let Some((now, entry)) = self.look(tid)? else {
            self.threads.remove(&tid);
            return Ok(false);
        };
        let Entry { thread, had, .. } = entry;
        self.usual.get_or_insert(had);
        self.threads.insert(tid, Entry { held: None, ..entry });
        // A thread never gets less slack than its original.
        let slack = had.slack.max(held.slack);
        let scheduling = if held.batch { batch(had.scheduling) } else { had.scheduling };
        if slack != had.slack {
            self.given.insert(slack);
        }
        if scheduling != had.scheduling && !self.given_scheduling.contains(&scheduling) {
            self.given_scheduling.push(scheduling);
        }
        actuator.set_timer_slack(thread, slack, had.slack)?;
        actuator.set_scheduling(thread, scheduling, had.scheduling)?;
        let held = Some(held);
        self.threads.insert(tid, Entry { held, ..entry });
        Ok(now != Had { slack, scheduling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAD: Had =
        Had { slack: Nanos(50_000), scheduling: FairScheduling { batch: false, slice: None } };

    #[test]
    fn inherited_values_are_not_originals() {
        let mut delaying = Delaying::new(&ProcFs::host());
        let ours = batch(HAD.scheduling);
        delaying.given.insert(Nanos(500_000));
        delaying.given_scheduling.push(ours);
        let inherited = Had { slack: Nanos(500_000), scheduling: ours };
        assert_eq!(delaying.before(inherited, Some(HAD)), HAD);
        // A slack that the thread set itself.
        let own = Had { slack: Nanos(7), ..HAD };
        assert_eq!(delaying.before(own, Some(HAD)), own);
        assert_eq!(delaying.before(own, None), own);
    }

    #[test]
    fn own_slack_and_process_are_read() {
        let procfs = ProcFs::host();
        let me = Tid(std::process::id());
        assert_eq!(process_of(&procfs, me), Some(Pid(me.0)));
        // The kernel shows it only to processes that may set it.
        match timer_slack(&procfs, me) {
            Ok(slack) => assert!(slack > Nanos::ZERO),
            Err(error) => println!("skipped: the timer slack cannot be read: {error}"),
        }
        let gone = timer_slack(&procfs, Tid(i32::MAX as u32)).unwrap_err();
        assert!(tandem_linux::procfs::is_gone(&gone), "{gone}");
    }
}
