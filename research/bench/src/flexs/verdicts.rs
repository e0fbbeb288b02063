//! Sums and rates of the verdicts of the policy `flexs`, compared with the ground truth of the guests.

use std::collections::BTreeMap;

use tandem_policy::flexs::Basis;
use tandem_report::service::SpinFigures;

/// Sums and rates of verdicts.
pub trait Verdicts {
    /// Returns the sums of both.
    #[must_use]
    fn plus(self, other: SpinFigures) -> SpinFigures;

    /// Recall: fraction of the spinning periods that were found; `None` if no vCPU spun.
    fn recall(&self) -> Option<f64>;

    /// Recall over periods in which the vCPU ran for long enough to be judged.
    fn recall_of_judged(&self) -> Option<f64>;

    /// Fraction of the working periods that were taken for spinning; `None` if no vCPU worked.
    fn false_alarm_rate(&self) -> Option<f64>;
}

impl Verdicts for SpinFigures {
    fn plus(self, other: SpinFigures) -> SpinFigures {
        SpinFigures {
            judged: self.judged + other.judged,
            called_spinning: self.called_spinning + other.called_spinning,
            decided: self.decided + other.decided,
            swaps: self.swaps + other.swaps,
            left: sums(self.left, other.left),
            failed: self.failed + other.failed,
            refused: sums(self.refused, other.refused),
            spun: self.spun + other.spun,
            found: self.found + other.found,
            missed: sums(self.missed, other.missed),
            worked: self.worked + other.worked,
            false_alarms: self.false_alarms + other.false_alarms,
        }
    }

    fn recall(&self) -> Option<f64> {
        part(self.found, self.spun)
    }

    fn recall_of_judged(&self) -> Option<f64> {
        let too_few = self.missed.get(&Basis::TooFew).copied();
        part(self.found, self.spun.saturating_sub(too_few.unwrap_or(0)))
    }

    fn false_alarm_rate(&self) -> Option<f64> {
        part(self.false_alarms, self.worked)
    }
}

fn part(of: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| of as f64 / all as f64)
}

fn sums<K: Ord>(mut one: BTreeMap<K, u64>, other: BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    for (key, count) in other {
        *one.entry(key).or_default() += count;
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_ignores_correct_negatives() {
        let never = SpinFigures {
            judged: 1000,
            spun: 100,
            worked: 900,
            missed: BTreeMap::from([(Basis::Compared, 60), (Basis::TooFew, 40)]),
            ..SpinFigures::default()
        };
        assert_eq!((never.recall(), never.false_alarm_rate()), (Some(0.0), Some(0.0)));
        let found = SpinFigures {
            spun: 100,
            found: 90,
            missed: BTreeMap::from([(Basis::TooFew, 10)]),
            ..SpinFigures::default()
        };
        assert_eq!((found.recall(), found.recall_of_judged()), (Some(0.9), Some(1.0)));
        let both = never.plus(found);
        assert_eq!(both.missed[&Basis::TooFew], 50);
        assert_eq!(both.recall(), Some(0.45));
        let none = SpinFigures::default();
        assert_eq!((none.recall(), none.false_alarm_rate()), (None, None));
    }
}
