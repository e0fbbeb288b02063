//! The data that charts of a comparison draw: the names of its combinations, its metrics relative to the
//! first combination, and the breakdown of CPU time.

use tandem_experiment::compare::{Comparison, Figure};
use tandem_experiment::metrics;
use tandem_sim::results::VcpuTime;

use super::comparison_table::{AS_IT_IS, number};
use super::measures::{Measure, Value, VmValues};
use super::time::TimeOf;

/// Returns the names of combinations in charts.
/// Keys are shortened to their last part if the names remain distinct.
pub fn names(comparison: &Comparison) -> Vec<String> {
    let combinations = comparison.combinations.iter();
    let whole: Vec<&str> = combinations.map(|combination| combination.name.as_str()).collect();
    let mut short: Vec<String> = whole.iter().map(|name| short(name)).collect();
    let mut sorted = short.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < short.len() {
        short = whole.iter().map(|&name| name.to_owned()).collect();
    }
    for name in &mut short {
        if name.is_empty() {
            AS_IT_IS.clone_into(name);
        }
    }
    short
}

/// `host.scheduler=cfs vm.*.idle=poll` → `scheduler=cfs idle=poll`
fn short(name: &str) -> String {
    let last = |part: &str| match part.split_once('=') {
        Some((key, value)) => format!("{}={value}", key.rsplit('.').next().unwrap_or(key)),
        None => part.to_owned(),
    };
    let parts: Vec<String> = name.split(' ').map(last).collect();
    parts.join(" ")
}

/// Returns a metric of the given VMs (empty: of all together), or `None` if there is no such metric.
pub fn measure(comparison: &Comparison, metric: &str, vms: &[&str]) -> Option<Measure> {
    let unit = comparison
        .combinations
        .iter()
        .flat_map(|combination| &combination.figures)
        .find(|figure| figure.metric == metric)?
        .unit;
    let values = |vm: &&str| {
        let of = |combination: usize| {
            let figure = comparison.figure(combination, vm, metric)?;
            Some(value(figure, comparison.figure(0, vm, metric), combination))
        };
        VmValues { vm: vm_name(vm), values: (0..comparison.combinations.len()).map(of).collect() }
    };
    let vms: Vec<VmValues> =
        vms.iter().map(values).filter(|vm| vm.values.iter().any(Option::is_some)).collect();
    Some(Measure {
        name: metric.to_owned(),
        unit: unit_in_words(unit).to_owned(),
        better: better(metric),
        vms,
    })
}

fn vm_name(vm: &str) -> String {
    match vm {
        "" => "all VMs".to_owned(),
        vm => vm.to_owned(),
    }
}

fn value(figure: &Figure, base: Option<&Figure>, combination: usize) -> Value {
    let label = |value: f64| number(value, figure.unit);
    let relative = base.filter(|base| base.mean.mean != 0.0).and_then(|base| {
        let size = base.mean.mean.abs();
        if combination == 0 {
            let half = figure.mean.ci95.map(|ci95| ci95 / size);
            return Some((1.0, half));
        }
        // Only paired runs are compared.
        let difference = figure.against_first?;
        let half = difference.ci95.map(|ci95| ci95 / size);
        Some((1.0 + difference.mean / base.mean.mean, half))
    });
    Value {
        mean: figure.mean.mean,
        half_width: figure.mean.ci95,
        label: label(figure.mean.mean),
        label_half: figure.mean.ci95.map_or_else(String::new, label),
        relative,
    }
}

fn unit_in_words(unit: &str) -> &str {
    match unit {
        "1" => "count",
        "1/s" => "per second of simulated time",
        unit => unit,
    }
}

/// Returns the direction in which a metric improves, if that is clear.
fn better(metric: &str) -> &'static str {
    const MORE: [&str; 4] = ["work", "work_rate", "work_per_cpu_second", "useful"];
    const LESS: [&str; 9] = [
        "finished",
        "steal",
        "spin_user",
        "spin_kernel",
        "shootdown_wait",
        "exits",
        "energy",
        "ple_inefficiency",
        "useless_searches",
    ];
    let is_latency = ["request_", "wake_", "ipi_", "shootdown_", "lock_wait_"]
        .iter()
        .any(|kind| metric.starts_with(kind));
    match metric {
        metric if MORE.contains(&metric) => "more is better",
        metric if LESS.contains(&metric) || is_latency => "less is better",
        _ => "",
    }
}

/// Returns the CPU time of each VM under each combination; if VMs are shown together, that of their sum.
pub fn time(comparison: &Comparison, names: &[String], vms: &[&str]) -> Vec<(String, Vec<TimeOf>)> {
    let of = |vm: Option<&str>| {
        let row = |(combination, name): (usize, &String)| {
            let figures = &comparison.combinations[combination].figures;
            let sum = |metric: &str| -> f64 {
                let own =
                    figures.iter().filter(|f| f.metric == metric && vm.is_none_or(|vm| f.vm == vm));
                own.map(|figure| figure.mean.mean).sum()
            };
            let mut parts = [0.0; 9];
            let received = metrics::parts(&VcpuTime::default()).map(|(name, _)| name);
            for (part, metric) in parts.iter_mut().zip(received.into_iter().chain(["steal"])) {
                *part = sum(metric);
            }
            TimeOf { name: name.clone(), parts }
        };
        names.iter().enumerate().map(row).collect::<Vec<TimeOf>>()
    };
    match vms {
        [""] => vec![(vm_name(""), of(None))],
        vms => {
            vms.iter().filter(|vm| !vm.is_empty()).map(|vm| (vm_name(vm), of(Some(vm)))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_experiment::compare::CombinationFigures;

    fn called(names: &[&str]) -> Vec<String> {
        let combination = |name: &&str| CombinationFigures {
            name: (*name).to_owned(),
            settings: std::collections::BTreeMap::new(),
            figures: Vec::new(),
        };
        super::names(&Comparison {
            schema: Comparison::SCHEMA,
            scenario: "s".to_owned(),
            seeds: vec![1],
            combinations: names.iter().map(combination).collect(),
        })
    }

    #[test]
    fn names_are_short_if_distinct() {
        let names = ["aple host.scheduler=cfs", "aple host.scheduler=eevdf"];
        assert_eq!(called(&names), ["aple scheduler=cfs", "aple scheduler=eevdf"]);
        let alike = ["vm.a.idle=poll", "vm.b.idle=poll"];
        assert_eq!(called(&alike), alike);
        assert_eq!(called(&[""]), [AS_IT_IS]);
    }

    #[test]
    fn only_clear_metrics_have_a_direction() {
        assert_eq!(better("work_rate"), "more is better");
        assert_eq!(better("wake_p99"), "less is better");
        assert_eq!(better("received"), "");
    }
}
