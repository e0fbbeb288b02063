//! Both remedies on one VM: one change at a time, each kept only if it does no harm.
//!
//! [`Consolidation`] judges its own steps. [`Retention`] follows rules: short idle periods, work
//! to do, little stolen time.
//! On a live VM a rule may be wrong: a program whose threads crowd around a lock may do less if waiters wake sooner.
//! So retention is tried too: the workload's progress with it is compared with that before.
//! Without a gain it is banned for a rest, each time a longer one.
//! A workload that changes is tried again, unless it is one that gained nothing recently (`super::harm`).
//! While one remedy is on trial the other stays as it is, since their effects could not be distinguished.
//!
//! If retention doubles the speed of a workload or more, waking is expensive.
//! Much of the time for which its vCPUs are still busy is that cost, and saved on fewer vCPUs.
//! Consolidation then gets [`ControllerConfig::slack`].

use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;

use crate::settings::{Own, settings};
use tandem_model::units::Nanos;

use super::consolidation::SamplingDetail;
use super::harm::Harms;
use super::{
    Averages, Code, Consolidation, ConsolidationConfig, Observation, Retention, RetentionConfig,
    consolidation, progress, retention,
};

/// Maximum number of times that a rest doubles.
const MAX_DOUBLINGS: u32 = 5;
/// A retention that is this many times longer than needed is shortened.
const FAR: u64 = 8;
/// Periods for which the rule has to hold before retention is tried.
const CONFIRM: usize = 2;
/// Periods after which exact counts are judged.
const COUNTED: u32 = 2;
/// Difference in utilization from which a workload is another one, absolute.
const MOVED: f64 = 0.25;
/// Factor on the grain from which a workload is another one, up or down.
const GRAIN: f64 = 2.5;
/// Periods after which another workload is tried again.
const CHANGED: u32 = 4;
/// Gain of retention from which waking is expensive.
const DEAR: f64 = 2.0;

settings! {
    /// Tunables of both remedies, for a live VM with periods of some 100 ms:
    /// user time is sampled, two vCPUs are common, and only measured gains are kept.
    pub struct ControllerConfig {
        /// Whether the workload is consolidated.
        pub consolidate: bool = true;
        /// Whether idle vCPUs are retained.
        pub retain: bool = true;
        /// Tunables of consolidation.
        pub consolidation: ConsolidationConfig = live_consolidation(), Own;
        /// Tunables of retention.
        pub retention: RetentionConfig = live_retention(), Own;
        /// Minimum gain for retention to be kept.
        pub least_gain: f64 = 0.03, (-1.0, 1.0);
        /// Factor on ρ and η of consolidation if waking is expensive.
        pub slack: f64 = 2.0, (1.0, 10.0);
        /// Periods after a loss until retention is retried; doubles with each loss, up to 32 times this.
        pub rest: u32 = 100;
    }
}

fn live_consolidation() -> ConsolidationConfig {
    ConsolidationConfig {
        // Two threads that hand each other a token are busy half of the time, and up to
        // two thirds with the cost of waking, which is saved on a single vCPU.
        // On two vCPUs the paper's condition 1 would hold every other time, or never.
        load_factor: 2.2,
        granularity_factor: 2.2,
        tolerance: -0.05,
        judged_over: 8,
        rest: 50,
        ..ConsolidationConfig::default()
    }
}

fn live_retention() -> RetentionConfig {
    RetentionConfig {
        // A vCPU that is woken waits for its pCPU a little even on an idle host, and that counts as stolen.
        most_stolen: 0.15,
        smoothing: 0.2,
        calm: 20,
        // With less, little can be gained, and a program whose threads crowd around a lock may lose half:
        // its switches do not show that loss.
        least_idle: 0.35,
        ..RetentionConfig::default()
    }
}

/// Reason for retaining idle vCPUs or not, including trials.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "trial")]
pub enum Because {
    /// As the rule decides.
    Rule(retention::Because),
    /// Switched off by the configuration.
    Off,
    /// The workload is another one, so retention is tried again.
    Changed,
    /// On, and its effect is not known yet.
    OnTrial,
    /// It gained something.
    Kept {
        /// Progress with it, relative to before.
        ratio: f64,
    },
    /// It gained nothing, or did harm.
    Lost {
        /// Progress with it, relative to before.
        ratio: f64,
    },
    /// It gained nothing recently.
    Resting,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Rule(rule) => rule.fmt(f),
            Because::Changed => f.write_str("the workload changed"),
            Because::Off => f.write_str("switched off"),
            Because::OnTrial => f.write_str("on trial"),
            Because::Kept { ratio } => write!(f, "it helps ({ratio:.2} x)"),
            Because::Lost { ratio } => write!(f, "it gained nothing ({ratio:.2} x)"),
            Because::Resting => f.write_str("it gained nothing lately"),
        }
    }
}

/// Decision for the next period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// vCPUs that the workload may use, 1 … all.
    pub active: u32,
    /// Reason for that number; `None` if consolidation is switched off.
    pub consolidation: Option<consolidation::Because>,
    /// Time for which an idle vCPU is kept awake. Zero: it halts at once.
    pub retention_time: Nanos,
    /// Reason for that time.
    pub retention: Because,
}

#[derive(Clone, Debug, PartialEq)]
enum Trial {
    /// No trial.
    None,
    /// Averages before the trial, observations since, and their number of periods.
    Judging(Averages, Option<Box<Observation>>, u32),
    /// Banned for this many periods.
    Resting(u32),
}

/// The controller of one workload on a VM.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControllerConfig,
    vcpus: u32,
    consolidation: Consolidation,
    retention: Retention,
    retention_time: Nanos,
    trial: Trial,
    failures: u32,
    /// Workloads that gained nothing recently.
    lost: Harms,
    history: VecDeque<Observation>,
    /// Averages at the end of the last trial, and for how many periods the workload has differed.
    tried: Option<Averages>,
    changed: u32,
}

impl Controller {
    /// Creates a controller for a workload that uses all of `vcpus` vCPUs (at least one), which halt at once.
    pub fn new(vcpus: u32, config: ControllerConfig) -> Controller {
        Controller {
            vcpus,
            consolidation: Consolidation::new(vcpus, config.consolidation.clone()),
            retention: Retention::new(config.retention.clone()),
            retention_time: Nanos::ZERO,
            trial: Trial::None,
            failures: 0,
            lost: Harms::default(),
            history: VecDeque::new(),
            tried: None,
            changed: 0,
            config,
        }
    }

    /// vCPUs that the workload may use now.
    pub fn active(&self) -> u32 {
        self.consolidation.active()
    }

    /// Time for which an idle vCPU is kept awake now.
    pub fn retention_time(&self) -> Nanos {
        self.retention_time
    }

    /// The samples of the workload's threads that are needed in the next period, if any: [`Self::saw`].
    pub fn wants_code(&self) -> Option<SamplingDetail> {
        let wanted = self.consolidation.wants_code();
        wanted.filter(|_| self.config.consolidate)
    }

    /// Adds samples of the workload's threads in the period of the next [`Self::decide`], as requested.
    pub fn saw(&mut self, code: &Code) {
        self.consolidation.saw(code);
    }

    /// Decides after a period.
    pub fn decide(&mut self, observed: &Observation) -> Decision {
        let before = self.retention_time;
        let retention = self.decide_retention(observed);
        match retention {
            Because::Kept { ratio } if ratio >= DEAR => {
                self.consolidation.set_slack(self.config.slack);
            }
            _ if self.retention_time == Nanos::ZERO => self.consolidation.set_slack(1.0),
            _ => {}
        }
        let on_trial = matches!(self.trial, Trial::Judging(..));
        if (before > Nanos::ZERO) != (self.retention_time > Nanos::ZERO) {
            self.consolidation.forget();
        }
        let consolidation = if !self.config.consolidate {
            None
        } else if on_trial {
            Some(consolidation::Because::Settling)
        } else if Averages::of(observed).utilization < self.config.retention.least_work {
            Some(consolidation::Because::Asleep)
        } else {
            let active = self.consolidation.active();
            let choice = self.consolidation.decide(observed);
            if choice.active != active {
                self.history.clear();
            }
            Some(choice.because)
        };
        Decision {
            active: self.consolidation.active(),
            consolidation,
            retention_time: self.retention_time,
            retention,
        }
    }

    fn decide_retention(&mut self, observed: &Observation) -> Because {
        if !self.config.retain {
            return Because::Off;
        }
        let rule = self.retention.decide(observed);
        self.lost.rest();
        if self.is_another(observed) {
            self.trial = Trial::None;
            self.retention_time = Nanos::ZERO;
            self.failures = 0;
            self.history.clear();
            return Because::Changed;
        }
        match std::mem::replace(&mut self.trial, Trial::None) {
            Trial::Resting(left) if left > 0 => {
                self.trial = Trial::Resting(left - 1);
                return Because::Resting;
            }
            _ if rule.time == Nanos::ZERO => {
                self.history.clear();
                self.retention_time = Nanos::ZERO;
                return Because::Rule(rule.because);
            }
            Trial::Judging(before, seen, periods) => {
                return self.judge(&before, seen.map(|seen| *seen), periods, observed, rule);
            }
            Trial::None | Trial::Resting(_) => {}
        }
        if self.retention_time > Nanos::ZERO {
            self.retention_time = self.steady(rule.time);
            return Because::Rule(rule.because);
        }
        self.remember(observed);
        // One period may have been the program's start, and a trial of consolidation must not be disturbed.
        if self.history.len() < CONFIRM || self.consolidation.is_trying() {
            return Because::Rule(rule.because);
        }
        let before = Averages::of(&Observation::merged(&self.history));
        if self.lost.allowed(self.active(), &before, 1) == 0 {
            return Because::Resting;
        }
        self.trial = Trial::Judging(before, None, 0);
        self.retention_time = rule.time;
        self.history.clear();
        Because::OnTrial
    }

    /// Keeps a retention that is long enough and not far too long.
    fn steady(&self, wanted: Nanos) -> Nanos {
        let is_near = wanted <= self.retention_time && self.retention_time.0 <= wanted.0 * FAR;
        if is_near { self.retention_time } else { wanted }
    }

    fn judge(
        &mut self,
        before: &Averages,
        seen: Option<Observation>,
        periods: u32,
        observed: &Observation,
        rule: retention::Choice,
    ) -> Because {
        let mut seen = seen.unwrap_or_default();
        seen.merge(observed);
        let periods = periods + 1;
        let progress = progress::compare(before, &Averages::of(&seen));
        let least = 1.0 + self.config.least_gain;
        let needed = if progress.error > 0.0 && progress.counted >= least {
            self.config.consolidation.judged_over
        } else {
            COUNTED
        };
        if periods < needed {
            self.trial = Trial::Judging(*before, Some(Box::new(seen)), periods);
            return Because::OnTrial;
        }
        if progress.ratio < least {
            let known = self.lost.add(self.active(), before, 1, self.config.rest);
            let rest = known.max(self.config.rest << self.failures.min(MAX_DOUBLINGS));
            self.failures += 1;
            self.trial = Trial::Resting(rest);
            self.tried = Some(*before);
            self.changed = 0;
            self.retention_time = Nanos::ZERO;
            self.history.clear();
            return Because::Lost { ratio: progress.ratio };
        }
        self.failures = 0;
        self.lost.forget(self.active(), before);
        self.tried = Some(Averages::of(&seen));
        self.changed = 0;
        self.retention_time = self.steady(rule.time);
        Because::Kept { ratio: progress.ratio }
    }

    /// Whether the workload has differed from that of the last trial for some periods.
    /// Changes by consolidation do not count.
    fn is_another(&mut self, observed: &Observation) -> bool {
        let on_trial = matches!(self.trial, Trial::Judging(..));
        let is_consolidated =
            self.consolidation.active() < self.vcpus || self.consolidation.is_trying();
        let now = Averages::of(observed);
        let differs = |tried: &Averages| {
            let moved = (now.utilization - tried.utilization).abs() > MOVED;
            moved || now.grain > GRAIN * tried.grain || now.grain * GRAIN < tried.grain
        };
        if on_trial || is_consolidated || !self.tried.as_ref().is_some_and(differs) {
            self.changed = 0;
            return false;
        }
        self.changed += 1;
        if self.changed < CHANGED {
            return false;
        }
        self.changed = 0;
        self.tried = None;
        true
    }

    fn remember(&mut self, observed: &Observation) {
        self.history.push_back(observed.clone());
        let most = self.config.consolidation.judged_over.max(1) as usize;
        while self.history.len() > most {
            self.history.pop_front();
        }
    }
}
