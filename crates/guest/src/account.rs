//! What the agent did from beginning to end, for its report.
//!
//! The setting that is reported as its choice is the one in force for most of the time in which the workload worked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_model::Nanos;

use crate::status::{Changed, Report, Setting};

/// So many decisions are kept for the report.
const MOST_DECISIONS: usize = 1000;

/// How long a setting was in force.
#[derive(Clone, Copy, Debug)]
struct InForce {
    /// ns for which the workload worked.
    worked: u64,
    /// When that began, ms after the agent.
    since_ms: u64,
}

/// The report as it grows.
pub(crate) struct Account {
    began: Instant,
    report: Report,
    in_force: BTreeMap<(u32, u64), InForce>,
}

impl Account {
    /// From `began` on.
    pub(crate) fn new(began: Instant) -> Account {
        Account { began, report: Report::default(), in_force: BTreeMap::new() }
    }

    /// The report so far, to be completed.
    pub(crate) fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// The means of retention.
    pub(crate) fn means(&self) -> &str {
        &self.report.means
    }

    /// A period is over, in which the workload worked for so long under a setting.
    pub(crate) fn period(&mut self, setting: Setting, period: Nanos, worked: Nanos) {
        let now = nanos(self.began.elapsed());
        let since_ms = now.saturating_sub(period.0) / 1_000_000;
        let key = (setting.vcpus, setting.retention_ns);
        let first = InForce { worked: 0, since_ms };
        self.in_force.entry(key).or_insert(first).worked += worked.0;
    }

    /// Retention burnt so much idle time.
    pub(crate) fn burnt(&mut self, time: Nanos) {
        self.report.retention_burnt_ns += time.0;
    }

    /// Idle time that retention burnt so far.
    pub(crate) fn burnt_so_far(&self) -> Nanos {
        Nanos(self.report.retention_burnt_ns)
    }

    /// From now on a setting is in force.
    pub(crate) fn changed(&mut self, setting: Setting, because: Vec<String>) {
        if self.report.decisions.len() < MOST_DECISIONS {
            self.report.decisions.push(Changed {
                at_ms: nanos(self.began.elapsed()) / 1_000_000,
                vcpus: setting.vcpus,
                retention_ns: setting.retention_ns,
                because,
            });
        }
    }

    /// The whole report.
    pub(crate) fn finish(mut self) -> Report {
        self.report.lasted_ns = nanos(self.began.elapsed());
        let most = self.in_force.iter().max_by_key(|(_, time)| time.worked);
        if let Some((&(vcpus, retention_ns), time)) = most {
            self.report.choice = Setting { vcpus, retention_ns };
            self.report.settled_ms = time.since_ms;
        }
        self.report
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(100);

    fn setting(vcpus: u32, retention_ns: u64) -> Setting {
        Setting { vcpus, retention_ns }
    }

    #[test]
    fn the_choice_is_what_the_workload_worked_longest_under() {
        let mut account = Account::new(Instant::now());
        account.period(setting(2, 0), PERIOD, Nanos::from_millis(60));
        account.period(setting(1, 7), PERIOD, Nanos::from_millis(40));
        account.period(setting(1, 7), PERIOD, Nanos::from_millis(40));
        assert_eq!(account.finish().choice, setting(1, 7));
    }

    #[test]
    fn decisions_are_kept_up_to_a_number() {
        let mut account = Account::new(Instant::now());
        for n in 0..MOST_DECISIONS as u64 + 5 {
            account.changed(setting(1, n), vec!["x".to_owned()]);
        }
        let decisions = account.finish().decisions;
        assert_eq!(decisions.len(), MOST_DECISIONS);
        assert_eq!(decisions[3].retention_ns, 3);
    }
}
