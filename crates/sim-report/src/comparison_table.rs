//! A comparison as a table: for each VM and metric a row for each combination, with the paired difference
//! to the first one.
//!
//! A difference whose interval contains zero is faint.
//! With many VMs only the sum over all of them is shown.

use tandem_experiment::compare::{Comparison, Figure};
use tandem_experiment::statistics::Mean;
use tandem_model::Nanos;

use super::MAX_VMS;
use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

/// Name of the combination that changes no setting of the scenario.
pub const AS_IT_IS: &str = "as it is";

/// The table with its head.
pub fn text(comparison: &Comparison, shown: &[&str]) -> String {
    let runs = runs_in_words(&comparison.seeds);
    let table = table(comparison, shown);
    format!("{}, {runs}\n\n{table}", comparison.scenario)
}

/// Returns the VMs to show: all together and each, or only all together if there are too many.
pub fn vms(comparison: &Comparison) -> Vec<&str> {
    let mut vms: Vec<&str> = Vec::new();
    for figure in comparison.combinations.iter().flat_map(|c| &c.figures) {
        if !vms.contains(&figure.vm.as_str()) {
            vms.push(&figure.vm);
        }
    }
    if vms.len() > MAX_VMS + 1 {
        vms.truncate(1);
    }
    vms
}

/// `10 runs, seeds 1 … 10`
pub fn runs_in_words(seeds: &[u64]) -> String {
    match seeds {
        [] => "no runs".to_owned(),
        [seed] => format!("one run each, seed {seed}"),
        [first, .., last] => format!("{} runs each, seeds {first} … {last}", seeds.len()),
    }
}

/// Each metric of each VM under every combination.
pub fn table(comparison: &Comparison, shown: &[&str]) -> Table {
    let mut table =
        Table::new(&["VM", "metric", "settings", "mean", "± 95 %", "against first", "± 95 %"]);
    for vm in vms(comparison) {
        for metric in shown {
            let mut heading = true;
            for of in &comparison.combinations {
                let Some(figure) = of.figure(vm, metric) else {
                    continue;
                };
                let base = comparison.figure(0, vm, metric);
                let mut cells = if heading {
                    vec![
                        Cell::toned(if vm.is_empty() { "all" } else { vm }, Tone::Strong),
                        format!("{metric}, {}", figure.unit).into(),
                    ]
                } else {
                    vec![Cell::default(), Cell::default()]
                };
                heading = false;
                cells.push(match of.name.as_str() {
                    "" => AS_IT_IS.into(),
                    name => name.into(),
                });
                cells.push(number(figure.mean.mean, figure.unit).into());
                cells.push(half_width(&figure.mean, figure.unit).into());
                cells.extend(difference(figure, base));
                table.row(cells);
            }
        }
    }
    table
}

/// Maximum ratio of a difference to the first combination's mean at which it is shown relative to that mean.
const MAX_RATIO: f64 = 10.0;

/// Returns the difference to the first combination; faint if its interval contains zero.
/// It is relative to the first combination's mean.
/// If that mean is zero or less than a tenth of the difference, it is in the metric's unit: a percentage would be meaningless.
fn difference(figure: &Figure, base: Option<&Figure>) -> [Cell; 2] {
    let (Some(difference), Some(base)) = (figure.against_first, base) else {
        return [Cell::default(), Cell::default()];
    };
    let tone = if difference.differs_from_zero() { Tone::Plain } else { Tone::Faint };
    let size = base.mean.mean.abs();
    let is_near_zero = size == 0.0 || difference.mean.abs() > MAX_RATIO * size;
    let (mean, width) = if is_near_zero {
        let sign = if difference.mean < 0.0 { '-' } else { '+' };
        let mean = number(difference.mean.abs(), figure.unit);
        (format!("{sign}{mean}"), half_width(&difference, figure.unit))
    } else {
        let width = difference.ci95.map(|ci95| figure::percent(ci95 / size));
        let mean = figure::signed_percent(difference.mean / size);
        (mean, width.unwrap_or_default())
    };
    [Cell::toned(mean, tone), Cell::toned(width, tone)]
}

/// Formats a value in its unit.
pub fn number(value: f64, unit: &str) -> String {
    match unit {
        "ns" => figure::took(nanos(value)),
        "pCPUs" => figure::pcpus(value),
        _ => figure::rate(value),
    }
}

fn nanos(value: f64) -> Nanos {
    Nanos(value.max(0.0).round() as u64)
}

fn half_width(mean: &Mean, unit: &str) -> String {
    let width = |ci95| match unit {
        "ns" => nanos(ci95).to_string(),
        _ => number(ci95, unit),
    };
    mean.ci95.map_or_else(String::new, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_experiment::compare::CombinationFigures;

    /// Returns the second combination's row for two runs of each.
    fn against_first(unit: &'static str, first: [f64; 2], second: [f64; 2]) -> String {
        let combination = |name: &str, values: [f64; 2]| CombinationFigures {
            name: name.to_owned(),
            settings: std::collections::BTreeMap::new(),
            figures: vec![Figure {
                vm: "a".to_owned(),
                metric: "wake_p99",
                unit,
                runs: values.len(),
                mean: Mean::of(&values).unwrap(),
                against_first: (name != "first")
                    .then(|| Mean::of_difference(&values, &first).unwrap()),
                values: values.to_vec(),
            }],
        };
        let comparison = Comparison {
            schema: Comparison::SCHEMA,
            scenario: "s".to_owned(),
            seeds: vec![1, 2],
            combinations: vec![combination("first", first), combination("second", second)],
        };
        let text = table(&comparison, &["wake_p99"]).to_string();
        let row = text.lines().find(|line| line.contains("second")).unwrap();
        row.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn differences_are_relative_to_the_first() {
        let shown = against_first("1/s", [100.0, 102.0], [110.0, 112.0]);
        assert!(shown.contains("+9.9 %"), "{shown}");
        let tenfold = against_first("ns", [1000.0, 1000.0], [11_000.0, 11_000.0]);
        assert!(tenfold.contains("+1000.0 %"), "{tenfold}");
    }

    #[test]
    fn differences_to_near_zero_have_a_unit() {
        let shown = against_first("ns", [2_000.0, 2_000.0], [4_002_000.0, 4_002_000.0]);
        assert!(shown.contains("+4.0") && shown.contains("ms"), "{shown}");
        assert!(!shown.contains('%'), "{shown}");
        let shown = against_first("1/s", [0.0, 0.0], [7.0, 9.0]);
        assert!(shown.contains("+8") && !shown.contains('%'), "{shown}");
        let shown = against_first("1/s", [0.0, 0.0], [-7.0, -9.0]);
        assert!(shown.contains("-8"), "{shown}");
    }
}
