//! The page of one run.

use tandem_policy::Nanos;
use tandem_report::figure;
use tandem_report::simulation::TimeOf;
use tandem_report::simulation::run_page;
use tandem_sim::Results;
use tandem_sim::Scenario;
use tandem_sim::results::VmResults;

use super::MOST_VMS;
use crate::sim::metrics;
use crate::sim::tables;

/// Rows of the chart of VMs at most.
const MOST_ROWS: usize = 40;

/// vCPUs of a VM are shown one by one from two up to this many.
const MOST_VCPUS: usize = 16;

/// The whole page.
pub fn html(scenario: &Scenario, results: &Results) -> String {
    let mut notes = Vec::new();
    let vms = results.vms.len();
    if vms > MOST_ROWS {
        notes.push(format!(
            "of {vms} VMs the first {MOST_ROWS} are in the charts; the tables have all of them"
        ));
    }
    if vms > MOST_VMS {
        notes.push(format!(
            "who waited for whom, thresholds and vCPUs are shown of the first {MOST_VMS} VMs"
        ));
    }
    let warmup = scenario.warmup.as_secs_f64();
    let tables = tables::list(scenario, results);
    let page = run_page::Run {
        scenario: results.scenario.clone(),
        about: scenario.about.clone(),
        in_words: format!(
            "one run, seed {}; {} of simulated time measured after {} of warm-up",
            results.seed, results.measured, scenario.warmup
        ),
        command: super::command(),
        tiles: tiles(results),
        time: results
            .vms
            .iter()
            .take(MOST_ROWS)
            .map(|vm| time_of_vm(vm, results))
            .collect(),
        vcpus: results
            .vms
            .iter()
            .take(MOST_VMS)
            .filter(|vm| (2..=MOST_VCPUS).contains(&vm.vcpus.len()))
            .map(|vm| (vm.name.clone(), times_of_vcpus(vm, results)))
            .collect(),
        threshold: super::threshold("", results, warmup),
        waits: super::waits("", results),
        tables: tables
            .into_iter()
            .map(|(caption, table)| (caption.to_owned(), table))
            .collect(),
        notes,
    };
    run_page::html(&page, &super::footer())
}

fn time_of_vm(vm: &VmResults, results: &Results) -> TimeOf {
    let steal: Nanos = vm.vcpus.iter().map(|vcpu| vcpu.steal).sum();
    let measured = results.measured.0.max(1) as f64;
    super::time_of(&vm.name, &metrics::ran(vm), steal.0 as f64, measured)
}

fn times_of_vcpus(vm: &VmResults, results: &Results) -> Vec<TimeOf> {
    let measured = results.measured.0.max(1) as f64;
    let time = |(number, vcpu): (usize, &tandem_sim::results::VcpuResults)| {
        super::time_of(
            &format!("vCPU {number}"),
            &vcpu.ran,
            vcpu.steal.0 as f64,
            measured,
        )
    };
    vm.vcpus.iter().enumerate().map(time).collect()
}

fn tiles(results: &Results) -> Vec<(String, String, String)> {
    let measured = results.measured.0.max(1) as f64;
    let busy: Nanos = results.pcpus.iter().map(|pcpu| pcpu.busy).sum();
    let steal: Nanos = results
        .vms
        .iter()
        .flat_map(|vm| &vm.vcpus)
        .map(|vcpu| vcpu.steal)
        .sum();
    let spun: Nanos = results.vms.iter().map(|vm| spun(&metrics::ran(vm))).sum();
    let of_busy = |time: Nanos| figure::percent(time.0 as f64 / busy.0.max(1) as f64);
    let pcpus = |time: Nanos| figure::pcpus(time.0 as f64 / measured);
    let tile = |name: &str, value: String, beside: String| (name.to_owned(), value, beside);
    vec![
        tile(
            "pCPUs busy",
            pcpus(busy),
            format!("of {}", results.pcpus.len()),
        ),
        tile(
            "vCPUs waiting for a pCPU",
            pcpus(steal),
            "on average".to_owned(),
        ),
        tile("Spinning", of_busy(spun), "of the busy time".to_owned()),
        tile(
            "Energy",
            format!("{:.2} J", results.energy_mj as f64 / 1e3),
            format!("{} events", results.events),
        ),
    ]
}

fn spun(ran: &tandem_sim::results::VcpuTime) -> Nanos {
    ran.spin_user + ran.spin_kernel + ran.shootdown_wait
}
