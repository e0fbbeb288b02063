//! What a program did while it was recorded: for how long its threads ran, what they waited for, and who woke whom.
//!
//! ```text
//! schedstat samples ──► ThreadProfile (totals) ──┐
//! trace windows     ──► ThreadProfile::steps ────┴──► Profile ──► a workload of the simulator
//! ```
//!
//! Every thread has totals: how long it ran, waited for a CPU and slept, and how often it went to sleep. Where the scheduler's events could be
//! traced, there are [`Step`]s as well: what each thread did in some windows of the time, one after the other. A step waits for a wake-up that
//! a step of another thread gives, and of each pair both are there: [`Step::Wait`] of one thread and [`Step::Wake`] of the other. So steps can be
//! repeated for ever, in any order of threads that keeps each thread's own, and nobody waits for what never comes.
//!
//! Several threads that lived one after the other may be one here (`lives`), as the compilers that `make` starts are. Times are ns. What was not seen is in
//! [`Profile::missing`], in words. Nothing here reads or measures: `tandem_guest::record` does, and `tandem_observe::recorded` makes a workload.

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// The version of [`Profile`] in JSON.
pub const SCHEMA: u32 = 1;

/// What one thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// It is on a CPU for so long.
    Run(Nanos),
    /// It waits until one of the program's threads wakes it.
    Wait,
    /// It wakes that thread, by its place in [`Profile::threads`].
    Wake(usize),
    /// It sleeps for so long: a clock ended it, or nobody of the program did.
    Sleep(Nanos),
    /// It gives way to others that may run.
    Yield,
}

/// In what a thread was found asleep, in how many samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsleepIn {
    /// The system call, in one word: `futex`, `sleep`, `poll`, `read`, `child`, …
    pub what: String,
    /// Samples.
    pub samples: u64,
}

/// Bursts between two sleeps, by how long they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: Nanos,
    /// A tenth of them is shorter.
    pub p10: Nanos,
    /// Half of them are.
    pub p50: Nanos,
    /// Nine tenths are.
    pub p90: Nanos,
}

impl Spread {
    /// Of these lengths.
    pub fn of(mut lengths: Vec<Nanos>) -> Spread {
        lengths.sort_unstable();
        let count = lengths.len() as u64;
        let at = |part: usize| {
            let last = lengths.len().saturating_sub(1);
            lengths.get(last * part / 10).copied().unwrap_or_default()
        };
        Spread {
            count,
            mean: Nanos(lengths.iter().map(|one| one.0).sum::<u64>() / count.max(1)),
            p10: at(1),
            p50: at(5),
            p90: at(9),
        }
    }
}

/// A part of the recorded time: how often a thread went to sleep in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleeps {
    /// How often.
    pub sleeps: u64,
    /// In what time.
    pub wall: Nanos,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadProfile {
    /// Its name.
    pub name: String,
    /// How many threads this one stands for, which lived one after the other; 1 as a rule.
    pub lives: u64,
    /// How long it was looked at.
    pub wall: Nanos,
    /// On a CPU.
    pub ran: Nanos,
    /// Waiting for a CPU.
    pub waited: Nanos,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// How often it lost its CPU though it could go on.
    pub preempted: u64,
    /// The same by parts of the time.
    pub by_time: Vec<Sleeps>,
    /// In what it was found asleep.
    pub asleep_in: Vec<AsleepIn>,
    /// How long it was on a CPU between two sleeps; of traced windows only.
    pub bursts: Spread,
    /// The period of the clock that wakes it, where its wake-ups are as regular as one's; of traced windows only.
    pub period: Option<Nanos>,
    /// What it did in traced windows, one after the other; empty where nothing was traced.
    pub steps: Vec<Step>,
}

impl ThreadProfile {
    /// How long it slept: neither on a CPU nor waiting for one.
    pub fn slept(&self) -> Nanos {
        self.wall.saturating_sub(self.ran + self.waited)
    }
}

/// Who woke whom, in traced windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeEdge {
    /// Who woke, by its place in [`Profile::threads`].
    pub from: usize,
    /// Whom.
    pub to: usize,
    /// How often.
    pub count: u64,
    /// How long those slept that were woken, together.
    pub slept: Nanos,
}

/// A futex on which threads both wait and wake, as they do at a mutex that is fought for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLike {
    /// How many threads do both.
    pub threads: usize,
    /// Calls that wait.
    pub waits: u64,
    /// Calls that wake.
    pub wakes: u64,
}

/// What a program did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The version of this form: [`SCHEMA`].
    pub schema: u32,
    /// The command, or whose process it was.
    pub program: String,
    /// How many CPUs it could use.
    pub cpus: usize,
    /// How long it was recorded.
    pub wall: Nanos,
    /// CPU time of all its threads, those that nobody saw included where that is known.
    pub ran: Nanos,
    /// The part of it that no thread here has: of threads that lived between two samples.
    pub unseen: Nanos,
    /// How long was traced, all windows together; zero: nothing was.
    pub traced: Nanos,
    /// Bursts were so many times as long before they were shortened by what tracing cost.
    pub tracing_cost: f64,
    /// From a wake-up until the thread ran, where its CPU was idle: the median. `None`: not measured.
    pub idle_wake: Option<Nanos>,
    /// By how much a wake-up keeps the waker longer, where the CPU is idle and has to be told: the median. It is in no burst. `None`: not measured.
    pub idle_send: Option<Nanos>,
    /// Its threads.
    pub threads: Vec<ThreadProfile>,
    /// Who woke whom.
    pub wakes: Vec<WakeEdge>,
    /// Waits that look like those for a lock.
    pub lock_like: Vec<LockLike>,
    /// What is not known, in words.
    pub missing: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_mean_and_the_tenths() {
        let lengths = (1..=11).rev().map(Nanos).collect();
        let spread = Spread::of(lengths);
        assert_eq!((spread.count, spread.mean), (11, Nanos(6)));
        let tenths = (spread.p10, spread.p50, spread.p90);
        assert_eq!(tenths, (Nanos(2), Nanos(6), Nanos(10)));
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn what_a_thread_neither_ran_nor_waited_it_slept() {
        let thread = ThreadProfile {
            wall: Nanos(100),
            ran: Nanos(30),
            waited: Nanos(20),
            ..ThreadProfile::default()
        };
        assert_eq!(thread.slept(), Nanos(50));
        let all = ThreadProfile { ran: Nanos(101), ..thread };
        assert_eq!(all.slept(), Nanos::ZERO);
    }
}
