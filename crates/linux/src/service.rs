//! Output of a long-running command: to people, to scripts that wait for it, and to the service manager.
//!
//! Log lines go to standard error; results (the decisions of a dry run) and the word `ready` go to standard output.
//! The service manager is systemd, through sd_notify(3).
//! The command notifies it of its start, of its end, and that it is alive if `WatchdogSec=` is set.
//! Without a service manager, it sends nothing.

use std::fmt::Display;
use std::io::Write;

use sd_notify::NotifyState;

use crate::printable::printable;
use crate::restore::RestoreReport;

/// Maximum number of remembered errors, so that changing messages do not grow the process.
const MAX_REMEMBERED: usize = 256;

/// Output of a daemon or agent for people: log lines, and decisions in a dry run.
pub trait Reporter {
    /// Reports a normal event.
    fn info(&mut self, line: &str);
    /// Reports an error after which the command goes on.
    fn error(&mut self, line: &str);
    /// Reports that the command acts from now on.
    fn ready(&mut self);
    /// Reports a decision of a dry run.
    fn would(&mut self, line: &str);
    /// Whether to report each change, too.
    fn is_verbose(&self) -> bool {
        false
    }
}

/// Verbosity of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Errors and results only.
    Quiet,
    /// Normal events, too.
    #[default]
    Normal,
    /// Each change, too.
    Verbose,
}

/// Log lines on standard error, results on standard output; write errors, as on a closed pipe, are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// Prefix of a log line, without the colon.
    pub info: &'static str,
    /// Prefix of an error, without the colon.
    pub error: &'static str,
    /// Print `ready` on standard output once acting, for scripts that wait for it.
    pub print_ready: bool,
    /// Verbosity of the log.
    pub level: Level,
}

impl Reporter for Console {
    fn info(&mut self, line: &str) {
        if self.level != Level::Quiet {
            let _ = writeln!(std::io::stderr(), "{}: {}", self.info, entry(line));
        }
    }

    fn error(&mut self, line: &str) {
        let _ = writeln!(std::io::stderr(), "{}: {}", self.error, entry(line));
    }

    fn ready(&mut self) {
        if self.print_ready {
            let _ = writeln!(std::io::stdout(), "ready");
        }
    }

    fn would(&mut self, line: &str) {
        let _ = writeln!(std::io::stdout(), "{}", entry(line));
    }

    fn is_verbose(&self) -> bool {
        self.level == Level::Verbose
    }
}

/// Formats one log entry: escapes names that others chose, and indents further lines so that none looks like another entry.
fn entry(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(printable).collect();
    lines.join("\n  ")
}

/// Reports errors that recur every period only once.
#[derive(Clone, Debug, Default)]
pub struct ReportOnce {
    reported: Vec<String>,
}

impl ReportOnce {
    /// Reports an error, unless it was reported before.
    pub fn error(&mut self, error: impl Display, reporter: &mut dyn Reporter) {
        if let Some(line) = self.news(error.to_string()) {
            reporter.error(line);
        }
    }

    /// Reports a warning, unless it was reported before.
    pub fn warning(&mut self, warning: impl Display, reporter: &mut dyn Reporter) {
        if let Some(line) = self.news(format!("warning: {warning}")) {
            reporter.info(line);
        }
    }

    /// Returns the line if it is new, and remembers it.
    fn news(&mut self, line: String) -> Option<&str> {
        if self.reported.contains(&line) {
            return None;
        }
        if self.reported.len() >= MAX_REMEMBERED {
            self.reported.clear();
        }
        self.reported.push(line);
        self.reported.last().map(String::as_str)
    }
}

/// Reports the result of a restore: failures as an error, nothing if there was nothing to do.
pub fn report_restore(report: &RestoreReport, reporter: &mut dyn Reporter) {
    report_failures(report, reporter);
    if report.is_complete() && report.put_back > 0 {
        reporter.info(&report.to_string());
    }
}

/// Reports only the failures of a restore.
pub fn report_failures(report: &RestoreReport, reporter: &mut dyn Reporter) {
    if !report.is_complete() {
        reporter.error(&report.to_string());
    }
}

/// The service manager that started the command, if any.
#[derive(Clone, Copy, Debug)]
pub struct ServiceManager {
    is_watching: bool,
}

impl ServiceManager {
    /// Notifies the reporter and the service manager that the command acts from now on.
    pub fn ready(reporter: &mut dyn Reporter) -> ServiceManager {
        reporter.ready();
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
    use crate::restore::RestoreFailure;

    use super::*;

    /// Records the reported lines, by kind.
    #[derive(Default)]
    struct Lines(Vec<(&'static str, String)>);

    impl Reporter for Lines {
        fn info(&mut self, line: &str) {
            self.0.push(("info", line.to_owned()));
        }

        fn error(&mut self, line: &str) {
            self.0.push(("error", line.to_owned()));
        }

        fn ready(&mut self) {
            self.0.push(("ready", String::new()));
        }

        fn would(&mut self, line: &str) {
            self.0.push(("would", line.to_owned()));
        }
    }

    #[test]
    fn text_cannot_forge_an_entry() {
        assert_eq!(entry("VM db-1 at weight 100"), "VM db-1 at weight 100");
        let forged = entry("VM x\nerror: all is lost\x1b[2J\rok");
        assert_eq!(forged, "VM x\n  error: all is lost\\x1b[2J\\x0dok");
    }

    #[test]
    fn recurring_error_is_reported_once() {
        let mut lines = Lines::default();
        let mut once = ReportOnce::default();
        for error in ["a", "b", "a", "a", "b"] {
            once.error(error, &mut lines);
        }
        let said: Vec<&str> = lines.0.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(said, ["a", "b"]);
        for n in 0..10 * MAX_REMEMBERED {
            once.error(n, &mut lines);
            assert!(once.reported.len() <= MAX_REMEMBERED);
        }
    }

    #[test]
    fn restore_is_reported_unless_it_was_empty() {
        let mut lines = Lines::default();
        let mut report = RestoreReport::default();
        report_restore(&report, &mut lines);
        assert!(lines.0.is_empty());
        report.put_back = 2;
        report_failures(&report, &mut lines);
        assert!(lines.0.is_empty());
        report_restore(&report, &mut lines);
        report.failures.push(RestoreFailure { what: "x".to_owned(), error: "y".to_owned() });
        report_restore(&report, &mut lines);
        report_failures(&report, &mut lines);
        let kinds: Vec<&str> = lines.0.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, ["info", "error", "error"]);
    }
}
