//! Delayed scheduling by user-level means: the timer slack and the scheduling policy of the workload's threads.
//!
//! - **Timer slack** (`/proc/TID/timerslack_ns`, proc_pid_timerslack_ns(5)): a sleep, or a wait with a time-out, may end so much
//!   later, and the kernel lets those that overlap end with one interrupt. Ordinary threads have 50 us. It concerns nanosleep,
//!   poll, select, epoll_wait and futexes with a time-out. Timers of timerfd_create, timer_create and setitimer have no slack.
//! - **Scheduling** (sched_setattr(2)): SCHED_BATCH and a longer slice, so that a woken thread does not preempt who runs.
//!
//! A thread that is woken by the network, by a device or by another VM cannot be held back from user level.
//!
//! New threads inherit both from who makes them. They are found once a period, and what they are to have back is what their
//! process's threads had before, or the nearest ancestor's. What a thread has that was not given to it here, it chose itself, or somebody else did: from
//! then on that is what it is to have back. Real-time threads and those of SCHED_IDLE are left alone.

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

/// Threads are listed so often at most until nobody is found that was born meanwhile.
const MOST_PASSES: u32 = 20;

/// So long a fork takes at most, until the new thread is listed.
const A_FORK: Duration = Duration::from_millis(1);

/// Of so many ancestors one is looked for that is known.
const MOST_ANCESTORS: usize = 32;

/// A thread's slice against the scheduler's, while nobody preempts.
const LONGER: u64 = 2;

/// What a thread has, of what is changed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Had {
    /// Its timer slack.
    pub slack: Nanos,
    /// How it is scheduled.
    pub scheduling: FairScheduling,
}

/// A thread of the workload.
#[derive(Clone, Copy, Debug)]
struct Entry {
    thread: ThreadRef,
    had: Had,
    /// What is in force; `None`: what was asked for last could not be given, and is tried again.
    held: Option<Held>,
}

/// Some threads could not be given what they were to have.
#[derive(Debug, Error)]
#[error("{failed} of {of} threads could not be held back, or be as they were: {first}")]
pub struct Refused {
    /// So many.
    pub failed: usize,
    /// Of so many.
    pub of: usize,
    /// What was wrong with the first of them.
    pub first: ActuatorError,
}

impl Refused {
    /// Whether what is to be in force hardly is.
    pub fn is_most(&self) -> bool {
        self.failed * 2 >= self.of
    }
}

/// Holds threads back, or no longer.
#[derive(Debug)]
pub struct Delaying {
    procfs: ProcFs,
    threads: BTreeMap<Tid, Entry>,
    /// Everything that threads were given; who has that without having been given it has inherited it.
    given: BTreeSet<Nanos>,
    given_scheduling: Vec<FairScheduling>,
    /// What the first thread had.
    usual: Option<Had>,
    /// What was asked for last.
    asked: Held,
    /// Something was given back, and threads may have been born meanwhile to one that still had it.
    has_heirs: bool,
}

/// A thread's timer slack.
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

/// Gives a thread a timer slack.
pub fn set_timer_slack(procfs: &ProcFs, tid: Tid, slack: Nanos) -> io::Result<()> {
    let path = procfs.process(Pid(tid.0)).join("timerslack_ns");
    fs::write(path, slack.0.to_string())
}

/// The nearest of a process and its ancestors that is known: who made its threads.
pub(crate) fn maker(procfs: &ProcFs, pid: Pid, is_known: impl Fn(Pid) -> bool) -> Option<Pid> {
    let of = |pid: &Pid| parent_of(procfs, *pid).filter(|parent| parent.0 > 1);
    let mut ancestors = std::iter::successors(Some(pid), of).take(MOST_ANCESTORS);
    ancestors.find(|pid| is_known(*pid))
}

/// The process of a thread.
fn process_of(procfs: &ProcFs, tid: Tid) -> Option<Pid> {
    let status = read_text(&procfs.process(Pid(tid.0)).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid)
}

/// How threads are scheduled that do not preempt.
fn batch(before: FairScheduling) -> FairScheduling {
    let usual = sched_attr::schedulers_slice();
    FairScheduling {
        batch: true,
        slice: usual.map(|usual| before.slice.unwrap_or(Nanos(usual.0 * LONGER))),
    }
}

impl Delaying {
    /// Nobody is held back yet.
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

    /// Lets the workload's threads be held back so. These were its threads a moment ago; `list` tells them anew. Threads that end meanwhile do not matter.
    ///
    /// When less is in force than before, a thread that is born meanwhile may have what its maker had a moment before. So threads are listed until nobody is found
    /// with what it should not have, and once more the next time, for forks that were under way ([`Delaying::is_unfinished`]). Who could not be given what it
    /// should have does not keep the others from it, and is tried again.
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
        let is_untouched = !held.is_any() && self.has_given_nothing();
        if is_untouched || !is_less && !was_less {
            return outcome;
        }
        self.has_heirs = is_less || found > 0;
        for _ in 0..MOST_PASSES {
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

    /// Lets all have back what they had: the agent goes.
    pub fn give_back(
        &mut self,
        actuator: &mut Actuator,
        list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        if self.has_given_nothing() {
            return Ok(());
        }
        let mut outcome = Ok(());
        self.has_heirs = true;
        for _ in 0..MOST_PASSES {
            let threads = list(actuator.cpusets());
            outcome = self.set(actuator, &threads, Held::default(), list);
            if !self.has_heirs {
                break;
            }
            std::thread::sleep(A_FORK);
        }
        outcome
    }

    fn has_given_nothing(&self) -> bool {
        self.given.is_empty() && self.given_scheduling.is_empty()
    }

    /// Whether [`Delaying::set`] has to be called again although nothing else is asked for.
    pub fn is_unfinished(&self) -> bool {
        let is_other = |entry: &Entry| entry.held != Some(self.asked);
        self.has_heirs || self.threads.values().any(is_other)
    }

    /// Gives these threads what they are to have; with `all` also looks at those that have it as far as is known. How many had something else, and
    /// whether all could be given it.
    fn pass(
        &mut self,
        actuator: &mut Actuator,
        threads: &[Tid],
        held: Held,
        all: bool,
    ) -> (usize, Result<(), Refused>) {
        if !held.is_any() && self.has_given_nothing() {
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

    /// What a thread has, and what it is to have back; `None`: it is not of the fair class.
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

    /// What the one had that made this thread.
    fn maker_had(&self, tid: Tid, pid: Pid) -> Option<Had> {
        let others = || self.threads.iter().filter(|(other, _)| **other != tid);
        let of = |pid: Pid| others().find(move |(_, entry)| entry.thread.pid == pid);
        let maker = maker(&self.procfs, pid, |pid| of(pid).is_some());
        let entry = maker.and_then(of).map(|(_, entry)| entry.had);
        entry.or(self.usual)
    }

    /// What a thread had before, that has this now, and was made by one that had that before.
    fn before(&self, now: Had, maker: Option<Had>) -> Had {
        self.still(now, maker.unwrap_or(now))
    }

    /// What a thread is to have back that has this now, and had that: what was not given here, it or somebody else chose.
    fn still(&self, now: Had, had: Had) -> Had {
        Had {
            slack: if self.given.contains(&now.slack) { had.slack } else { now.slack },
            scheduling: match self.given_scheduling.contains(&now.scheduling) {
                true => had.scheduling,
                false => now.scheduling,
            },
        }
    }

    /// Gives a thread what it is to have. Whether it had something else.
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
        // Nobody gets less slack than it had.
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
    fn what_is_inherited_is_not_what_is_given_back() {
        let mut delaying = Delaying::new(&ProcFs::host());
        let ours = batch(HAD.scheduling);
        delaying.given.insert(Nanos(500_000));
        delaying.given_scheduling.push(ours);
        let inherited = Had { slack: Nanos(500_000), scheduling: ours };
        assert_eq!(delaying.before(inherited, Some(HAD)), HAD);
        // Its own slack, set by itself.
        let own = Had { slack: Nanos(7), ..HAD };
        assert_eq!(delaying.before(own, Some(HAD)), own);
        assert_eq!(delaying.before(own, None), own);
    }

    #[test]
    fn this_thread_has_a_slack_and_a_process() {
        let procfs = ProcFs::host();
        let me = Tid(std::process::id());
        assert_eq!(process_of(&procfs, me), Some(Pid(me.0)));
        // The kernel tells it only to who may set it.
        match timer_slack(&procfs, me) {
            Ok(slack) => assert!(slack > Nanos::ZERO),
            Err(error) => println!("skipped: the timer slack cannot be read: {error}"),
        }
        let gone = timer_slack(&procfs, Tid(i32::MAX as u32)).unwrap_err();
        assert!(tandem_linux::procfs::is_gone(&gone), "{gone}");
    }
}
