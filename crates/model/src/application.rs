//! Profile of a recorded program: run times, waits and wake-ups of its threads.
//!
//! ```text
//! schedstat samples ──► ThreadProfile (totals) ──┐
//! trace windows     ──► ThreadProfile::steps ────┴──► Profile ──► a workload of the simulator
//! ```
//!
//! Every thread has totals: run time, wait for a CPU, sleep, and number of sleeps.
//! If the scheduler's events were traced, it also has [`Step`]s, its activity in some windows of the time.
//! A [`Step::Wait`] of one thread and the [`Step::Wake`] of another that ends it are always both present.
//! Steps can therefore repeat forever, in any order that keeps each thread's own, without a wait that never ends.
//!
//! A profile may represent several consecutive threads (`lives`), such as the compilers that `make` starts.
//! Times are ns.
//! [`Profile::missing`] describes missing information.
//!
//! This module only holds data: `tandem_guest::record` measures it, and `tandem_observe::recorded` converts it to a workload.

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Version of [`Profile`] in JSON.
pub const SCHEMA: u32 = 1;

/// One step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Runs on a CPU for this time.
    Run(Nanos),
    /// Waits until another thread of the program wakes it.
    Wait,
    /// Wakes a thread, by its index in [`Profile::threads`].
    Wake(usize),
    /// Sleeps for this time, until a clock or another program wakes it.
    Sleep(Nanos),
    /// Yields to other runnable threads.
    Yield,
}

/// System call in which a thread slept, with the number of samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsleepIn {
    /// The system call, in one word: `futex`, `sleep`, `poll`, `read`, `child`, …
    pub what: String,
    /// Number of samples.
    pub samples: u64,
}

/// Distribution of bursts between two sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of bursts.
    pub count: u64,
    /// Mean length.
    pub mean: Nanos,
    /// 10th percentile.
    pub p10: Nanos,
    /// Median.
    pub p50: Nanos,
    /// 90th percentile.
    pub p90: Nanos,
}

impl Spread {
    /// Returns the distribution of these lengths.
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

/// Number of a thread's sleeps in a part of the recorded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleeps {
    /// Number of sleeps.
    pub sleeps: u64,
    /// Length of that part.
    pub wall: Nanos,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadProfile {
    /// Its name.
    pub name: String,
    /// Number of consecutive threads that this one represents; usually 1.
    pub lives: u64,
    /// Observed time.
    pub wall: Nanos,
    /// Run time.
    pub ran: Nanos,
    /// Time waiting for a CPU.
    pub waited: Nanos,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Number of preemptions.
    pub preempted: u64,
    /// Sleeps by parts of the time.
    pub by_time: Vec<Sleeps>,
    /// System calls in which it slept.
    pub asleep_in: Vec<AsleepIn>,
    /// Run times between two sleeps, in traced windows.
    pub bursts: Spread,
    /// Period of the clock that wakes it, if its wake-ups are regular, in traced windows.
    pub period: Option<Nanos>,
    /// Its steps in traced windows; empty without tracing.
    pub steps: Vec<Step>,
}

impl ThreadProfile {
    /// Returns the time that it neither ran nor waited for a CPU.
    pub fn slept(&self) -> Nanos {
        self.wall.saturating_sub(self.ran + self.waited)
    }
}

/// Wake-ups of one thread by another, in traced windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeEdge {
    /// Waking thread, by its index in [`Profile::threads`].
    pub from: usize,
    /// Woken thread.
    pub to: usize,
    /// Number of wake-ups.
    pub count: u64,
    /// Total time of the sleeps that they ended.
    pub slept: Nanos,
}

/// A futex on which threads both wait and wake, like a contended mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLike {
    /// Number of threads that do both.
    pub threads: usize,
    /// Calls that wait.
    pub waits: u64,
    /// Calls that wake.
    pub wakes: u64,
}

/// Profile of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of this format: [`SCHEMA`].
    pub schema: u32,
    /// Command, or name of the process.
    pub program: String,
    /// Number of CPUs that it could use.
    pub cpus: usize,
    /// Recorded time.
    pub wall: Nanos,
    /// CPU time of all its threads, including unseen ones if known.
    pub ran: Nanos,
    /// The part of it that is not of these threads, such as of threads that lived between two samples.
    pub unseen: Nanos,
    /// Total length of the traced windows; zero without tracing.
    pub traced: Nanos,
    /// Factor by which tracing prolonged bursts; they are already divided by it.
    pub tracing_cost: f64,
    /// Median time from a wake-up on an idle CPU until the thread ran. `None`: not measured.
    pub idle_wake: Option<Nanos>,
    /// Median time that a waker spends on notifying an idle CPU, which no burst includes. `None`: not measured.
    pub idle_send: Option<Nanos>,
    /// Its threads.
    pub threads: Vec<ThreadProfile>,
    /// Wake-ups between threads.
    pub wakes: Vec<WakeEdge>,
    /// Waits that look like those for a lock.
    pub lock_like: Vec<LockLike>,
    /// Descriptions of missing information.
    pub missing: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_mean_and_percentiles() {
        let lengths = (1..=11).rev().map(Nanos).collect();
        let spread = Spread::of(lengths);
        assert_eq!((spread.count, spread.mean), (11, Nanos(6)));
        let tenths = (spread.p10, spread.p50, spread.p90);
        assert_eq!(tenths, (Nanos(2), Nanos(6), Nanos(10)));
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn slept_is_rest_of_wall_time() {
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
