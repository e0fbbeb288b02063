//! Delayed scheduling on a live VM of a single vCPU: woken threads are held back a little, so
//! that pieces of work run together and the vCPU goes idle less often.
//!
//! Source: Gleaner (Ding et al., USENIX ATC 2014), where the guest's kernel holds threads back.
//! From user level there are two means, tried one by one in this order:
//!
//! - [`Means::Slack`]: timers may be late by half of the bound, so that the kernel lets several expire with one interrupt;
//! - [`Means::Batch`]: woken threads do not preempt the running thread, which has a longer slice.
//!
//! A means is tried if the vCPU goes idle often ([`DelayConfig::least_transitions`]), so that its
//! idle periods are short.
//! A trial alternates periods without and with the means, so that a program that starts or
//! changes is not mistaken for an effect.
//! It ends when one more block of periods does not change the verdict, or after [`DelayConfig::most_blocks`].
//! The means is kept if
//!
//! - progress does not fall by more than [`DelayConfig::tolerance`].
//!   Progress is counted in calls of read and write, if there are many.
//!   Otherwise it is how often threads slept and were woken, without those that just serve more at once.
//!   Without calls, a single thread that wakes less often gives no evidence of the same work, which counts as less;
//! - the latency stays within [`DelayConfig::bound`]. It is the slack and twice the mean wait for a turn of the
//!   thread that waits longest or, without preemption, the wait of one wake-up in a hundred for the turns of others.
//!   That is an estimate (see `latency.rs`), as no kernel shows tails without tracing every switch;
//! - something is gained: fewer idle periods per progress, or less CPU time per progress.
//!   Slack works through fewer idle periods alone: without them, less CPU time is chance.
//!   No preemption may save CPU time on its own, but has to save twice as much then.
//!
//! A trial ends at once if a period or two with the means show much less progress (`EARLY`).
//! A thread that sleeps *for* a time after each piece of work does a fraction of it with slack.
//! A means that gained nothing rests, twice as long each time.
//! A means that is kept is watched: if the latency exceeds the bound, or the workload is another one, it is reverted.
//! Times are in ns.

use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;

use crate::settings::settings;
use tandem_model::units::Nanos;

use super::{Averages, Observation};

mod held;
mod latency;
mod trial;

pub use held::Held;
pub use trial::Effect;
use trial::{Figures, Trial};

/// The slack is the bound divided by this.
const SLACK_OF_BOUND: u64 = 2;
/// Minimum idle fraction of the vCPU's time; below it there are no idle periods to save.
const MIN_IDLE: f64 = 0.05;
/// Maximum number of times that a rest doubles.
const MAX_DOUBLINGS: u32 = 5;
/// Factor on progress, up or down, from which a workload is another one, if it lasts [`CHANGED`] periods.
const ANOTHER: f64 = 2.0;
/// A trial ends if after this many periods with a means progress is less than this fraction of that without.
const EARLY: [(u32, f64); 2] = [(1, 0.5), (2, 0.8)];
/// Periods of frequent idling before the first trial; the first of them may be the workload's start.
const SETTLED: u32 = 2;
/// Minimum number of blocks of a trial, if the last one does not change the verdict.
/// Programs whose threads begin together have patterns of some periods' length.
/// Three blocks have each place of a pattern of three periods as often with as without.
const MIN_BLOCKS: usize = 3;
/// Minimum fall of idle periods for less CPU time to be an effect of the means, as a fraction of
/// [`DelayConfig::fewer`].
const SOME_FEWER: f64 = 0.5;
/// Factor on [`DelayConfig::cheaper`] by which CPU time has to fall if idle periods do not.
const MUCH: f64 = 2.0;
/// See [`ANOTHER`].
const CHANGED: u32 = 4;
/// A kept means is reverted if the thread that waits longest is estimated to be late for this many blocks in a row.
/// One of many threads may be unlucky, which shows for one block.
const LATE: u64 = 2;

/// Maximum delay of a thread.
pub const MAX_DELAY: Nanos = Nanos::from_millis(20);

settings! {
    /// Tunables of delayed scheduling.
    pub struct DelayConfig {
        /// Maximum delay of a thread. Zero: nothing is held back.
        pub bound: Nanos = Nanos::from_millis(1), (Nanos::ZERO, MAX_DELAY);
        /// Minimum idle periods a second for a trial.
        pub least_transitions: f64 = 300.0, (1.0, 1e6);
        /// Minimum fall of idle periods for a means to be kept, while CPU time grows by [`DelayConfig::tolerance`] at most.
        pub fewer: f64 = 0.1, (0.0, 1.0);
        /// Or minimum fall of CPU time for the same work.
        pub cheaper: f64 = 0.03, (0.0, 1.0);
        /// Tolerated fall of progress.
        pub tolerance: f64 = 0.015, (0.0, 1.0);
        /// Periods of a block of a trial, half of them with the means, rounded up to a multiple of 4.
        /// A kept means is watched over as long.
        pub judged_over: u32 = 8, (1, 1000);
        /// Maximum number of blocks of a trial, after which their sum decides.
        pub most_blocks: u32 = 6, (1, 100);
        /// Periods until a means that gained nothing is retried; doubles each time.
        pub rest: u32 = 100, (1, 100_000);
    }
}

/// Means of holding threads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// Timers may be late.
    Slack,
    /// Woken threads do not preempt.
    Batch,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Means::Slack => "timer slack",
            Means::Batch => "no preemption by woken threads",
        })
    }
}

/// Reason for holding back as much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Because {
    /// Switched off.
    Off,
    /// The vCPU does not go idle often.
    Seldom {
        /// Idle periods, 1/s.
        transitions: f64,
    },
    /// It does: the state before a trial is measured.
    Often {
        /// Idle periods, 1/s.
        transitions: f64,
    },
    /// A means is on, and its effect is not known yet.
    OnTrial {
        /// The means.
        means: Means,
    },
    /// It gained something.
    Kept {
        /// The means.
        means: Means,
        /// Its effect.
        effect: Effect,
    },
    /// It gained nothing, or cost too much.
    Lost {
        /// The means.
        means: Means,
        /// Its effect.
        effect: Effect,
    },
    /// Both means have been tried.
    Settled,
    /// No trial for now.
    Resting,
    /// The latency exceeded the bound: all means are off.
    Late {
        /// The estimated latency, ns.
        latency: f64,
    },
    /// The workload is another one: all means are off.
    Changed,
    /// The decision could not be applied to the threads, so no observation is its effect.
    Refused,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Off => f.write_str("switched off"),
            Because::Seldom { transitions } => {
                write!(f, "the vCPU goes idle {transitions:.0} times a second")
            }
            Because::Often { transitions } => {
                write!(f, "the vCPU goes idle often, {transitions:.0} times a second")
            }
            Because::OnTrial { means } => write!(f, "{means} on trial"),
            Because::Kept { means, effect } => write!(f, "{means} helps ({effect})"),
            Because::Lost { means, effect } => write!(f, "{means} is of no use ({effect})"),
            Because::Settled => f.write_str("tried"),
            Because::Resting => f.write_str("it was of no use lately"),
            Because::Late { latency } => {
                write!(f, "the latency became {:.0} us", latency / 1e3)
            }
            Because::Changed => f.write_str("the workload changed"),
            Because::Refused => f.write_str("threads could not be held back"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// The vCPU has gone idle often for this many periods.
    Measuring(u32),
    /// The means with this index is on trial.
    Trying(usize, Trial),
    /// Both were tried. Holds the figures with the current means; `None`: they are being measured.
    Watching(Option<Figures>),
    /// For this many periods.
    Resting(u32),
}

/// The controller of one VM's workload.
#[derive(Clone, Debug)]
pub struct Delay {
    config: DelayConfig,
    held: Held,
    stage: Stage,
    failures: u32,
    changed: u32,
    /// Time for which a thread has been late.
    late: Nanos,
    seen: VecDeque<Observation>,
    /// Duration of the last complete block of a trial.
    block: Nanos,
}

/// The means in the order of their trials.
const MEANS: [Means; 2] = [Means::Slack, Means::Batch];

impl Delay {
    /// Creates a controller that holds nothing back.
    pub fn new(config: DelayConfig) -> Delay {
        Delay {
            config,
            held: Held::default(),
            stage: Stage::Measuring(0),
            failures: 0,
            changed: 0,
            late: Nanos::ZERO,
            seen: VecDeque::new(),
            block: Nanos::ZERO,
        }
    }

    /// The means that are on.
    pub fn held(&self) -> Held {
        self.held
    }

    /// Whether a means is on trial, or about to be, so that nothing else should be changed.
    pub fn is_trying(&self) -> bool {
        match self.stage {
            Stage::Trying(..) => true,
            Stage::Measuring(periods) => periods > 0,
            Stage::Watching(_) | Stage::Resting(_) => false,
        }
    }

    /// Whether a vCPU of this workload goes idle often enough for a trial.
    pub fn is_worth(&self, observed: &Observation) -> bool {
        let transitions = Figures::of(observed).transitions;
        let is_idle = Averages::of(observed).idle >= MIN_IDLE;
        self.config.bound > Nanos::ZERO && is_idle && transitions >= self.config.least_transitions
    }

    /// Discards earlier observations, because something else was changed.
    pub fn forget(&mut self) {
        if let Stage::Measuring(periods) = &mut self.stage {
            *periods = 0;
        }
    }

    /// The last decision could not be applied: turns all means off, and pauses trials for a while.
    pub fn refused(&mut self) -> Because {
        self.held = Held::default();
        self.seen.clear();
        self.stage = self.rest();
        Because::Refused
    }

    /// Decides after a period. [`Delay::held`] is the state for the next one.
    pub fn decide(&mut self, observed: &Observation) -> Because {
        if self.config.bound == Nanos::ZERO {
            return Because::Off;
        }
        match std::mem::replace(&mut self.stage, Stage::Resting(0)) {
            Stage::Resting(0) => {
                self.stage = Stage::Measuring(0);
                Because::Resting
            }
            Stage::Resting(left) => {
                self.stage = Stage::Resting(left - 1);
                Because::Resting
            }
            Stage::Measuring(periods) => self.measure(periods, observed),
            Stage::Trying(number, trial) => self.go_on(number, trial, observed),
            Stage::Watching(kept) => self.watch(kept, observed),
        }
    }

    fn measure(&mut self, periods: u32, observed: &Observation) -> Because {
        let transitions = Figures::of(observed).transitions;
        if !self.is_worth(observed) {
            self.stage = Stage::Measuring(0);
            return Because::Seldom { transitions };
        }
        if periods + 1 < SETTLED {
            self.stage = Stage::Measuring(periods + 1);
            return Because::Often { transitions };
        }
        self.begin(0);
        Because::OnTrial { means: MEANS[0] }
    }

    /// Begins the trial of the means with this index.
    fn begin(&mut self, number: usize) {
        let trial = Trial::new(self.config.judged_over);
        self.set(MEANS[number], trial.is_with());
        self.stage = Stage::Trying(number, trial);
    }

    fn set(&mut self, means: Means, is_on: bool) {
        match means {
            Means::Slack if is_on => self.held.slack = self.slack(),
            Means::Slack => self.held.slack = Nanos::ZERO,
            Means::Batch => self.held.batch = is_on,
        }
    }

    fn slack(&self) -> Nanos {
        Nanos(self.config.bound.0 / SLACK_OF_BOUND)
    }

    fn go_on(&mut self, number: usize, mut trial: Trial, observed: &Observation) -> Because {
        let means = MEANS[number];
        let is_block = trial.add(observed);
        if let Some(block) = trial.last().filter(|_| is_block) {
            self.block = block.without.period + block.with.period;
        }
        let held = match means {
            Means::Slack => Held { slack: self.slack(), ..self.held },
            Means::Batch => Held { batch: true, ..self.held },
        };
        if !is_block && trial.is_clearly_less(&EARLY) {
            let effect = trial.so_far().effect(held);
            return self.end(number, Because::Lost { means, effect });
        }
        let last = trial.last().filter(|_| is_block && number == 0);
        let transitions = last.map(|block| Figures::of(&block.without).transitions);
        if let Some(transitions) = transitions.filter(|&n| n < self.config.least_transitions) {
            self.set(means, false);
            self.stage = Stage::Measuring(0);
            return Because::Seldom { transitions };
        }
        let verdict = is_block.then(|| self.verdict(means, &trial, held));
        match verdict.flatten() {
            Some(because) => self.end(number, because),
            None => {
                self.set(means, trial.is_with());
                self.stage = Stage::Trying(number, trial);
                Because::OnTrial { means }
            }
        }
    }

    /// Returns the verdict of the blocks so far, if it is the same without the last of them, or
    /// there are no more to come.
    fn verdict(&self, means: Means, trial: &Trial, held: Held) -> Option<Because> {
        let count = trial.blocks();
        let effect = trial.effect(count, held);
        let is_kept = self.is_good(means, &effect);
        let is_agreed =
            count >= MIN_BLOCKS && self.is_good(means, &trial.effect(count - 1, held)) == is_kept;
        let is_last = count >= self.config.most_blocks.max(1) as usize;
        (is_agreed || is_last).then_some(if is_kept {
            Because::Kept { means, effect }
        } else {
            Because::Lost { means, effect }
        })
    }

    /// Whether a means with this effect is kept.
    fn is_good(&self, means: Means, effect: &Effect) -> bool {
        let is_harmless = effect.progress >= 1.0 - self.config.tolerance
            && effect.latency <= self.config.bound.0 as f64;
        is_harmless && self.gains(means, effect)
    }

    /// Whether a means saves idle periods and costs no CPU time, or saves CPU time.
    fn gains(&self, means: Means, effect: &Effect) -> bool {
        let config = &self.config;
        let saves_periods =
            effect.transitions <= 1.0 - config.fewer && effect.cpu <= 1.0 + config.tolerance;
        let is_cause = effect.transitions <= 1.0 - config.fewer * SOME_FEWER;
        let saves_time = is_cause && effect.cpu <= 1.0 - config.cheaper;
        let saves_switches = means == Means::Batch && effect.cpu <= 1.0 - MUCH * config.cheaper;
        saves_periods || saves_time || saves_switches
    }

    /// Ends the trial with this verdict.
    fn end(&mut self, number: usize, because: Because) -> Because {
        let is_kept = matches!(because, Because::Kept { .. });
        self.set(MEANS[number], is_kept);
        self.seen.clear();
        let is_last = number + 1 == MEANS.len();
        match (is_last, self.held.is_any()) {
            (false, _) => self.begin(number + 1),
            (true, true) => self.stage = Stage::Watching(None),
            (true, false) => self.stage = self.rest(),
        }
        because
    }

    fn rest(&mut self) -> Stage {
        let rest = self.config.rest << self.failures.min(MAX_DOUBLINGS);
        self.failures += 1;
        Stage::Resting(rest)
    }

    fn watch(&mut self, kept: Option<Figures>, observed: &Observation) -> Because {
        self.stage = Stage::Watching(kept);
        // Periods may be longer than in the trial.
        self.seen.push_back(observed.clone());
        let length = |seen: &VecDeque<Observation>| -> Nanos {
            seen.iter().map(|observed| observed.period).sum()
        };
        let is_enough = |length: Nanos| length >= self.block;
        while self.seen.len() > 1
            && is_enough(length(&self.seen).saturating_sub(self.seen[0].period))
        {
            self.seen.pop_front();
        }
        if !is_enough(length(&self.seen)) {
            return Because::Settled;
        }
        let now = Figures::of(&Observation::merged(&self.seen));
        let latency = now.waits.latency(self.held);
        let is_late = |latency: f64| latency > self.config.bound.0 as f64;
        if is_late(latency) {
            self.late += observed.period;
        } else {
            self.late = Nanos::ZERO;
        }
        let is_long = self.late >= Nanos(self.block.0 * LATE);
        if is_late(now.waits.latency_of_all(self.held)) || is_long {
            self.late = Nanos::ZERO;
            self.held = Held::default();
            self.stage = self.rest();
            return Because::Late { latency };
        }
        let Some(kept) = kept else {
            self.stage = Stage::Watching(Some(now));
            return Because::Settled;
        };
        let progress = now.progress(&kept);
        let is_same = progress * ANOTHER >= 1.0 && progress <= ANOTHER;
        self.changed = if is_same { 0 } else { self.changed + 1 };
        if self.changed < CHANGED {
            return Because::Settled;
        }
        self.changed = 0;
        self.failures = 0;
        self.held = Held::default();
        self.stage = Stage::Measuring(0);
        Because::Changed
    }
}

#[cfg(test)]
mod tests;
