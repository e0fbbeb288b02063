//! Rate limit on starts of the turn thread and its watchdog.
//!
//! The first start and the first restart are immediate, later ones at most once in [`AGAIN_EVERY`]: if each one ends, more would not help.

use std::time::{Duration, Instant};

/// Minimum interval between two restarts.
const AGAIN_EVERY: Duration = Duration::from_secs(10);

/// The starts so far.
#[derive(Debug, Default)]
pub(crate) struct Again {
    has_started: bool,
    started_again: Option<Instant>,
}

impl Again {
    /// Whether a start is allowed now; this counts as a start, even if it then fails.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if !std::mem::replace(&mut self.has_started, true) {
            return true;
        }
        let is_due = self.started_again.is_none_or(|last| now.duration_since(last) >= AGAIN_EVERY);
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
    fn restarts_are_limited_after_the_first() {
        let mut starts = Again::default();
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
            assert_eq!(starts.is_due(at(seconds)), due, "after {seconds} s");
        }
    }
}
