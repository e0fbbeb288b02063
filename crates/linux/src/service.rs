//! What a long-running command says: to people, to scripts that wait for it, and to the service manager.
//!
//! Log lines go to standard error, results (what a dry run would do) and the word `ready` to standard output. The
//! service manager is systemd, by sd_notify(3): it is told when the command acts, that it is alive if it wants to
//! know (`WatchdogSec=`), and when it stops. Where no service manager listens nothing is sent.

use std::fmt::Display;
use std::io::Write;

use sd_notify::NotifyState;

use crate::printable::printable;
use crate::restore::RestoreReport;

/// So many different errors are remembered: an ever-changing message must not grow the process.
const MOST_REMEMBERED: usize = 256;

/// Where a daemon or agent writes for people: log lines, and decisions in a dry run.
pub trait Reporter {
    /// Something that happened as it should.
    fn info(&mut self, line: &str);
    /// Something that went wrong and was survived.
    fn error(&mut self, line: &str);
    /// The command acts from now on.
    fn ready(&mut self);
    /// What a dry run would do now.
    fn would(&mut self, line: &str);
    /// Whether each change is worth a line, too.
    fn is_verbose(&self) -> bool {
        false
    }
}

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Nothing but errors and results.
    Quiet,
    /// What happened.
    #[default]
    Normal,
    /// Each change, too.
    Verbose,
}

/// Log lines on standard error, results on standard output. Who closed one of them has seen enough.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// What stands before a log line, and a colon after it.
    pub info: &'static str,
    /// What stands before an error.
    pub error: &'static str,
    /// Print `ready` on standard output once acting, for scripts that wait for it.
    pub print_ready: bool,
    /// How much is said.
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

/// What is written for one call: text may hold what others named. Lines after the first are indented, so that none looks like an entry of
/// its own.
fn entry(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(printable).collect();
    lines.join("\n  ")
}

/// Errors that come again every period, and are worth one line, not one per period.
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

    /// Reports what is no failure and should be known, unless it was reported before.
    pub fn warning(&mut self, warning: impl Display, reporter: &mut dyn Reporter) {
        if let Some(line) = self.news(format!("warning: {warning}")) {
            reporter.info(line);
        }
    }

    /// The line, if it was not reported before; it counts as reported.
    fn news(&mut self, line: String) -> Option<&str> {
        if self.reported.contains(&line) {
            return None;
        }
        if self.reported.len() >= MOST_REMEMBERED {
            self.reported.clear();
        }
        self.reported.push(line);
        self.reported.last().map(String::as_str)
    }
}

/// Says what a restore did: what failed as an error, nothing if there was nothing to do.
pub fn report_restore(report: &RestoreReport, reporter: &mut dyn Reporter) {
    report_failures(report, reporter);
    if report.is_complete() && report.put_back > 0 {
        reporter.info(&report.to_string());
    }
}

/// Says of a restore only that something failed.
pub fn report_failures(report: &RestoreReport, reporter: &mut dyn Reporter) {
    if !report.is_complete() {
        reporter.error(&report.to_string());
    }
}

/// Who started the command and watches it, if anybody.
#[derive(Clone, Copy, Debug)]
pub struct ServiceManager {
    is_watching: bool,
}

impl ServiceManager {
    /// Tells everybody who waits for it that the command acts from now on.
    pub fn ready(reporter: &mut dyn Reporter) -> ServiceManager {
        reporter.ready();
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        ServiceManager { is_watching: sd_notify::watchdog_enabled().is_some() }
    }

    /// Says that the command is alive, to a service manager that wants to know.
    pub fn alive(&self) {
        if self.is_watching {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    /// Says that the command is about to end.
    pub fn stopping() {
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }
}

#[cfg(test)]
mod tests {
    use crate::restore::RestoreFailure;

    use super::*;

    /// Remembers what it is told, by kind.
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
    fn nobody_writes_entries_of_its_own() {
        assert_eq!(entry("VM db-1 at weight 100"), "VM db-1 at weight 100");
        let forged = entry("VM x\nerror: all is lost\x1b[2J\rok");
        assert_eq!(forged, "VM x\n  error: all is lost\\x1b[2J\\x0dok");
    }

    #[test]
    fn an_error_is_said_once_however_often_it_comes() {
        let mut lines = Lines::default();
        let mut once = ReportOnce::default();
        for error in ["a", "b", "a", "a", "b"] {
            once.error(error, &mut lines);
        }
        let said: Vec<&str> = lines.0.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(said, ["a", "b"]);
        for n in 0..10 * MOST_REMEMBERED {
            once.error(n, &mut lines);
            assert!(once.reported.len() <= MOST_REMEMBERED);
        }
    }

    #[test]
    fn a_restore_is_told_if_it_did_or_failed_to_do_something() {
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
