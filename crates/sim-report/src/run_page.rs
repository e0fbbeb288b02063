//! One run as a page: the breakdown of CPU time, APLE's windows, waits, and the tables.

use maud::html;
use tandem_experiment::metrics;
use tandem_model::Nanos;
use tandem_sim::results::{VcpuResults, VcpuTime, VmResults};
use tandem_sim::{Results, Scenario};

use super::threshold::Threshold;
use super::time::TimeOf;
use super::{MAX_VMS, run_tables, time, waits};
use tandem_report::{figure, page};

/// Maximum number of rows of the chart of VMs.
const MAX_ROWS: usize = 40;

/// Maximum number of vCPUs of a VM that are shown one by one.
const MAX_VCPUS: usize = 16;

/// Returns the whole page; `command` is the command that made it.
pub fn html(scenario: &Scenario, results: &Results, command: &str, footer: &str) -> String {
    let mut notes = Vec::new();
    let vms = results.vms.len();
    if vms > MAX_ROWS {
        notes.push(format!(
            "charts show the first {MAX_ROWS} of {vms} VMs; the tables have all of them"
        ));
    }
    if vms > MAX_VMS {
        notes.push(format!("waits, thresholds and vCPUs are shown for the first {MAX_VMS} VMs"));
    }
    let in_words = format!(
        "one run, seed {}; {} of simulated time measured after {} of warm-up",
        results.seed, results.measured, scenario.warmup
    );
    let time: Vec<TimeOf> =
        results.vms.iter().take(MAX_ROWS).map(|vm| time_of_vm(vm, results)).collect();
    let vcpus: Vec<(&str, Vec<TimeOf>)> = results
        .vms
        .iter()
        .take(MAX_VMS)
        .filter(|vm| (2..=MAX_VCPUS).contains(&vm.vcpus.len()))
        .map(|vm| (vm.name.as_str(), times_of_vcpus(vm, results)))
        .collect();
    let threshold = Threshold::of("", scenario, results);
    let body = html! {
        h1 { (results.scenario) }
        @if !scenario.about.is_empty() { p.lead { (scenario.about) } }
        p.faint { (in_words) }
        @if !notes.is_empty() {
            ul.notes { @for note in &notes { li { (note) } } }
        }
        div.tiles {
            @for (name, value, beside) in tiles(results) {
                (page::tile(&name, html! { (value) }, &beside))
            }
        }
        h2 { "Where the time went" }
        p.faint {
            "CPU time of the vCPUs of each VM by use; hollow: time runnable without a pCPU (steal)."
        }
        figure {
            figcaption { "by VM" }
            div.wide { (time::chart("Time of each VM", &time, 1000.0).svg()) }
        }
        @if !vcpus.is_empty() {
            div.grid {
                @for (vm, rows) in &vcpus {
                    @let title = format!("{vm}, by vCPU");
                    (page::figure(&title, "", time::chart(&title, rows, 520.0).svg()))
                }
            }
        }
        @if let Some(threshold) = &threshold {
            h2 { "APLE's threshold over time" }
            figure { div.wide { (threshold.chart(threshold.most(), 1000.0).svg()) } }
        }
        (waits::section(&[("", results)]))
        h2 { "Figures" }
        @for (caption, table) in run_tables::list(scenario, results) {
            h3 { (caption) }
            (table.html(caption))
        }
        h2 { "How it was made" }
        dl { dt { "Command" } dd { pre { (command) } } }
    };
    page::page(&results.scenario, body, footer)
}

fn time_of_vm(vm: &VmResults, results: &Results) -> TimeOf {
    let steal: Nanos = vm.vcpus.iter().map(|vcpu| vcpu.steal).sum();
    TimeOf::new(&vm.name, &metrics::ran(vm), steal, results.measured)
}

fn times_of_vcpus(vm: &VmResults, results: &Results) -> Vec<TimeOf> {
    let time = |(number, vcpu): (usize, &VcpuResults)| {
        let name = format!("vCPU {number}");
        TimeOf::new(&name, &vcpu.ran, vcpu.steal, results.measured)
    };
    vm.vcpus.iter().enumerate().map(time).collect()
}

fn tiles(results: &Results) -> Vec<(String, String, String)> {
    let measured = results.measured.0.max(1) as f64;
    let busy: Nanos = results.pcpus.iter().map(|pcpu| pcpu.busy).sum();
    let steal: Nanos = results.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.steal).sum();
    let spun: Nanos = results.vms.iter().map(|vm| spun(&metrics::ran(vm))).sum();
    let of_busy = |time: Nanos| figure::percent(time.0 as f64 / busy.0.max(1) as f64);
    let pcpus = |time: Nanos| figure::pcpus(time.0 as f64 / measured);
    let tile = |name: &str, value: String, beside: String| (name.to_owned(), value, beside);
    vec![
        tile("pCPUs busy", pcpus(busy), format!("of {}", results.pcpus.len())),
        tile("vCPUs waiting for a pCPU", pcpus(steal), "on average".to_owned()),
        tile("Spinning", of_busy(spun), "of the busy time".to_owned()),
        tile(
            "Energy",
            format!("{:.2} J", results.energy_mj as f64 / 1e3),
            format!("{} events", results.events),
        ),
    ]
}

fn spun(ran: &VcpuTime) -> Nanos {
    ran.spin_user + ran.spin_kernel + ran.shootdown_wait
}
