//! Text form of a lab report: lines about machine and kernel, then a row for each VM of each variant.
//!
//! If variants ran with several seeds, rows have means with 95 % intervals.
//! Columns without values are omitted, such as thresholds with a stock kernel.

use tandem_experiment::statistics::Mean;
use tandem_report::table::{Look, Table};

use crate::job::{Outcome, VmOutcome};
use crate::report::Report;

/// Renders a report.
pub fn text(report: &Report, look: Look) -> String {
    let mut text = head(report);
    let main = match report.repeat {
        1 => table(&report.runs),
        _ => means(&report.runs),
    };
    text.push_str(&main.text(look));
    let traced = || report.runs.iter().filter_map(|run| run.traced.as_ref());
    if traced().any(|traced| traced.pauses.exits > 0) {
        text.push('\n');
        text.push_str(&pauses(&report.runs).text(look));
    }
    if traced().any(|traced| !traced.wakes.is_empty()) {
        text.push('\n');
        text.push_str(&wakes(&report.runs).text(look));
    }
    for failed in &report.failed {
        let whose = failed.variant.as_deref().unwrap_or("the job");
        text.push_str(&format!("\nfailed: {whose}: {}", failed.error));
    }
    text
}

fn head(report: &Report) -> String {
    let machine = &report.machine;
    let clock = match (machine.mhz, machine.tsc_khz) {
        (Some(mhz), Some(khz)) => format!(
            "emulated at {mhz} MHz, one instruction a cycle (its kernel found {:.1} MHz)",
            khz as f64 / 1e3
        ),
        (Some(mhz), None) => format!("emulated at {mhz} MHz, one instruction a cycle"),
        (None, _) => "time is the host's, so figures are not to be compared".to_owned(),
    };
    format!(
        "{} on {}: {} pCPUs, {}\nkernel {} ({}), {}; {:.0} s of this host\n\n",
        report.experiment,
        machine.name,
        machine.pcpus,
        clock,
        report.kernel.asked,
        report.kernel.release.as_deref().unwrap_or("unknown release"),
        machine.kvm.as_deref().unwrap_or("no KVM"),
        report.host_seconds,
    )
}

type Cell = fn(&VmOutcome) -> Option<String>;

fn counter(vm: &VmOutcome, name: &str) -> Option<String> {
    vm.counters.get(name).map(u64::to_string)
}

/// Columns that only some kernels or workloads fill.
const OPTIONAL: [(&str, Cell); 11] = [
    ("halts", |vm| (vm.halts > 0).then(|| vm.halts.to_string())),
    ("IPIs", |vm| (vm.ipis > 0).then(|| vm.ipis.to_string())),
    ("exits", |vm| counter(vm, "exits")),
    ("PLE exits", |vm| counter(vm, "ple_exits")),
    ("yields tried", |vm| counter(vm, "directed_yield_attempted")),
    ("yields taken", |vm| counter(vm, "directed_yield_successful")),
    ("directed", |vm| counter(vm, "yields_directed")),
    ("helped", |vm| counter(vm, "yields_helped")),
    ("fast wakes", |vm| counter(vm, "fast_wakes")),
    ("threshold", |vm| vm.levels.get("aple_threshold").map(u64::to_string)),
    ("inefficiency", |vm| vm.levels.get("aple_inefficiency").map(u64::to_string)),
];

fn table(runs: &[Outcome]) -> Table {
    let vms = || runs.iter().flat_map(|run| &run.vms);
    let filled: Vec<&(&str, Cell)> =
        OPTIONAL.iter().filter(|(_, cell)| vms().any(|vm| cell(vm).is_some())).collect();
    let mut headings = vec!["variant", "VM", "work/s", "vs. first", "CPU ms"];
    headings.extend(filled.iter().map(|(heading, _)| *heading));
    let mut table = Table::new(&headings);
    for run in runs {
        for (place, vm) in run.vms.iter().enumerate() {
            let first = runs.first().and_then(|run| run.vms.get(place));
            let ratio = first
                .filter(|first| first.work_per_second > 0.0)
                .map(|first| 100.0 * (vm.work_per_second / first.work_per_second - 1.0));
            let mut row = vec![
                run.variant.clone(),
                vm.name.clone(),
                format!("{:.0}", vm.work_per_second),
                ratio.map_or_else(String::new, |percent| format!("{percent:+.1} %")),
                format!("{:.0}", vm.cpu_ms),
            ];
            row.extend(filled.iter().map(|(_, cell)| cell(vm).unwrap_or_default()));
            table.row(row);
        }
    }
    table
}

/// Returns the work per second of the VM `vm` (`None`: of all VMs) in each run of `variant`.
fn rates(runs: &[Outcome], variant: &str, vm: Option<&str>) -> Vec<f64> {
    let of = |run: &Outcome| {
        let those = run.vms.iter();
        let those = those.filter(|one| vm.is_none_or(|name| one.name == name));
        those.map(|one| one.work_per_second).sum()
    };
    let mine = runs.iter().filter(|run| run.variant == variant);
    mine.map(of).collect()
}

/// Returns the mean of a counter over the runs of `variant`; `None` if it is zero.
fn mean_count(runs: &[Outcome], variant: &str, vm: Option<&str>, name: &str) -> Option<f64> {
    let mine = runs.iter().filter(|run| run.variant == variant);
    let values: Vec<f64> = mine
        .map(|run| {
            let those = run.vms.iter();
            let those = those.filter(|one| vm.is_none_or(|name| one.name == name));
            those.filter_map(|one| one.counters.get(name)).sum::<u64>() as f64
        })
        .collect();
    Mean::of(&values).map(|mean| mean.mean).filter(|mean| *mean > 0.0)
}

fn means(runs: &[Outcome]) -> Table {
    let mut table = Table::new(&[
        "variant",
        "VM",
        "runs",
        "work/s",
        "± 95 %",
        "vs. first",
        "± 95 %",
        "PLE exits",
        "directed",
        "helped",
    ]);
    let first_seed = runs.first().map(|run| run.seed);
    let once = runs.iter().filter(|run| Some(run.seed) == first_seed);
    let plus_minus = |ci: Option<f64>, scale: f64| {
        ci.map_or_else(String::new, |ci| format!("{:.1}", scale * ci))
    };
    for run in once {
        let mut vms: Vec<Option<&str>> = run.vms.iter().map(|vm| Some(vm.name.as_str())).collect();
        if vms.len() > 1 {
            vms.push(None);
        }
        for vm in vms {
            let own = rates(runs, &run.variant, vm);
            let base = runs.first().map(|first| rates(runs, &first.variant, vm));
            let (Some(mean), Some(base)) = (Mean::of(&own), base) else {
                continue;
            };
            let base_mean = Mean::of(&base).map_or(f64::NAN, |mean| mean.mean);
            let difference = Mean::of_difference(&own, &base).filter(|_| base_mean > 0.0);
            let count = |name| mean_count(runs, &run.variant, vm, name);
            let whole = |mean: Option<f64>| mean.map_or_else(String::new, |n| format!("{n:.0}"));
            let directed = count("yields_directed").or(count("directed_yield_successful"));
            let helped = count("yields_helped").zip(directed);
            table.row(vec![
                run.variant.clone(),
                vm.unwrap_or("all").to_owned(),
                own.len().to_string(),
                format!("{:.0}", mean.mean),
                plus_minus(mean.ci95, 1.0),
                difference.map_or_else(String::new, |difference| {
                    format!("{:+.1} %", 100.0 * difference.mean / base_mean)
                }),
                plus_minus(difference.and_then(|one| one.ci95), 100.0 / base_mean),
                whole(count("ple_exits")),
                whole(directed),
                helped.map_or_else(String::new, |(helped, directed)| {
                    format!("{:.0} %", 100.0 * helped / directed)
                }),
            ]);
        }
    }
    table
}

/// Formats the cost of an event that occurred `times` times.
fn cost(times: u64, cycles: f64) -> String {
    match times {
        0 => "not measured".to_owned(),
        _ => format!("{cycles:.0}"),
    }
}

fn pauses(runs: &[Outcome]) -> Table {
    let mut table = Table::new(&[
        "variant",
        "PAUSE exits seen",
        "stayed, no IPI",
        "cycles, median",
        "mean",
        "stayed, IPI sent",
        "cycles, median",
        "mean",
        "switched",
        "to sibling",
        "cycles to switch",
        "events lost",
    ]);
    for run in runs {
        if let Some(traced) = &run.traced {
            let pauses = &traced.pauses;
            table.row(vec![
                run.variant.clone(),
                pauses.exits.to_string(),
                pauses.stayed.to_string(),
                cost(pauses.stayed, pauses.stayed_median as f64),
                cost(pauses.stayed, pauses.stayed_mean),
                pauses.asked.to_string(),
                cost(pauses.asked, pauses.asked_median as f64),
                cost(pauses.asked, pauses.asked_mean),
                pauses.switched.to_string(),
                pauses.switched_to_sibling.to_string(),
                cost(pauses.switched, pauses.switch_median as f64),
                traced.lost.to_string(),
            ]);
        }
    }
    table
}

fn wakes(runs: &[Outcome]) -> Table {
    let mut table = Table::new(&["variant", "VM", "wake-ups", "cycles to run, median", "99 %"]);
    for run in runs {
        for (vm, wakes) in run.traced.iter().flat_map(|traced| &traced.wakes) {
            table.row(vec![
                run.variant.clone(),
                vm.clone(),
                wakes.wakes.to_string(),
                cost(wakes.wakes, wakes.median as f64),
                cost(wakes.wakes, wakes.p99 as f64),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tandem_microvm::Workload;

    use super::*;
    use crate::trace::{Pauses, Traced, Wakes};

    fn outcome(variant: &str, rate: f64, exits: Option<u64>) -> Outcome {
        let counters = exits.map(|exits| ("ple_exits".to_owned(), exits));
        Outcome {
            variant: variant.into(),
            seed: 1,
            parameters: BTreeMap::new(),
            seconds: 1.0,
            vms: vec![VmOutcome {
                name: "a".into(),
                workload: Workload::Spinlock,
                work: rate as u64,
                work_per_second: rate,
                vcpu_work: Vec::new(),
                cpu_ms: 2000.0,
                wait_ms: 0.0,
                halts: 0,
                ipis: 0,
                violations: 0,
                counters: counters.into_iter().collect(),
                levels: BTreeMap::new(),
                timeline: Vec::new(),
            }],
            traced: None,
        }
    }

    #[test]
    fn table_compares_variants_with_the_first() {
        let runs = [outcome("stock", 1000.0, None), outcome("APLE", 1250.0, Some(7))];
        let text = table(&runs).text(Look::Plain);
        assert!(text.contains("+25.0 %") && text.contains("+0.0 %"), "{text}");
        assert!(text.contains("PLE exits") && !text.contains("threshold"), "{text}");
    }

    #[test]
    fn means_have_intervals_over_seeds() {
        let mut runs = Vec::new();
        for (seed, stock, aple) in [(1, 900.0, 1100.0), (2, 1100.0, 1300.0)] {
            for (variant, rate) in [("stock", stock), ("APLE", aple)] {
                let mut run = outcome(variant, rate, Some(seed * 10));
                run.seed = seed;
                runs.push(run);
            }
        }
        let text = means(&runs).text(Look::Plain);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains(" 1000 ") && text.contains(" 1200 "), "{text}");
        assert!(text.contains("+20.0 %") && text.contains(" 15 "), "{text}");
        // Two values that differ by 200: Student's 12.706 times a standard error of 100.
        assert!(text.contains("1270.6"), "{text}");
    }

    #[test]
    fn costs_have_their_own_tables() {
        let mut run = outcome("stock", 1.0, None);
        run.traced = Some(Traced {
            lost: 0,
            pauses: Pauses { exits: 10, stayed: 10, stayed_median: 1234, ..Pauses::default() },
            wakes: BTreeMap::from([("a".to_owned(), Wakes::default())]),
        });
        let runs = [run];
        let text = pauses(&runs).text(Look::Plain);
        assert!(text.contains("1234") && text.contains("not measured"), "{text}");
        let text = wakes(&runs).text(Look::Plain);
        assert!(text.contains("| a ") && text.contains("not measured"), "{text}");
    }
}
