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
//! process's threads had before. Real-time threads and those of SCHED_IDLE are left alone.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::io;

use tandem_linux::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_linux::sched_attr;
use tandem_linux::sched_attr::FairScheduling;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_policy::Nanos;
use tandem_policy::gleaner::delay::Held;

use crate::actuator::Actuator;
use crate::actuator::ActuatorError;

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

/// Holds threads back, or no longer.
#[derive(Debug)]
pub struct Delaying {
    procfs: ProcFs,
    /// What threads had, and what was asked for them last.
    threads: BTreeMap<Tid, (ThreadRef, Had, Held)>,
    /// Everything that threads were given; who has that without having been given it has inherited it.
    given: BTreeSet<Nanos>,
    given_scheduling: Vec<FairScheduling>,
    /// What the first thread had.
    usual: Option<Had>,
}

/// A thread's timer slack; `None`: it is gone, or the kernel does not tell.
pub fn timer_slack(procfs: &ProcFs, tid: Tid) -> Option<Nanos> {
    let path = procfs.process(Pid(tid.0)).join("timerslack_ns");
    let text = read_text(&path).ok()?;
    text.trim().parse().ok().map(Nanos)
}

/// Gives a thread a timer slack.
pub fn set_timer_slack(procfs: &ProcFs, tid: Tid, slack: Nanos) -> io::Result<()> {
    let path = procfs.process(Pid(tid.0)).join("timerslack_ns");
    fs::write(path, slack.0.to_string())
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
        }
    }

    /// Lets the workload's threads, which are these, be held back so. Threads that end meanwhile do not matter.
    pub fn set(
        &mut self,
        actuator: &mut Actuator,
        threads: &[Tid],
        held: Held,
    ) -> Result<(), ActuatorError> {
        if !held.is_any() && self.threads.is_empty() {
            return Ok(());
        }
        let now: BTreeSet<Tid> = threads.iter().copied().collect();
        self.threads.retain(|tid, _| now.contains(tid));
        for &tid in threads {
            let known = self.threads.get(&tid).copied();
            let (thread, had, before) = match known {
                Some(known) => known,
                None => match self.look(tid) {
                    Some((thread, had)) => (thread, had, Held::default()),
                    None => continue,
                },
            };
            if known.is_some() && before == held {
                continue;
            }
            match self.give(actuator, thread, had, held) {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
            // What could not be given is tried again.
            self.threads.insert(tid, (thread, had, held));
        }
        Ok(())
    }

    /// What a thread that is new has to have back.
    fn look(&mut self, tid: Tid) -> Option<(ThreadRef, Had)> {
        let pid = process_of(&self.procfs, tid)?;
        let thread = ThreadRef::read(&self.procfs, pid, tid).ok()?;
        let now = Had {
            slack: timer_slack(&self.procfs, tid)?,
            scheduling: sched_attr::fair_scheduling(tid).ok()??,
        };
        let of_process = self.threads.values().find(|(other, ..)| other.pid == pid);
        let maker = of_process.map(|(_, had, _)| *had).or(self.usual);
        let had = self.before(now, maker);
        self.usual.get_or_insert(had);
        Some((thread, had))
    }

    /// What a thread had before, that has this now, and was made by one that had that before.
    fn before(&self, now: Had, maker: Option<Had>) -> Had {
        let maker = maker.unwrap_or(now);
        let has_ours = self.given_scheduling.contains(&now.scheduling);
        Had {
            slack: match self.given.contains(&now.slack) {
                true => maker.slack,
                false => now.slack,
            },
            scheduling: match has_ours {
                true => maker.scheduling,
                false => now.scheduling,
            },
        }
    }

    fn give(
        &mut self,
        actuator: &mut Actuator,
        thread: ThreadRef,
        had: Had,
        held: Held,
    ) -> Result<(), ActuatorError> {
        // Nobody gets less slack than it had.
        let slack = had.slack.max(held.slack);
        let scheduling = match held.batch {
            true => batch(had.scheduling),
            false => had.scheduling,
        };
        if slack != had.slack {
            self.given.insert(slack);
        }
        if scheduling != had.scheduling && !self.given_scheduling.contains(&scheduling) {
            self.given_scheduling.push(scheduling);
        }
        actuator.set_timer_slack(thread, slack, had.slack)?;
        actuator.set_scheduling(thread, scheduling, had.scheduling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAD: Had = Had {
        slack: Nanos(50_000),
        scheduling: FairScheduling {
            batch: false,
            slice: None,
        },
    };

    #[test]
    fn what_is_inherited_is_not_what_is_given_back() {
        let mut delaying = Delaying::new(&ProcFs::host());
        let ours = batch(HAD.scheduling);
        delaying.given.insert(Nanos(500_000));
        delaying.given_scheduling.push(ours);
        let inherited = Had {
            slack: Nanos(500_000),
            scheduling: ours,
        };
        assert_eq!(delaying.before(inherited, Some(HAD)), HAD);
        // Its own slack, set by itself.
        let own = Had {
            slack: Nanos(7),
            ..HAD
        };
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
            Some(slack) => assert!(slack > Nanos::ZERO),
            None => println!("skipped: the timer slack cannot be read"),
        }
        assert_eq!(timer_slack(&procfs, Tid(i32::MAX as u32)), None);
    }
}
