//! The pause-loop window that APLE set for each VM, over time.
//!
//! The window is constant between changes, so lines are steps.
//! A line has at most `MAX_STEPS` steps: of changes too close to distinguish only the last is drawn.

use tandem_sim::results::VmResults;
use tandem_sim::{Results, Scenario};

use super::MAX_VMS;
use tandem_report::chart::LineChart;
use tandem_report::chart::line::LineSeries;

/// Maximum number of steps of a line.
const MAX_STEPS: usize = 600;

/// Changes of a window: time in seconds, in ascending order, and the new window in cycles.
pub type Changes = Vec<(f64, f64)>;

/// The windows of one combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// The combination.
    pub combination: String,
    /// Each VM's name and changes.
    pub vms: Vec<(String, Changes)>,
    /// End of the time axis, in seconds.
    pub until: f64,
}

impl Threshold {
    /// Returns the windows that APLE set for the first [`MAX_VMS`] VMs; `None` if it set none.
    pub fn of(combination: &str, scenario: &Scenario, results: &Results) -> Option<Threshold> {
        let changes = |vm: &VmResults| {
            let changes = vm.windows.iter();
            changes.map(|&(at, window)| (at.as_secs_f64(), f64::from(window))).collect()
        };
        let vms: Vec<(String, Changes)> = results
            .vms
            .iter()
            .filter(|vm| !vm.windows.is_empty())
            .take(MAX_VMS)
            .map(|vm| (vm.name.clone(), changes(vm)))
            .collect();
        let ends = vms.iter().filter_map(|(_, changes)| changes.last());
        let end = scenario.warmup.as_secs_f64() + results.measured.as_secs_f64();
        let until = ends.map(|&(at, _)| at).fold(end, f64::max);
        (!vms.is_empty()).then(|| Threshold { combination: combination.to_owned(), vms, until })
    }

    /// Returns the largest window, in cycles.
    pub fn most(&self) -> f64 {
        let changes = self.vms.iter().flat_map(|(_, changes)| changes);
        changes.map(|change| change.1).fold(0.0, f64::max)
    }

    /// Returns the chart; `most` is the largest window of all charts that share its axis.
    pub fn chart(&self, most: f64, width: f64) -> LineChart {
        let (scale, unit) = time_unit(self.until);
        let line = |(i, (vm, changes)): (usize, &(String, Changes))| LineSeries {
            name: vm.clone(),
            colour: i,
            points: steps(changes, self.until)
                .into_iter()
                .map(|(at, window)| (at * scale, window))
                .collect(),
            guide: None,
        };
        LineChart {
            title: format!("Pause-loop window of each VM, {}", self.combination),
            x_unit: unit.to_owned(),
            y_unit: "cycles".to_owned(),
            series: self.vms.iter().enumerate().map(line).collect(),
            y_max: most,
            before_zero: None,
            size: (width, 260.0),
        }
    }
}

/// Returns the factor from seconds and the label of the time axis: milliseconds for runs under 2 s.
fn time_unit(until: f64) -> (f64, &'static str) {
    if until < 2.0 {
        (1e3, "milliseconds of simulated time")
    } else {
        (1.0, "seconds of simulated time")
    }
}

/// Returns the corners of the steps.
fn steps(changes: &[(f64, f64)], until: f64) -> Vec<(f64, f64)> {
    let least = until / MAX_STEPS as f64;
    let mut corners: Vec<(f64, f64)> = Vec::new();
    let mut drawn = f64::NEG_INFINITY;
    for &(at, window) in changes {
        match corners.last_mut() {
            Some(last) if at - drawn < least => last.1 = window,
            last => {
                if let Some(&mut (_, before)) = last {
                    corners.push((at, before));
                }
                corners.push((at, window));
                drawn = at;
            }
        }
    }
    if let Some(&(_, window)) = corners.last() {
        corners.push((until, window));
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_constant_between_changes() {
        let corners = steps(&[(0.0, 8192.0), (4.0, 9216.0)], 10.0);
        let expected = [(0.0, 8192.0), (4.0, 8192.0), (4.0, 9216.0), (10.0, 9216.0)];
        assert_eq!(corners, expected);
        assert!(steps(&[], 1.0).is_empty());
    }

    #[test]
    fn steps_of_long_runs_are_bounded() {
        let changes: Changes = (0..100_000).map(|i| (f64::from(i), f64::from(i))).collect();
        let corners = steps(&changes, 100_000.0);
        assert!(corners.len() <= 2 * MAX_STEPS + 2, "{}", corners.len());
        assert_eq!(corners.last(), Some(&(100_000.0, 99_999.0)));
    }
}
