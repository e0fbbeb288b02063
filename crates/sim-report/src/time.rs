//! The CPU time of each VM by use, and, hollow, its steal time.
//! Times are in pCPUs: 1.0 is one physical CPU during the whole measured time.

use tandem_experiment::metrics;
use tandem_model::Nanos;
use tandem_sim::results::VcpuTime;

use tandem_report::chart::StackChart;
use tandem_report::chart::stack::{Part, Whole};
use tandem_report::figure;

/// The parts, in the order of [`TimeOf::parts`], and their colours; the last one is not CPU time.
const PARTS: [(&str, Option<usize>); 9] = [
    ("useful", Some(2)),
    ("spins (user)", Some(1)),
    ("spins (kernel)", Some(7)),
    ("shootdowns", Some(3)),
    ("guest kernel", Some(0)),
    ("exits", Some(4)),
    ("caches", Some(6)),
    ("polls idle", Some(5)),
    ("waits for a pCPU", None),
];

/// The time of one VM, or of one VM under one combination.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeOf {
    /// Name of the row.
    pub name: String,
    /// In pCPUs: useful, spinning in user space, spinning in the kernel, waiting for TLB flushes, guest kernel,
    /// exits, refilling caches, polling; waiting for a pCPU.
    pub parts: [f64; 9],
}

impl TimeOf {
    /// Divides CPU time and steal time by the measured time.
    pub fn new(name: &str, ran: &VcpuTime, steal: Nanos, measured: Nanos) -> TimeOf {
        let measured = measured.0.max(1) as f64;
        let mut parts = [0.0; 9];
        for (part, (_, time)) in parts.iter_mut().zip(metrics::parts(ran)) {
            *part = time.0 as f64 / measured;
        }
        parts[8] = steal.0 as f64 / measured;
        TimeOf { name: name.to_owned(), parts }
    }
}

/// Returns a chart with a row for each VM or combination.
pub fn chart(title: &str, rows: &[TimeOf], width: f64) -> StackChart {
    StackChart {
        title: title.to_owned(),
        unit: "pCPUs".to_owned(),
        parts: PARTS.iter().map(|&(name, series)| Part { name: name.to_owned(), series }).collect(),
        wholes: rows
            .iter()
            .map(|row| Whole {
                name: row.name.clone(),
                values: row.parts.to_vec(),
                labels: labels(&row.parts),
            })
            .collect(),
        width,
    }
}

fn labels(parts: &[f64; 9]) -> Vec<String> {
    let received: f64 = parts[..8].iter().sum();
    let label = |(part, &value): (usize, &f64)| {
        let pcpus = figure::pcpus(value);
        if part < 8 && received > 0.0 {
            format!("{pcpus} pCPUs, {} of what it received", figure::percent(value / received))
        } else {
            format!("{pcpus} pCPUs")
        }
    };
    parts.iter().enumerate().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_received_time() {
        let row =
            TimeOf { name: "vm".to_owned(), parts: [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0] };
        let svg = chart("time", &[row], 700.0).svg().into_string();
        assert!(svg.contains("vm, useful: 1.000 pCPUs, 50.0 % of what it received"), "{svg}");
        assert!(svg.contains("vm, waits for a pCPU: 6.000 pCPUs<"), "{svg}");
        assert!(svg.contains("class=\"ghost\"") && !svg.contains("shootdowns"), "{svg}");
    }
}
