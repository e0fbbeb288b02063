//! Medians of paired ratios with an interval from order statistics.
//!
//! The interval of the median of n values extends from the k-th smallest to the k-th largest value.
//! k is the largest value for which the interval covers the true median with at least 95 %.
//! Each value lies below the median with probability ½, so the coverage is 1 − 2 P(B < k) with B binomial of n and ½.
//! It holds for any distribution and needs no random numbers.
//! Ten values give the 2nd and the 9th (97.9 %).
//! Fewer than six values have no such interval: it then spans all of them, and [`Interval::coverage`] is lower (five: 93.8 %, one: 0).

use serde::{Deserialize, Serialize};

use tandem_model::averages::middle;

/// Minimum coverage of an interval.
const WANTED: f64 = 0.95;

/// A median and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Probability that it covers the true median.
    pub coverage: f64,
}

impl Interval {
    /// Computes the interval of values; `None` if there are none or one is NaN.
    pub fn of(values: &[f64]) -> Option<Interval> {
        if values.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let k = (1..=n.div_ceil(2)).take_while(|&k| coverage(n, k) >= WANTED).last().unwrap_or(1);
        Some(Interval {
            median: middle(&sorted)?,
            low: *sorted.get(k - 1)?,
            high: *sorted.get(n - k)?,
            coverage: coverage(n, k),
        })
    }
}

/// 1 − 2 P(B < k), B binomial of n and ½.
fn coverage(n: usize, k: usize) -> f64 {
    let mut term = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut below = 0.0;
    for i in 0..k {
        below += term;
        term *= (n - i) as f64 / (i + 1) as f64;
    }
    (1.0 - 2.0 * below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_values_yield_second_and_ninth() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let interval = Interval::of(&values).unwrap();
        assert_eq!((interval.median, interval.low, interval.high), (5.5, 2.0, 9.0));
        // 1 − 2 × 11 ÷ 1024
        assert!((interval.coverage - 0.978_515_625).abs() < 1e-12);
    }

    #[test]
    fn ranks_match_sign_test_tables() {
        // n: rank of the lower end, from tables of the sign test
        for (n, rank) in [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8)] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let interval = Interval::of(&values).unwrap();
            assert_eq!(interval.low, f64::from(rank), "{n}");
            assert_eq!(interval.high, f64::from(n + 1 - rank), "{n}");
            assert!(interval.coverage >= WANTED, "{n}");
        }
    }

    #[test]
    fn few_values_have_low_coverage() {
        let five = Interval::of(&[1.0, 5.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((five.low, five.high, five.coverage), (1.0, 5.0, 0.9375));
        let one = Interval::of(&[2.0]).unwrap();
        assert_eq!((one.median, one.low, one.coverage), (2.0, 2.0, 0.0));
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[1.0, f64::NAN]), None);
    }
}
