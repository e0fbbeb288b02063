//! A trial of delayed scheduling: periods without a means and with it in turn, and what they say.
//!
//! A block is four phases of the same length: without, with, with, without. What grows or falls steadily by itself, as a program does that
//! warms up, falls out of a comparison of such a block's halves; what comes and goes makes blocks disagree. Times are in ns.
//!
//! **Progress** is calls of read and write and messages on sockets, where there are many; else how often threads slept and were woken. A thread that serves
//! others is woken less often for the same work where pieces come together. It is told from one that does less by its CPU time, which then falls
//! by much less than its wake-ups ([`Thread::serves_more_at_once`]); such threads are left out. Messages may be others': where the
//! workload's threads do grossly less by wake-ups and by CPU time, messages do not count against that ([`Halves::contradiction`]).
//!
//! **Latency** is an estimate by means ([`super::latency`]).

use std::fmt;

use serde::Serialize;

use crate::gleaner::delay::held::Held;
use crate::gleaner::delay::latency::Waits;
use crate::gleaner::progress::over;
use crate::gleaner::{Averages, Observation};

/// Fewer calls a second than this are no measure of work.
const CALLS: f64 = 500.0;
/// Fewer wake-ups a second than this are none either.
const WAKES: f64 = 50.0;
/// A thread with so much less wake-ups may serve more at once.
const FEWER_WAKES: f64 = 0.9;
/// A thread that wakes less often a second than this says nothing by itself.
const SELDOM: f64 = 5.0;
/// Where wake-ups in all fall below this part, a few threads may do most of the work and lose it: then all count.
const GROSS: f64 = 0.9;
/// With wake-ups and CPU time both down, CPU time has to have kept so much of the difference for pieces of work to have come together.
const KEPT_CPU: f64 = 0.25;
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
    /// Calls of read and write by the workload's processes.
    calls: f64,
    /// Messages on sockets, by whomever.
    messages: f64,
    wakes: f64,
    /// Idle periods.
    pub transitions: f64,
    /// CPU time: of the threads where they are known, else of the vCPU.
    work: f64,
    /// What threads wait for their turn.
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
            work: match observed.threads.is_empty() {
                true => averages.work,
                false => ran.sum::<u64>() as f64 / period,
            },
            waits: Waits::of(observed),
        }
    }

    /// Calls and messages.
    fn requests(&self) -> f64 {
        self.calls + self.messages
    }

    /// Progress against before. Nothing that counts: no progress that could be told.
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

/// What a thread does with the means over without.
struct Thread {
    wakes: f64,
    turns: f64,
    ran: f64,
    /// Its wake-ups a second without, and with.
    rates: [f64; 2],
}

impl Thread {
    /// It is woken less often, and its CPU time fell by less than half as much: pieces of work came together.
    fn serves_more_at_once(&self) -> bool {
        self.wakes <= FEWER_WAKES && self.ran >= f64::midpoint(1.0, self.wakes)
    }

    /// Its wake-ups; beside a server that serves more at once its turns on the vCPU where these fell by less: who asks a server on the same vCPU
    /// either sleeps until the reply or is preempted by the server, and both are a turn. Without one, a turn more is a preemption, and no progress.
    fn progress(&self, is_served: bool) -> f64 {
        if is_served { self.wakes.max(self.turns) } else { self.wakes }
    }
}

impl Halves {
    /// Threads that were there in both halves.
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

    /// Progress by the threads that do not serve more at once: the median of theirs, since servers are woken a little less often too, and seldom are the
    /// most threads. `None` where threads are not known, or these seldom wake.
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

    /// What the median thread does by wake-ups and turns, if that is grossly less and the CPU time of all fell with it: they do less, whoever sends as many
    /// messages as before. `None`: nothing speaks against the messages.
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

    /// What gets done with the means over what does without.
    fn progress(&self) -> f64 {
        let (before, now) = (Figures::of(&self.without), Figures::of(&self.with));
        match self.without.threads.is_empty() || before.requests() >= CALLS {
            true => now.progress(&before),
            false => self.progress_of_threads().unwrap_or(0.0),
        }
    }

    /// What the means does, with so much in force.
    pub(super) fn effect(&self, held: Held) -> Effect {
        let (before, now) = (Figures::of(&self.without), Figures::of(&self.with));
        let by_messages = before.requests() >= CALLS && before.messages > before.calls;
        let less = self.contradiction().filter(|_| by_messages);
        let progress = self.progress();
        let progress = less.map_or(progress, |less| progress.min(less));
        let per_progress = |ratio: f64| match progress > 0.0 {
            true => ratio / progress,
            false => f64::INFINITY,
        };
        Effect {
            progress,
            transitions: per_progress(over(now.transitions, before.transitions)),
            cpu: per_progress(over(now.work, before.work)),
            latency: now.waits.latency(held),
        }
    }
}

/// The middle of what is sorted; infinite for nothing.
fn median(sorted: &[f64]) -> f64 {
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::INFINITY);
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
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

    /// How many are whole.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The last that is whole.
    pub(super) fn last(&self) -> Option<&Halves> {
        self.blocks.last()
    }

    /// What the first so many blocks show together. CPU time is the median of theirs, since what the host does meanwhile makes single ones stand out.
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

    /// The block under way.
    pub(super) fn so_far(&self) -> &Halves {
        &self.block
    }

    /// Whether in the block under way so little is done, after `(periods, part)` with the means, that no more are needed.
    pub(super) fn is_clearly_less(&self, early: &[(u32, f64)]) -> bool {
        let periods = (0..self.place).filter(|place| WITH[(place / self.phase) as usize]);
        let periods = periods.count() as u32;
        let progress = self.block.progress();
        early.iter().any(|&(least, part)| periods >= least && progress < part)
    }
}
