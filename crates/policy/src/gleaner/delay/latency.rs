//! Delay of threads, estimated from means: no kernel shows tails without tracing every switch.
//!
//! The estimate is the slack plus the larger of
//!
//! - twice the mean wait for a turn of the thread that waits longest.
//!   Frequent wakers must not hide a rare one, so each thread counts on its own.
//!   The mean of few turns is mostly chance, so each thread gets [`LIKE_ALL`] more turns with the mean of all;
//! - if woken threads do not preempt, the 99th percentile of a wake-up's wait for the turns of others to end.
//!   A thread runs for a fraction u of the time, in turns of b on average.
//!   A wake-up at a random time falls into such a turn with probability u and then waits for the rest of it.
//!   So it waits longer than w with probability Σ u × (1 − w ÷ b), over the threads with b > w.
//!   Means hide this case even for single threads: all wait seldom, and long.
//!
//! Times are in ns.

use crate::gleaner::delay::held::Held;
use crate::gleaner::{Observation, ThreadPeriod};

/// Tail of a thread's waits, relative to its mean wait.
const TAIL: f64 = 2.0;
/// Turns with the mean of all that are added to each thread's own.
const LIKE_ALL: f64 = 20.0;
/// Minimum turns of a thread to count on its own.
const MIN_TURNS: u64 = 4;
/// Fraction of wake-ups that may wait longer: the 99th percentile.
const BEYOND: f64 = 0.01;
/// Bisection steps that give the percentile to a thousandth of the longest turn.
const HALVINGS: u32 = 10;

/// Waits of threads for their turns, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Waits {
    /// The mean of all, per wake-up.
    all: f64,
    /// The mean of the thread that waits longest, per turn.
    longest: f64,
    /// Minimum wait of the slowest 1 % of wake-ups without preemption.
    behind_turns: f64,
}

/// Number of a thread's waits: its turns, which may be more than its wake-ups, or unknown.
fn turns(thread: &ThreadPeriod) -> u64 {
    thread.turns.max(thread.wakes)
}

impl Waits {
    pub(super) fn of(observed: &Observation) -> Waits {
        let all = observed.waiting.0 as f64 / observed.wakes.max(1) as f64;
        let enough = observed.threads.iter().filter(|t| turns(t) >= MIN_TURNS);
        let mean = |thread: &ThreadPeriod| {
            (thread.waited.0 as f64 + LIKE_ALL * all) / (turns(thread) as f64 + LIKE_ALL)
        };
        Waits {
            all,
            longest: enough.map(mean).fold(all, f64::max),
            behind_turns: behind_turns(observed),
        }
    }

    /// The latency with these means on.
    pub(super) fn latency(&self, held: Held) -> f64 {
        let behind = if held.batch { self.behind_turns } else { 0.0 };
        held.slack.0 as f64 + (TAIL * self.longest).max(behind)
    }

    /// The latency by the mean of all, which does not depend on one unlucky thread.
    pub(super) fn latency_of_all(&self, held: Held) -> f64 {
        held.slack.0 as f64 + TAIL * self.all
    }
}

/// Wait for the turns of others; see the head of the file.
/// A thread does not wait for its own turn to end: the one that runs least waits most, and is left out.
fn behind_turns(observed: &Observation) -> f64 {
    let period = observed.period.0.max(1) as f64;
    let woken = observed.threads.iter().filter(|t| t.wakes >= MIN_TURNS);
    let Some(waiter) = woken.min_by_key(|thread| thread.ran) else {
        return 0.0;
    };
    let others = observed.threads.iter().filter(|t| t.id != waiter.id);
    let of = |thread: &ThreadPeriod| {
        let ran = thread.ran.0 as f64;
        (ran / period, ran / turns(thread).max(1) as f64)
    };
    // Fraction of the time, and length of a turn.
    let turns: Vec<(f64, f64)> = others.map(of).filter(|(_, length)| *length > 0.0).collect();
    let beyond = |wait: f64| -> f64 {
        let each = turns.iter();
        each.map(|(part, length)| part * (1.0 - wait / length).max(0.0)).sum()
    };
    let mut least = 0.0;
    let mut most = turns.iter().map(|(_, length)| *length).fold(0.0, f64::max);
    if beyond(0.0) <= BEYOND {
        return 0.0;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(least, most);
        if beyond(middle) > BEYOND { least = middle } else { most = middle }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::units::Nanos;

    const BATCH: Held = Held { slack: Nanos(500_000), batch: true };

    fn thread(id: u64, wakes: u64, waited_us: u64, ran_us: u64) -> ThreadPeriod {
        ThreadPeriod {
            id,
            wakes,
            turns: wakes,
            ran: Nanos(ran_us * 1_000),
            waited: Nanos(waited_us * 1_000),
        }
    }

    /// Two seconds of these threads.
    fn seen(threads: Vec<ThreadPeriod>) -> Observation {
        Observation {
            period: Nanos::from_millis(2_000),
            wakes: threads.iter().map(|thread| thread.wakes).sum(),
            waiting: threads.iter().map(|thread| thread.waited).sum(),
            threads,
            ..Observation::default()
        }
    }

    #[test]
    fn frequent_wakers_do_not_hide_a_rare_one() {
        // Nine threads of 200 wake-ups wait 20 us each time, and one of ten waits 2.5 ms.
        let mut threads: Vec<ThreadPeriod> =
            (1..10).map(|id| thread(id, 200, 4_000, 6_000)).collect();
        threads.push(thread(10, 10, 25_000, 1_000));
        let slack = Held { batch: false, ..BATCH };
        let waits = Waits::of(&seen(threads.clone()));
        assert!(waits.latency_of_all(slack) < 600_000.0, "{waits:?}");
        assert!(waits.latency(slack) > 1e6, "{waits:?}");
        // A single long wait is chance.
        threads[9] = thread(10, 10, 2_500, 1_000);
        let waits = Waits::of(&seen(threads));
        assert!(waits.latency(slack) < 900_000.0, "{waits:?}");
    }

    #[test]
    fn preempted_thread_waits_once_per_turn() {
        // It computes for 50 ms each time, and others preempt it fifty times for 30 us each.
        let mut long = thread(2, 20, 30_000, 1_000_000);
        long.turns = 1_000;
        let waits = Waits::of(&seen(vec![thread(1, 1_000, 5_000, 30_000), long]));
        assert!(waits.longest < 35_000.0, "{waits:?}");
    }

    #[test]
    fn long_turn_delays_wakeups_without_preemption() {
        // Ten threads with 1,000 wake-ups a second in all, and one that computes for 5 ms every
        // 200 ms: one wake-up in forty waits 2.5 ms.
        let mut threads: Vec<ThreadPeriod> =
            (1..=10).map(|id| thread(id, 200, 12_500, 4_000)).collect();
        threads.push(thread(11, 10, 0, 50_000));
        let waits = Waits::of(&seen(threads));
        let slack = Held { batch: false, ..BATCH };
        assert!(waits.latency(slack) < 650_000.0, "{waits:?}");
        // 2.5 % × (1 − w ÷ 5 ms) is 1 % for 3 ms.
        assert!((waits.behind_turns - 3e6).abs() < 0.1e6, "{waits:?}");
        assert!(waits.latency(BATCH) > 3.4e6, "{waits:?}");
    }

    #[test]
    fn short_turns_and_single_thread_delay_none() {
        let threads = (1..=10).map(|id| thread(id, 200, 2_000, 20_000));
        let waits = Waits::of(&seen(threads.collect()));
        assert!(waits.behind_turns < 100_000.0, "{waits:?}");
        let alone = Waits::of(&seen(vec![thread(1, 200, 0, 1_000_000)]));
        assert_eq!(alone.behind_turns, 0.0);
        assert_eq!(Waits::of(&seen(Vec::new())).latency(BATCH), 500_000.0);
    }
}
