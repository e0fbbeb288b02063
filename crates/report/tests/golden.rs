//! Whole reports compared with golden files.
//!
//! `TANDEM_UPDATE_GOLDEN=1 cargo test -p tandem-report --test golden` rewrites the files; review their diff.
//! HTML and SVG are stored with one element per line.
//! The experiment is fictitious, with round shares that do not look like a measurement.

use std::fs;
use std::path::PathBuf;

use tandem_report::experiment::{
    Experiment, Figures, Host, ModeResult, Sample, VmDescription, VmFigures, mean_and_max,
};
use tandem_report::service::{Alone, Completion, Waits, WindowFigures};
use tandem_report::table::Look;
use tandem_report::{experiment_page, experiment_table};

fn figures(shares: [f64; 3], idle: f64) -> Figures {
    let fair = shares.iter().sum::<f64>() / 3.0;
    let vm = |i: usize| VmFigures {
        spins: None,
        name: format!("vm{i}"),
        vcpus: [4, 2, 1][i],
        weight: 1.0,
        share: shares[i],
        fair,
        lag: (fair - shares[i]) / fair,
        work: (shares[i] * 1e5) as u64,
        work_per_second: shares[i] * 1e4,
        work_of_alone: Some(shares[i] / 2.0),
        windows: [(0.25, 0.8, 1.3), (1.0, 0.9, 1.1)]
            .map(|(seconds, least, greatest)| WindowFigures {
                seconds,
                windows: (10.0 / seconds) as usize,
                least: Some(least),
                greatest: Some(greatest),
            })
            .to_vec(),
        waits: Waits { runs: 1000, mean_ns: Some(2.5e6) },
        // One VM has bursts; in modes in which it received half a pCPU, none was completed.
        completion: (i == 2).then(|| match shares[i] {
            0.5 => Completion { count: 0, dropped: 7, mean_ns: None, p50_ns: None, p99_ns: None },
            share => Completion {
                count: 500,
                dropped: 0,
                mean_ns: Some(2e6 / share),
                p50_ns: Some(1e6 / share),
                p99_ns: Some(8e6 / share),
            },
        }),
    };
    let vms: Vec<VmFigures> = (0..3).map(vm).collect();
    let (mean_abs_lag, max_abs_lag) = mean_and_max(vms.iter().map(|vm| vm.lag));
    Figures {
        total_work_per_second: vms.iter().map(|vm| vm.work_per_second).sum(),
        vms,
        idle,
        mean_abs_lag,
        max_abs_lag,
        work_vs_stock: None,
        series: (-4..=20)
            .map(|i| Sample {
                t: f64::from(i) / 2.0,
                shares: shares.iter().map(|s| s + f64::from((i * 7) % 5) / 100.0).collect(),
            })
            .collect(),
    }
}

fn mode(mode: &str, outcome: Result<Figures, &str>) -> ModeResult {
    ModeResult { mode: mode.to_owned(), outcome: outcome.map_err(str::to_owned) }
}

fn experiment() -> Experiment {
    let mut experiment = Experiment {
        backend: "kvm".to_owned(),
        pcpus: 2,
        seconds: 10.0,
        settle_seconds: 2.0,
        mix: vec![4, 2, 1],
        weights: vec![1.0; 3],
        pinned: true,
        host: Host {
            kernel: "6.12.0".to_owned(),
            cpu: "Example CPU <1>".to_owned(),
            cgroup: "v2".to_owned(),
        },
        vms: (0..3)
            .map(|i| VmDescription {
                name: format!("vm{i}"),
                vcpus: [4, 2, 1][i],
                weight: 1.0,
                workload: "burn".to_owned(),
                pins: (0..[4, 2, 1][i]).map(|vcpu| vcpu % 2).collect(),
                entitlement: 2.0 / 3.0,
                alone: Some(Alone { work_per_second: 2e4, share: 2.0, deserved: 1.0 / 3.0 }),
            })
            .collect(),
        notes: vec!["A note & its reason.".to_owned()],
        modes: vec![
            mode("as-is", Ok(figures([1.0, 0.6, 0.4], 0.0))),
            mode("equal-weights", Ok(figures([0.75, 0.75, 0.5], 0.0))),
            mode("hard-cap", Err("this kernel has no CFS quota")),
            mode("tandem", Ok(figures([0.66, 0.67, 0.67], 0.0))),
        ],
    };
    experiment.compare_with_stock();
    experiment
}

/// Compares a text with a golden file, and reports the first line that differs.
fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = format!("{}\n", text.trim_end());
    if std::env::var_os("TANDEM_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let at = text.lines().zip(expected.lines()).position(|(got, wanted)| got != wanted);
    let line = at.unwrap_or_else(|| text.lines().count().min(expected.lines().count()));
    assert!(
        text == expected,
        "{} differs from line {}:\n  golden: {:?}\n  got:    {:?}",
        path.display(),
        line + 1,
        expected.lines().nth(line),
        text.lines().nth(line),
    );
}

/// Returns the finding of the experiment with the work of mode `tandem` set to stock times `factor`.
fn finding_with(factor: f64) -> String {
    let mut experiment = experiment();
    let stock = experiment.figures("equal-weights").unwrap().clone();
    let mode = experiment.modes.iter_mut().find(|mode| mode.mode == "tandem");
    let figures = mode.unwrap().outcome.as_mut().unwrap();
    for (vm, of_stock) in figures.vms.iter_mut().zip(&stock.vms) {
        vm.work_of_alone = of_stock.work_of_alone.map(|work| work * factor);
    }
    experiment_page::finding(&experiment)
}

#[test]
fn finding_compares_displayed_figures() {
    for (factor, verdict) in [
        (1.1, "VMs got more of their deserved work"),
        (1.0001, "VMs got as much of their deserved work"),
        (0.9999, "VMs got as much of their deserved work"),
        (0.9, "VMs got less of their deserved work"),
    ] {
        let finding = finding_with(factor);
        assert!(finding.contains(verdict), "{factor}: {finding}");
    }
}

#[test]
fn tables() {
    let experiment = experiment();
    let text = [
        experiment_table::per_vm(&experiment).text(Look::Plain),
        experiment_table::service(&experiment).text(Look::Plain),
        experiment_table::completion(&experiment).unwrap().text(Look::Plain),
        experiment_table::per_mode(&experiment).text(Look::Plain),
        experiment_table::reasons(&experiment).join("\n"),
    ];
    golden("experiment.txt", &text.join("\n\n"));
}

#[test]
fn page() {
    let html = experiment_page::html(&experiment(), "Example footer");
    golden("experiment.html", &html.replace("><", ">\n<"));
}

#[test]
fn json() {
    golden("experiment.json", &serde_json::to_string_pretty(&experiment()).unwrap());
}

#[test]
fn finding_follows_from_figures() {
    let mut experiment = experiment();
    let finding = experiment_page::finding(&experiment);
    assert!(finding.contains("more of their deserved work done with Tandem"), "{finding}");
    assert!(
        finding.contains("The worst VM with Tandem is vm0, with 99.0 %; in stock it did 112.5 %."),
        "{finding}"
    );
    for vm in &mut experiment.vms {
        vm.alone = None;
    }
    assert!(experiment_page::finding(&experiment).contains("closer to their fair shares"));
    experiment.modes.swap(1, 3);
    experiment.modes[1].mode = "equal-weights".to_owned();
    experiment.modes[3].mode = "tandem".to_owned();
    assert!(experiment_page::finding(&experiment).contains("did not bring"));
    experiment.modes.truncate(1);
    assert!(experiment_page::finding(&experiment).contains("Not both"));
}
