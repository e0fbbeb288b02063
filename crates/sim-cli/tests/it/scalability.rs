//! `tandem-sim scalability` through the real binary: both speedups, types and potential of a scenario's VMs.

use std::path::Path;
use std::process::{Command, Output};

fn tandem(scenario: &str, more: &[&str]) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/scenarios/papers");
    Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
        .args(["scalability"])
        .arg(folder.join(scenario))
        .args(["--duration", "600ms"])
        .args(more)
        .output()
        .unwrap()
}

fn json(scenario: &str, more: &[&str]) -> serde_json::Value {
    let output = tandem(scenario, &[more, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn computing_programs_scale_everywhere() {
    let analysis = json("scalability-vm.toml", &["--set", "vm.counter.count=1"]);
    // 32 vCPUs on 16 pCPUs: each runs for half of the period without interruption.
    assert_eq!(analysis["timeslice"], 12_000_000);
    let counter = &analysis["vms"][1];
    assert_eq!((&counter["name"], &counter["type"]), (&"counter".into(), &1.into()));
    for speedup in [
        &counter["hardware"]["speedup"],
        &counter["hardware"]["measured"],
        &counter["vm"]["speedup"],
    ] {
        assert!((speedup.as_f64().unwrap() - 16.0).abs() < 0.3, "{counter}");
    }
    // Without the scenario's costs it would also be 16: nested paging and remote memory cost 9 %.
    let measured = counter["vm"]["measured"].as_f64().unwrap();
    assert!((measured - 16.0 / 1.09).abs() < 0.3, "{counter}");
    assert_eq!(counter["vm"]["share"].as_f64().unwrap().round(), 8.0);
    assert_eq!(counter["vm"]["potential_efficiency"], 1.0);
}

#[test]
fn serial_work_scales_better_in_a_vm() {
    let analysis = json(
        "scalability-vm.toml",
        &["--set", "vm.program.workload=forkjoin-fixed", "--timeslice", "6ms"],
    );
    let program = &analysis["vms"][0];
    // 18 units of work in 3 units of time; 6 of 16 CPUs are busy.
    let hardware = program["hardware"]["speedup"].as_f64().unwrap();
    assert!((hardware - 6.0).abs() < 0.2, "{program}");
    // Its share, a quarter of the host, is less than it can use.
    assert_eq!(program["vm"]["potential_efficiency"], 1.0);
    assert!(program["vm"]["speedup"].as_f64().unwrap() > 6.5, "{program}");
    // It is pinned to 16 vCPUs and cannot run on one.
    assert!(program["hardware"].get("measured").is_none(), "{program}");
}

#[test]
fn without_a_hypervisor_there_is_only_hardware() {
    let analysis = json("scalability-native.toml", &["--set", "vm.program.workload=freqsleep"]);
    let program = &analysis["vms"][0];
    assert!(program.get("vm").is_none(), "{program}");
    assert_eq!(program["type"], 2);
    let output = tandem("scalability-native.toml", &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for needle in ["| on hardware |", "blocks/s", "parsec-streamcluster"] {
        assert!(text.contains(needle), "'{needle}' is not in:\n{text}");
    }
}

#[test]
fn timeslice_needs_a_unit_and_is_positive() {
    for wrong in ["0", "6", "0ns"] {
        let output = tandem("scalability-native.toml", &["--timeslice", wrong]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(text.contains("--timeslice"), "{text}");
    }
}
