//! A figure of several runs, and run-by-run arithmetic on such figures.
//!
//! Run i of every trial has the same seed, so ratios and differences are taken between runs of one seed and then averaged.
//! Their interval is much narrower than that of two independent means.
//!
//! Two states are not numbers: a figure whose trials have not run yet ([`Sample::Pending`]), and a missing value of a run (`None`).
//! A value is missing if its event did not occur, such as the latency of wake-ups in a run without wake-ups, or 0 ÷ 0.
//! A result computed from a pending figure is pending; a result computed from a missing value is missing.

use tandem_experiment::statistics::Mean;

/// One value for each run.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// The trials have not run yet.
    Pending,
    /// The values in order of the runs; `None`: missing.
    Runs(Vec<Option<f64>>),
}

impl Sample {
    /// Creates a figure from one value per run; NaN is a missing value.
    pub fn new(values: Vec<f64>) -> Sample {
        Sample::Runs(values.into_iter().map(number).collect())
    }

    /// Returns a figure without runs.
    pub fn absent() -> Sample {
        Sample::Runs(Vec::new())
    }

    /// Applies a function to every value.
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Sample {
        Sample::combine([self], |[value]| change(value))
    }

    /// Combines two figures run by run, for the runs that both have.
    pub fn zip(&self, other: &Sample, combine: impl Fn(f64, f64) -> f64) -> Sample {
        Sample::combine([self, other], |[a, b]| combine(a, b))
    }

    /// Returns the ratio to another figure.
    pub fn over(&self, other: &Sample) -> Sample {
        self.zip(other, |a, b| a / b)
    }

    /// Returns the sum with another figure.
    pub fn plus(&self, other: &Sample) -> Sample {
        self.zip(other, |a, b| a + b)
    }

    /// Returns the additional time for the same work compared with `native`'s rate, percent.
    pub fn slowdown_percent(&self, native: &Sample) -> Sample {
        native.over(self).map(|ratio| (ratio - 1.0) * 100.0)
    }

    /// Combines several figures into one, run by run.
    pub fn combine<const N: usize>(
        samples: [&Sample; N],
        combine: impl Fn([f64; N]) -> f64,
    ) -> Sample {
        let Some(runs) = by_run(&samples) else {
            return Sample::Pending;
        };
        let run = |values: Option<Vec<f64>>| {
            let values = <[f64; N]>::try_from(values?).ok()?;
            number(combine(values))
        };
        Sample::Runs(runs.into_iter().map(run).collect())
    }

    /// Returns the mean of several figures in each run.
    pub fn mean_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the geometric mean of several figures in each run.
    pub fn geometric_mean_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| {
            let logs: f64 = values.iter().map(|value| libm::log(*value)).sum();
            libm::exp(logs / values.len() as f64)
        })
    }

    /// Returns the largest of several figures in each run.
    pub fn max_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    /// Returns the least of several figures in each run.
    pub fn min_of(samples: &[Sample]) -> Sample {
        Sample::fold(samples, |values| values.iter().copied().fold(f64::INFINITY, f64::min))
    }

    fn fold(samples: &[Sample], of: impl Fn(&[f64]) -> f64) -> Sample {
        let samples: Vec<&Sample> = samples.iter().collect();
        match by_run(&samples) {
            None => Sample::Pending,
            Some(runs) => {
                let run = |values: Option<Vec<f64>>| number(of(&values?));
                Sample::Runs(runs.into_iter().map(run).collect())
            }
        }
    }

    /// Returns the index of the figure with the largest mean; `None` if there are no figures, or one has no mean.
    pub fn largest(samples: &[Sample]) -> Option<usize> {
        let means: Option<Vec<f64>> = samples.iter().map(Sample::mean).collect();
        let means = means?.into_iter().enumerate();
        means.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    }

    /// Returns the index of the figure with the least mean; `None` if there are no figures, or one has no mean.
    pub fn least(samples: &[Sample]) -> Option<usize> {
        let means: Option<Vec<f64>> = samples.iter().map(Sample::mean).collect();
        let means = means?.into_iter().enumerate();
        means.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    }

    /// Returns the mean over the runs; `None` if there are no runs, or one has no value.
    pub fn mean(&self) -> Option<f64> {
        self.with_interval().map(|mean| mean.mean)
    }

    /// Returns the mean with its interval.
    pub fn with_interval(&self) -> Option<Mean> {
        match self {
            Sample::Pending => None,
            Sample::Runs(values) => {
                let values: Option<Vec<f64>> = values.iter().copied().collect();
                Mean::of(&values?)
            }
        }
    }
}

fn number(value: f64) -> Option<f64> {
    (!value.is_nan()).then_some(value)
}

/// Returns the values of all figures for each run that all figures have; `None` if a figure is pending.
///
/// A run is `None` if a figure has no value in it.
fn by_run(samples: &[&Sample]) -> Option<Vec<Option<Vec<f64>>>> {
    let runs = |sample: &&Sample| match sample {
        Sample::Pending => None,
        Sample::Runs(values) => Some(values.clone()),
    };
    let samples: Vec<Vec<Option<f64>>> = samples.iter().map(runs).collect::<Option<_>>()?;
    let count = samples.iter().map(Vec::len).min().unwrap_or(0);
    let run = |run: usize| samples.iter().map(|values| values[run]).collect();
    Some((0..count).map(run).collect())
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
        assert_eq!(a.mean(), Some(5.5));
    }

    #[test]
    fn means_of_several_figures() {
        let both = [sample(&[1.0, 2.0]), sample(&[4.0, 8.0])];
        assert_eq!(Sample::mean_of(&both), sample(&[2.5, 5.0]));
        let geometric = Sample::geometric_mean_of(&both);
        assert!((geometric.mean().unwrap() - 3.0).abs() < 1e-12);
        assert_eq!(Sample::max_of(&both), sample(&[4.0, 8.0]));
        assert_eq!(Sample::min_of(&both), sample(&[1.0, 2.0]));
        assert_eq!(Sample::largest(&both), Some(1));
        assert_eq!(Sample::least(&both), Some(0));
    }

    #[test]
    fn results_of_missing_values_are_missing() {
        let (some, none) = (sample(&[2.0, 3.0]), Sample::Runs(vec![Some(1.0), None]));
        assert_eq!(some.over(&none), Sample::Runs(vec![Some(2.0), None]));
        assert_eq!(none.mean(), None);
        // The maximum is unknown if one of the figures is missing.
        let all = [some.clone(), none];
        assert_eq!(Sample::max_of(&all), Sample::Runs(vec![Some(2.0), None]));
        assert_eq!(Sample::largest(&all), None);
        let nothing = sample(&[0.0]);
        assert_eq!(nothing.over(&nothing), Sample::Runs(vec![None]));
        assert_eq!(Sample::absent().mean(), None);
    }

    #[test]
    fn results_of_pending_figures_are_pending() {
        let some = sample(&[2.0, 3.0]);
        assert_eq!(some.over(&Sample::Pending), Sample::Pending);
        assert_eq!(Sample::Pending.map(|_| 1.0), Sample::Pending);
        let all = [some, Sample::Pending];
        assert_eq!(Sample::max_of(&all), Sample::Pending);
        assert_eq!(Sample::Pending.with_interval(), None);
    }
}
