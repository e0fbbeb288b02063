//! A trial of delayed scheduling: periods without a means and with it in turn, and what they say.
//!
//! A block is four phases of the same length: without, with, with, without. What grows or falls steadily by itself, as a program does that
//! warms up, falls out of a comparison of such a block's halves; what comes and goes makes blocks disagree. Times are in ns.

use std::fmt;

use serde::Serialize;

use crate::gleaner::Averages;
use crate::gleaner::Observation;
use crate::gleaner::progress::over;
use crate::units::Nanos;

/// Fewer calls a second than this are no measure of work.
const CALLS: f64 = 500.0;
/// Fewer wake-ups a second than this are none either.
const WAKES: f64 = 50.0;
/// A thread's tail against its mean wait.
const TAIL: f64 = 2.0;
/// Whether the phases of a block have the means.
const WITH: [bool; 4] = [false, true, true, false];

/// What a trial showed, with the means over without.
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
            "{:.3} x progress, {:.2} x idle periods, {:.2} x CPU time, latency {:.0} us",
            self.progress,
            self.transitions,
            self.cpu,
            self.latency / 1e3
        )
    }
}

/// What is compared, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    calls: f64,
    wakes: f64,
    /// Idle periods.
    pub transitions: f64,
    work: f64,
    /// Mean wait of a thread for its turn, ns.
    wait: f64,
}

impl Figures {
    pub(super) fn of(observed: &Observation) -> Figures {
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
    pub(super) fn progress(&self, before: &Figures) -> f64 {
        match () {
            () if before.calls >= CALLS => over(self.calls, before.calls),
            () if before.wakes >= WAKES => over(self.wakes, before.wakes),
            () => 0.0,
        }
    }

    /// With this slack: the slack, and what a thread waits for its turn.
    pub(super) fn latency(&self, slack: Nanos) -> f64 {
        slack.0 as f64 + TAIL * self.wait
    }
}

/// The periods of a block, or of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Halves {
    pub without: Observation,
    pub with: Observation,
}

impl Halves {
    /// What the means does, that comes to this slack.
    pub(super) fn effect(&self, slack: Nanos) -> Effect {
        let (before, now) = (Figures::of(&self.without), Figures::of(&self.with));
        let progress = now.progress(&before);
        let per_progress = |ratio: f64| match progress > 0.0 {
            true => ratio / progress,
            false => f64::INFINITY,
        };
        Effect {
            progress,
            transitions: per_progress(over(now.transitions, before.transitions)),
            cpu: per_progress(over(now.work, before.work)),
            latency: now.latency(slack),
        }
    }
}

/// A trial under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    /// Periods of a phase.
    phase: u32,
    /// Periods seen of the block under way.
    place: u32,
    block: Halves,
    blocks: Vec<Halves>,
}

impl Trial {
    /// With blocks of so many periods, rounded up to whole phases.
    pub(super) fn new(periods: u32) -> Trial {
        Trial {
            phase: periods.div_ceil(WITH.len() as u32).max(1),
            place: 0,
            block: Halves::default(),
            blocks: Vec::new(),
        }
    }

    /// Whether the coming period is to have the means.
    pub(super) fn is_with(&self) -> bool {
        WITH[(self.place / self.phase) as usize % WITH.len()]
    }

    /// A period is over, which was as [`Trial::is_with`] said. True: it was the last of its block.
    pub(super) fn add(&mut self, observed: &Observation) -> bool {
        match self.is_with() {
            true => self.block.with.merge(observed),
            false => self.block.without.merge(observed),
        }
        self.place += 1;
        let is_whole = self.place == self.phase * WITH.len() as u32;
        if is_whole {
            self.place = 0;
            self.blocks.push(std::mem::take(&mut self.block));
        }
        is_whole
    }

    /// Those that are whole.
    pub(super) fn blocks(&self) -> &[Halves] {
        &self.blocks
    }

    /// All that are whole, as one; of a trial without any, what there is of the first.
    pub(super) fn sum(&self) -> Halves {
        let Some((first, others)) = self.blocks.split_first() else {
            return self.block.clone();
        };
        let mut sum = first.clone();
        for block in others {
            sum.without.merge(&block.without);
            sum.with.merge(&block.with);
        }
        sum
    }

    /// The block under way.
    pub(super) fn so_far(&self) -> &Halves {
        &self.block
    }

    /// Whether in the block under way so little is done, after `(periods, part)` with the means, that no more are needed.
    pub(super) fn is_clearly_less(&self, early: &[(u32, f64)]) -> bool {
        let periods = (0..self.place).filter(|place| WITH[(place / self.phase) as usize]);
        let periods = periods.count() as u32;
        let (before, now) = (
            Figures::of(&self.block.without),
            Figures::of(&self.block.with),
        );
        let progress = now.progress(&before);
        early
            .iter()
            .any(|&(least, part)| periods >= least && progress < part)
    }
}
