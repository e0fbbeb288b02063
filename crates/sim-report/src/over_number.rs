//! A comparison over a varied number: lines in place of bars.
//!
//! If a parameter has at least three values, all of them numbers or times, each metric of each VM is drawn over it.
//! Each combination of the other parameters is a line.
//! If several parameters qualify, the one with the most values is the axis.
//! With more lines than colours only the bars are drawn.

use maud::{Markup, html};
use tandem_experiment::parameters::{Kind, Parameters};
use tandem_experiment::vary::POLICIES;

use super::measures::{Measure, VmValues};
use tandem_report::chart::number::{NumberPoint, NumberSeries};
use tandem_report::chart::picture::Panel;
use tandem_report::chart::{COLOURS, NumberChart};
use tandem_report::page;

/// Minimum number of values for which lines are drawn.
const MIN_VALUES: usize = 3;

/// Maximum ratio between factors that count as equal: values are rounded.
const SAME: f64 = 1.01;

/// Minimum factor between values for a logarithmic axis.
const FACTOR: f64 = 1.5;

/// Size of a chart in the grid of a page.
const SIZE: (f64, f64) = (520.0, 260.0);

/// Size of a chart in a picture.
const PICTURE: (f64, f64) = (1000.0, 300.0);

/// The lines of a comparison over one varied number.
#[derive(Clone, Debug, PartialEq)]
pub struct OverNumber {
    /// The parameter's key in scenarios.
    name: String,
    /// Its values in ascending order, each with its text.
    ticks: Vec<(f64, String)>,
    logarithmic: bool,
    lines: Vec<Line>,
}

/// One combination of the other parameters.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    /// The number and the index of the combination, in ascending order of the number.
    points: Vec<(f64, usize)>,
}

impl OverNumber {
    /// Returns `None` if no parameter can be the axis.
    pub fn of(parameters: &Parameters) -> Option<OverNumber> {
        let columns = parameters.columns().iter().enumerate();
        let numbers = columns.filter(|(_, column)| column.kind != Kind::Text);
        let all = numbers.map(|(at, _)| (at, ticks(parameters, at)));
        // If several have the most values, the first one.
        let (axis, ticks) = all.rev().max_by_key(|(_, ticks)| ticks.len())?;
        let lines = lines(parameters, axis);
        let fits = ticks.len() >= MIN_VALUES && lines.len() <= COLOURS;
        fits.then(|| OverNumber {
            name: parameters.keys()[axis].clone(),
            logarithmic: are_factors(&ticks),
            ticks,
            lines,
        })
    }

    /// Returns a chart for each VM.
    pub fn section(&self, measure: &Measure) -> Markup {
        html! {
            div.grid {
                @for vm in measure.measured() {
                    @let chart = self.chart(measure, vm, SIZE).svg();
                    (page::figure(&format!("{} over {}", vm.vm, self.name), "", chart))
                }
            }
        }
    }

    /// Returns the same charts as parts of a picture.
    pub fn panels(&self, measure: &Measure) -> Vec<Panel> {
        let panel = |vm: &VmValues| Panel {
            caption: format!("{} of {} over {}", measure.name, vm.vm, self.name),
            chart: self.chart(measure, vm, PICTURE).svg(),
            size: PICTURE,
        };
        measure.measured().map(panel).collect()
    }

    fn chart(&self, measure: &Measure, vm: &VmValues, size: (f64, f64)) -> NumberChart {
        let series = |(colour, line): (usize, &Line)| NumberSeries {
            name: line.name.clone(),
            colour,
            points: line
                .points
                .iter()
                .filter_map(|&(x, combination)| self.point(vm, line, x, combination))
                .collect(),
        };
        NumberChart {
            title: format!("{} of {} over {}", measure.name, vm.vm, self.name),
            x_name: self.name.clone(),
            logarithmic: self.logarithmic,
            ticks: self.ticks.clone(),
            y_unit: measure.unit.clone(),
            series: self.lines.iter().enumerate().map(series).collect(),
            size,
        }
    }

    /// Returns `None` if the value was not measured.
    fn point(&self, vm: &VmValues, line: &Line, x: f64, at: usize) -> Option<NumberPoint> {
        let value = vm.values.get(at)?.as_ref()?;
        let written = self.ticks.iter().find(|tick| tick.0 == x);
        let written = written.map_or("", |tick| tick.1.as_str());
        let mut tooltip = format!("{}={written}: {}", self.name, value.label);
        if !value.label_half.is_empty() {
            tooltip = format!("{tooltip} ± {}", value.label_half);
        }
        if !line.name.is_empty() {
            tooltip = format!("{}, {tooltip}", line.name);
        }
        Some(NumberPoint { x, y: value.mean, half_width: value.half_width, tooltip })
    }
}

/// Returns the distinct values of a parameter in ascending order, each with its text.
fn ticks(parameters: &Parameters, axis: usize) -> Vec<(f64, String)> {
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for combination in 0..parameters.combinations() {
        let number = parameters.row(combination).get(axis);
        let written = parameters.written(combination).get(axis);
        if let (Some(number), Some(written)) = (number.and_then(|value| value.number()), written)
            && !ticks.iter().any(|tick| tick.0 == number)
        {
            ticks.push((number, written.clone()));
        }
    }
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    ticks
}

/// Returns whether each value is about the same multiple of the previous one.
fn are_factors(ticks: &[(f64, String)]) -> bool {
    let factors: Vec<f64> = ticks.windows(2).map(|two| two[1].0 / two[0].0).collect();
    let least = factors.iter().copied().fold(f64::INFINITY, f64::min);
    let most = factors.iter().copied().fold(0.0, f64::max);
    ticks.first().is_some_and(|tick| tick.0 > 0.0) && least >= FACTOR && most <= least * SAME
}

/// Returns a line for each combination of the other parameters, in their order.
fn lines(parameters: &Parameters, axis: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for combination in 0..parameters.combinations() {
        let Some(number) = parameters.row(combination).get(axis) else {
            continue;
        };
        let Some(number) = number.number() else {
            continue;
        };
        let name = line_name(parameters, combination, axis);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((number, combination)),
            None => lines.push(Line { name, points: vec![(number, combination)] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// Names a combination of the other parameters: policies by name, keys by their last part unless two keys share it.
fn line_name(parameters: &Parameters, combination: usize, axis: usize) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let keys = parameters.keys();
    let written = parameters.written(combination);
    let others = keys.iter().zip(written).enumerate();
    let part = |(_, (key, value)): (usize, (&String, &String))| {
        let alike = keys.iter().filter(|other| last(other) == last(key)).count();
        match (key == POLICIES, alike) {
            (true, _) => value.clone(),
            (_, 1) => format!("{}={value}", last(key)),
            _ => format!("{key}={value}"),
        }
    };
    let parts: Vec<String> = others.filter(|(at, _)| *at != axis).map(part).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_experiment::{policies, vary};

    fn over(policies: &[&str], vary: &[&str]) -> Option<OverNumber> {
        let owned = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| (*text).to_owned()).collect()
        };
        let first = policies::combinations(&owned(policies)).unwrap();
        OverNumber::of(&Parameters::of(&vary::combinations(first, &owned(vary)).unwrap()))
    }

    #[test]
    fn other_parameters_become_lines() {
        let vary = ["vm.0.vcpus=8,2,4", "host.halt_poll=0,200us"];
        let over = over(&["stock", "aple"], &vary).unwrap();
        assert_eq!(over.name, "vm.0.vcpus");
        assert!(over.logarithmic);
        let ticks: Vec<&str> = over.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(ticks, ["2", "4", "8"]);
        let names: Vec<&str> = over.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "stock halt_poll=0",
                "stock halt_poll=200us",
                "aple halt_poll=0",
                "aple halt_poll=200us"
            ]
        );
        // Combinations 0, 1 have 8 vCPUs, 2, 3 have 2, and 4, 5 have 4.
        assert_eq!(over.lines[1].points, [(2.0, 3), (4.0, 5), (8.0, 1)]);
    }

    #[test]
    fn few_numbers_or_many_lines_keep_bars() {
        assert_eq!(over(&[], &["vm.0.vcpus=2,4"]), None);
        assert_eq!(over(&[], &["host.scheduler=cfs,eevdf,credit"]), None);
        assert_eq!(over(&[], &[]), None);
        let many = ["vm.0.vcpus=1..9", "vm.1.vcpus=1..9"];
        assert_eq!(over(&[], &many), None);
        let steps = over(&[], &["vm.0.vcpus=2..8:2"]).unwrap();
        assert!(!steps.logarithmic);
        assert_eq!(steps.lines.len(), 1);
        assert_eq!(steps.lines[0].name, "");
    }

    #[test]
    fn keys_with_equal_ends_stay_whole() {
        let vary = ["host.cfs.latency=1ms,2ms,4ms", "vm.a.weight=1,2", "vm.b.weight=1,2"];
        let over = over(&[], &vary).unwrap();
        assert_eq!(over.lines[0].name, "vm.a.weight=1 vm.b.weight=1");
        assert_eq!(over.ticks[2], (4e6, "4ms".to_owned()));
    }
}
