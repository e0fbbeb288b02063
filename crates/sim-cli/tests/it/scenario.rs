//! `tandem-sim scenario` through the real binary: a synthetic record becomes a scenario that `tandem-sim run` runs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tandem_model::states::edges::EdgesBuilder;
use tandem_model::{State, VcpuTimes};
use tandem_observe::record::{MIN_MAX_BYTES, Recorder};

fn tandem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-sim"));
    command.args(args).output().unwrap()
}

/// Runs a command, checks that it fails, and returns its error.
fn error(args: &[&str]) -> String {
    let output = tandem(args);
    assert!(!output.status.success(), "{args:?}: {output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    said
}

/// Returns a second of a host with two pCPUs and a VM that ran for `ran_ms` on one vCPU, in 100 bursts.
fn second(n: u64, ran_ms: u64) -> Value {
    let second = tandem_model::Nanos::from_secs(1);
    let ran = tandem_model::Nanos::from_millis(ran_ms);
    let times =
        VcpuTimes::from_parts(second, [(State::Run, ran), (State::Ready, tandem_model::Nanos(0))])
            .unwrap();
    let edges = EdgesBuilder::new().all();
    json!({
        "at": (1_000 + n) * second.0,
        "unreadable": 0,
        "vms": {"4": {"name": "db", "pid": 9, "program": "qemu", "weight": "2048", "due": null, "tids": {"0": 10}}},
        "interval": {
            "source": "plain", "start": n * second.0, "length": second.0, "edges": edges, "missing": [],
            "vms": [{"vm": 4, "threads": [], "vcpus": [{
                "vcpu": 0, "times": times, "ran": ran.0, "waited": 0, "runs": 100, "wakeups": 90 + n % 20, "runnable": false,
                "allowed": "0-1",
            }]}],
            "host": {
                "pcpus": 2, "idle": 2 * second.0 - ran.0, "vcpus": ran.0, "vm_threads": 0, "tasks": 0, "top_tasks": [], "kernel": 0,
            },
        },
    })
}

/// Records 20 seconds: the VM ran for 300 ms of each of the first ten, and 600 ms of each later one.
fn record(folder: &Path) {
    let mut recorder = Recorder::create(folder, MIN_MAX_BYTES).unwrap();
    for n in 0..20 {
        let frame = second(n, if n < 10 { 300 } else { 600 });
        recorder.add(serde_json::from_value(frame).unwrap()).unwrap();
    }
    recorder.finish(None).unwrap();
}

/// Returns the part of the time that the VM ran in the simulator.
fn ran(scenario: &str) -> f64 {
    let output = tandem(&["run", scenario, "--json"]);
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = results.to_string();
    let vm = find(&results, "vms").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(vm[0]["name"], "db");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{text}"));
    number(&vm[0]["received"]) / number(find(&results, "measured").unwrap())
}

/// Finds a key at any depth.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => {
            map.get(key).or_else(|| map.values().find_map(|value| find(value, key)))
        }
        Value::Array(list) => list.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}

#[test]
fn scenario_reproduces_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("record"), dir.path().join("s.toml"));
    record(&folder);
    let (folder, file) = (folder.to_str().unwrap(), file.to_str().unwrap());
    for (span, expected) in [(None, 0.45), (Some("..+10s"), 0.3), (Some("-5s"), 0.6)] {
        let mut args = vec!["scenario", "--from", folder, "-o", file];
        args.extend(span.into_iter().flat_map(|span| ["--at", span]));
        let output = tandem(&args);
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(
            text.contains("weight = 2048.0") && text.contains("A record does not tell"),
            "{text}"
        );
        let ran = ran(file);
        assert!((ran - expected).abs() < 0.02, "{span:?}: {ran}\n{text}");
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn check_compares_simulated_and_recorded_time() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("record"), dir.path().join("s.toml"));
    record(&folder);
    let (folder, file) = (folder.to_str().unwrap(), file.to_str().unwrap());
    let args = ["scenario", "--from", folder, "--at", "-5s", "-o", file];
    let output = tandem(&[&args[..], &["--check"]].concat());
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let row = said.lines().find(|line| line.contains("db")).unwrap();
    let numbers: Vec<f64> = row
        .split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .filter_map(|word| word.parse().ok())
        .collect();
    // Number of vCPUs, then recorded and simulated values of ran, waited and halted.
    assert_eq!((numbers[0], numbers[1], numbers[3]), (1.0, 0.6, 0.0), "{said}");
    assert!((numbers[2] - 0.6).abs() < 0.02, "{said}");
    assert!((numbers[5] - 0.4).abs() < 1e-9 && (numbers[6] - 0.4).abs() < 0.02, "{said}");
    assert!(Path::new(file).exists());
}

#[test]
fn invalid_requests_overwrite_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("record"), dir.path().join("s.toml"));
    record(&folder);
    std::fs::write(&file, "mine").unwrap();
    let (folder, path) = (folder.to_str().unwrap(), file.to_str().unwrap());
    let of = |from: &str, more: &[&str]| {
        let args = ["scenario", "--from", from, "-o", path];
        error(&[&args, more].concat())
    };
    let said = of(folder, &[]);
    assert!(
        said.contains("s.toml") && said.contains("exists and is not overwritten: name another"),
        "{said}"
    );
    assert!(of("/nowhere/x", &[]).contains("/nowhere/x"));
    let said = of(folder, &["--at", "noon"]);
    assert!(said.contains("noon") && said.contains("+90s"), "{said}");
    let said = of(folder, &["--range", "-1s..+1s"]);
    assert!(said.contains("is not before"), "{said}");
    let said = of(folder, &["--at", "2030-01-01T00:00:00Z..2031-01-01T00:00:00Z"]);
    assert!(said.contains("nothing was recorded then"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}
