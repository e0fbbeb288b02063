//! When what keeps turns is started: at once, and again when it was lost or could not be started.
//!
//! Where something ends every one of them, more would not help: after the first it is started at most once in [`AGAIN_EVERY`].

use std::time::{Duration, Instant};

/// So much time is between two starts, not counting the first.
const AGAIN_EVERY: Duration = Duration::from_secs(10);

/// The starts so far.
#[derive(Debug, Default)]
pub(crate) struct Again {
    has_started: bool,
    started_again: Option<Instant>,
}

impl Again {
    /// Whether it may be started now; then that counts as a start, whether or not it succeeds.
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
    fn what_was_lost_is_replaced_at_once_and_then_at_most_once_in_ten_seconds() {
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
