//! What a vCPU wants of its pCPU, from what it did: how long it runs and how long it sleeps.
//!
//! With n wake-ups in which it ran R and slept S (RDY is in neither), a cycle is R ÷ n of work and S ÷ n of sleep. What it would
//! have got alone is so R ÷ (R + S) of a pCPU, however long it waited.

use tandem_model::states::interval::VcpuInterval;
use tandem_model::{Nanos, State};

/// Who sleeps less than this part of what it runs and sleeps, one in so many, does not sleep.
const HARDLY: u64 = 200;

/// Who waited for pCPUs more than so many times as long as it ran and slept, never sleeps: of the little that it got to do its own pauses are a large part
/// by chance, such as those of the guest's start or of a tick. Alone it would run.
const STARVED: u64 = 4;

/// Of a starved vCPU, sleep below this part of the time is such a pause: one in so many.
const STARVED_SLEEP: u64 = 20;

/// Who ran less than this part of the time, one in so many, does nothing.
const NEXT_TO_NOTHING: u64 = 10_000;

/// Throttled for more than this part of the time, one in so many, a vCPU has the quota's period among its cycles.
const THROTTLED: u64 = 20;

/// The kernel's default period of a quota. The record does not say which one it was.
const QUOTA_PERIOD: Nanos = Nanos::from_millis(100);

/// No cycle is longer: a simulation of some seconds is to see many.
const LONGEST_CYCLE: Nanos = Nanos::from_secs(1);

/// From so many cycles on their lengths are taken to vary; of fewer only the mean would be left to chance.
const MANY: u64 = 100;

/// Patterns whose means differ from the common one by at most this part are alike.
const ALIKE: f64 = 0.25;

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// It sleeps.
    Idle,
    /// It runs without a pause.
    Always,
    /// It runs, sleeps when that is done, and begins again.
    Bursts {
        /// For how long it runs, on average.
        run: Nanos,
        /// For how long it sleeps.
        sleep: Nanos,
        /// Whether both vary, or are always the same.
        varies: bool,
    },
    /// It is woken by a clock, and runs.
    Periodic {
        /// For how long it runs.
        run: Nanos,
        /// From one wake-up to the next.
        period: Nanos,
    },
}

/// What one vCPU did, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// How long it was looked at.
    pub wall: Nanos,
    /// On a pCPU, whatever for: RUN, POLL, VMM.
    pub ran: Nanos,
    /// Off it with nothing to do: HALT, with what a sibling or a quota kept it from, CSTP and LIM.
    pub slept: Nanos,
    /// Waiting for a pCPU: RDY.
    pub waited: Nanos,
    /// How often it was woken, or put on a pCPU where that is not known.
    pub cycles: u64,
    /// Whether its wake-ups are as regular as a clock.
    pub is_regular: bool,
    /// Whether a quota throttled it.
    pub is_throttled: bool,
}

impl Demand {
    /// Of a vCPU, by a sum of intervals.
    pub fn of(vcpu: &VcpuInterval, is_regular: bool) -> Demand {
        let times = &vcpu.times;
        let sum = |states: &[State]| -> Nanos {
            let known = states.iter().filter_map(|state| times.get(*state));
            known.sum()
        };
        let wall = times.wall();
        let limited = sum(&[State::Limited]);
        let is_throttled = limited.0.saturating_mul(THROTTLED) > wall.0;
        let least = if is_throttled { wall.0 / QUOTA_PERIOD.0 } else { wall.0 / LONGEST_CYCLE.0 };
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

    /// Something that used so much of a pCPU's time, in cycles of this length.
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

    /// Several vCPUs as one; `None` of none.
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

    /// What it does.
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

    /// Whether it was kept off its pCPU nearly all the time, and slept next to nothing of it.
    pub(super) fn is_starved(&self) -> bool {
        let wanted = (self.ran + self.slept).0.saturating_mul(STARVED);
        let slept = self.slept.0.saturating_mul(STARVED_SLEEP);
        !self.is_throttled && self.waited.0 > wanted && slept < self.wall.0
    }

    /// Whether it does what all of them do together.
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

/// How much the number of wake-ups differs from interval to interval: its index of dispersion, the variance over the mean. It is
/// about 1 where wake-ups come at random, about the square of a cycle's coefficient of variation where cycles follow each other, and next to 0
/// where a clock wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Regularity {
    intervals: u64,
    wakeups: f64,
    wall: f64,
    /// Of each interval, the square of its wake-ups over its length.
    squares: f64,
    is_unknown: bool,
}

impl Regularity {
    /// With fewer intervals chance is taken for a clock once in a thousand times.
    const LEAST_INTERVALS: u64 = 8;

    /// With fewer wake-ups in an interval its two ends matter too much.
    const LEAST_WAKEUPS: f64 = 20.0;

    /// The index of dispersion below which a clock wakes.
    const CLOCK: f64 = 0.05;

    /// Takes in an interval of this length.
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

    /// Whether a clock wakes.
    pub(super) fn is_regular(&self) -> bool {
        let mean = self.wakeups / self.intervals.max(1) as f64;
        if self.is_unknown || self.intervals < Self::LEAST_INTERVALS || mean < Self::LEAST_WAKEUPS {
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
