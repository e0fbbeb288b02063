//! When to look at something again that was not yet what is looked for: after 0.25, 0.5, 1, 2, … and
//! at most 32 seconds. What is young changes soon if it changes at all; what is old costs little.

use std::time::{Duration, Instant};

/// When to look again: after twice as long each time.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) next: Instant,
    pause: Duration,
}

impl Look {
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(32);

    pub(super) fn first(now: Instant) -> Look {
        Look { next: now + Look::FIRST, pause: Look::FIRST }
    }

    /// Being looked at right now.
    pub(super) fn due(now: Instant) -> Look {
        Look { next: now, pause: Look::FIRST / 2 }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    pub(super) fn again(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(Look::LONGEST);
        self.next = now + self.pause;
    }
}
