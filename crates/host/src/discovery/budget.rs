//! Time budget of a scan, so that no tenant can delay it with large processes.
//!
//! A process may have a million descriptors and share them with a thousand others, and any of them may be a vCPU.
//! A scan therefore has a time limit, of which a user has a part and a process a small one.
//! The next scan continues with the rest, so all processes get their turn, and large users delay only themselves.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Divisor of the scan time for one slice of a process.
const SLICES: u32 = 16;

/// Divisor of the scan time for a user.
const SHARES: u32 = 2;

/// Time budget of one scan.
pub(super) struct Budget {
    end: Instant,
    length: Duration,
    spent: HashMap<Option<u32>, Duration>,
}

impl Budget {
    /// Starts a scan now.
    pub(super) fn new(length: Duration) -> Budget {
        Budget { end: Instant::now() + length, length, spent: HashMap::new() }
    }

    /// Whether the time is used up.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Whether a user has used up their part.
    pub(super) fn is_over_for(&self, user: Option<u32>) -> bool {
        let spent = self.spent.get(&user);
        spent.is_some_and(|spent| *spent >= self.length / SHARES)
    }

    /// Starts the slice of a process.
    pub(super) fn slice(&self) -> Slice {
        let began = Instant::now();
        Slice { began, until: began + self.length / SLICES }
    }

    /// Charges a finished slice to its user.
    pub(super) fn charge(&mut self, user: Option<u32>, slice: Slice) {
        *self.spent.entry(user).or_default() += slice.began.elapsed();
    }
}

/// Time slice of a process.
#[derive(Clone, Copy)]
pub(super) struct Slice {
    began: Instant,
    until: Instant,
}

impl Slice {
    /// Whether it is used up.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_users_delay_only_themselves() {
        let mut budget = Budget::new(Duration::from_millis(20));
        assert!(!budget.is_over() && !budget.is_over_for(Some(1000)));
        let slice = budget.slice();
        std::thread::sleep(Duration::from_millis(12));
        assert!(slice.is_over());
        budget.charge(Some(1000), slice);
        assert!(budget.is_over_for(Some(1000)));
        assert!(!budget.is_over_for(Some(0)) && !budget.is_over_for(None));
        std::thread::sleep(Duration::from_millis(12));
        assert!(budget.is_over());
    }
}
