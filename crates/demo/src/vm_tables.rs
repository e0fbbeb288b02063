//! The report of a microVM as text: its configuration, and a table of its vCPUs.

use tandem_microvm::{Completion, Report, VcpuReport, Workload};
use tandem_report::figure;
use tandem_report::table::{Look, Table};

/// Returns the report as text.
pub fn text(report: &Report, look: Look) -> String {
    let pairs = |(key, value): (&String, &String)| format!("{key}={value}");
    let sizes: Vec<String> = report.parameters.iter().map(pairs).collect();
    let pins: Vec<String> = report.pins.iter().map(u32::to_string).collect();
    format!(
        "{}: {} on {} vCPUs, backend {}, ring {}, {:.2} s\n\
         sizes {}; seed {}; {}; calibration {}\n\
         work counts {}: {:.1}/s\n\n{}",
        report.name,
        report.workload,
        report.vcpus.len(),
        report.backend,
        report.ring,
        report.seconds,
        sizes.join(" "),
        report.seed,
        if pins.is_empty() {
            "not pinned".to_owned()
        } else {
            format!("pinned to pCPU {} in turn", pins.join(","))
        },
        report.calibration,
        report.workload.item(),
        report.work_per_second,
        table(report).text(look),
    )
}

/// A column: its heading and its value for a vCPU.
type Column = (&'static str, fn(&VcpuReport) -> u64);

fn table(report: &Report) -> Table {
    let mut headings = vec!["vCPU", "thread", "work/s", "CPU ms", "CPU %", "wait ms", "wait %"];
    headings.extend(["halts", "IPIs"]);
    // Columns of some workloads only.
    let extra: Option<Column> = match report.workload {
        Workload::Shootdown => Some(("acks", |vcpu| vcpu.acks)),
        Workload::Bursty | Workload::Server => Some(("dropped", |vcpu| vcpu.dropped)),
        _ => None,
    };
    headings.extend(extra.map(|(heading, _)| heading));
    if report.workload.is_timed() {
        headings.extend(["done", "completion p50", "completion p99"]);
    }
    let mut table = Table::new(&headings);
    let share = |ns: u64| format!("{:.1}", ns as f64 / 1e7 / report.seconds);
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    let known = |ns: Option<u64>, show: &dyn Fn(u64) -> String| {
        ns.map_or_else(|| "not measured".to_owned(), show)
    };
    for vcpu in &report.vcpus {
        let mut row = vec![
            vcpu.index.to_string(),
            vcpu.tid.to_string(),
            format!("{:.1}", vcpu.work_per_second),
            ms(vcpu.cpu_ns),
            share(vcpu.cpu_ns),
            known(vcpu.wait_ns, &ms),
            known(vcpu.wait_ns, &share),
            vcpu.halts.to_string(),
            vcpu.ipis.to_string(),
        ];
        row.extend(extra.map(|(_, value)| value(vcpu).to_string()));
        row.extend(vcpu.completion.iter().flat_map(completion));
        table.row(row);
    }
    let sum = |value: fn(&VcpuReport) -> u64| report.vcpus.iter().map(value).sum::<u64>();
    let cpu = sum(|vcpu| vcpu.cpu_ns);
    let wait = report.vcpus.iter().map(|vcpu| vcpu.wait_ns).sum::<Option<u64>>();
    let mut total = vec![
        "all".to_owned(),
        String::new(),
        format!("{:.1}", report.work_per_second),
        ms(cpu),
        share(cpu),
        known(wait, &ms),
        known(wait, &share),
        sum(|vcpu| vcpu.halts).to_string(),
        sum(|vcpu| vcpu.ipis).to_string(),
    ];
    total.extend(extra.map(|(_, value)| sum(value).to_string()));
    total.extend(report.completion.iter().flat_map(completion));
    table.row(total);
    table
}

/// Returns the number of completed bursts and their times.
fn completion(times: &Completion) -> [String; 3] {
    let time = |ns: Option<u64>| {
        ns.map_or_else(|| figure::NOT_MEASURED.to_owned(), |ns| figure::time(ns as f64))
    };
    [times.count.to_string(), time(times.p50_ns), time(times.p99_ns)]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tandem_microvm::{Backend, Microvm, MicrovmConfig};

    use super::*;

    #[test]
    fn text_has_the_configuration() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Bursty);
        config.backend = Backend::Threads;
        config.seed = 1;
        let vm = Microvm::start(config).unwrap();
        let first = vm.snapshot();
        std::thread::sleep(Duration::from_millis(1));
        let report = Report::between(&vm, &first, &vm.snapshot());
        let text = text(&report, Look::Plain);
        for word in ["vm0: bursty on 1 vCPUs, backend threads, ring 3", "period=20000000", "seed 1"]
        {
            assert!(text.contains(word), "{text}");
        }
        assert!(text.contains("dropped") && text.contains("not pinned"), "{text}");
    }

    #[test]
    fn completed_bursts_have_times() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Server);
        config.backend = Backend::Threads;
        config.parameters.set("busy", "0").unwrap();
        let vm = Microvm::start(config).unwrap();
        let first = vm.snapshot();
        let none = text(&Report::between(&vm, &first, &first), Look::Plain);
        assert!(none.contains("completion p99"), "{none}");
        let begin = Instant::now();
        let report = loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "no request done");
            std::thread::sleep(Duration::from_millis(5));
            let report = Report::between(&vm, &first, &vm.snapshot());
            if report.completion.unwrap().count > 0 {
                break report;
            }
        };
        let text = text(&report, Look::Plain);
        // p50 and p99, of the vCPU and of all.
        let absent = |text: &str| text.matches("not measured").count();
        assert_eq!(absent(&none), absent(&text) + 4, "{none}\n{text}");
    }
}
