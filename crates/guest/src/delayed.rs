//! Applies the policy of delayed scheduling, once per period.
//!
//! It serves workloads on a single vCPU; on several vCPUs, consolidation reduces idle periods.
//! During a trial of delayed scheduling the agent changes nothing else.
//! During a trial of retention, delayed scheduling does not change.

use tandem_linux::ProcFs;
use tandem_linux::log::RESULT;
use tandem_linux::thread::Tid;
use tandem_model::Nanos;
use tandem_policy::gleaner::delay::{Because, Held};
use tandem_policy::gleaner::{Delay, DelayConfig, Observation};
use tracing::info;

use crate::actuator::Actuator;
use crate::config::{GuestConfig, Vcpus};
use crate::cpusets::Cpusets;
use crate::delaying::{Delaying, Refused};
use crate::sampler::Closeness;
use crate::status::DelayChanged;

/// Maximum number of changes in the report.
const MAX_CHANGES: usize = 1000;

/// Delayed scheduling of one workload.
pub(crate) struct Delayed {
    policy: Delay,
    delaying: Delaying,
    /// Current setting of the threads.
    held: Held,
    because: Option<Because>,
    changes: Vec<DelayChanged>,
    /// End of the last period, ms after the agent's start.
    at_ms: u64,
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
        }
    }

    /// Returns true during a trial, when other settings must not change.
    pub(crate) fn is_trying(&self) -> bool {
        self.policy.is_trying()
    }

    /// Returns true if all trials are finished and a setting was kept.
    pub(crate) fn is_settled(&self) -> bool {
        self.held.is_any() && !self.policy.is_trying() && !self.delaying.is_unfinished()
    }

    /// Returns the level of detail at which threads must be sampled.
    pub(crate) fn closeness(&self) -> Closeness {
        match (self.is_trying(), self.held.is_any()) {
            (true, _) => Closeness::Trial,
            (false, true) => Closeness::Sleeps,
            (false, false) => Closeness::Usual,
        }
    }

    /// Returns true if threads are delayed, or a trial is under way.
    pub(crate) fn is_any(&self) -> bool {
        self.held.is_any() || self.policy.is_trying()
    }

    /// Discards the policy's measurements, as another setting changed.
    pub(crate) fn forget(&mut self) {
        self.policy.forget();
    }

    /// Logs once what a live run would try.
    pub(crate) fn preview(&mut self, observed: &Observation) {
        if self.policy.is_worth(observed) {
            info!(
                target: RESULT,
                once = true,
                "would try timer slack, and no preemption by woken threads: the vCPU goes idle often",
            );
        }
    }

    /// Decides at the end of a period, `at_ms` after the agent's start.
    /// Reports the reason and returns true if the setting changed.
    pub(crate) fn decide(&mut self, observed: &Observation, at_ms: u64) -> bool {
        let because = self.policy.decide(observed);
        self.at_ms = at_ms;
        let held = self.policy.held();
        let is_verdict = matches!(because, Because::Kept { .. } | Because::Lost { .. });
        let is_changed = held != self.held;
        let is_on_trial = matches!(because, Because::OnTrial { .. });
        let is_news = self.because.replace(because) != Some(because);
        // A trial switches a means on and off; report it only once.
        if is_on_trial && is_news {
            info!("{because}");
        } else if is_verdict || is_changed && !is_on_trial {
            info!("{}: {because}", text(held));
        }
        if is_changed || is_verdict {
            self.note(held, because);
        }
        self.held = held;
        is_changed
    }

    fn note(&mut self, held: Held, because: Because) {
        if self.changes.len() < MAX_CHANGES {
            self.changes.push(DelayChanged {
                at_ms: self.at_ms,
                slack_ns: held.slack.0,
                batch: held.batch,
                because: because.to_string(),
            });
        }
    }

    /// Applies the setting to the workload's threads, and to new ones that `list` returns.
    /// If most threads refuse it, a trial could not judge it, so the policy gives it up.
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
            // Threads that cannot be reverted now are retried in the next period.
            let _ = self.delaying.set(actuator, threads, self.held, &mut list);
        }
        outcome
    }

    /// Reverts all threads before the agent exits; [`Delayed::held`] keeps the last setting for the report.
    pub(crate) fn revert(
        &mut self,
        actuator: &mut Actuator,
        mut list: impl FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        self.delaying.revert(actuator, &mut list)
    }

    /// Returns true if [`Delayed::apply`] is due without a decision, for new threads and for earlier failures.
    pub(crate) fn is_due(&self) -> bool {
        self.held.is_any() || self.delaying.is_unfinished()
    }

    /// Returns the current setting.
    pub(crate) fn held(&self) -> Held {
        self.held
    }

    /// Describes the current setting and its reason.
    pub(crate) fn text(&self) -> String {
        match &self.because {
            None => "not on a single vCPU".to_owned(),
            Some(because) => format!("{}: {because}", text(self.held)),
        }
    }

    /// Takes the recorded changes.
    pub(crate) fn take_changes(&mut self) -> Vec<DelayChanged> {
        std::mem::take(&mut self.changes)
    }
}

/// Returns a message if a bound was given but the workload has several vCPUs, which disables delayed scheduling.
pub(crate) fn without_effect(config: &GuestConfig, vcpus: usize) -> Option<String> {
    let bound = config.delay.bound;
    let is_given = bound != DelayConfig::default().bound && bound > Nanos::ZERO;
    let vcpus = match config.vcpus {
        Vcpus::Held(held) => held as usize,
        _ => vcpus,
    };
    (is_given && vcpus > 1).then(|| {
        format!(
            "delayed scheduling is off, as there are {vcpus} vCPUs: it needs a single one (vcpus = \"1\"; or the agent itself under \
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

    #[test]
    fn bound_without_effect_is_reported() {
        let mut config = GuestConfig::default();
        assert_eq!(without_effect(&config, 2), None, "default bound");
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
    fn unreadable_slack_ends_trial_without_verdict() {
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
            delayed.decide(&often, at_ms);
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
