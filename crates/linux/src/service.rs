//! A long-running command and its service manager, systemd, through sd_notify(3).
//!
//! The command notifies it of its start, of its end, and that it is alive if `WatchdogSec=` is set.
//! Without a service manager, it sends nothing.
//! The result of a restore at start and end goes to the log ([`crate::log`]).

use sd_notify::NotifyState;
use tracing::{error, info};

use crate::log::READY;
use crate::restore::RestoreReport;

/// Logs the result of a restore: failures as an error, nothing if there was nothing to do.
pub fn report_restore(report: &RestoreReport) {
    report_failures(report);
    if report.is_complete() && report.put_back > 0 {
        info!("{report}");
    }
}

/// Logs only the failures of a restore.
pub fn report_failures(report: &RestoreReport) {
    if !report.is_complete() {
        error!("{report}");
    }
}

/// The service manager that started the command, if any.
#[derive(Clone, Copy, Debug)]
pub struct ServiceManager {
    is_watching: bool,
}

impl ServiceManager {
    /// Notifies scripts and the service manager that the command acts from now on.
    pub fn ready() -> ServiceManager {
        info!(target: READY, "ready");
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        ServiceManager { is_watching: sd_notify::watchdog_enabled().is_some() }
    }

    /// Resets the service manager's watchdog, if it has one.
    pub fn alive(&self) {
        if self.is_watching {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    /// Notifies the service manager that the command is about to end.
    pub fn stopping() {
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;
    use std::sync::Arc;

    use super::*;
    use crate::log::{Console, LevelFilter};
    use crate::restore::RestoreFailure;

    #[test]
    fn restore_is_logged_unless_it_was_empty() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let writer = Arc::new(log.reopen().unwrap());
        let console = Console { name: None, print_ready: false, level: LevelFilter::INFO };
        tracing::subscriber::with_default(console.subscriber(writer), || {
            let mut report = RestoreReport::default();
            report_restore(&report);
            report.put_back = 2;
            report_failures(&report);
            assert_eq!(read_to_string(log.path()).unwrap(), "");
            report_restore(&report);
            report.failures.push(RestoreFailure { what: "x".to_owned(), error: "y".to_owned() });
            report_restore(&report);
            report_failures(&report);
        });
        let log = read_to_string(log.path()).unwrap();
        let levels = log.lines().filter_map(|line| line.split_once(": "));
        let levels: Vec<&str> = levels.map(|(level, _)| level.trim()).collect();
        assert_eq!(levels, ["info", "error", "error"]);
    }
}
