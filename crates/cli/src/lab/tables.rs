//! A lab report as text: a line about the machine, then a row for each VM of each variant.
//!
//! Columns that no run of the report fills are left out, so that a stock kernel's table has no empty
//! thresholds.

use std::io::IsTerminal;

use tandem_report::table::Look;
use tandem_report::table::Table;

use super::job::Outcome;
use super::job::VmOutcome;
use super::run::Report;

/// The text of a report.
pub fn text(report: &Report) -> String {
    let mut text = head(report);
    let look = Look::of(std::io::stdout().is_terminal());
    text.push_str(&table(&report.runs).text(look));
    if report.runs.iter().any(|run| run.traced.is_some()) {
        text.push('\n');
        text.push_str(&pauses(&report.runs).text(look));
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
        report.kernel.release.as_deref().unwrap_or("it did not say"),
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
    ("yields taken", |vm| {
        counter(vm, "directed_yield_successful")
    }),
    ("directed", |vm| counter(vm, "yields_directed")),
    ("helped", |vm| counter(vm, "yields_helped")),
    ("fast wakes", |vm| counter(vm, "fast_wakes")),
    ("threshold", |vm| {
        vm.levels.get("aple_threshold").map(u64::to_string)
    }),
    ("inefficiency", |vm| {
        vm.levels.get("aple_inefficiency").map(u64::to_string)
    }),
];

fn table(runs: &[Outcome]) -> Table {
    let vms = || runs.iter().flat_map(|run| &run.vms);
    let filled: Vec<&(&str, Cell)> = OPTIONAL
        .iter()
        .filter(|(_, cell)| vms().any(|vm| cell(vm).is_some()))
        .collect();
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

fn pauses(runs: &[Outcome]) -> Table {
    let mut table = Table::new(&[
        "variant",
        "PAUSE exits seen",
        "stayed",
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
                pauses.stayed_median.to_string(),
                format!("{:.0}", pauses.stayed_mean),
                pauses.switched.to_string(),
                pauses.switched_to_sibling.to_string(),
                pauses.switch_median.to_string(),
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
                wakes.median.to_string(),
                wakes.p99.to_string(),
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
    use crate::lab::trace::Pauses;
    use crate::lab::trace::Traced;
    use crate::lab::trace::Wakes;

    fn outcome(variant: &str, rate: f64, exits: Option<u64>) -> Outcome {
        let counters = exits.map(|exits| ("ple_exits".to_owned(), exits));
        Outcome {
            variant: variant.into(),
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
    fn variants_are_compared_with_the_first_and_empty_columns_left_out() {
        let runs = [
            outcome("stock", 1000.0, None),
            outcome("APLE", 1250.0, Some(7)),
        ];
        let text = table(&runs).text(Look::Plain);
        assert!(
            text.contains("+25.0 %") && text.contains("+0.0 %"),
            "{text}"
        );
        assert!(
            text.contains("PLE exits") && !text.contains("threshold"),
            "{text}"
        );
    }

    #[test]
    fn costs_have_a_table_of_their_own() {
        let mut run = outcome("stock", 1.0, None);
        run.traced = Some(Traced {
            lost: 0,
            pauses: Pauses {
                exits: 10,
                stayed_median: 1234,
                ..Pauses::default()
            },
            wakes: BTreeMap::from([("a".to_owned(), Wakes::default())]),
        });
        let runs = [run];
        assert!(pauses(&runs).text(Look::Plain).contains("1234"));
        assert!(wakes(&runs).text(Look::Plain).contains("| a "));
    }
}
