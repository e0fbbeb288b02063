//! Delayed scheduling in the agent: the policy asked once a period, and what it decides carried out.
//!
//! It is for workloads on a single vCPU: on several, fewer idle periods come of consolidation. While a means is on trial the
//! agent changes nothing else, and while retention is on trial this stands still.

use tandem_linux::ProcFs;
use tandem_linux::service::Reporter;
use tandem_linux::thread::Tid;
use tandem_model::Nanos;
use tandem_policy::gleaner::delay::{Because, Held};
use tandem_policy::gleaner::{Delay, DelayConfig, Observation};

use crate::actuator::Actuator;
use crate::config::{GuestConfig, Vcpus};
use crate::cpusets::Cpusets;
use crate::delaying::{Delaying, Refused};
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
    /// When the last period was over.
    at_ms: u64,
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
            at_ms: 0,
            has_said: false,
        }
    }

    /// Whether nothing else should be changed.
    pub(crate) fn is_trying(&self) -> bool {
        self.policy.is_trying()
    }

    /// Whether all was tried and something is kept.
    pub(crate) fn is_settled(&self) -> bool {
        self.held.is_any() && !self.policy.is_trying() && !self.delaying.is_unfinished()
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
        self.at_ms = at_ms;
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
        if is_changed || is_verdict {
            self.note(held, because);
        }
        self.held = held;
        is_changed
    }

    fn note(&mut self, held: Held, because: Because) {
        if self.changes.len() < MOST_CHANGES {
            self.changes.push(DelayChanged {
                at_ms: self.at_ms,
                slack_ns: held.slack.0,
                batch: held.batch,
                because: because.to_string(),
            });
        }
    }

    /// Gives all these threads, which are the workload's, what is in force, and those that were born meanwhile, which `list` tells. Where hardly any can be given it,
    /// nothing would be judged but chance: then nothing is in force.
    pub(crate) fn apply(
        &mut self,
        actuator: &mut Actuator,
        threads: &[Tid],
        mut list: impl FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        let outcome = self.delaying.set(actuator, threads, self.held, &mut list);
        if let Err(refused) = &outcome
            && refused.is_most()
            && self.held.is_any()
        {
            let because = self.policy.refused();
            self.held = self.policy.held();
            self.because = Some(because);
            self.note(self.held, because);
            // Who cannot have back what it had is tried again in the next period.
            let _ = self.delaying.set(actuator, threads, self.held, &mut list);
        }
        outcome
    }

    /// The agent goes: lets all have back what they had. What was in force stays told.
    pub(crate) fn give_back(
        &mut self,
        actuator: &mut Actuator,
        mut list: impl FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        self.delaying.give_back(actuator, &mut list)
    }

    /// Whether [`Delayed::apply`] is due although nothing was decided: threads are born, and some could not be given what they should have.
    pub(crate) fn is_due(&self) -> bool {
        self.held.is_any() || self.delaying.is_unfinished()
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

/// What is to be said of a bound that was given, where there are so many vCPUs that nothing is ever held back.
pub(crate) fn without_effect(config: &GuestConfig, vcpus: usize) -> Option<String> {
    let bound = config.delay.bound;
    let is_given = bound != DelayConfig::default().bound && bound > Nanos::ZERO;
    let vcpus = match config.vcpus {
        Vcpus::Held(held) => held as usize,
        _ => vcpus,
    };
    (is_given && vcpus > 1).then(|| {
        format!(
            "nothing is held back, as there are {vcpus} vCPUs: delayed scheduling is for one (vcpus = \"1\"; or the agent itself under \
             taskset, where it starts the command)"
        )
    })
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

#[cfg(test)]
mod tests {
    use std::fs;

    use tandem_model::Nanos;
    use tandem_policy::gleaner::VcpuPeriod;

    use super::*;

    struct Silent;

    impl Reporter for Silent {
        fn info(&mut self, _: &str) {}
        fn error(&mut self, _: &str) {}
        fn ready(&mut self) {}
        fn would(&mut self, _: &str) {}
    }

    #[test]
    fn a_bound_without_effect_is_told() {
        let mut config = GuestConfig::default();
        assert_eq!(without_effect(&config, 2), None, "nobody asked");
        config.delay.bound = Nanos(500_000);
        let said = without_effect(&config, 2).unwrap();
        assert!(said.contains("2 vCPUs"), "{said}");
        assert_eq!(without_effect(&config, 1), None);
        config.vcpus = Vcpus::Held(1);
        assert_eq!(without_effect(&config, 2), None);
        config.delay.bound = Nanos::ZERO;
        config.vcpus = Vcpus::Held(2);
        assert_eq!(without_effect(&config, 2), None, "off is off");
    }

    #[test]
    fn a_trial_whose_slack_cannot_be_read_ends_without_a_verdict() {
        // A VM of files, in which this thread's timer slack cannot be read.
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let me = Tid(std::process::id());
        write("proc/mounts", "none /cg cgroup2 rw 0 0\n");
        write("cg/cgroup.controllers", "cpuset cpu\n");
        write("cg/cgroup.subtree_control", "cpuset\n");
        write(&format!("proc/{me}/stat"), "");
        fs::create_dir(root.path().join(format!("proc/{me}/timerslack_ns"))).unwrap();
        let procfs = ProcFs::at(root.path());
        let state = tempfile::tempdir().unwrap();
        let (mut actuator, _) = Actuator::open(&procfs, state.path()).unwrap();
        let mut delayed = Delayed::new(DelayConfig::default(), &procfs);
        let often = Observation {
            period: Nanos::from_millis(100),
            vcpus: vec![VcpuPeriod {
                work: Nanos::from_millis(20),
                idle: Nanos::from_millis(80),
                idle_periods: 180,
                stolen: Nanos::ZERO,
            }],
            wakes: 200,
            ..Observation::default()
        };
        let mut at_ms = 0;
        while !delayed.held().is_any() {
            at_ms += 100;
            delayed.decide(&often, at_ms, &mut Silent);
        }
        let refused = delayed.apply(&mut actuator, &[me], |_| vec![me]);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(&format!("cannot read the timer slack of thread {me}")), "{text}");
        assert_eq!(delayed.held(), Held::default());
        assert!(!delayed.is_trying() && !delayed.is_due());
        assert_eq!(delayed.text(), "nothing is held back: threads could not be held back");
        let changes = delayed.take_changes();
        let last = changes.last().unwrap();
        assert_eq!((last.slack_ns, last.at_ms), (0, at_ms));
    }
}
