//! Delayed scheduling on a live VM of a single vCPU: woken threads are held back a little, so that pieces of work run
//! together and the vCPU goes idle less often.
//!
//! Source: Gleaner (Ding et al., USENIX ATC 2014). There the guest's kernel holds threads back. From user level there are two
//! means, each tried by itself, in this order:
//!
//! - [`Means::Slack`]: timers may be late by half of the bound, so that the kernel lets several expire with one interrupt;
//! - [`Means::Batch`]: woken threads do not preempt who runs, which has a longer slice.
//!
//! A means is tried where the vCPU goes idle often ([`DelayConfig::least_transitions`]), which for a vCPU that is idle for part
//! of the time also means: for short. A trial is periods without it and with it in turn, so that a program that starts or changes is not taken for
//! an effect. It ends when one more block of periods changes nothing, or after [`DelayConfig::most_blocks`]. The means is kept if
//!
//! - progress is not less (by [`DelayConfig::tolerance`]): calls of read and write, where there are many; else how often those
//!   threads slept and were woken that do not just serve more at once. Of a single thread that wakes less often nothing tells, without calls, that it does as
//!   much as before, and then it counts as less;
//! - the latency stays within [`DelayConfig::bound`]: the slack and twice what the thread that waits longest waits on average for its turn, or, without
//!   preemption, what one wake-up in a hundred waits for the turns of others. That is an estimate (the file `latency.rs`); no kernel tells tails without
//!   tracing every switch;
//! - something is gained: idle periods per progress, or CPU time per progress. Slack acts by fewer idle periods alone: without them, less CPU
//!   time is chance. No preemption may save CPU time by itself, but has to save twice as much then.
//!
//! A trial that makes clear after a period or two with the means that much less gets done (`EARLY`) ends at once: who sleeps *for* a time after each piece of
//! work does a fraction of it with slack. What gained nothing rests, twice as long each time. What is kept is watched: when the latency goes beyond the bound, or the
//! workload is another one, it is taken back. Times are in ns.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

use tandem_model::units::Nanos;

use super::{Averages, Observation};

mod held;
mod latency;
mod trial;

pub use held::Held;
pub use trial::Effect;
use trial::{Figures, Trial};

/// A part of the slack and of the bound.
const SLACK_OF_BOUND: u64 = 2;
/// With less of the vCPU's time idle there are no idle periods to be saved.
const LEAST_IDLE: f64 = 0.05;
/// Rests double up to this many times.
const MOST_DOUBLINGS: u32 = 5;
/// A workload is another one with so many times the progress, or so much less, for [`CHANGED`] periods.
const ANOTHER: f64 = 2.0;
/// After so many periods with a means a trial ends if progress is less than this part of what it is without.
const EARLY: [(u32, f64); 2] = [(1, 0.5), (2, 0.8)];
/// A workload is seen to go idle often for so many periods before the first trial; the first of them may be its start.
const SETTLED: u32 = 2;
/// So many blocks end a trial if all but the last say the same. Programs whose threads begin together have patterns of some periods' length; three blocks
/// have each place of a pattern of three periods as often with as without.
const LEAST_BLOCKS: usize = 3;
/// So many fewer idle periods must come with less CPU time if that is to be due to the means, as a part of [`DelayConfig::fewer`].
const SOME_FEWER: f64 = 0.5;
/// By so many times [`DelayConfig::cheaper`] CPU time has to fall where idle periods do not.
const MUCH: f64 = 2.0;
/// See [`ANOTHER`].
const CHANGED: u32 = 4;
/// What is kept is taken back when a single thread is estimated to be late for so many blocks on end: one of many may have bad luck, which is seen for a
/// block.
const LATE: u64 = 2;

/// Tunables of delayed scheduling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DelayConfig {
    /// The most by which a thread may run later, ns. Default 1 ms. Zero: nothing is held back.
    pub bound: Nanos,
    /// Idle periods a second from which on it is worth a trial. Default 300.
    pub least_transitions: f64,
    /// By this part, 0 … 1, idle periods have to become fewer for a means to be kept, while CPU time grows by [`DelayConfig::tolerance`] at most. Default 0.1.
    pub fewer: f64,
    /// Or by this part CPU time for the same work. Default 0.03.
    pub cheaper: f64,
    /// Progress may be less by this part, 0 … 1. Default 0.015.
    pub tolerance: f64,
    /// Periods of a block of a trial, half of them with the means, rounded up to a multiple of 4; what is kept is watched over as long. Default 8.
    pub judged_over: u32,
    /// A trial ends after so many blocks at the latest, by their sum. Default 6.
    pub most_blocks: u32,
    /// Periods until what gained nothing is tried again; doubles each time. Default 100.
    pub rest: u32,
}

impl Default for DelayConfig {
    fn default() -> DelayConfig {
        DelayConfig {
            bound: Nanos::from_millis(1),
            least_transitions: 300.0,
            fewer: 0.1,
            cheaper: 0.03,
            tolerance: 0.015,
            judged_over: 8,
            most_blocks: 6,
            rest: 100,
        }
    }
}

/// By what threads are held back.
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

/// Why so much is held back.
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
    /// It does: what was before a trial is measured.
    Often {
        /// Idle periods, 1/s.
        transitions: f64,
    },
    /// A means is on, and not known yet whether it helps.
    OnTrial {
        /// Which.
        means: Means,
    },
    /// It gained something.
    Kept {
        /// Which.
        means: Means,
        /// What it showed.
        effect: Effect,
    },
    /// It gained nothing, or cost too much.
    Lost {
        /// Which.
        means: Means,
        /// What it showed.
        effect: Effect,
    },
    /// Both means have been tried.
    Settled,
    /// Nothing is tried for now.
    Resting,
    /// The latency went beyond the bound: all was taken back.
    Late {
        /// The latency that was estimated, ns.
        latency: f64,
    },
    /// The workload is another one: all was taken back.
    Changed,
    /// What was decided could not be given to the threads: nothing that was seen is its effect.
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
    /// The vCPU has gone idle often for so many periods.
    Measuring(u32),
    /// The means with this number is on trial.
    Trying(usize, Trial),
    /// Both were tried. What is in force did this; `None`: it is being measured.
    Watching(Option<Figures>),
    /// For so many periods.
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
    /// For how long a thread has been late.
    late: Nanos,
    seen: VecDeque<Observation>,
    /// How long a block of the last trial was that had one.
    block: Nanos,
}

/// The means in the order of their trials.
const MEANS: [Means; 2] = [Means::Slack, Means::Batch];

impl Delay {
    /// Nothing is held back in the beginning.
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

    /// What is in force.
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
        let is_idle = Averages::of(observed).idle >= LEAST_IDLE;
        self.config.bound > Nanos::ZERO && is_idle && transitions >= self.config.least_transitions
    }

    /// Something else was changed: what was seen before no longer counts.
    pub fn forget(&mut self) {
        if let Stage::Measuring(periods) = &mut self.stage {
            *periods = 0;
        }
    }

    /// What was decided last could not be carried out, so nothing is to be held back, and nothing tried for a while.
    pub fn refused(&mut self) -> Because {
        self.held = Held::default();
        self.seen.clear();
        self.stage = self.rest();
        Because::Refused
    }

    /// A period is over. What is to be in force in the next is [`Delay::held`].
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

    /// Begins the trial of the means with this number.
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

    /// What the blocks so far say: the same as without the last of them, or so many are they that they decide.
    fn verdict(&self, means: Means, trial: &Trial, held: Held) -> Option<Because> {
        let count = trial.blocks();
        let effect = trial.effect(count, held);
        let is_kept = self.is_good(means, &effect);
        let is_agreed =
            count >= LEAST_BLOCKS && self.is_good(means, &trial.effect(count - 1, held)) == is_kept;
        let is_last = count >= self.config.most_blocks.max(1) as usize;
        (is_agreed || is_last).then_some(match is_kept {
            true => Because::Kept { means, effect },
            false => Because::Lost { means, effect },
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

    /// The trial is over, with this verdict.
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
        let rest = self.config.rest << self.failures.min(MOST_DOUBLINGS);
        self.failures += 1;
        Stage::Resting(rest)
    }

    fn watch(&mut self, kept: Option<Figures>, observed: &Observation) -> Because {
        self.stage = Stage::Watching(kept);
        // Periods may be longer than they were in the trial.
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
        match is_late(latency) {
            true => self.late += observed.period,
            false => self.late = Nanos::ZERO,
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
