//! Figures over several runs of the same thing: the middle, and how far apart they lie.

use serde::Serialize;
use tandem_report::service::{Completion, WindowFigures};

/// The middle of several runs, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the runs are at most this; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of these values; none of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&least, &greatest) = (values.first()?, values.last()?);
        let (low, high) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Spread { median: (low + high) / 2.0, least, greatest })
    }

    /// The median, and the range if there is one.
    pub fn text(&self) -> String {
        let Spread { median, least, greatest } = self;
        match least == greatest {
            true => format!("{median:.2}"),
            false => format!("{median:.2} ({least:.2} … {greatest:.2})"),
        }
    }

    /// In another unit.
    pub fn scaled(self, factor: f64) -> Spread {
        Spread {
            median: self.median * factor,
            least: self.least * factor,
            greatest: self.greatest * factor,
        }
    }
}

/// Completion times of a VM in one mode, over all its runs; a run in which nothing was done has no part in the times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionOfRuns {
    /// Bursts or requests that were done, in all runs.
    pub count: u64,
    /// How many were given up because too many were late, in all runs.
    pub dropped: u64,
    /// The medians of the runs, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<Spread>,
    /// What 99 of 100 took at most in each run, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<Spread>,
    /// The median of `p99_ns` against that in stock: 1 is as long, 2 twice as long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_vs_stock: Option<f64>,
}

impl CompletionOfRuns {
    /// Of these runs; none of VMs that have no bursts.
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

    /// How long its p99 is against that of `stock`, by the medians of the runs.
    pub fn against(&self, stock: &CompletionOfRuns) -> Option<f64> {
        let (ours, stock) = (self.p99_ns?.median, stock.p99_ns?.median);
        (stock > 0.0).then_some(ours / stock)
    }
}

/// The worst and the best of several runs, by length.
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
    fn an_even_number_of_runs_has_a_middle_too() {
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.least, spread.greatest), (2.5, 1.0, 4.0));
        assert_eq!(spread.scaled(0.1).text(), "0.25 (0.10 … 0.40)");
        assert_eq!(Spread::of([1.5]).unwrap().text(), "1.50");
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn runs_have_a_middle_and_those_without_bursts_do_not_count() {
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
