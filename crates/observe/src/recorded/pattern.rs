//! The demand of a vCPU, derived from its activity: lengths of runs and sleeps.
//!
//! With n wake-ups, run time R and sleep time S (both without RDY), a cycle is R ÷ n of work and S ÷ n of sleep. Without contention
//! the vCPU would use R ÷ (R + S) of a pCPU, regardless of its waits.

use tandem_model::states::interval::VcpuInterval;
use tandem_model::{Nanos, State};

/// Reciprocal of the minimum part of sleep in run and sleep time; below it, a vCPU does not sleep.
const HARDLY: u64 = 200;

/// Ratio of waits to run and sleep time above which a vCPU is starved and counts as never sleeping: its short pauses, such as those of the guest's
/// boot or of a tick, are a large part of its little run time by chance. Without contention it would run.
const STARVED: u64 = 4;

/// Reciprocal of the part of the time below which the sleep of a starved vCPU is such a pause.
const STARVED_SLEEP: u64 = 20;

/// Reciprocal of the part of the time below which a vCPU that runs counts as idle.
const NEXT_TO_NOTHING: u64 = 10_000;

/// Reciprocal of the throttled part of the time above which the quota's period is one of the vCPU's cycles.
const THROTTLED: u64 = 20;

/// The kernel's default period of a quota. The record does not contain the actual one.
const QUOTA_PERIOD: Nanos = Nanos::from_millis(100);

/// Maximum length of a cycle, so that a simulation of some seconds contains many.
const MAX_CYCLE: Nanos = Nanos::from_secs(1);

/// Minimum number of cycles for varying lengths; with fewer, random lengths would distort the mean.
const MANY: u64 = 100;

/// Maximum relative difference of the means of similar patterns.
const ALIKE: f64 = 0.25;

/// Behaviour of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// It sleeps.
    Idle,
    /// It runs without a pause.
    Always,
    /// It runs, sleeps when that is done, and begins again.
    Bursts {
        /// Mean run length.
        run: Nanos,
        /// Mean sleep length.
        sleep: Nanos,
        /// Whether both vary, or are constant.
        varies: bool,
    },
    /// It is woken by a clock, and runs.
    Periodic {
        /// Run length.
        run: Nanos,
        /// Time between wake-ups.
        period: Nanos,
    },
}

/// Activity of one or several vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Observed time.
    pub wall: Nanos,
    /// Time on a pCPU: RUN, POLL, VMM.
    pub ran: Nanos,
    /// Time off pCPUs without demand: HALT, and CSTP and LIM, in which a sibling or a quota delayed it.
    pub slept: Nanos,
    /// Waiting for a pCPU: RDY.
    pub waited: Nanos,
    /// Number of wake-ups, or of runs if unknown.
    pub cycles: u64,
    /// Whether its wake-ups are as regular as a clock.
    pub is_regular: bool,
    /// Whether a quota throttled it.
    pub is_throttled: bool,
}

impl Demand {
    /// Returns the demand of a vCPU in a sum of intervals.
    pub fn of(vcpu: &VcpuInterval, is_regular: bool) -> Demand {
        let times = &vcpu.times;
        let sum = |states: &[State]| -> Nanos {
            let known = states.iter().filter_map(|state| times.get(*state));
            known.sum()
        };
        let wall = times.wall();
        let limited = sum(&[State::Limited]);
        let is_throttled = limited.0.saturating_mul(THROTTLED) > wall.0;
        let least = if is_throttled { wall.0 / QUOTA_PERIOD.0 } else { wall.0 / MAX_CYCLE.0 };
        Demand {
            wall,
            ran: sum(&[State::Run, State::Poll, State::Vmm]),
            slept: sum(&[State::Halted, State::Costop, State::Limited]),
            waited: sum(&[State::Ready]),
            cycles: vcpu.wakeups.unwrap_or(vcpu.runs).max(least).max(1),
            is_regular,
            is_throttled,
        }
    }

    /// Returns the demand of background load that used `ran` of a pCPU in cycles of this length.
    pub(super) fn background(wall: Nanos, ran: Nanos, cycle: Nanos) -> Demand {
        let ran = ran.min(wall);
        Demand {
            wall,
            ran,
            slept: wall.saturating_sub(ran),
            cycles: (wall.0 / cycle.0.max(1)).max(1),
            ..Demand::default()
        }
    }

    /// Returns the sum of several demands; `None` if there are none.
    pub fn together<'a>(demands: impl IntoIterator<Item = &'a Demand>) -> Option<Demand> {
        demands.into_iter().copied().reduce(|one, two| Demand {
            wall: one.wall + two.wall,
            ran: one.ran + two.ran,
            slept: one.slept + two.slept,
            waited: one.waited + two.waited,
            cycles: one.cycles + two.cycles,
            is_regular: one.is_regular && two.is_regular,
            is_throttled: one.is_throttled || two.is_throttled,
        })
    }

    /// Returns the behaviour.
    pub fn pattern(&self) -> Pattern {
        let cycles = self.cycles.max(1);
        if self.ran.0.saturating_mul(NEXT_TO_NOTHING) < self.wall.0 || self.ran == Nanos::ZERO {
            return Pattern::Idle;
        }
        if self.slept.0.saturating_mul(HARDLY) < (self.ran + self.slept).0 {
            return Pattern::Always;
        }
        if self.is_starved() {
            return Pattern::Always;
        }
        let run = Nanos((self.ran.0 / cycles).max(1));
        if self.is_regular && !self.is_throttled {
            let period = Nanos((self.wall.0 / cycles).max(1));
            return Pattern::Periodic { run, period };
        }
        Pattern::Bursts {
            run,
            sleep: Nanos((self.slept.0 / cycles).max(1)),
            varies: cycles >= MANY && !self.is_throttled,
        }
    }

    /// Whether it waited for a pCPU nearly all the time, and hardly slept.
    pub(super) fn is_starved(&self) -> bool {
        let wanted = (self.ran + self.slept).0.saturating_mul(STARVED);
        let slept = self.slept.0.saturating_mul(STARVED_SLEEP);
        !self.is_throttled && self.waited.0 > wanted && slept < self.wall.0
    }

    /// Whether its pattern is similar to that of all vCPUs together.
    pub(super) fn is_like(&self, all: &Demand) -> bool {
        let near = |one: Nanos, other: Nanos| {
            let (one, other) = (one.0 as f64, other.0 as f64);
            (one - other).abs() <= ALIKE * other
        };
        match (self.pattern(), all.pattern()) {
            (Pattern::Idle, Pattern::Idle) | (Pattern::Always, Pattern::Always) => true,
            (
                Pattern::Bursts { run, sleep, .. },
                Pattern::Bursts { run: other_run, sleep: other_sleep, .. },
            ) => near(run, other_run) && near(sleep, other_sleep),
            (
                Pattern::Periodic { run, period },
                Pattern::Periodic { run: other_run, period: other_period },
            ) => near(run, other_run) && near(period, other_period),
            _ => false,
        }
    }
}

/// Variation of the number of wake-ups between intervals: the index of dispersion, variance ÷ mean. It is
/// about 1 for random wake-ups, about the square of a cycle's coefficient of variation for consecutive cycles, and near 0
/// for a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Regularity {
    intervals: u64,
    wakeups: f64,
    wall: f64,
    /// Sum over intervals of squared wake-ups ÷ length.
    squares: f64,
    is_unknown: bool,
}

impl Regularity {
    /// Minimum number of intervals; with fewer, random wake-ups look regular once in a thousand times.
    const MIN_INTERVALS: u64 = 8;

    /// Minimum mean of wake-ups per interval; with fewer, the ends of an interval matter too much.
    const MIN_WAKEUPS: f64 = 20.0;

    /// Maximum index of dispersion of a clock.
    const CLOCK: f64 = 0.05;

    /// Adds an interval of this length.
    pub(super) fn add(&mut self, wakeups: Option<u64>, wall: Nanos) {
        let (Some(wakeups), true) = (wakeups, wall > Nanos::ZERO) else {
            self.is_unknown |= wakeups.is_none();
            return;
        };
        let (wakeups, wall) = (wakeups as f64, wall.as_secs_f64());
        self.intervals += 1;
        self.wakeups += wakeups;
        self.wall += wall;
        self.squares += wakeups * wakeups / wall;
    }

    /// Whether the wake-ups are those of a clock.
    pub(super) fn is_regular(&self) -> bool {
        let mean = self.wakeups / self.intervals.max(1) as f64;
        if self.is_unknown || self.intervals < Self::MIN_INTERVALS || mean < Self::MIN_WAKEUPS {
            return false;
        }
        // Σ (n − λ w)² ÷ λ w over the intervals, with n wake-ups in a wall time w, and λ = Σ n ÷ Σ w.
        let rate = self.wakeups / self.wall;
        let sum = self.squares / rate - self.wakeups;
        sum / (self.intervals - 1) as f64 <= Self::CLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_wakeups_are_distinguished_from_random_ones() {
        let regular = |wakeups: &[Option<u64>]| {
            let mut regularity = Regularity::default();
            for wakeups in wakeups {
                regularity.add(*wakeups, Nanos::from_secs(1));
            }
            regularity.is_regular()
        };
        let clock = [99, 100, 101, 100, 100, 99, 100, 101, 100, 100].map(Some);
        assert!(regular(&clock));
        assert!(!regular(&clock[..7]), "too few intervals");
        assert!(!regular(&[Some(10); 10]), "too few wake-ups");
        let chance = [93, 108, 100, 88, 104, 113, 97, 101, 95, 106].map(Some);
        assert!(!regular(&chance));
        let mut gap = clock;
        gap[3] = None;
        assert!(!regular(&gap));
    }
}
