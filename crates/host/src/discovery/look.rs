//! When to inspect an object again that was not yet a match: after 0.25, 0.5, 1, 2, … and at most 32 seconds.
//! Young objects change soon if they change at all; old ones cost little.

use std::time::{Duration, Instant};

/// Time of the next inspection; the interval doubles each time.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) next: Instant,
    pause: Duration,
}

impl Look {
    const FIRST: Duration = Duration::from_millis(250);
    const MAX: Duration = Duration::from_secs(32);

    pub(super) fn first(now: Instant) -> Look {
        Look { next: now + Look::FIRST, pause: Look::FIRST }
    }

    /// Inspected right now.
    pub(super) fn due(now: Instant) -> Look {
        Look { next: now, pause: Look::FIRST / 2 }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    pub(super) fn again(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(Look::MAX);
        self.next = now + self.pause;
    }
}
