//! How many vCPUs a workload should use: Gleaner's consolidation ("imbalanced scheduling").
//!
//! With N active vCPUs, one of them is taken out when both hold (the paper's conditions):
//!
//! 1. l_comp ≤ ρ × (N − 1) × l_idle: the others have room for its work;
//! 2. g_comp ≤ min(η × l_idle, least time slice): its pieces are small enough to fit.
//!
//! The period after a step lets things settle, the next one judges it. If the workload lost by it, the vCPU
//! comes back, no other is taken, and the condition that was too generous is tightened: η ← 0.9 ×
//! min(η, g_comp ÷ l_idle) if some vCPU was busy all the time, else ρ ← 0.9 × min(ρ, l_comp ÷ ((N − 1)
//! × l_idle)). A major change (utilization of a vCPU by over 20 points, a vCPU above 90 %, grain doubled or
//! halved) brings all vCPUs back and starts over.
//!
//! Where the defaults depart from the paper ([`ConsolidationConfig::paper`] does not). The paper judges a step by utilization: if it fell, work
//! was lost. Two threads that hand each other a token use two vCPUs to a third each, and a single one to all
//! of its time, at many times the speed: on a VM of two vCPUs a full vCPU is no sign of harm. And where waking
//! is dear, less utilization may be more work. [`Judge::Progress`] therefore compares what the workload got
//! done ([`super::progress`]). A step that failed is
//! tried again after a rest, with the factors of the start, each time a longer one, so that one bad sample costs
//! no more than that. A workload that changes and is then what it was still rests (`super::harm`). A vCPU that was full right after a step is no major change;
//! that one more thread waits for a vCPU, on average, is one: on a full vCPU nothing else shows it. Steps take half of the vCPUs where the others have room for the work of all that
//! are taken, and half as many after one that did harm: sixteen vCPUs are down to two in a second, and a gain of
//! a half stands out from noise where that of a sixteenth would not
//! (docs/decisions/009-gleaner-progress.md).
//!
//! Threads that crowd around a lock leave no room, by condition 1: they are busy all the time, and would get more done on
//! fewer vCPUs. Where condition 1 does not hold, the controller therefore asks now and then for samples of where the workload's threads are
//! ([`Consolidation::wants_code`]); if it waits for locks for a tenth of its time, a step is taken all the same, and judged by the
//! pace of its code ([`super::code`]). A workload that was consolidated for that reason is sampled again each second, since a full
//! vCPU shows nothing: other code is another workload (docs/decisions/012-contention-sampling.md).

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

/// Both factors are made smaller by this where they were too generous.
const TIGHTEN: f64 = 0.9;
/// Major changes: utilization of a vCPU, absolute.
const UTILIZATION_MOVED: f64 = 0.2;
/// Major changes: a vCPU busier than this.
const BUSY_VCPU: f64 = 0.9;
/// Major changes: grain by more than this factor, up or down.
const GRAIN_CHANGED: f64 = 2.0;
/// Major changes: so many more threads wait for a vCPU, on average.
const MORE_WAITING: f64 = 1.0;
/// A vCPU this busy is busy all the time.
const FULL: f64 = 0.99;
/// With less work than this part of one vCPU the workload sleeps, and nothing is decided.
const ASLEEP: f64 = 0.005;
/// Rests double up to this many times.
const MOST_DOUBLINGS: u32 = 5;
/// After a major change while something rests, conditions hold for so many periods before a step: what has just come back is no
/// other workload.
const CONFIRM_CHANGE: u32 = 4;
/// So many codes for which a step did harm rest at a time. With more, none is tried.
const MOST_HARMED: usize = 4;
/// Time between two samplings of where threads are.
const SAMPLING_INTERVAL: Nanos = Nanos::from_secs(2);
/// The same while the workload is consolidated because it waited for locks: whether it still runs the same code.
const RECHECK_INTERVAL: Nanos = Nanos::from_secs(1);
/// The same after a step for that reason that did harm.
const RETRY_INTERVAL: Nanos = Nanos::from_millis(500);
/// With less of its work in the kernel, a workload does not wait there, and sampling would only cost time.
const IN_KERNEL: f64 = 0.05;
/// A step that did harm once is tried again at once when the workload waits for locks for this many times longer.
const MUCH_WORSE: f64 = 1.3;
/// Samples from which a pace is told.
const FINE_SAMPLES: u32 = 350;
/// Samples that show whether the workload may be waiting for locks at all.
const ROUGH_SAMPLES: u32 = 70;
/// After this many periods a step is judged with fewer samples.
const MOST_PERIODS_JUDGED: u32 = 8;
/// With more of the vCPUs' time stolen, a lock is waited for because the host took its holder away.
const MOST_STOLEN: f64 = 0.15;
/// With less of its time in the same code, the workload is another one.
const SAME_CODE: f64 = 0.5;

/// How many samples are taken of where threads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingDetail {
    /// Some 50 from each vCPU in a tenth of a second: enough to see who waits for locks.
    Rough,
    /// Four times as many, which tell a pace.
    Fine,
}

/// How many vCPUs, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// vCPUs that the workload may use, 1 … all.
    pub active: u32,
    /// Why.
    pub because: Because,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// A step may be taken; the conditions have held for so many periods.
    Watching(u32),
    /// A step was taken; its first period is not judged.
    Settling(Step),
    /// This period judges it.
    Judging(Step),
    /// No step for so many more periods; `None`: until a major change.
    Resting(Option<u32>),
}

/// A step that was taken.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    /// vCPUs before it.
    active: u32,
    /// What was normal with them.
    before: Averages,
    /// The code that ran with them, if that is to judge the step, and for how many periods it has been sampled.
    code: Option<(Code, u32)>,
}

/// Code for which consolidation did harm.
#[derive(Clone, Debug)]
struct HarmedCode {
    code: Code,
    /// Periods for which that is believed.
    left: u32,
    /// How often it did.
    times: u32,
}

impl HarmedCode {
    /// Whether this is the same code.
    fn is(&self, code: &Code) -> bool {
        code.alike(&self.code).is_none_or(|alike| alike >= SAME_CODE)
    }

    /// Whether the workload waits for locks for much longer now than it did, not by chance.
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
    /// What is normal with the present number of vCPUs.
    reference: Option<Averages>,
    failures: u32,
    /// No step takes more vCPUs than this.
    longest: u32,
    /// The latest periods with the present number of vCPUs.
    history: VecDeque<Observation>,
    /// Condition 1 did not hold in the last period, and some of the work was in the kernel.
    full: bool,
    /// Time since threads were last sampled.
    since_sampling: Nanos,
    /// What the samples being taken have found so far.
    code: Code,
    /// Rough sampling found that the workload may be waiting for locks.
    suspected: bool,
    /// The code for which the workload was consolidated.
    consolidated: Option<Code>,
    /// The code for which consolidation did harm lately, and how often it did harm in a row.
    harmed: Vec<HarmedCode>,
    harms: u32,
    /// The other workloads to which steps did harm lately; and whether a major change came meanwhile.
    lost: Harms,
    is_wary: bool,
    /// Both factors at the start are so many times those of the configuration.
    slack: f64,
}

impl Consolidation {
    /// For a workload that uses all of `vcpus` vCPUs (at least one).
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

    /// ρ and η now.
    pub fn factors(&self) -> (f64, f64) {
        (self.load_factor, self.granularity_factor)
    }

    /// Whether a step was taken and what it does is not known yet.
    pub fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Settling(_) | Phase::Judging(_))
    }

    /// How closely it should be told where the workload's threads are in the next period, if at all.
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
                match self.suspected {
                    true => Some(SamplingDetail::Fine),
                    false => Some(SamplingDetail::Rough),
                }
            }
            Phase::Watching(_) | Phase::Resting(_) => None,
        }
    }

    /// Where the workload's threads were in the period that [`Self::decide`] is about to be told of, as closely as it asked.
    pub fn saw(&mut self, code: &Code) {
        self.code.merge(code);
    }

    /// The factors at the start are to be so many times those of the configuration, 1 …. Where that is news, they are
    /// as at the start.
    pub fn set_slack(&mut self, slack: f64) {
        if self.slack != slack {
            self.slack = slack;
            self.reset_factors();
        }
    }

    /// Something else about the VM was changed: what was normal no longer is.
    pub fn forget(&mut self) {
        self.reference = None;
        self.history.clear();
        self.code = Code::default();
        self.suspected = false;
        if let Phase::Watching(_) = self.phase {
            self.phase = Phase::Watching(0);
        }
    }

    /// A period is over.
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
            // Of what comes next, nothing was seen yet.
            self.history.clear();
            self.code = Code::default();
        }
        if self.wants_code().is_none() {
            // Samples of an unfinished set are no beginning of the next one.
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
            // What comes after a sleep is compared with what was before.
            return Because::Asleep;
        }
        match self.reference {
            None => self.reference = Some(*now),
            Some(reference) if self.is_major(&reference, now) => {
                self.reference = Some(*now);
                return match self.start_over() {
                    true => Because::MajorChange,
                    false => self.consider(now, None),
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
                // With the tightened factor it would never be tried again.
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

    /// The samples taken, if they are enough. Before a step twice as many are taken, since they are to judge it.
    fn finished_samples(&mut self) -> Option<Code> {
        let part = self.code.contention();
        let is_rough = self.consolidated.is_none() && !self.suspected;
        let enough = match is_rough {
            true => ROUGH_SAMPLES,
            false if self.consolidated.is_none() && part > self.config.contention => {
                2 * FINE_SAMPLES
            }
            false => FINE_SAMPLES,
        };
        if self.code.samples() < enough {
            return None;
        }
        let code = std::mem::take(&mut self.code);
        if is_rough {
            // As much as chance may have hidden.
            if part + code.contention_error() > self.config.contention {
                self.suspected = true;
                return None;
            }
        }
        self.suspected = false;
        self.since_sampling = Nanos::ZERO;
        Some(code)
    }

    /// Whether to take a vCPU out now.
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
        let confirm = match self.is_wary {
            true => self.config.confirm.max(CONFIRM_CHANGE),
            false => self.config.confirm,
        };
        if held + 1 < confirm {
            self.phase = Phase::Watching(held + 1);
            return Because::Confirming;
        }
        self.take(length, None);
        Because::Fits
    }

    /// Whether to take vCPUs out though there is no room, because the workload waits for locks: half of them.
    fn consider_contention(&mut self, now: &Averages, code: Code) -> Option<Because> {
        let part = code.contention();
        // What the step does could not be told, or was told lately.
        let lately = || self.harmed.iter().filter(|harmed| harmed.left > 0);
        let is_same = |harmed: &HarmedCode| {
            let is_first = harmed.times == 1;
            harmed.is(&code) && !(is_first && harmed.is_worse(&code))
        };
        let is_known = lately().count() >= MOST_HARMED || lately().any(is_same);
        // While the host takes vCPUs away, holders of locks are not there to give them back: fewer would not help.
        if part <= self.config.contention
            || !code.would_tell(FINE_SAMPLES)
            || is_known
            || now.stolen > MOST_STOLEN
        {
            return None;
        }
        let half = (self.active / 2).min(self.longest).max(1);
        self.take(half, Some((code, 0)));
        Some(Because::Contended { part })
    }

    /// Takes so many vCPUs out, on trial.
    fn take(&mut self, vcpus: u32, code: Option<(Code, u32)>) {
        self.phase = Phase::Settling(Step {
            active: self.active,
            before: Averages::of(&Observation::merged(&self.history)),
            code,
        });
        self.active -= vcpus;
        self.reference = None;
    }

    /// How many vCPUs the next step takes: half of them, or half of that and so on, so that the others have
    /// room for the work of all that are taken; one in any case.
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

    /// Whether the last step did harm.
    fn judge(&mut self, step: Step) -> Because {
        let now = &Averages::of(&Observation::merged(&self.history));
        let mut sampled = None;
        let ratio = match (&step.code, self.config.judge) {
            (Some((_, periods)), _)
                if self.code.samples() < FINE_SAMPLES && *periods < MOST_PERIODS_JUDGED =>
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
                    rest => rest << self.harms.min(MOST_DOUBLINGS),
                };
                self.harms += 1;
                let known = self.harmed.iter().position(|harmed| harmed.is(&code));
                let times = known.map_or(0, |at| self.harmed.remove(at).times) + 1;
                self.harmed.retain(|harmed| harmed.left > 0);
                self.harmed.push(HarmedCode { code, left: rest, times });
                if times == 1 {
                    // How long it waits for may have been that of its first moments.
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
            // A shorter one may do.
            self.reset_factors();
            self.longest = length / 2;
            self.phase = Phase::Watching(0);
            return Because::Lost { ratio };
        }
        let rest = known.max(self.config.rest << self.failures.min(MOST_DOUBLINGS));
        self.failures += 1;
        self.phase = Phase::Resting((self.config.rest > 0).then_some(rest));
        Because::Lost { ratio }
    }

    fn reset_factors(&mut self) {
        self.load_factor = self.config.load_factor * self.slack;
        self.granularity_factor = self.config.granularity_factor * self.slack;
    }

    /// All vCPUs and the factors as at the start; whether that changes anything.
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
            // What is normal with all of them is not known.
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
        let filled = match self.config.full_starts_over {
            true => is_full && (!was_full || self.active < self.vcpus),
            false => is_full && !was_full,
        };
        // Where it blocks so seldom that its code has to be sampled, its grain says nothing.
        let grain = self.consolidated.is_none()
            && (now.grain > GRAIN_CHANGED * reference.grain
                || now.grain * GRAIN_CHANGED < reference.grain);
        let crowded =
            !self.config.full_starts_over && now.waiting > reference.waiting + MORE_WAITING;
        moved || filled || grain || crowded
    }
}
