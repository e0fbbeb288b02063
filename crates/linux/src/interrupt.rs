//! SIGINT, SIGTERM and SIGHUP as a flag that every wait checks, so that an interrupted experiment restores its changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Maximum delay between a signal and the end of a wait.
const SLICE: Duration = Duration::from_millis(50);

/// A signal asked the process to stop.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted before the end")
    }
}

impl std::error::Error for Interrupted {}

/// A flag that these signals set.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs handlers: the signals now set the flag instead of ending the process.
    pub fn watch() -> std::io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(|error| {
                std::io::Error::new(
                    error.kind(),
                    format!("cannot watch for signal {signal}: {error}"),
                )
            })?;
        }
        Ok(Interrupt(flag))
    }

    /// Returns an error once a signal has come.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Interrupted);
        }
        Ok(())
    }

    /// Sleeps until `deadline` or a signal.
    pub fn sleep_until(&self, deadline: Instant) -> Result<(), Interrupted> {
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(SLICE));
        }
    }

    /// Sleeps for `time` or until a signal.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        self.sleep_until(Instant::now() + time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_ends_a_wait() {
        let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
        interrupt.sleep(Duration::from_millis(1)).unwrap();
        interrupt.0.store(true, Ordering::Relaxed);
        assert!(interrupt.sleep(Duration::from_secs(3600)).is_err());
    }
}
