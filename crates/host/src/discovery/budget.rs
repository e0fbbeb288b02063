//! What a scan may spend, so that nobody stretches it by what his processes hold.
//!
//! A process may have a million descriptors, and share them with a thousand others; all must be looked at, since any may be a vCPU. So a scan
//! has a time, of which a user has a part and a process a small one. What is left over is gone on with in the next scan, where the last
//! ended: everybody's turn comes, and who has much waits for himself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A process has this part of a scan at a time.
const SLICES: u32 = 16;

/// A user has this part of a scan.
const SHARES: u32 = 2;

/// The time of one scan.
pub(super) struct Budget {
    end: Instant,
    length: Duration,
    spent: HashMap<Option<u32>, Duration>,
}

impl Budget {
    /// A scan that begins now.
    pub(super) fn new(length: Duration) -> Budget {
        Budget { end: Instant::now() + length, length, spent: HashMap::new() }
    }

    /// Whether all of it is spent.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Whether a user has used up his part.
    pub(super) fn is_over_for(&self, user: Option<u32>) -> bool {
        let spent = self.spent.get(&user);
        spent.is_some_and(|spent| *spent >= self.length / SHARES)
    }

    /// A process of a user is looked at: until when, at most.
    pub(super) fn slice(&self) -> Slice {
        let began = Instant::now();
        Slice { began, until: began + self.length / SLICES }
    }

    /// That is over.
    pub(super) fn charge(&mut self, user: Option<u32>, slice: Slice) {
        *self.spent.entry(user).or_default() += slice.began.elapsed();
    }
}

/// The time that one process has.
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
    fn who_has_much_waits_for_himself() {
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
