//! The agent's report, accumulated from start to end.
//!
//! The reported choice is the setting under which the workload worked longest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_model::Nanos;

use crate::status::{Changed, Report, Setting};

/// Maximum number of decisions in the report.
const MAX_DECISIONS: usize = 1000;

/// Use of one setting.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// Time that the workload worked under it, ns.
    worked: u64,
    /// First use, ms after the agent's start.
    since_ms: u64,
}

/// Builds the report.
pub(crate) struct Account {
    began: Instant,
    report: Report,
    usage: BTreeMap<(u32, u64), Usage>,
}

impl Account {
    /// Starts the account at `began`.
    pub(crate) fn new(began: Instant) -> Account {
        Account { began, report: Report::default(), usage: BTreeMap::new() }
    }

    /// Returns the incomplete report.
    pub(crate) fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// The means of retention.
    pub(crate) fn means(&self) -> &str {
        &self.report.means
    }

    /// Adds a period under `setting`, of which the workload worked for `worked`.
    pub(crate) fn period(&mut self, setting: Setting, period: Nanos, worked: Nanos) {
        let now = nanos(self.began.elapsed());
        let since_ms = now.saturating_sub(period.0) / 1_000_000;
        let key = (setting.vcpus, setting.retention_ns);
        let first = Usage { worked: 0, since_ms };
        self.usage.entry(key).or_insert(first).worked += worked.0;
    }

    /// Adds idle time that retention burnt.
    pub(crate) fn burnt(&mut self, time: Nanos) {
        self.report.retention_burnt_ns += time.0;
    }

    /// Returns the idle time that retention has burnt so far.
    pub(crate) fn burnt_so_far(&self) -> Nanos {
        Nanos(self.report.retention_burnt_ns)
    }

    /// Records a change to `setting`.
    pub(crate) fn changed(&mut self, setting: Setting, because: Vec<String>) {
        if self.report.decisions.len() < MAX_DECISIONS {
            self.report.decisions.push(Changed {
                at_ms: nanos(self.began.elapsed()) / 1_000_000,
                vcpus: setting.vcpus,
                retention_ns: setting.retention_ns,
                because,
            });
        }
    }

    /// Returns the complete report.
    pub(crate) fn finish(mut self) -> Report {
        self.report.lasted_ns = nanos(self.began.elapsed());
        let most = self.usage.iter().max_by_key(|(_, time)| time.worked);
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
    fn choice_has_most_working_time() {
        let mut account = Account::new(Instant::now());
        account.period(setting(2, 0), PERIOD, Nanos::from_millis(60));
        account.period(setting(1, 7), PERIOD, Nanos::from_millis(40));
        account.period(setting(1, 7), PERIOD, Nanos::from_millis(40));
        assert_eq!(account.finish().choice, setting(1, 7));
    }

    #[test]
    fn decisions_are_capped() {
        let mut account = Account::new(Instant::now());
        for n in 0..MAX_DECISIONS as u64 + 5 {
            account.changed(setting(1, n), vec!["x".to_owned()]);
        }
        let decisions = account.finish().decisions;
        assert_eq!(decisions.len(), MAX_DECISIONS);
        assert_eq!(decisions[3].retention_ns, 3);
    }
}
