//! A comparison as a table: for each VM and metric a row for each combination, with the paired difference
//! to the first one.
//!
//! A difference whose interval has zero in it is faint. With many VMs only all of them together are
//! shown.

use tandem_experiment::compare::Comparison;
use tandem_experiment::compare::Figure;
use tandem_experiment::statistics::Mean;
use tandem_policy::Nanos;

use super::MOST_VMS;
use crate::figure;
use crate::table::Cell;
use crate::table::Table;
use crate::table::Tone;

/// What a combination is called where it has no name: the scenario as it is.
pub const AS_IT_IS: &str = "as it is";

/// The table with its head.
pub fn text(comparison: &Comparison, shown: &[&str]) -> String {
    let runs = runs_in_words(&comparison.seeds);
    let table = table(comparison, shown);
    format!("{}, {runs}\n\n{table}", comparison.scenario)
}

/// The VMs to be shown: all and each, or if they are too many only all.
pub fn vms(comparison: &Comparison) -> Vec<&str> {
    let mut vms: Vec<&str> = Vec::new();
    for figure in comparison.combinations.iter().flat_map(|c| &c.figures) {
        if !vms.contains(&figure.vm.as_str()) {
            vms.push(&figure.vm);
        }
    }
    if vms.len() > MOST_VMS + 1 {
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
    let mut table = Table::new(&[
        "VM",
        "metric",
        "settings",
        "mean",
        "± 95 %",
        "against first",
        "± 95 %",
    ]);
    for vm in vms(comparison) {
        for metric in shown {
            let mut heading = true;
            for of in &comparison.combinations {
                let Some(figure) = of.figure(vm, metric) else {
                    continue;
                };
                let base = comparison.figure(0, vm, metric);
                let mut cells = match heading {
                    true => vec![
                        Cell::toned(if vm.is_empty() { "all" } else { vm }, Tone::Strong),
                        format!("{metric}, {}", figure.unit).into(),
                    ],
                    false => vec![Cell::default(), Cell::default()],
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

/// The difference to the first combination, relative to it; faint where it may be none.
fn difference(figure: &Figure, base: Option<&Figure>) -> [Cell; 2] {
    let (Some(difference), Some(base)) = (figure.against_first, base) else {
        return [Cell::default(), Cell::default()];
    };
    if base.mean.mean == 0.0 {
        return [Cell::default(), Cell::default()];
    }
    let relative = |value: f64| value / base.mean.mean.abs();
    let tone = match difference.differs_from_zero() {
        true => Tone::Plain,
        false => Tone::Faint,
    };
    let width = difference.ci95.map(|ci95| figure::percent(relative(ci95)));
    [
        Cell::toned(figure::signed_percent(relative(difference.mean)), tone),
        Cell::toned(width.unwrap_or_default(), tone),
    ]
}

/// A value in its unit as people read it.
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
