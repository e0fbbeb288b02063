//! Means with 95 % confidence intervals from few runs.
//!
//! The interval of a mean of n runs is ± t s ÷ √n, with their standard deviation s.
//! t is the 97.5 % quantile of Student's distribution with n − 1 degrees of freedom.
//! Differences between combinations are taken run by run: equal seeds have equal arrivals and times (common random numbers).
//! Their interval is much narrower than that of two independent means.

use serde::Serialize;

/// 97.5 % quantiles of Student's distribution for 1 … 30 degrees of freedom (standard tables).
const T: [f64; 30] = [
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010,
    2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687,
    2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
];

/// The 97.5 % quantile of the normal distribution.
const Z: f64 = 1.959_964;

/// Returns the 97.5 % quantile of Student's distribution.
fn t(degrees: usize) -> f64 {
    match T.get(degrees.saturating_sub(1)) {
        Some(&t) => t,
        None => {
            // Cornish-Fisher expansion, accurate to four digits from 31 degrees on.
            let (n, z2) = (degrees as f64, Z * Z);
            let first = Z * (z2 + 1.0) / (4.0 * n);
            let second = Z * (5.0 * z2 * z2 + 16.0 * z2 + 3.0) / (96.0 * n * n);
            Z + first + second
        }
    }
}

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval; absent for a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<f64>,
}

impl Mean {
    /// Returns the mean of some runs; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Mean> {
        let count = values.len() as f64;
        let mean = match values {
            [] => return None,
            values => values.iter().sum::<f64>() / count,
        };
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let ci95 = (values.len() > 1).then(|| {
            let deviation = (squares / (count - 1.0)).sqrt();
            t(values.len() - 1) * deviation / count.sqrt()
        });
        Some(Mean { mean, ci95 })
    }

    /// Returns the mean of the paired differences `values` − `base`; `None` if the lengths differ or are 0.
    pub fn of_difference(values: &[f64], base: &[f64]) -> Option<Mean> {
        if values.len() != base.len() {
            return None;
        }
        let pairs = values.iter().zip(base);
        let differences: Vec<f64> = pairs.map(|(value, base)| value - base).collect();
        Mean::of(&differences)
    }

    /// Returns whether the interval excludes zero.
    pub fn differs_from_zero(&self) -> bool {
        self.ci95.is_some_and(|ci95| self.mean.abs() > ci95)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_quantiles_match_tables() {
        for (degrees, expected) in [(1, 12.706), (9, 2.262), (30, 2.042), (40, 2.021), (120, 1.980)]
        {
            assert!((t(degrees) - expected).abs() < 0.0006, "{degrees}: {}", t(degrees));
        }
    }

    #[test]
    fn interval_matches_known_sample() {
        let mean = Mean::of(&[4.0, 6.0, 8.0]).unwrap();
        // s = 2, t(2) = 4.3027, ÷ √3
        assert_eq!(mean.mean, 6.0);
        assert!((mean.ci95.unwrap() - 4.9683).abs() < 1e-3);
        assert_eq!(Mean::of(&[3.0]).unwrap().ci95, None);
        assert_eq!(Mean::of(&[]), None);
    }

    #[test]
    fn consistent_pairs_differ_from_zero() {
        let base = [10.0, 20.0, 30.0];
        let other = [11.0, 21.0, 31.1];
        let difference = Mean::of_difference(&other, &base).unwrap();
        assert!(difference.differs_from_zero());
        assert!(!Mean::of(&[-1.0, 1.0, 0.5]).unwrap().differs_from_zero());
        assert_eq!(Mean::of_difference(&[1.0], &[]), None);
    }
}
