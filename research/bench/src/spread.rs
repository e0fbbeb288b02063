//! Median and range of figures over several runs.

use serde::Serialize;
use tandem_report::service::{Completion, WindowFigures};

/// Median and range of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median; for an even number of runs, the mean of the two middle values.
    pub median: f64,
    /// Minimum.
    pub least: f64,
    /// Maximum.
    pub greatest: f64,
}

impl Spread {
    /// Computes the spread of values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&least, &greatest) = (values.first()?, values.last()?);
        let (low, high) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Spread { median: (low + high) / 2.0, least, greatest })
    }

    /// Formats the median, and the range if there is one.
    pub fn text(&self) -> String {
        let Spread { median, least, greatest } = self;
        if least == greatest {
            format!("{median:.2}")
        } else {
            format!("{median:.2} ({least:.2} … {greatest:.2})")
        }
    }

    /// Multiplies all values by a factor.
    pub fn scaled(self, factor: f64) -> Spread {
        Spread {
            median: self.median * factor,
            least: self.least * factor,
            greatest: self.greatest * factor,
        }
    }
}

/// Completion times of a VM in one mode, over all its runs. Runs without completed bursts do not contribute to the times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionOfRuns {
    /// Completed bursts or requests, in all runs.
    pub count: u64,
    /// Bursts or requests that were dropped because too many were late, in all runs.
    pub dropped: u64,
    /// Medians of the runs, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<Spread>,
    /// 99th percentiles of the runs, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<Spread>,
    /// Median of `p99_ns` relative to that in stock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_vs_stock: Option<f64>,
}

impl CompletionOfRuns {
    /// Computes the figures of these runs; `None` for VMs without bursts.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Completion>) -> Option<CompletionOfRuns> {
        let runs: Vec<&Completion> = runs.into_iter().collect();
        (!runs.is_empty()).then(|| CompletionOfRuns {
            count: runs.iter().map(|run| run.count).sum(),
            dropped: runs.iter().map(|run| run.dropped).sum(),
            p50_ns: Spread::of(runs.iter().filter_map(|run| run.p50_ns)),
            p99_ns: Spread::of(runs.iter().filter_map(|run| run.p99_ns)),
            p99_vs_stock: None,
        })
    }

    /// Returns its p99 relative to that of `stock`, from the medians of the runs.
    pub fn against(&self, stock: &CompletionOfRuns) -> Option<f64> {
        let (ours, stock) = (self.p99_ns?.median, stock.p99_ns?.median);
        (stock > 0.0).then_some(ours / stock)
    }
}

/// Returns the minimum and maximum of several runs, for each window length.
pub fn windows_over_runs<'a>(
    runs: impl Iterator<Item = &'a [WindowFigures]>,
) -> Vec<WindowFigures> {
    let mut all: Vec<WindowFigures> = Vec::new();
    for figures in runs.flatten() {
        match all.iter_mut().find(|known| known.seconds == figures.seconds) {
            None => all.push(figures.clone()),
            Some(known) => {
                let both = |a: Option<f64>, b: Option<f64>, of: fn(f64, f64) -> f64| {
                    a.zip(b).map_or(a.or(b), |(a, b)| Some(of(a, b)))
                };
                known.windows += figures.windows;
                known.least = both(known.least, figures.least, f64::min);
                known.greatest = both(known.greatest, figures.greatest, f64::max);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_number_of_runs_has_a_median() {
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.least, spread.greatest), (2.5, 1.0, 4.0));
        assert_eq!(spread.scaled(0.1).text(), "0.25 (0.10 … 0.40)");
        assert_eq!(Spread::of([1.5]).unwrap().text(), "1.50");
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn runs_without_bursts_do_not_count() {
        let run = |p99_ns: Option<f64>| Completion {
            count: u64::from(p99_ns.is_some()),
            dropped: 1,
            mean_ns: p99_ns,
            p50_ns: p99_ns.map(|ns| ns / 2.0),
            p99_ns,
        };
        let ours = CompletionOfRuns::of(&[run(Some(2e6)), run(None), run(Some(6e6))]).unwrap();
        assert_eq!((ours.count, ours.dropped), (2, 3));
        let p99 = ours.p99_ns.unwrap();
        assert_eq!((p99.median, p99.least, p99.greatest), (4e6, 2e6, 6e6));
        assert_eq!(ours.p50_ns.unwrap().median, 2e6);
        let stock = CompletionOfRuns::of(&[run(Some(5e6))]).unwrap();
        assert_eq!(ours.against(&stock), Some(0.8));
        let none = CompletionOfRuns::of(&[run(None)]).unwrap();
        assert_eq!((none.p99_ns, ours.against(&none)), (None, None));
        assert_eq!(CompletionOfRuns::of(&[]), None);
    }
}
