//! A figure of several runs, and arithmetic on such figures, run by run.
//!
//! Run i of every trial has the same seed, so a ratio or difference is taken between runs of one seed
//! and then averaged; its interval is much narrower than that of two independent means.

use tandem_experiment::statistics::Mean;

/// One value for each run.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// The values of the runs.
    pub fn new(values: Vec<f64>) -> Sample {
        Sample(values)
    }

    /// The values, in the order of the runs.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Every value changed alike.
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Sample {
        Sample(self.0.iter().map(|&value| change(value)).collect())
    }

    /// Run by run, as many as both have.
    pub fn zip(&self, other: &Sample, combine: impl Fn(f64, f64) -> f64) -> Sample {
        let pairs = self.0.iter().zip(&other.0);
        Sample(pairs.map(|(&a, &b)| combine(a, b)).collect())
    }

    /// The ratio to another.
    pub fn over(&self, other: &Sample) -> Sample {
        self.zip(other, |a, b| a / b)
    }

    /// With another.
    pub fn plus(&self, other: &Sample) -> Sample {
        self.zip(other, |a, b| a + b)
    }

    /// How much longer the same work takes than at `native`'s rate, percent.
    pub fn slowdown_percent(&self, native: &Sample) -> Sample {
        native.over(self).map(|ratio| (ratio - 1.0) * 100.0)
    }

    /// The mean of several figures in each run.
    pub fn mean_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| {
            values.iter().sum::<f64>() / values.len() as f64
        })
    }

    /// The geometric mean of several figures in each run.
    pub fn geometric_mean_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| {
            let logs: f64 = values.iter().map(|value| value.ln()).sum();
            (logs / values.len() as f64).exp()
        })
    }

    /// The largest of several figures in each run.
    pub fn max_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| {
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        })
    }

    /// The least of several figures in each run.
    pub fn min_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| {
            values.iter().copied().fold(f64::INFINITY, f64::min)
        })
    }

    fn fold(samples: &[Sample], of: impl Fn(&[f64]) -> f64) -> Sample {
        let runs = samples.iter().map(|sample| sample.0.len()).min();
        let run = |run: usize| {
            let values: Vec<f64> = samples
                .iter()
                .filter_map(|sample| sample.0.get(run).copied())
                .collect();
            of(&values)
        };
        Sample((0..runs.unwrap_or(0)).map(run).collect())
    }

    /// The mean over the runs; NaN if there are none.
    pub fn mean(&self) -> f64 {
        self.with_interval().mean
    }

    /// The mean with its interval.
    pub fn with_interval(&self) -> Mean {
        Mean::of(&self.0).unwrap_or(Mean {
            mean: f64::NAN,
            ci95: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values.to_vec())
    }

    #[test]
    fn arithmetic_goes_run_by_run() {
        let (a, b) = (sample(&[2.0, 9.0]), sample(&[1.0, 3.0]));
        assert_eq!(a.over(&b), sample(&[2.0, 3.0]));
        assert_eq!(a.plus(&b), sample(&[3.0, 12.0]));
        assert_eq!(b.slowdown_percent(&a), sample(&[100.0, 200.0]));
        assert_eq!(a.mean(), 5.5);
    }

    #[test]
    fn means_of_several_figures() {
        let both = [sample(&[1.0, 2.0]), sample(&[4.0, 8.0])];
        assert_eq!(Sample::mean_of(&both), sample(&[2.5, 5.0]));
        let geometric = Sample::geometric_mean_of(&both);
        assert!((geometric.values()[0] - 2.0).abs() < 1e-12);
        assert!((geometric.values()[1] - 4.0).abs() < 1e-12);
        assert_eq!(Sample::max_of(&both), sample(&[4.0, 8.0]));
        assert_eq!(Sample::min_of(&both), sample(&[1.0, 2.0]));
    }
}
