//! Both remedies on one VM: one change at a time, each kept only if it does no harm.
//!
//! [`Consolidation`] judges its own steps. [`Retention`] goes by rules: short idle periods, work to do, little
//! stolen time. On a live VM a rule may be wrong: a program whose threads crowd around a lock may do less when
//! waiters wake sooner. So retention is tried too: what the workload got done before is compared with what it
//! gets done after, and a loss bans it for a rest, each time a longer one. While one remedy is on trial the
//! other stands still, since nobody could tell whose effect was seen.

use std::collections::VecDeque;
use std::fmt;

use serde::Deserialize;
use serde::Serialize;

use crate::units::Nanos;

use super::Averages;
use super::Consolidation;
use super::ConsolidationConfig;
use super::Observation;
use super::Retention;
use super::RetentionConfig;
use super::consolidation;
use super::progress;
use super::retention;

/// Rests double up to this many times.
const MOST_DOUBLINGS: u32 = 5;
/// A loss counts from this many standard deviations on.
const SURE: f64 = 1.5;

/// Tunables of both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerConfig {
    /// Whether the workload is packed at all. Default true.
    pub consolidate: bool,
    /// Whether idle vCPUs are kept awake at all. Default true.
    pub retain: bool,
    /// Of packing.
    pub consolidation: ConsolidationConfig,
    /// Of staying awake.
    pub retention: RetentionConfig,
    /// A loss of up to this part, by staying awake, is none, 0 … 1. Default 0.03.
    pub tolerance: f64,
    /// Periods after a loss until staying awake is tried again; doubles with each up to 32 times this. Default 25.
    pub rest: u32,
}

impl Default for ControllerConfig {
    /// For a live VM with periods of some 200 ms: user time is sampled, two vCPUs are common, and only what is
    /// seen to gain is kept.
    fn default() -> ControllerConfig {
        ControllerConfig {
            consolidate: true,
            retain: true,
            consolidation: ConsolidationConfig {
                // Two threads that hand each other a token are busy half of the time, and a little more for
                // what waking costs: on two vCPUs the paper's condition 1 would hold every other time.
                load_factor: 1.5,
                granularity_factor: 1.5,
                tolerance: -0.05,
                judged_over: 4,
                rest: 25,
                ..ConsolidationConfig::default()
            },
            retention: RetentionConfig {
                // A vCPU that is woken waits for its pCPU a little even on an idle host, and that counts as stolen.
                most_stolen: 0.15,
                calm: 10,
                ..RetentionConfig::default()
            },
            tolerance: 0.03,
            rest: 25,
        }
    }
}

/// Why idle vCPUs stay awake or not, with trials.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "trial")]
pub enum Because {
    /// As the rule says.
    Rule(retention::Because),
    /// Switched off by the configuration.
    Off,
    /// On, and not known yet whether that helps.
    OnTrial,
    /// It did harm.
    Lost {
        /// Progress with it over progress before.
        ratio: f64,
    },
    /// It did harm lately.
    Resting,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Rule(rule) => rule.fmt(f),
            Because::Off => f.write_str("switched off"),
            Because::OnTrial => f.write_str("on trial"),
            Because::Lost { ratio } => write!(f, "it did harm ({ratio:.2} x)"),
            Because::Resting => f.write_str("it did harm lately"),
        }
    }
}

/// What to do in the next period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// vCPUs that the workload may use, 1 … all.
    pub active: u32,
    /// Why.
    pub packing: Option<consolidation::Because>,
    /// For how long an idle vCPU stays awake. Zero: it halts at once.
    pub timeout: Nanos,
    /// Why.
    pub awake: Because,
}

#[derive(Clone, Debug, PartialEq)]
enum Trial {
    /// Nothing to find out.
    None,
    /// Switched on; the first period is not judged.
    Settling(Averages),
    /// What is seen is compared with what was before.
    Judging(Averages, Option<Observation>, u32),
    /// Banned for so many periods.
    Resting(u32),
}

/// The controller of one workload on a VM.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControllerConfig,
    consolidation: Consolidation,
    retention: Retention,
    timeout: Nanos,
    trial: Trial,
    failures: u32,
    history: VecDeque<Observation>,
}

impl Controller {
    /// For a workload that uses all of `vcpus` vCPUs (at least one), which halt at once.
    pub fn new(vcpus: u32, config: ControllerConfig) -> Controller {
        Controller {
            consolidation: Consolidation::new(vcpus, config.consolidation.clone()),
            retention: Retention::new(config.retention.clone()),
            timeout: Nanos::ZERO,
            trial: Trial::None,
            failures: 0,
            history: VecDeque::new(),
            config,
        }
    }

    /// vCPUs that the workload may use now.
    pub fn active(&self) -> u32 {
        self.consolidation.active()
    }

    /// For how long an idle vCPU stays awake now.
    pub fn timeout(&self) -> Nanos {
        self.timeout
    }

    /// A period is over.
    pub fn decide(&mut self, observed: &Observation) -> Decision {
        let before = self.timeout;
        let awake = self.keep_awake(observed);
        let on_trial = matches!(self.trial, Trial::Settling(_) | Trial::Judging(..));
        if (before > Nanos::ZERO) != (self.timeout > Nanos::ZERO) {
            self.consolidation.forget();
        }
        let packing = if !self.config.consolidate {
            None
        } else if on_trial {
            Some(consolidation::Because::Settling)
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
            packing,
            timeout: self.timeout,
            awake,
        }
    }

    fn keep_awake(&mut self, observed: &Observation) -> Because {
        if !self.config.retain {
            return Because::Off;
        }
        let rule = self.retention.decide(observed);
        match std::mem::replace(&mut self.trial, Trial::None) {
            Trial::Resting(0) => {}
            Trial::Resting(left) => {
                self.trial = Trial::Resting(left - 1);
                return Because::Resting;
            }
            _ if rule.timeout == Nanos::ZERO => {}
            Trial::Settling(before) => {
                self.trial = Trial::Judging(before, None, 0);
                return Because::OnTrial;
            }
            Trial::Judging(before, seen, periods) => {
                return self.judge(&before, seen, periods, observed, rule);
            }
            Trial::None if self.timeout == Nanos::ZERO => {
                self.remember(observed);
                // What packing is trying out must not be disturbed.
                if self.consolidation.is_trying() {
                    return Because::Rule(rule.because);
                }
                let before = Averages::of(&Observation::merged(&self.history));
                self.trial = Trial::Settling(before);
                self.timeout = rule.timeout;
                self.history.clear();
                return Because::OnTrial;
            }
            Trial::None => {}
        }
        self.remember(observed);
        if rule.timeout != self.timeout && (rule.timeout == Nanos::ZERO) {
            self.history.clear();
        }
        self.timeout = rule.timeout;
        Because::Rule(rule.because)
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
        if progress.error > 0.0 && periods < self.config.consolidation.judged_over {
            self.trial = Trial::Judging(*before, Some(seen), periods);
            return Because::OnTrial;
        }
        if progress.ratio < 1.0 - self.config.tolerance - SURE * progress.error {
            let rest = self.config.rest << self.failures.min(MOST_DOUBLINGS);
            self.failures += 1;
            self.trial = Trial::Resting(rest);
            self.timeout = Nanos::ZERO;
            self.history.clear();
            return Because::Lost {
                ratio: progress.ratio,
            };
        }
        self.failures = 0;
        self.timeout = rule.timeout;
        Because::Rule(rule.because)
    }

    fn remember(&mut self, observed: &Observation) {
        self.history.push_back(observed.clone());
        let most = self.config.consolidation.judged_over.max(1) as usize;
        while self.history.len() > most {
            self.history.pop_front();
        }
    }
}
