//! Starts the watchdog: before the first turn, and again after it was lost or a start failed.

use std::io;
use std::process::Command;
use std::time::Instant;

use super::again::Again;
use super::watchdog::Watchdog;

/// Starts watchdogs, with a rate limit.
pub(crate) struct WatchdogStarter {
    command: Command,
    starts: Again,
}

impl WatchdogStarter {
    /// Returns a starter for `command`, which runs [`super::watchdog::watch`].
    pub fn new(mut command: Command) -> WatchdogStarter {
        Watchdog::prepare(&mut command);
        WatchdogStarter { command, starts: Again::default() }
    }

    /// Starts a watchdog; `None` if the last start was too recent.
    pub fn start(&mut self, now: Instant) -> Option<io::Result<Watchdog>> {
        let is_due = self.starts.is_due(now);
        is_due.then(|| Watchdog::start(&mut self.command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_start_counts() {
        let mut starter = WatchdogStarter::new(Command::new("/nowhere/tandem"));
        let now = Instant::now();
        for _ in 0..2 {
            let failed = starter.start(now).expect("it is due");
            assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert!(starter.start(now).is_none());
    }
}
