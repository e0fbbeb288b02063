//! Delayed scheduling in the agent: the policy asked once a period, and what it decides carried out.
//!
//! It is for workloads on a single vCPU: on several, fewer idle periods come of consolidation. While a means is on trial the
//! agent changes nothing else, and while retention is on trial this stands still.

use tandem_linux::ProcFs;
use tandem_linux::service::Reporter;
use tandem_linux::thread::Tid;
use tandem_policy::gleaner::Delay;
use tandem_policy::gleaner::DelayConfig;
use tandem_policy::gleaner::Observation;
use tandem_policy::gleaner::delay::Because;
use tandem_policy::gleaner::delay::Held;

use crate::actuator::Actuator;
use crate::actuator::ActuatorError;
use crate::delaying::Delaying;
use crate::sampler::Closeness;
use crate::status::DelayChanged;

/// So many changes are kept for the report.
const MOST_CHANGES: usize = 1000;

/// Delayed scheduling of one workload.
pub(crate) struct Delayed {
    policy: Delay,
    delaying: Delaying,
    /// What threads were given last.
    held: Held,
    because: Option<Because>,
    changes: Vec<DelayChanged>,
    has_said: bool,
}

impl Delayed {
    pub(crate) fn new(config: DelayConfig, procfs: &ProcFs) -> Delayed {
        Delayed {
            policy: Delay::new(config),
            delaying: Delaying::new(procfs),
            held: Held::default(),
            because: None,
            changes: Vec::new(),
            has_said: false,
        }
    }

    /// Whether nothing else should be changed.
    pub(crate) fn is_trying(&self) -> bool {
        self.policy.is_trying()
    }

    /// Whether all was tried and something is kept.
    pub(crate) fn is_settled(&self) -> bool {
        self.held.is_any() && !self.policy.is_trying()
    }

    /// How closely threads have to be looked at.
    pub(crate) fn closeness(&self) -> Closeness {
        match (self.is_trying(), self.held.is_any()) {
            (true, _) => Closeness::Trial,
            (false, true) => Closeness::Sleeps,
            (false, false) => Closeness::Usual,
        }
    }

    /// Whether anything is held back, or about to be.
    pub(crate) fn is_any(&self) -> bool {
        self.held.is_any() || self.policy.is_trying()
    }

    /// Something else was changed.
    pub(crate) fn forget(&mut self) {
        self.policy.forget();
    }

    /// Says once what would be tried.
    pub(crate) fn preview(&mut self, observed: &Observation, reporter: &mut dyn Reporter) {
        if !self.has_said && self.policy.is_worth(observed) {
            self.has_said = true;
            reporter.would(
                "would try timer slack, and no preemption by woken threads: the vCPU goes idle often",
            );
        }
    }

    /// A period is over, `at_ms` after the agent began. True: what is held back is another now, and why was said.
    pub(crate) fn decide(
        &mut self,
        observed: &Observation,
        at_ms: u64,
        reporter: &mut dyn Reporter,
    ) -> bool {
        let because = self.policy.decide(observed);
        let held = self.policy.held();
        let is_verdict = matches!(because, Because::Kept { .. } | Because::Lost { .. });
        let is_changed = held != self.held;
        let is_on_trial = matches!(because, Because::OnTrial { .. });
        let is_news = self.because.replace(because) != Some(because);
        // Within a trial a means comes and goes; that it is on trial is said once.
        if is_on_trial && is_news {
            reporter.info(&because.to_string());
        } else if is_verdict || is_changed && !is_on_trial {
            reporter.info(&format!("{}: {because}", text(held)));
        }
        if (is_changed || is_verdict) && self.changes.len() < MOST_CHANGES {
            self.changes.push(DelayChanged {
                at_ms,
                slack_ns: held.slack.0,
                batch: held.batch,
                because: because.to_string(),
            });
        }
        self.held = held;
        is_changed
    }

    /// Gives all these threads, which are the workload's, what is in force.
    pub(crate) fn apply(
        &mut self,
        actuator: &mut Actuator,
        threads: &[Tid],
    ) -> Result<(), ActuatorError> {
        self.delaying.set(actuator, threads, self.held)
    }

    /// What is in force.
    pub(crate) fn held(&self) -> Held {
        self.held
    }

    /// What is in force, and why, for people.
    pub(crate) fn text(&self) -> String {
        match &self.because {
            None => "not on a single vCPU".to_owned(),
            Some(because) => format!("{}: {because}", text(self.held)),
        }
    }

    /// What was changed.
    pub(crate) fn take_changes(&mut self) -> Vec<DelayChanged> {
        std::mem::take(&mut self.changes)
    }
}

fn text(held: Held) -> String {
    let slack = format!("timer slack {:.0} us", held.slack.0 as f64 / 1e3);
    match (held.slack.0 > 0, held.batch) {
        (false, false) => "nothing is held back".to_owned(),
        (true, false) => slack,
        (false, true) => "SCHED_BATCH".to_owned(),
        (true, true) => format!("{slack}, SCHED_BATCH"),
    }
}
