//! One run as a page: where the time went, what APLE did, who waited for whom, and the tables.

use maud::html;
use tandem_experiment::metrics;
use tandem_model::Nanos;
use tandem_sim::results::{VcpuResults, VcpuTime, VmResults};
use tandem_sim::{Results, Scenario};

use super::threshold::Threshold;
use super::time::TimeOf;
use super::{MOST_VMS, run_tables, time, waits};
use tandem_report::{figure, page};

/// Rows of the chart of VMs at most.
const MOST_ROWS: usize = 40;

/// vCPUs of a VM are shown one by one from two up to this many.
const MOST_VCPUS: usize = 16;

/// The whole page; `command` made it.
pub fn html(scenario: &Scenario, results: &Results, command: &str, footer: &str) -> String {
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
    let in_words = format!(
        "one run, seed {}; {} of simulated time measured after {} of warm-up",
        results.seed, results.measured, scenario.warmup
    );
    let time: Vec<TimeOf> =
        results.vms.iter().take(MOST_ROWS).map(|vm| time_of_vm(vm, results)).collect();
    let vcpus: Vec<(&str, Vec<TimeOf>)> = results
        .vms
        .iter()
        .take(MOST_VMS)
        .filter(|vm| (2..=MOST_VCPUS).contains(&vm.vcpus.len()))
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
            "What the vCPUs of each VM did on pCPUs; hollow: how long they were runnable without one."
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
