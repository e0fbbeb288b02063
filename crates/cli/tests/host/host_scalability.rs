//! `tandem host scalability` with real KVM VMs, one that computes and one that often waits: live, from a record, and errors.

use tandem_testing::vm as vm_support;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tandem_linux::{ProcFs, cgroup};

use vm_support::start_vm;

fn tandem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = tandem(&[&["host", "scalability", "--json"], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn vm<'a>(analysis: &'a Value, name: &str) -> &'a Value {
    let vms = analysis["vms"].as_array().unwrap();
    let found = vms.iter().find(|vm| vm["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {analysis:#}"))
}

/// Returns whether this machine meets the requirements; if not, prints the reason.
fn can(test: &str) -> bool {
    let kvm = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    let cgroup = cgroup::open(&ProcFs::host());
    let why = match (kvm, cgroup) {
        (Err(error), _) => format!("/dev/kvm: {error}"),
        (_, Err(error)) => error.to_string(),
        _ => return true,
    };
    println!("skipped: {test}: {why}");
    false
}

#[test]
#[ignore = "needs root and KVM"]
fn only_computing_vms_scale() {
    if !can("only_computing_vms_scale") {
        return;
    }
    let names = ['c', 'w'].map(|first| format!("{first}{}", std::process::id()));
    let _computes = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &names[0],
        &["--vcpus", "2", "--workload", "burn"],
    );
    // About 1 ms between bursts, longer than the host polls, so each halt is a context switch.
    let often = ["--set", "period=2400k", "--set", "work=120k"];
    let bursty = ["--vcpus", "2", "--workload", "bursty"];
    let _waits =
        start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), &names[1], &[&bursty[..], &often].concat());
    let live = json(&["--duration", "2s"]);
    assert_eq!(live["schema"], 1);
    assert_eq!(live["source"], "plain");
    let computes = vm(&live, &names[0]);
    assert_eq!(computes["n"], 2);
    assert!(computes["parallelism"].as_f64().unwrap() > 1.9, "{computes:#}");
    assert!(computes["synchronization"].as_f64().unwrap() < 200.0, "{computes:#}");
    assert_eq!(computes["types"], serde_json::json!([1]), "{computes:#}");
    let waits = vm(&live, &names[1]);
    let (active, blocks) = (&waits["parallelism"], &waits["synchronization"]);
    assert!(active.as_f64().unwrap() < 1.5, "{waits:#}");
    assert!(blocks.as_f64().unwrap() > 100.0, "{waits:#}");
    let type_of = waits["types"][0].as_u64().unwrap();
    assert!([2, 4].contains(&type_of), "{waits:#}");
    for one in [computes, waits] {
        let share = one["vm"]["share"].as_f64().unwrap();
        assert!(share > 0.0 && share <= 2.0, "{one:#}");
        let lacks = one["not_measured"].as_array().unwrap();
        assert!(lacks.iter().any(|lack| lack["what"] == "spinning"));
    }
    let said = tandem(&["host", "scalability", &names[0], "--duration", "0.5s"]);
    let said = text(&said.stdout);
    assert!(said.contains(&format!("{}: type 1,", names[0])), "{said}");
    assert!(!said.contains(&names[1]), "only the requested VM: {said}");

    let folder = std::env::temp_dir().join(format!("tandem-scalability-{}", std::process::id()));
    let folder = folder.to_str().unwrap();
    let record = ["host", "record", "-o", folder, "--duration", "2s", "--interval", "0.5"];
    let output = tandem(&record);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recorded = json(&["--from", folder]);
    let computes = vm(&recorded, &names[0]);
    assert!(computes["parallelism"].as_f64().unwrap() > 1.5, "{computes:#}");
    assert_eq!(computes["types"], serde_json::json!([1]), "{computes:#}");
    let waits = vm(&recorded, &names[1]);
    assert!(waits["synchronization"].as_f64().unwrap() > 100.0, "from a record: {waits:#}");
    // An unreadable file is reported, and the rest is analyzed.
    let segments = std::fs::read_dir(folder).unwrap();
    let paths = segments.map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "parquet");
    let mut segments: Vec<PathBuf> = paths.filter(is_segment).collect();
    segments.sort();
    std::fs::write(&segments[0], "no Parquet").unwrap();
    let output = tandem(&["host", "scalability", "--json", "--from", folder]);
    let said = text(&output.stderr);
    let file = segments[0].file_name().unwrap().to_str().unwrap();
    assert!(!output.status.success() && said.contains(file), "{said}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn invalid_arguments_are_rejected() {
    for (args, expected) in [
        (&["--from", "/nowhere"][..], "/nowhere"),
        (&["--from", "/", "--duration", "2s"], "cannot be used with"),
        (&["--duration", "0"], "50ms"),
    ] {
        let output = tandem(&[&["host", "scalability"], args].concat());
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{args:?}: {error}");
    }
}
