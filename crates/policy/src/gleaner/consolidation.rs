//! Consolidation: how many vCPUs a workload should use (Gleaner's "imbalanced scheduling").
//!
//! With N active vCPUs, one of them is removed if both of the paper's conditions hold:
//!
//! 1. l_comp ≤ ρ × (N − 1) × l_idle: the others have room for its work;
//! 2. g_comp ≤ min(η × l_idle, least time slice): its pieces are small enough to fit.
//!
//! After a step, one period lets the workload settle, and the next one judges the step.
//! If the workload lost by it, the vCPU comes back, and the condition that was too generous is tightened:
//! η ← 0.9 × min(η, g_comp ÷ l_idle) if some vCPU was busy all the time, otherwise ρ ← 0.9 ×
//! min(ρ, l_comp ÷ ((N − 1) × l_idle)).
//! A major change brings all vCPUs back and starts over: utilization of a vCPU by over 20 points,
//! a vCPU above 90 %, grain doubled or halved.
//!
//! The defaults depart from the paper ([`ConsolidationConfig::paper`] does not):
//!
//! - **Judge.** The paper judges a step by utilization: if it fell, work was lost.
//!   But two threads that hand each other a token use two vCPUs to a third each, and a single one
//!   all of the time, at many times the speed.
//!   So on a VM of two vCPUs a full vCPU is no sign of harm. And if waking is expensive, less
//!   utilization may be more work.
//!   [`Judge::Progress`] therefore compares the workload's progress ([`super::progress`]).
//! - **Rests.** A step that failed is retried after a rest, with the initial factors, so that one
//!   bad sample costs no more than that.
//!   Each rest is longer than the last. A workload that changes and changes back still rests (`super::harm`).
//! - **Major changes.** A vCPU that was full right after a step is none.
//!   One more thread that waits for a vCPU, on average, is one: on a full vCPU nothing else shows it.
//! - **Step size.** Steps take half of the vCPUs if the others have room for their work, and half
//!   as many after one that did harm.
//!   So sixteen vCPUs are down to two in a second, and a gain of a half stands out from noise
//!   where that of a sixteenth would not (docs/decisions/009-gleaner-progress.md).
//!
//! Threads that crowd around a lock leave no room, by condition 1: they are busy all the time,
//! and would get more done on fewer vCPUs.
//! If condition 1 does not hold, the controller therefore requests samples of the workload's
//! threads now and then ([`Consolidation::wants_code`]).
//! If the workload waits for locks for a tenth of its time, a step is taken all the same, and
//! judged by the pace of its code ([`super::code`]).
//! A workload that was consolidated for that reason is sampled again each second, since a full vCPU shows nothing.
//! Other code means another workload (docs/decisions/012-contention-sampling.md).

use std::collections::VecDeque;

use serde::Serialize;

use tandem_model::units::Nanos;

use super::harm::Harms;
use super::progress::{compare, over};
use super::{Averages, Code, Observation};

mod because;
mod config;

pub use because::Because;
pub use config::{ConsolidationConfig, Judge};

/// Factor on ρ or η after it was too generous.
const TIGHTEN: f64 = 0.9;
/// Major change: difference in utilization of a vCPU, absolute.
const UTILIZATION_MOVED: f64 = 0.2;
/// Major change: utilization of a vCPU above this.
const BUSY_VCPU: f64 = 0.9;
/// Major change: factor on the grain, up or down.
const GRAIN_CHANGED: f64 = 2.0;
/// Major change: additional threads that wait for a vCPU, on average.
const MORE_WAITING: f64 = 1.0;
/// Utilization from which a vCPU is busy all the time.
const FULL: f64 = 0.99;
/// Work, in vCPUs, below which the workload sleeps and is not judged.
const ASLEEP: f64 = 0.005;
/// Maximum number of times that a rest doubles.
const MAX_DOUBLINGS: u32 = 5;
/// Periods for which conditions must hold before a step, after a major change while a harm rests.
/// vCPUs that have just come back do not make another workload.
const CONFIRM_CHANGE: u32 = 4;
/// Number of codes at rest after a harmful step from which no step is tried.
const MAX_HARMED: usize = 4;
/// Interval between two samplings of threads.
const SAMPLING_INTERVAL: Nanos = Nanos::from_secs(2);
/// The interval while the workload is consolidated because it waited for locks, to check that it
/// still runs the same code.
const RECHECK_INTERVAL: Nanos = Nanos::from_secs(1);
/// The interval after such a step did harm.
const RETRY_INTERVAL: Nanos = Nanos::from_millis(500);
/// Fraction of the work in the kernel below which a workload does not wait there, and sampling would only cost time.
const IN_KERNEL: f64 = 0.05;
/// A step that did harm once is retried at once if the workload waits for locks for this many times longer.
const MUCH_WORSE: f64 = 1.3;
/// Samples needed for a pace.
const FINE_SAMPLES: u32 = 350;
/// Samples needed to see whether the workload may be waiting for locks at all.
const ROUGH_SAMPLES: u32 = 70;
/// Periods after which a step is judged with fewer samples.
const MAX_PERIODS_JUDGED: u32 = 8;
/// Maximum stolen fraction of the vCPUs' time; above it, threads wait for a lock because the host preempted its holder.
const MAX_STOLEN: f64 = 0.15;
/// Fraction of the time in the same code below which the workload is another one.
const SAME_CODE: f64 = 0.5;

/// Number of samples of a workload's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingDetail {
    /// Some 50 from each vCPU in a tenth of a second: enough to detect waits for locks.
    Rough,
    /// Four times as many: enough for a pace.
    Fine,
}

/// Number of vCPUs, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// vCPUs that the workload may use, 1 … all.
    pub active: u32,
    /// Reason.
    pub because: Because,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// A step may be taken; the conditions have held for this many periods.
    Watching(u32),
    /// A step was taken; its first period is not judged.
    Settling(Step),
    /// This period judges the step.
    Judging(Step),
    /// No step for this many more periods; `None`: until a major change.
    Resting(Option<u32>),
}

/// A step that was taken.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    /// vCPUs before it.
    active: u32,
    /// Averages before it.
    before: Averages,
    /// The code that ran before it, if that judges the step, and the number of periods sampled since.
    code: Option<(Code, u32)>,
}

/// Code for which consolidation did harm.
#[derive(Clone, Debug)]
struct HarmedCode {
    code: Code,
    /// Periods for which that is assumed.
    left: u32,
    /// Number of times that it did.
    times: u32,
}

impl HarmedCode {
    /// Whether it is the same code.
    fn is(&self, code: &Code) -> bool {
        code.alike(&self.code).is_none_or(|alike| alike >= SAME_CODE)
    }

    /// Whether the workload now waits for locks for much longer than it did, beyond chance.
    fn is_worse(&self, code: &Code) -> bool {
        let (now, then) = (code.contention(), self.code.contention());
        now - code.contention_error() > MUCH_WORSE * (then + self.code.contention_error())
    }
}

/// The controller of one workload.
#[derive(Clone, Debug)]
pub struct Consolidation {
    config: ConsolidationConfig,
    vcpus: u32,
    active: u32,
    load_factor: f64,
    granularity_factor: f64,
    phase: Phase,
    /// Averages with the current number of vCPUs.
    reference: Option<Averages>,
    failures: u32,
    /// Maximum number of vCPUs that a step removes.
    longest: u32,
    /// The latest periods with the current number of vCPUs.
    history: VecDeque<Observation>,
    /// Whether condition 1 did not hold in the last period, and some of the work was in the kernel.
    full: bool,
    /// Time since threads were last sampled.
    since_sampling: Nanos,
    /// The samples so far of the current set.
    code: Code,
    /// Whether rough sampling found that the workload may be waiting for locks.
    suspected: bool,
    /// The code for which the workload was consolidated.
    consolidated: Option<Code>,
    /// The codes for which consolidation did harm recently, and the number of harms in a row.
    harmed: Vec<HarmedCode>,
    harms: u32,
    /// Other workloads to which steps did harm recently, and whether a major change came meanwhile.
    lost: Harms,
    is_wary: bool,
    /// Factor on both initial factors of the configuration.
    slack: f64,
}

impl Consolidation {
    /// Creates a controller for a workload that uses all of `vcpus` vCPUs (at least one).
    pub fn new(vcpus: u32, config: ConsolidationConfig) -> Consolidation {
        Consolidation {
            load_factor: config.load_factor,
            granularity_factor: config.granularity_factor,
            config,
            vcpus: vcpus.max(1),
            active: vcpus.max(1),
            phase: Phase::Watching(0),
            reference: None,
            failures: 0,
            longest: u32::MAX,
            history: VecDeque::new(),
            full: false,
            since_sampling: SAMPLING_INTERVAL,
            code: Code::default(),
            suspected: false,
            consolidated: None,
            harmed: Vec::new(),
            harms: 0,
            lost: Harms::default(),
            is_wary: false,
            slack: 1.0,
        }
    }

    /// vCPUs that the workload may use now.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// ρ and η.
    pub fn factors(&self) -> (f64, f64) {
        (self.load_factor, self.granularity_factor)
    }

    /// Whether a step was taken whose effect is not known yet.
    pub fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Settling(_) | Phase::Judging(_))
    }

    /// The samples of the workload's threads that are needed in the next period, if any.
    pub fn wants_code(&self) -> Option<SamplingDetail> {
        if self.config.contention >= 1.0 {
            return None;
        }
        match &self.phase {
            Phase::Settling(step) | Phase::Judging(step) => {
                step.code.is_some().then_some(SamplingDetail::Fine)
            }
            _ if self.consolidated.is_some() => {
                (self.since_sampling >= RECHECK_INTERVAL).then_some(SamplingDetail::Fine)
            }
            Phase::Watching(_) if self.full && self.since_sampling >= SAMPLING_INTERVAL => {
                if self.suspected {
                    Some(SamplingDetail::Fine)
                } else {
                    Some(SamplingDetail::Rough)
                }
            }
            Phase::Watching(_) | Phase::Resting(_) => None,
        }
    }

    /// Adds samples of the workload's threads in the period of the next [`Self::decide`], as requested.
    pub fn saw(&mut self, code: &Code) {
        self.code.merge(code);
    }

    /// Sets the factor on both initial factors of the configuration, 1 …. A new value resets the factors.
    pub fn set_slack(&mut self, slack: f64) {
        if self.slack != slack {
            self.slack = slack;
            self.reset_factors();
        }
    }

    /// Discards the averages, because something else about the VM was changed.
    pub fn forget(&mut self) {
        self.reference = None;
        self.history.clear();
        self.code = Code::default();
        self.suspected = false;
        if let Phase::Watching(_) = self.phase {
            self.phase = Phase::Watching(0);
        }
    }

    /// Decides after a period.
    pub fn decide(&mut self, observed: &Observation) -> Choice {
        let active = self.active;
        self.history.push_back(observed.clone());
        while self.history.len() > self.config.judged_over.max(1) as usize {
            self.history.pop_front();
        }
        let now = Averages::of(observed);
        self.since_sampling += observed.period;
        for harmed in &mut self.harmed {
            harmed.left = harmed.left.saturating_sub(1);
        }
        self.lost.rest();
        let because = self.step(&now);
        self.full =
            matches!(because, Because::NoRoom { .. }) && now.user < now.work * (1.0 - IN_KERNEL);
        if self.active != active || matches!(because, Because::Settling | Because::MajorChange) {
            // Nothing was observed yet of the state after the change.
            self.history.clear();
            self.code = Code::default();
        }
        if self.wants_code().is_none() {
            // Samples of an unfinished set do not count towards the next one.
            self.code = Code::default();
            self.suspected = false;
        }
        Choice { active: self.active, because }
    }

    fn step(&mut self, now: &Averages) -> Because {
        match std::mem::replace(&mut self.phase, Phase::Watching(0)) {
            Phase::Settling(step) => {
                self.phase = Phase::Judging(step);
                return Because::Settling;
            }
            Phase::Judging(step) => return self.judge(step),
            other => self.phase = other,
        }
        if now.work < ASLEEP {
            // The time after a sleep is compared with that before it.
            return Because::Asleep;
        }
        match self.reference {
            None => self.reference = Some(*now),
            Some(reference) if self.is_major(&reference, now) => {
                self.reference = Some(*now);
                return if self.start_over() {
                    Because::MajorChange
                } else {
                    self.consider(now, None)
                };
            }
            Some(_) => {}
        }
        let sampled = self.finished_samples();
        if let (Some(consolidated), Some(code)) = (&self.consolidated, &sampled) {
            let is_other = code.alike(consolidated).is_none_or(|alike| alike < SAME_CODE);
            if is_other && self.start_over() {
                return Because::MajorChange;
            }
        }
        match self.phase {
            Phase::Resting(Some(0)) => {
                // With the tightened factor it would never be retried.
                self.reset_factors();
                self.longest = u32::MAX;
                self.phase = Phase::Watching(0);
            }
            Phase::Resting(left) => {
                self.phase = Phase::Resting(left.map(|left| left - 1));
                return Because::Resting;
            }
            _ => {}
        }
        self.consider(now, sampled)
    }

    /// Returns the samples if there are enough. Before a step twice as many are taken, since they are to judge it.
    fn finished_samples(&mut self) -> Option<Code> {
        let part = self.code.contention();
        let is_rough = self.consolidated.is_none() && !self.suspected;
        let enough = if is_rough {
            ROUGH_SAMPLES
        } else if self.consolidated.is_none() && part > self.config.contention {
            2 * FINE_SAMPLES
        } else {
            FINE_SAMPLES
        };
        if self.code.samples() < enough {
            return None;
        }
        let code = std::mem::take(&mut self.code);
        if is_rough {
            // Chance may have hidden as much as the error.
            if part + code.contention_error() > self.config.contention {
                self.suspected = true;
                return None;
            }
        }
        self.suspected = false;
        self.since_sampling = Nanos::ZERO;
        Some(code)
    }

    /// Decides whether to remove vCPUs now.
    fn consider(&mut self, now: &Averages, sampled: Option<Code>) -> Because {
        let held = match self.phase {
            Phase::Watching(held) => held,
            _ => 0,
        };
        self.phase = Phase::Watching(0);
        if self.active == 1 {
            return Because::OnlyOne;
        }
        let room = self.load_factor * f64::from(self.active - 1) * now.idles;
        if now.computes > room {
            let contended = sampled.and_then(|code| self.consider_contention(now, code));
            return contended.unwrap_or(Because::NoRoom { computes: now.computes, room });
        }
        let fits = (self.granularity_factor * now.idles).min(self.config.least_time_slice.0 as f64);
        if now.grain > fits {
            return Because::TooCoarse { grain: now.grain, fits };
        }
        let length = self.lost.allowed(self.active, now, self.length(now));
        if length == 0 {
            return Because::Resting;
        }
        self.is_wary &= self.lost.is_any();
        let confirm = if self.is_wary {
            self.config.confirm.max(CONFIRM_CHANGE)
        } else {
            self.config.confirm
        };
        if held + 1 < confirm {
            self.phase = Phase::Watching(held + 1);
            return Because::Confirming;
        }
        self.take(length, None);
        Because::Fits
    }

    /// Decides whether to remove half of the vCPUs although there is no room, because the workload waits for locks.
    fn consider_contention(&mut self, now: &Averages, code: Code) -> Option<Because> {
        let part = code.contention();
        // The effect of a step could not be measured, or was measured recently.
        let lately = || self.harmed.iter().filter(|harmed| harmed.left > 0);
        let is_same = |harmed: &HarmedCode| {
            let is_first = harmed.times == 1;
            harmed.is(&code) && !(is_first && harmed.is_worse(&code))
        };
        let is_known = lately().count() >= MAX_HARMED || lately().any(is_same);
        // While the host preempts vCPUs, holders of locks do not run: fewer vCPUs would not help.
        if part <= self.config.contention
            || !code.would_tell(FINE_SAMPLES)
            || is_known
            || now.stolen > MAX_STOLEN
        {
            return None;
        }
        let half = (self.active / 2).min(self.longest).max(1);
        self.take(half, Some((code, 0)));
        Some(Because::Contended { part })
    }

    /// Removes `vcpus` vCPUs, on trial.
    fn take(&mut self, vcpus: u32, code: Option<(Code, u32)>) {
        self.phase = Phase::Settling(Step {
            active: self.active,
            before: Averages::of(&Observation::merged(&self.history)),
            code,
        });
        self.active -= vcpus;
        self.reference = None;
    }

    /// Returns the number of vCPUs that the next step removes: half of them, halved until the
    /// others have room for the work of all that are removed; at least one.
    fn length(&self, now: &Averages) -> u32 {
        if !self.config.leaps {
            return 1;
        }
        let mut length = (self.active / 2).min(self.longest).max(1);
        let fits = |length: u32| {
            let room = self.load_factor * f64::from(self.active - length) * now.idles;
            now.computes * f64::from(length) <= room
        };
        while length > 1 && !fits(length) {
            length /= 2;
        }
        length
    }

    /// Judges the last step.
    fn judge(&mut self, step: Step) -> Because {
        let now = &Averages::of(&Observation::merged(&self.history));
        let mut sampled = None;
        let ratio = match (&step.code, self.config.judge) {
            (Some((_, periods)), _)
                if self.code.samples() < FINE_SAMPLES && *periods < MAX_PERIODS_JUDGED =>
            {
                let code = step.code.map(|(code, periods)| (code, periods + 1));
                self.phase = Phase::Judging(Step { code, ..step });
                return Because::Judging;
            }
            (Some((before, _)), _) => {
                self.since_sampling = Nanos::ZERO;
                let code = sampled.insert(std::mem::take(&mut self.code));
                code.pace(before).unwrap_or(0.0)
            }
            (None, Judge::Utilization) => over(now.work, step.before.work),
            (None, Judge::Progress) => {
                let progress = compare(&step.before, now);
                if progress.error > 0.0 && self.history.len() < self.config.judged_over as usize {
                    self.phase = Phase::Judging(step);
                    return Because::Judging;
                }
                progress.ratio
            }
        };
        let Step { active, before, code } = step;
        self.reference = Some(*now);
        if ratio >= 1.0 - self.config.tolerance {
            self.phase = Phase::Watching(0);
            self.failures = 0;
            if sampled.is_some() {
                self.consolidated = sampled;
                self.harms = 0;
                self.harmed.clear();
            }
            self.lost.forget(active, &before);
            return Because::Kept { ratio };
        }
        let length = active - self.active;
        self.active = active;
        self.reference = Some(before);
        if let Some((code, _)) = code {
            self.longest = (length / 2).max(1);
            if length == 1 {
                let rest = match self.config.rest {
                    0 => u32::MAX,
                    rest => rest << self.harms.min(MAX_DOUBLINGS),
                };
                self.harms += 1;
                let known = self.harmed.iter().position(|harmed| harmed.is(&code));
                let times = known.map_or(0, |at| self.harmed.remove(at).times) + 1;
                self.harmed.retain(|harmed| harmed.left > 0);
                self.harmed.push(HarmedCode { code, left: rest, times });
                if times == 1 {
                    // The measured waits may have been those of its first moments.
                    self.since_sampling = SAMPLING_INTERVAL.saturating_sub(RETRY_INTERVAL);
                }
            }
            return Because::Lost { ratio };
        }
        if now.busiest >= FULL {
            let filled = before.grain / before.idles;
            self.granularity_factor = TIGHTEN * self.granularity_factor.min(filled);
        } else {
            let filled = before.computes / (f64::from(active - 1) * before.idles);
            self.load_factor = TIGHTEN * self.load_factor.min(filled);
        }
        let known = self.lost.add(active, &before, length, self.config.rest);
        if length > 1 {
            // A shorter step may do no harm.
            self.reset_factors();
            self.longest = length / 2;
            self.phase = Phase::Watching(0);
            return Because::Lost { ratio };
        }
        let rest = known.max(self.config.rest << self.failures.min(MAX_DOUBLINGS));
        self.failures += 1;
        self.phase = Phase::Resting((self.config.rest > 0).then_some(rest));
        Because::Lost { ratio }
    }

    fn reset_factors(&mut self) {
        self.load_factor = self.config.load_factor * self.slack;
        self.granularity_factor = self.config.granularity_factor * self.slack;
    }

    /// Restores all vCPUs and the initial factors; returns whether that changes anything.
    fn start_over(&mut self) -> bool {
        let changes = self.active < self.vcpus
            || self.load_factor < self.config.load_factor * self.slack
            || self.granularity_factor < self.config.granularity_factor * self.slack
            || matches!(self.phase, Phase::Resting(_));
        self.reset_factors();
        self.failures = 0;
        self.longest = u32::MAX;
        self.consolidated = None;
        self.is_wary = self.lost.is_any();
        self.since_sampling = SAMPLING_INTERVAL;
        if changes {
            self.code = Code::default();
            self.suspected = false;
        }
        self.phase = Phase::Watching(0);
        if self.active < self.vcpus {
            // Averages with all of them are unknown.
            self.active = self.vcpus;
            self.reference = None;
        }
        changes
    }

    /// Whether the workload is another one than that of `reference`.
    fn is_major(&self, reference: &Averages, now: &Averages) -> bool {
        let moved = (now.utilization - reference.utilization).abs() > UTILIZATION_MOVED;
        let is_full = now.busiest > BUSY_VCPU;
        let was_full = reference.busiest > BUSY_VCPU;
        let filled = if self.config.full_starts_over {
            is_full && (!was_full || self.active < self.vcpus)
        } else {
            is_full && !was_full
        };
        // If it blocks so seldom that its code has to be sampled, its grain has no meaning.
        let grain = self.consolidated.is_none()
            && (now.grain > GRAIN_CHANGED * reference.grain
                || now.grain * GRAIN_CHANGED < reference.grain);
        let crowded =
            !self.config.full_starts_over && now.waiting > reference.waiting + MORE_WAITING;
        moved || filled || grain || crowded
    }
}
