//! Progress of a workload: compares two spans of time by the best measure there is.
//!
//! No kernel reports how much useful work a program did. These are measures of it:
//!
//! - its calls of read and write, if it makes many: exact, and the same for each piece of work
//!   however its threads are scheduled;
//! - its time in user mode: the same for each piece of work too, but most kernels sample it at
//!   the timer tick, so that a ratio of a hundred ticks is off by a seventh;
//! - its context switches, which are exact, but may be more or fewer for the same work.
//!
//! They are used in this order. Exact user time (in a simulator) comes first.
//! Without calls or exact user time, the smaller of the two other ratios counts.
//! Threads that crowd around a lock switch more, and spin longer in user mode, when they get less
//! done, but seldom both.

use super::Averages;

/// Minimum time in user mode, in vCPUs, that is measured well.
const MEASURABLE: f64 = 0.02;
/// Minimum calls a second to measure work.
const CALLS: f64 = 500.0;
/// Minimum ticks in user mode to measure work.
const TICKS: f64 = 20.0;

/// Progress after a change, relative to before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Above 1: more gets done. 1 if nothing gets done in either.
    pub ratio: f64,
    /// Standard deviation of the ratio from sampling alone; zero for exact counts.
    pub error: f64,
    /// Ratio of the exact counts alone, if the ratio is sampled: known sooner, and never less than the ratio.
    pub counted: f64,
}

/// Compares two spans of time.
pub fn compare(before: &Averages, now: &Averages) -> Progress {
    let counted = |ratio| Progress { ratio, error: 0.0, counted: ratio };
    if before.user >= MEASURABLE && before.ticks.is_infinite() {
        return counted(over(now.user, before.user));
    }
    if before.calls >= CALLS {
        return counted(over(now.calls, before.calls));
    }
    let switches = over(now.switches, before.switches);
    if before.user < MEASURABLE || before.ticks < TICKS {
        return counted(switches);
    }
    let user = over(now.user, before.user);
    let variance = 1.0 / before.ticks + 1.0 / now.ticks.max(1.0);
    Progress { ratio: user.min(switches), error: user * variance.sqrt(), counted: switches }
}

/// `now` ÷ `before`; 1 if both are 0.
pub(super) fn over(now: f64, before: f64) -> f64 {
    match (now > 0.0, before > 0.0) {
        (_, true) => now / before,
        (true, false) => f64::INFINITY,
        (false, false) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Observation;
    use super::*;
    use tandem_model::units::Nanos;

    fn second(user_ms: u64, calls: u64, switches: u64, tick_ms: u64) -> Averages {
        Averages::of(&Observation {
            period: Nanos::from_secs(1),
            user: Nanos::from_millis(user_ms),
            calls,
            switches,
            tick: Nanos::from_millis(tick_ms),
            ..Observation::default()
        })
    }

    #[test]
    fn exact_user_time_comes_first() {
        let progress = compare(&second(500, 9_000, 9_000, 0), &second(600, 1_000, 1_000, 0));
        assert!((progress.ratio - 1.2).abs() < 1e-9);
        assert_eq!(progress.error, 0.0);
    }

    #[test]
    fn calls_come_before_sampled_user_time() {
        let progress = compare(&second(500, 1_000, 9_000, 4), &second(500, 2_000, 1_000, 4));
        assert_eq!((progress.ratio, progress.error), (2.0, 0.0));
    }

    #[test]
    fn sampled_user_time_has_error() {
        let progress = compare(&second(400, 0, 1_000, 4), &second(400, 0, 1_000, 4));
        assert!((progress.ratio - 1.0).abs() < 1e-9);
        // A hundred ticks each: sqrt(2 / 100).
        assert!((progress.error - 0.1414).abs() < 1e-3);
    }

    #[test]
    fn smaller_of_user_time_and_switches_counts() {
        let before = second(400, 0, 1_000, 4);
        assert_eq!(compare(&before, &second(800, 0, 900, 4)).ratio, 0.9);
        assert_eq!(compare(&before, &second(800, 0, 9_000, 4)).ratio, 2.0);
    }

    #[test]
    fn switches_are_the_last_resort() {
        let progress = compare(&second(1, 10, 1_000, 4), &second(1, 900, 3_000, 4));
        assert_eq!(progress.ratio, 3.0);
        let nothing = compare(&second(0, 0, 0, 4), &second(0, 0, 0, 4));
        assert_eq!(nothing.ratio, 1.0);
    }
}
