//! Statistics of turns.

use serde::{Deserialize, Serialize};
use tandem_model::Nanos;

/// Bounds of the classes of lateness, in microseconds; the last class has none.
pub const BOUNDS_US: [u64; 10] = [20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000];

/// A turn that begins later than this is late.
pub const LATE: Nanos = Nanos::from_millis(1);

/// Turns since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStats {
    /// Turns begun.
    pub turns: u64,
    /// Turns that began more than 1 ms late.
    pub late: u64,
    /// Turns by lateness: up to 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000 and 20000 µs, and later.
    pub lateness: [u64; BOUNDS_US.len() + 1],
    /// Lateness of all turns, added up.
    #[serde(default)]
    pub late_by: Nanos,
    /// Total wall time spent on beginning turns.
    pub took: Nanos,
    /// Writes to cgroups.
    pub writes: u64,
    /// Moves of vCPUs to the pCPUs of their slots.
    #[serde(default)]
    pub moves: u64,
}

impl TurnStats {
    /// Counts a turn by its lateness and the time to begin it.
    pub(super) fn count(&mut self, lateness: Nanos, took: Nanos) {
        self.turns += 1;
        self.late += u64::from(lateness > LATE);
        let class = BOUNDS_US.iter().position(|bound| lateness.0 <= bound * 1000);
        self.lateness[class.unwrap_or(BOUNDS_US.len())] += 1;
        self.late_by += lateness;
        self.took += took;
    }

    /// Returns the sum with the statistics of other turns.
    pub(super) fn plus(&self, others: &TurnStats) -> TurnStats {
        let mut lateness = self.lateness;
        for (count, others) in lateness.iter_mut().zip(others.lateness) {
            *count += others;
        }
        TurnStats {
            turns: self.turns + others.turns,
            late: self.late + others.late,
            lateness,
            late_by: self.late_by + others.late_by,
            took: self.took + others.took,
            writes: self.writes + others.writes,
            moves: self.moves + others.moves,
        }
    }

    /// Returns a quantile of lateness, as the upper bound of its class in µs; `None` beyond the last bound, or without turns.
    pub fn lateness_us(&self, part: f64) -> Option<u64> {
        let wanted = (self.turns as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (count, bound) in self.lateness.iter().zip(BOUNDS_US) {
            seen += count;
            if self.turns > 0 && seen >= wanted {
                return Some(bound);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_counted_by_class() {
        let mut stats = TurnStats::default();
        assert_eq!(stats.lateness_us(0.99), None);
        for _ in 0..99 {
            stats.count(Nanos(30_000), Nanos(10_000));
        }
        stats.count(Nanos::from_millis(50), Nanos(10_000));
        assert_eq!(stats.lateness_us(0.99), Some(50));
        assert_eq!(stats.lateness_us(1.0), None);
        assert_eq!((stats.turns, stats.late), (100, 1));
        assert_eq!(stats.took, Nanos(1_000_000));
        assert_eq!(stats.late_by, Nanos(99 * 30_000 + 50_000_000));
    }

    #[test]
    fn turns_of_a_lost_keeper_count() {
        let (mut first, mut second) = (TurnStats::default(), TurnStats::default());
        first.count(Nanos(30_000), Nanos(10_000));
        first.writes = 5;
        second.count(Nanos::from_millis(50), Nanos(20_000));
        second.moves = 3;
        let mut both = TurnStats::default();
        both.count(Nanos(30_000), Nanos(10_000));
        both.count(Nanos::from_millis(50), Nanos(20_000));
        (both.writes, both.moves) = (5, 3);
        assert_eq!(first.plus(&second), both);
    }
}
