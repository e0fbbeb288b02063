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
//! of the time also means: for short. Then the same is measured as before it, and it is kept if
//!
//! - progress is not less (by [`DelayConfig::tolerance`]): calls of read and write, where there are many; else how often the
//!   threads slept and were woken. A single thread that wakes less often by itself may do as much as before; without calls nothing
//!   tells, and then it counts as less;
//! - the latency stays within [`DelayConfig::bound`]: the slack and twice what a woken thread waits on average for its turn. That is an
//!   estimate; no kernel tells tails without tracing every switch;
//! - something is gained: idle periods per progress, or CPU time per progress. Slack acts by fewer idle periods alone: without them, less CPU
//!   time is chance.
//!
//! A trial that makes clear after a period or two that much less gets done (`EARLY`) ends at once: who sleeps *for* a time after each piece of
//! work does a fraction of it with slack. What gained nothing rests, twice as long each time. What is kept is watched: when the latency goes beyond the bound, or the
//! workload is another one, it is taken back. Times are in ns.

use std::collections::VecDeque;
use std::fmt;

use serde::Deserialize;
use serde::Serialize;

use crate::units::Nanos;

use super::Averages;
use super::Observation;
use super::progress::over;

/// Fewer calls a second than this are no measure of work.
const CALLS: f64 = 500.0;
/// Fewer wake-ups a second than this are none either.
const WAKES: f64 = 50.0;
/// A part of the slack and of the bound.
const SLACK_OF_BOUND: u64 = 2;
/// A thread's tail against its mean wait.
const TAIL: f64 = 2.0;
/// With less of the vCPU's time idle there are no idle periods to be saved.
const LEAST_IDLE: f64 = 0.05;
/// Rests double up to this many times.
const MOST_DOUBLINGS: u32 = 5;
/// A workload is another one with so many times the progress, or so much less, for [`CHANGED`] periods.
const ANOTHER: f64 = 2.0;
/// After so many periods a trial ends if progress is less than this part of what it was.
const EARLY: [(usize, f64); 2] = [(1, 0.5), (2, 0.8)];
/// So many fewer idle periods must come with less CPU time if that is to be due to slack, as a part of [`DelayConfig::fewer`].
const SOME_FEWER: f64 = 0.5;
/// See [`ANOTHER`].
const CHANGED: u32 = 4;

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
    /// Periods that are compared. Default 8.
    pub judged_over: u32,
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

/// What is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Held {
    /// Timers may be late by so much, ns; zero: as the workload has it.
    pub slack: Nanos,
    /// Woken threads do not preempt who runs.
    pub batch: bool,
}

impl Held {
    /// Whether anything is held back.
    pub fn is_any(self) -> bool {
        self != Held::default()
    }
}

/// What a trial showed, after over before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Work done.
    pub progress: f64,
    /// Idle periods for the same work.
    pub transitions: f64,
    /// CPU time for the same work.
    pub cpu: f64,
    /// The latency that was estimated, ns.
    pub latency: f64,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} x progress, {:.2} x idle periods, {:.2} x CPU time, latency {:.0} us",
            self.progress,
            self.transitions,
            self.cpu,
            self.latency / 1e3
        )
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
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Off => f.write_str("switched off"),
            Because::Seldom { transitions } => {
                write!(f, "the vCPU goes idle {transitions:.0} times a second")
            }
            Because::Often { transitions } => write!(
                f,
                "the vCPU goes idle often, {transitions:.0} times a second"
            ),
            Because::OnTrial { means } => write!(f, "{means} on trial"),
            Because::Kept { means, effect } => write!(f, "{means} helps ({effect})"),
            Because::Lost { means, effect } => write!(f, "{means} is of no use ({effect})"),
            Because::Settled => f.write_str("tried"),
            Because::Resting => f.write_str("it was of no use lately"),
            Because::Late { latency } => {
                write!(f, "the latency became {:.0} us", latency / 1e3)
            }
            Because::Changed => f.write_str("the workload changed"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Before the means with this number.
    Measuring(usize),
    /// The means with this number is on.
    Trying(usize, Figures),
    /// Both were tried.
    Watching(Figures),
    /// For so many periods.
    Resting(u32),
}

/// What is compared, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    calls: f64,
    wakes: f64,
    transitions: f64,
    work: f64,
    /// Mean wait of a thread for its turn, ns.
    wait: f64,
}

impl Figures {
    fn of(observed: &Observation) -> Figures {
        let period = observed.period.0.max(1) as f64;
        let per_second = |count: u64| count as f64 / period * 1e9;
        let averages = Averages::of(observed);
        let periods = observed.vcpus.iter().map(|vcpu| vcpu.idle_periods);
        Figures {
            calls: averages.calls,
            wakes: per_second(observed.wakes),
            transitions: per_second(periods.sum()),
            work: averages.work,
            wait: observed.waiting.0 as f64 / observed.wakes.max(1) as f64,
        }
    }

    /// Progress against before. Nothing that counts: no progress that could be told.
    fn progress(&self, before: &Figures) -> f64 {
        match () {
            () if before.calls >= CALLS => over(self.calls, before.calls),
            () if before.wakes >= WAKES => over(self.wakes, before.wakes),
            () => 0.0,
        }
    }
}

/// The controller of one VM's workload.
#[derive(Clone, Debug)]
pub struct Delay {
    config: DelayConfig,
    held: Held,
    stage: Stage,
    failures: u32,
    changed: u32,
    seen: VecDeque<Observation>,
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
            seen: VecDeque::new(),
        }
    }

    /// What is in force.
    pub fn held(&self) -> Held {
        self.held
    }

    /// Whether a means is on trial, or what is before a trial is being measured, so that nothing else should be changed.
    pub fn is_trying(&self) -> bool {
        match self.stage {
            Stage::Trying(..) => true,
            Stage::Measuring(_) => !self.seen.is_empty(),
            Stage::Watching(_) | Stage::Resting(_) => false,
        }
    }

    /// Whether a vCPU of this workload goes idle often enough for a trial.
    pub fn is_worth(&self, observed: &Observation) -> bool {
        let transitions = Figures::of(observed).transitions;
        let is_idle = Averages::of(observed).idle >= LEAST_IDLE;
        self.config.bound > Nanos::ZERO && is_idle && transitions >= self.config.least_transitions
    }

    /// Something else was changed: what was measured before no longer counts.
    pub fn forget(&mut self) {
        if let Stage::Measuring(_) = self.stage {
            self.seen.clear();
        }
    }

    /// A period is over. What is to be in force in the next is [`Delay::held`].
    pub fn decide(&mut self, observed: &Observation) -> Because {
        if self.config.bound == Nanos::ZERO {
            return Because::Off;
        }
        self.seen.push_back(observed.clone());
        while self.seen.len() > self.config.judged_over.max(1) as usize {
            self.seen.pop_front();
        }
        match self.stage {
            Stage::Resting(0) => {
                self.start();
                Because::Resting
            }
            Stage::Resting(left) => {
                self.stage = Stage::Resting(left - 1);
                Because::Resting
            }
            Stage::Measuring(number) => self.measure(number, observed),
            Stage::Trying(number, before) => self.judge(number, &before),
            Stage::Watching(kept) => self.watch(&kept),
        }
    }

    fn start(&mut self) {
        self.stage = Stage::Measuring(0);
        self.seen.clear();
    }

    fn is_seen(&self) -> bool {
        self.seen.len() >= self.config.judged_over.max(1) as usize
    }

    fn figures(&self) -> Figures {
        Figures::of(&Observation::merged(&self.seen))
    }

    fn measure(&mut self, number: usize, observed: &Observation) -> Because {
        let transitions = Figures::of(observed).transitions;
        if number == 0 && !self.is_worth(observed) {
            self.seen.clear();
            return Because::Seldom { transitions };
        }
        if !self.is_seen() {
            return Because::Often { transitions };
        }
        let before = self.figures();
        let means = MEANS[number];
        match means {
            Means::Slack => self.held.slack = Nanos(self.config.bound.0 / SLACK_OF_BOUND),
            Means::Batch => self.held.batch = true,
        }
        self.stage = Stage::Trying(number, before);
        self.seen.clear();
        Because::OnTrial { means }
    }

    /// The slack, and what a thread waits for its turn.
    fn latency(&self, now: &Figures) -> f64 {
        self.held.slack.0 as f64 + TAIL * now.wait
    }

    fn judge(&mut self, number: usize, before: &Figures) -> Because {
        let means = MEANS[number];
        let now = self.figures();
        let progress = now.progress(before);
        if !self.is_seen() && !self.is_clearly_less(progress) {
            return Because::OnTrial { means };
        }
        let per_progress = |ratio: f64| match progress > 0.0 {
            true => ratio / progress,
            false => f64::INFINITY,
        };
        let effect = Effect {
            progress,
            transitions: per_progress(over(now.transitions, before.transitions)),
            cpu: per_progress(over(now.work, before.work)),
            latency: self.latency(&now),
        };
        let is_harmless =
            progress >= 1.0 - self.config.tolerance && effect.latency <= self.config.bound.0 as f64;
        let is_kept = is_harmless && self.gains(means, &effect);
        if !is_kept {
            match means {
                Means::Slack => self.held.slack = Nanos::ZERO,
                Means::Batch => self.held.batch = false,
            }
        }
        self.seen.clear();
        let is_last = number + 1 == MEANS.len();
        self.stage = match (is_last, self.held.is_any()) {
            (false, _) => Stage::Measuring(number + 1),
            (true, true) => Stage::Watching(if is_kept { now } else { *before }),
            (true, false) => self.rest(),
        };
        match is_kept {
            true => Because::Kept { means, effect },
            false => Because::Lost { means, effect },
        }
    }

    /// Whether so little is done after the periods of a trial so far that no more are needed.
    fn is_clearly_less(&self, progress: f64) -> bool {
        let mut early = EARLY.iter();
        early.any(|&(periods, least)| self.seen.len() >= periods && progress < least)
    }

    /// Whether a means saves idle periods and costs no CPU time, or saves CPU time.
    fn gains(&self, means: Means, effect: &Effect) -> bool {
        let config = &self.config;
        let saves_periods =
            effect.transitions <= 1.0 - config.fewer && effect.cpu <= 1.0 + config.tolerance;
        let is_cause = match means {
            Means::Slack => effect.transitions <= 1.0 - config.fewer * SOME_FEWER,
            Means::Batch => true,
        };
        saves_periods || is_cause && effect.cpu <= 1.0 - config.cheaper
    }

    fn rest(&mut self) -> Stage {
        let rest = self.config.rest << self.failures.min(MOST_DOUBLINGS);
        self.failures += 1;
        Stage::Resting(rest)
    }

    fn watch(&mut self, kept: &Figures) -> Because {
        if !self.is_seen() {
            return Because::Settled;
        }
        let now = self.figures();
        let latency = self.latency(&now);
        if latency > self.config.bound.0 as f64 {
            self.held = Held::default();
            self.stage = self.rest();
            return Because::Late { latency };
        }
        let progress = now.progress(kept);
        let is_same = progress * ANOTHER >= 1.0 && progress <= ANOTHER;
        self.changed = if is_same { 0 } else { self.changed + 1 };
        if self.changed < CHANGED {
            return Because::Settled;
        }
        self.changed = 0;
        self.failures = 0;
        self.held = Held::default();
        self.start();
        Because::Changed
    }
}

#[cfg(test)]
mod tests;
