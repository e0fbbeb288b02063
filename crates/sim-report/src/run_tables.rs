//! One run on the terminal: CPU time and work of each VM, the use of its CPU time, its waits, and the host.
//!
//! Rates are per simulated second; uses of CPU time are in per cent of the CPU time received.
//! Columns that are empty for all VMs are omitted.

use tandem_experiment::metrics;
use tandem_model::{Nanos, PolicySet};
use tandem_sim::results::{Histogram, VmResults};
use tandem_sim::scenario::Vm;
use tandem_sim::{Results, Scenario};

use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

/// Maximum number of roles that are listed; beyond it, only the JSON has them.
const MAX_ROLES: usize = 40;

/// All tables of a run as text.
pub fn text(scenario: &Scenario, results: &Results) -> String {
    let mut text = format!("{}, seed {}", results.scenario, results.seed);
    if !scenario.about.is_empty() {
        text = format!("{text}: {}", scenario.about);
    }
    if let Some(remark) = too_short(scenario) {
        text = format!("{text}\n\n{remark}");
    }
    for (_, table) in list(scenario, results) {
        text = format!("{text}\n\n{table}");
    }
    text
}

/// Returns a remark if host policies are enabled and the run ends before their first decision.
fn too_short(scenario: &Scenario) -> Option<String> {
    let controller = &scenario.policies.host.controller;
    let of = |vm: &Vm| vm.policies.unwrap_or(controller.policies);
    let acts = scenario.vms.iter().any(|vm| of(vm) != PolicySet::NONE);
    (acts && controller.period >= scenario.duration).then(|| {
        format!(
            "The host's policies made no decision: their period is {}, and the run ends after {}.",
            controller.period, scenario.duration
        )
    })
}

/// Returns all tables of a run with their captions.
pub fn list(scenario: &Scenario, results: &Results) -> Vec<(&'static str, Table)> {
    let tables = [
        ("CPU time and work of each VM", work(scenario, results)),
        ("Roles", roles(results)),
        ("Use of the CPU time received", time(results)),
        ("Waits and events", waiting(results)),
        ("The host", Some(host(results))),
    ];
    let some = |(caption, table): (&'static str, Option<Table>)| Some((caption, table?));
    tables.into_iter().filter_map(some).collect()
}

/// A column: its heading, and its cell for a VM, which may be empty.
type Column<'a> = (&'a str, Box<dyn Fn(&VmResults) -> String + 'a>);

/// Returns a table with a row for each VM and the columns that are not empty; `None` if all are empty.
fn by_vm(results: &Results, columns: Vec<Column<'_>>) -> Option<Table> {
    let columns: Vec<(&str, Vec<String>)> = columns
        .into_iter()
        .map(|(heading, cell)| (heading, results.vms.iter().map(cell).collect()))
        .filter(|(_, cells): &(&str, Vec<String>)| cells.iter().any(|cell| !cell.is_empty()))
        .collect();
    if columns.is_empty() {
        return None;
    }
    let headings: Vec<&str> =
        ["VM"].into_iter().chain(columns.iter().map(|(heading, _)| *heading)).collect();
    let mut table = Table::new(&headings);
    for (at, vm) in results.vms.iter().enumerate() {
        let cells = columns.iter().map(|(_, cells)| Cell::from(cells[at].as_str()));
        table.row([Cell::toned(&vm.name, Tone::Strong)].into_iter().chain(cells));
    }
    Some(table)
}

fn work(scenario: &Scenario, results: &Results) -> Option<Table> {
    let measured = results.measured;
    let unit = |vm: &VmResults| {
        let vm = scenario.vms.iter().find(|other| other.name == vm.name);
        vm.map_or_else(String::new, |vm| vm.workload.unit.clone())
    };
    by_vm(
        results,
        vec![
            ("did", Box::new(|vm| vm.work.to_string())),
            ("of", Box::new(unit)),
            ("per second", Box::new(move |vm| rate(vm.work, measured))),
            (
                "finished after",
                Box::new(|vm| vm.finished.map_or_else(String::new, |time| time.to_string())),
            ),
            ("CPU", Box::new(move |vm| pcpus(vm.received, measured))),
            ("steal", Box::new(move |vm| pcpus(vm.vcpus.iter().map(|v| v.steal).sum(), measured))),
            (
                "halted",
                Box::new(move |vm| pcpus(vm.vcpus.iter().map(|v| v.halted).sum(), measured)),
            ),
        ],
    )
}

fn roles(results: &Results) -> Option<Table> {
    let several = results.vms.iter().any(|vm| vm.roles.len() > 1);
    let rows: usize = results.vms.iter().map(|vm| vm.roles.len()).sum();
    if !several || rows > MAX_ROLES {
        return None;
    }
    let mut table = Table::new(&["VM", "role", "threads", "did", "per second", "computed"]);
    for vm in &results.vms {
        for role in &vm.roles {
            table.row([
                Cell::toned(&vm.name, Tone::Strong),
                role.name.as_str().into(),
                role.threads.to_string().into(),
                role.work.to_string().into(),
                rate(role.work, results.measured).into(),
                pcpus(role.computed, results.measured).into(),
            ]);
        }
    }
    Some(table)
}

fn time(results: &Results) -> Option<Table> {
    const HEADINGS: [&str; 8] = [
        "useful",
        "spins (user)",
        "spins (kernel)",
        "shootdowns",
        "guest kernel",
        "exits",
        "caches",
        "polls idle",
    ];
    let columns = HEADINGS.into_iter().enumerate().map(|(at, heading)| {
        let cell = move |vm: &VmResults| {
            let (_, part) = metrics::parts(&metrics::ran(vm))[at];
            match part {
                Nanos::ZERO => String::new(),
                part => figure::percent(part.0 as f64 / vm.received.0.max(1) as f64),
            }
        };
        (heading, Box::new(cell) as Box<dyn Fn(&VmResults) -> String>)
    });
    by_vm(results, columns.collect())
}

fn waiting(results: &Results) -> Option<Table> {
    let measured = results.measured;
    let per_second = |count: fn(&VmResults) -> u64| -> Box<dyn Fn(&VmResults) -> String> {
        Box::new(move |vm| match count(vm) {
            0 => String::new(),
            count => rate(count, measured),
        })
    };
    // `none` is the cell of a VM without samples if another VM has some.
    let latency = |times: fn(&VmResults) -> &Histogram, of: f64, none: &'static str| {
        let is_measured = results.vms.iter().any(|vm| times(vm).count > 0);
        let cell = move |vm: &VmResults| match times(vm).quantile(of) {
            Some(time) if times(vm).count > 0 => figure::took(time),
            _ if is_measured => none.to_owned(),
            _ => String::new(),
        };
        Box::new(cell) as Box<dyn Fn(&VmResults) -> String>
    };
    let not_measured = figure::NOT_MEASURED;
    by_vm(
        results,
        vec![
            ("request p50", latency(|vm| &vm.request_time, 0.5, "")),
            ("p99", latency(|vm| &vm.request_time, 0.99, "")),
            ("wake-up p50", latency(|vm| &vm.wake_latency, 0.5, not_measured)),
            ("p99", latency(|vm| &vm.wake_latency, 0.99, not_measured)),
            ("lock wait p50", latency(|vm| &vm.lock_wait, 0.5, "")),
            ("p99", latency(|vm| &vm.lock_wait, 0.99, "")),
            ("shootdown p50", latency(|vm| &vm.shootdown_latency, 0.5, "")),
            ("p99", latency(|vm| &vm.shootdown_latency, 0.99, "")),
            ("PLE/s", per_second(|vm| vm.counts.ple_exits)),
            ("yields/s", per_second(|vm| vm.counts.yields)),
            ("halts/s", per_second(|vm| vm.counts.halts)),
            ("IPIs/s", per_second(|vm| vm.counts.reschedule_ipis + vm.counts.shootdown_ipis)),
            ("holder preempted/s", per_second(|vm| vm.counts.holder_preemptions)),
        ],
    )
}

fn host(results: &Results) -> Table {
    let pcpus = |time: fn(&tandem_sim::results::PcpuResults) -> Nanos| {
        let sum: Nanos = results.pcpus.iter().map(time).sum();
        self::pcpus(sum, results.measured)
    };
    let mut table =
        Table::new(&["pCPUs", "busy", "polling", "idle", "energy", "measured", "events"]);
    table.row([
        results.pcpus.len().to_string(),
        pcpus(|pcpu| pcpu.busy),
        pcpus(|pcpu| pcpu.polling),
        pcpus(|pcpu| pcpu.idle),
        format!("{:.2} J", results.energy_mj as f64 / 1e3),
        results.measured.to_string(),
        results.events.to_string(),
    ]);
    table
}

fn rate(count: u64, measured: Nanos) -> String {
    figure::rate(count as f64 * 1e9 / measured.0.max(1) as f64)
}

fn pcpus(time: Nanos, measured: Nanos) -> String {
    figure::pcpus(time.0 as f64 / measured.0.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use tandem_sim::scenario::load;

    use super::*;

    #[test]
    fn short_run_reports_missing_decisions() {
        let remark = |duration: &str, policies: &str| {
            let text = format!(
                "duration = \"{duration}\"\nwarmup = \"1ms\"\npolicies = {policies}\n[machine]\npcpus = 1\n\
                [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"burn\"\n"
            );
            too_short(&load::from_text("s.toml", &text).unwrap())
        };
        let short = remark("90ms", "[\"fair\"]").unwrap();
        assert!(
            short.contains("period is 100.000 ms, and the run ends after 90.000 ms"),
            "{short}"
        );
        assert_eq!(remark("200ms", "[\"fair\"]"), None);
        assert_eq!(remark("90ms", "[]"), None);
    }
}
