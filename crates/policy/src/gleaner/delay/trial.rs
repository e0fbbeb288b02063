//! Trial of delayed scheduling: alternates periods without and with a means, and compares them.
//!
//! A block is four phases of the same length: without, with, with, without.
//! A steady trend, such as a program that warms up, cancels out between the halves of such a
//! block; fluctuations make blocks disagree.
//! Times are in ns.
//!
//! **Progress** is calls of read and write and messages on sockets, if there are many; otherwise
//! how often threads slept and were woken.
//! A thread that serves others is woken less often for the same work if pieces come together.
//! Unlike in a thread that does less, its CPU time then falls by much less than its wake-ups
//! ([`Thread::serves_more_at_once`]).
//! Such threads are left out.
//! Messages may be those of others. If the workload's threads do much less by wake-ups and by CPU
//! time, messages are no evidence against that ([`Halves::contradiction`]).
//!
//! **Latency** is estimated from means ([`super::latency`]).

use std::fmt;

use serde::Serialize;

use crate::gleaner::delay::held::Held;
use crate::gleaner::delay::latency::Waits;
use crate::gleaner::progress::over;
use crate::gleaner::{Averages, Observation};

/// Minimum calls a second to measure work.
const CALLS: f64 = 500.0;
/// Minimum wake-ups a second to measure work.
const WAKES: f64 = 50.0;
/// Ratio of wake-ups up to which a thread may serve more at once.
const FEWER_WAKES: f64 = 0.9;
/// Minimum wake-ups a second of a thread to count on its own.
const SELDOM: f64 = 5.0;
/// Ratio of all wake-ups below which all threads count: a few may do most of the work and lose it.
const GROSS: f64 = 0.9;
/// If wake-ups and CPU time both fall, pieces of work came together only if CPU time kept this
/// fraction of the wake-ups' fall.
const KEPT_CPU: f64 = 0.25;
/// Whether each phase of a block has the means.
const WITH: [bool; 4] = [false, true, true, false];

/// Effect of a means in a trial: with it, relative to without.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Work done.
    pub progress: f64,
    /// Idle periods for the same work.
    pub transitions: f64,
    /// CPU time for the same work.
    pub cpu: f64,
    /// The estimated latency, ns.
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

/// Quantities that are compared, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Calls of read and write by the workload's processes.
    calls: f64,
    /// Messages on sockets, of any process.
    messages: f64,
    wakes: f64,
    /// Idle periods.
    pub transitions: f64,
    /// CPU time: of the threads if they are known, otherwise of the vCPU.
    work: f64,
    /// Waits of threads for their turns.
    pub waits: Waits,
}

impl Figures {
    pub(super) fn of(observed: &Observation) -> Figures {
        let period = observed.period.0.max(1) as f64;
        let per_second = |count: u64| count as f64 / period * 1e9;
        let averages = Averages::of(observed);
        let periods = observed.vcpus.iter().map(|vcpu| vcpu.idle_periods);
        let ran = observed.threads.iter().map(|thread| thread.ran.0);
        Figures {
            calls: averages.calls,
            messages: per_second(observed.messages),
            wakes: per_second(observed.wakes),
            transitions: per_second(periods.sum()),
            work: if observed.threads.is_empty() {
                averages.work
            } else {
                ran.sum::<u64>() as f64 / period
            },
            waits: Waits::of(observed),
        }
    }

    /// Calls and messages.
    fn requests(&self) -> f64 {
        self.calls + self.messages
    }

    /// Progress relative to `before`; 0 if there is no measure.
    pub(super) fn progress(&self, before: &Figures) -> f64 {
        match () {
            () if before.requests() >= CALLS => over(self.requests(), before.requests()),
            () if before.wakes >= WAKES => over(self.wakes, before.wakes),
            () => 0.0,
        }
    }
}

/// The periods of a block, or of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Halves {
    pub without: Observation,
    pub with: Observation,
}

/// A thread with the means, relative to without.
struct Thread {
    wakes: f64,
    turns: f64,
    ran: f64,
    /// Its wake-ups a second without the means, and with it.
    rates: [f64; 2],
}

impl Thread {
    /// Whether it is woken less often and its CPU time fell by less than half as much: pieces of work came together.
    fn serves_more_at_once(&self) -> bool {
        self.wakes <= FEWER_WAKES && self.ran >= f64::midpoint(1.0, self.wakes)
    }

    /// Its wake-ups or, next to a server that serves more at once, its turns on the vCPU if these fell by less.
    /// A thread that calls a server on the same vCPU either sleeps until the reply or is
    /// preempted by the server, and both are a turn.
    /// Without one, an additional turn is a preemption, and no progress.
    fn progress(&self, is_served: bool) -> f64 {
        if is_served { self.wakes.max(self.turns) } else { self.wakes }
    }
}

impl Halves {
    /// Threads that exist in both halves.
    fn threads(&self) -> impl Iterator<Item = Thread> {
        let part = |of: &Observation| of.period.0.max(1) as f64;
        let (without, with) = (part(&self.without), part(&self.with));
        self.without.threads.iter().filter_map(move |before| {
            let now = &self.with.threads;
            let place = now.binary_search_by_key(&before.id, |thread| thread.id);
            let now = now[place.ok()?];
            let ratio = |now: u64, before: u64| over(now as f64 / with, before as f64 / without);
            let rate = |count: u64, period: f64| count as f64 * 1e9 / period;
            Some(Thread {
                wakes: ratio(now.wakes, before.wakes),
                turns: match before.turns {
                    0 => 0.0,
                    turns => ratio(now.turns, turns),
                },
                ran: ratio(now.ran.0, before.ran.0),
                rates: [rate(before.wakes, without), rate(now.wakes, with)],
            })
        })
    }

    /// Progress by the threads that do not serve more at once.
    /// It is their median, since servers are woken a little less often too, and seldom are most of the threads.
    /// `None` if threads are unknown, or these seldom wake.
    fn progress_of_threads(&self) -> Option<f64> {
        let is_server = |thread: &Thread| thread.rates[0] >= WAKES && thread.serves_more_at_once();
        let is_served = self.threads().any(|thread| is_server(&thread));
        let counted = self.threads().filter(|thread| !thread.serves_more_at_once());
        let counted: Vec<Thread> = counted.collect();
        let sum = |place: usize| counted.iter().map(|thread| thread.rates[place]).sum::<f64>();
        let all = over(sum(1), sum(0));
        let often = counted.iter().filter(|thread| thread.rates[0] >= SELDOM);
        let mut each: Vec<f64> = often.map(|thread| thread.progress(is_served)).collect();
        each.sort_by(f64::total_cmp);
        let is_measure = sum(0) >= WAKES && !each.is_empty();
        is_measure.then(|| if all < GROSS { all } else { median(&each) })
    }

    /// Progress of the median thread by wake-ups and turns, if it is much less and the CPU time of all fell with it.
    /// The threads then do less, whatever the number of messages. `None`: the messages are not contradicted.
    fn contradiction(&self) -> Option<f64> {
        let often = self.threads().filter(|thread| thread.rates[0] >= SELDOM);
        let mut each: Vec<f64> = often.map(|thread| thread.progress(true)).collect();
        each.sort_by(f64::total_cmp);
        let turns = median(&each);
        let ran = |of: &Observation| Figures::of(of).work;
        let ran = over(ran(&self.with), ran(&self.without));
        let is_explained = ran >= turns + KEPT_CPU * (1.0 - turns);
        (turns < GROSS && !is_explained).then_some(turns)
    }

    /// Progress with the means, relative to without.
    fn progress(&self) -> f64 {
        let (before, now) = (Figures::of(&self.without), Figures::of(&self.with));
        if self.without.threads.is_empty() || before.requests() >= CALLS {
            now.progress(&before)
        } else {
            self.progress_of_threads().unwrap_or(0.0)
        }
    }

    /// Effect of the means, with these means on.
    pub(super) fn effect(&self, held: Held) -> Effect {
        let (before, now) = (Figures::of(&self.without), Figures::of(&self.with));
        let by_messages = before.requests() >= CALLS && before.messages > before.calls;
        let less = self.contradiction().filter(|_| by_messages);
        let progress = self.progress();
        let progress = less.map_or(progress, |less| progress.min(less));
        let per_progress =
            |ratio: f64| if progress > 0.0 { ratio / progress } else { f64::INFINITY };
        Effect {
            progress,
            transitions: per_progress(over(now.transitions, before.transitions)),
            cpu: per_progress(over(now.work, before.work)),
            latency: now.waits.latency(held),
        }
    }
}

/// Median of a sorted slice; infinite if it is empty.
fn median(sorted: &[f64]) -> f64 {
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::INFINITY);
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
}

/// A trial under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    /// Periods per phase.
    phase: u32,
    /// Periods so far in the current block.
    place: u32,
    block: Halves,
    blocks: Vec<Halves>,
}

impl Trial {
    /// Creates a trial with blocks of `periods` periods, rounded up to whole phases.
    pub(super) fn new(periods: u32) -> Trial {
        Trial {
            phase: periods.div_ceil(WITH.len() as u32).max(1),
            place: 0,
            block: Halves::default(),
            blocks: Vec::new(),
        }
    }

    /// Whether the next period has the means.
    pub(super) fn is_with(&self) -> bool {
        WITH[(self.place / self.phase) as usize % WITH.len()]
    }

    /// Adds a period, with the means as in [`Trial::is_with`]; returns whether it completed a block.
    pub(super) fn add(&mut self, observed: &Observation) -> bool {
        if self.is_with() {
            self.block.with.merge(observed);
        } else {
            self.block.without.merge(observed);
        }
        self.place += 1;
        let is_whole = self.place == self.phase * WITH.len() as u32;
        if is_whole {
            self.place = 0;
            self.blocks.push(std::mem::take(&mut self.block));
        }
        is_whole
    }

    /// Number of complete blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The last complete block.
    pub(super) fn last(&self) -> Option<&Halves> {
        self.blocks.last()
    }

    /// Effect over the first `count` blocks.
    /// CPU time is the median of the blocks, since other activity of the host distorts single ones.
    pub(super) fn effect(&self, count: usize, held: Held) -> Effect {
        let blocks = &self.blocks[..count.min(self.blocks.len())];
        let mut sum = Halves::default();
        for block in blocks {
            sum.without.merge(&block.without);
            sum.with.merge(&block.with);
        }
        let mut cpu: Vec<f64> = blocks.iter().map(|block| block.effect(held).cpu).collect();
        cpu.sort_by(f64::total_cmp);
        Effect { cpu: median(&cpu), ..sum.effect(held) }
    }

    /// The current block.
    pub(super) fn so_far(&self) -> &Halves {
        &self.block
    }

    /// Whether the current block has so little progress, after `(periods, ratio)` with the means,
    /// that the trial can end.
    pub(super) fn is_clearly_less(&self, early: &[(u32, f64)]) -> bool {
        let periods = (0..self.place).filter(|place| WITH[(place / self.phase) as usize]);
        let periods = periods.count() as u32;
        let progress = self.block.progress();
        early.iter().any(|&(least, part)| periods >= least && progress < part)
    }
}
