//! When a watchdog is started: before the first turn, and again when it was lost or could not be started.
//!
//! Where something ends every one of them, more would not help: after the first it is started at most once in [`AGAIN_EVERY`].

use std::io;
use std::process::Command;
use std::time::Duration;
use std::time::Instant;

use super::watchdog::Watchdog;

/// So much time is between two starts, not counting the first.
const AGAIN_EVERY: Duration = Duration::from_secs(10);

/// Starts watchdogs, not too often.
pub(crate) struct WatchdogStarter {
    command: Command,
    has_started: bool,
    started_again: Option<Instant>,
}

impl WatchdogStarter {
    /// `command` runs [`super::watchdog::watch`].
    pub fn new(mut command: Command) -> WatchdogStarter {
        Watchdog::prepare(&mut command);
        WatchdogStarter {
            command,
            has_started: false,
            started_again: None,
        }
    }

    /// Starts one; `None`: the last start was a moment ago.
    pub fn start(&mut self, now: Instant) -> Option<io::Result<Watchdog>> {
        self.is_due(now).then(|| Watchdog::start(&mut self.command))
    }

    fn is_due(&mut self, now: Instant) -> bool {
        if !std::mem::replace(&mut self.has_started, true) {
            return true;
        }
        let is_due = self
            .started_again
            .is_none_or(|last| now.duration_since(last) >= AGAIN_EVERY);
        if is_due {
            self.started_again = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_watchdog_is_replaced_at_once_and_then_at_most_once_in_ten_seconds() {
        let mut starter = WatchdogStarter::new(Command::new("true"));
        let begin = Instant::now();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let dues = [
            (0.0, true),
            (0.1, true),
            (0.2, false),
            (10.0, false),
            (10.1, true),
            (20.0, false),
            (99.0, true),
        ];
        for (seconds, due) in dues {
            assert_eq!(starter.is_due(at(seconds)), due, "after {seconds} s");
        }
    }

    #[test]
    fn a_start_that_fails_counts_as_a_start() {
        let mut starter = WatchdogStarter::new(Command::new("/nowhere/tandem"));
        let now = Instant::now();
        for _ in 0..2 {
            let failed = starter.start(now).expect("it is due");
            assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert!(starter.start(now).is_none());
    }
}
