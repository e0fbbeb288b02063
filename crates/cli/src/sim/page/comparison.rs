//! The page and the picture of a comparison.

use tandem_report::simulation::AS_IT_IS;
use tandem_report::simulation::Measure;
use tandem_report::simulation::TimeOf;
use tandem_report::simulation::Value;
use tandem_report::simulation::VmValues;
use tandem_report::simulation::comparison_page::Comparison as Page;
use tandem_report::table::Table;
use tandem_sim::Results;
use tandem_sim::Scenario;
use tandem_sim::results::VcpuTime;

use super::MOST_VMS;
use crate::sim::compare::Comparison;
use crate::sim::compare::Figure;
use crate::sim::compare::number;
use crate::sim::metrics;

/// What one run of each combination has besides its figures, in their order.
pub type Watched<'a> = Vec<(&'a Scenario, Results)>;

/// The page's data. `scenario` is the first combination's, `shown` are the metrics, `vms` those in the table (empty: all together).
pub fn data(
    comparison: &Comparison,
    scenario: &Scenario,
    watched: &Watched<'_>,
    shown: &[&str],
    vms: &[&str],
    table: Table,
) -> Page {
    let names = names(comparison);
    let all = scenario.vms.len();
    let mut notes = Vec::new();
    if all > MOST_VMS {
        notes.push(format!(
            "{all} VMs are more than the {MOST_VMS} that are shown one by one: figures are of all of \
             them together, and thresholds and waits of the first {MOST_VMS}"
        ));
    }
    Page {
        scenario: comparison.scenario.clone(),
        about: scenario.about.clone(),
        runs_in_words: runs_in_words(&comparison.seeds),
        runs: comparison.seeds.len(),
        command: super::command(),
        settings: comparison.combinations.iter().map(settings).collect(),
        measures: shown
            .iter()
            .filter_map(|metric| measure(comparison, metric, vms))
            .collect(),
        time: time(comparison, &names, vms),
        thresholds: watched
            .iter()
            .zip(&names)
            .filter_map(|((scenario, results), name)| {
                super::threshold(name, results, scenario.warmup.as_secs_f64())
            })
            .collect(),
        waits: watched
            .iter()
            .zip(&names)
            .flat_map(|((_, results), name)| super::waits(name, results))
            .collect(),
        combinations: names,
        table,
        notes,
    }
}

/// What combinations are called in charts: keys by their last word, as long as that tells them apart.
fn names(comparison: &Comparison) -> Vec<String> {
    let combinations = comparison.combinations.iter();
    let whole: Vec<&str> = combinations
        .map(|combination| combination.name.as_str())
        .collect();
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

fn settings(combination: &crate::sim::compare::CombinationFigures) -> Vec<String> {
    let settings = combination.settings.iter();
    settings
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

/// `10 runs, seeds 1 … 10`
pub fn runs_in_words(seeds: &[u64]) -> String {
    match seeds {
        [] => "no runs".to_owned(),
        [seed] => format!("one run each, seed {seed}"),
        [first, .., last] => format!("{} runs each, seeds {first} … {last}", seeds.len()),
    }
}

fn measure(comparison: &Comparison, metric: &str, vms: &[&str]) -> Option<Measure> {
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
        VmValues {
            vm: vm_name(vm),
            values: (0..comparison.combinations.len()).map(of).collect(),
        }
    };
    let vms: Vec<VmValues> = vms
        .iter()
        .map(values)
        .filter(|vm| vm.values.iter().any(Option::is_some))
        .collect();
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
        // Runs that do not pair up are not compared.
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

/// Which way a metric should go, where that is plain.
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
    let is_latency = ["wake_", "ipi_", "shootdown_", "lock_wait_"]
        .iter()
        .any(|kind| metric.starts_with(kind));
    match metric {
        metric if MORE.contains(&metric) => "more is better",
        metric if LESS.contains(&metric) || is_latency => "less is better",
        _ => "",
    }
}

/// Where the time of each VM went under each combination; if VMs are shown together, of their sum.
fn time(comparison: &Comparison, names: &[String], vms: &[&str]) -> Vec<(String, Vec<TimeOf>)> {
    let of = |vm: Option<&str>| {
        let row = |(combination, name): (usize, &String)| {
            let figures = &comparison.combinations[combination].figures;
            let sum = |metric: &str| -> f64 {
                let own = figures
                    .iter()
                    .filter(|f| f.metric == metric && vm.is_none_or(|vm| f.vm == vm));
                own.map(|figure| figure.mean.mean).sum()
            };
            let mut parts = [0.0; 9];
            let received = metrics::parts(&VcpuTime::default()).map(|(name, _)| name);
            for (part, metric) in parts.iter_mut().zip(received.into_iter().chain(["steal"])) {
                *part = sum(metric);
            }
            TimeOf {
                name: name.clone(),
                parts,
            }
        };
        names.iter().enumerate().map(row).collect::<Vec<TimeOf>>()
    };
    match vms {
        [""] => vec![(vm_name(""), of(None))],
        vms => vms
            .iter()
            .filter(|vm| !vm.is_empty())
            .map(|vm| (vm_name(vm), of(Some(vm))))
            .collect(),
    }
}

/// What is said of a picture that cannot be drawn.
pub fn no_picture(combinations: usize) -> String {
    format!(
        "--picture: there is nothing to draw: it shows metrics relative to the first of 2 … {} \
         combinations, and there are {combinations}; --html shows any number",
        tandem_report::chart::COLOURS
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::compare::CombinationFigures;

    fn called(names: &[&str]) -> Vec<String> {
        let combination = |name: &&str| CombinationFigures {
            name: (*name).to_owned(),
            settings: std::collections::BTreeMap::new(),
            figures: Vec::new(),
        };
        super::names(&Comparison {
            scenario: "s".to_owned(),
            seeds: vec![1],
            combinations: names.iter().map(combination).collect(),
        })
    }

    #[test]
    fn names_are_short_where_that_tells_combinations_apart() {
        let names = ["aple host.scheduler=cfs", "aple host.scheduler=eevdf"];
        assert_eq!(
            called(&names),
            ["aple scheduler=cfs", "aple scheduler=eevdf"]
        );
        let alike = ["vm.a.idle=poll", "vm.b.idle=poll"];
        assert_eq!(called(&alike), alike);
        assert_eq!(called(&[""]), [AS_IT_IS]);
    }

    #[test]
    fn metrics_have_a_direction_only_where_it_is_plain() {
        assert_eq!(better("work_rate"), "more is better");
        assert_eq!(better("wake_p99"), "less is better");
        assert_eq!(better("received"), "");
    }
}
