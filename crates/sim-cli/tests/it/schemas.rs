//! Validates the JSON of `tandem-sim` against its schemas in `docs/schemas`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::scenario;
use serde_json::Value;
use tandem_testing::schema::schema;

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas")
}

fn check(name: &str, output: &Value) {
    tandem_testing::schema::check(&schemas(), name, output);
}

/// Returns the JSON output of a command.
fn output(args: &[&str]) -> Value {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tandem-sim")).args(args).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn run_matches_its_schema() {
    for (name, more) in [
        ("pipeline.toml", &["--set", "vm.pipeline.gleaner=true"][..]),
        ("shootdown-ipi.toml", &[]),
        ("lock-holder-preemption.toml", &["--set", "host.pause_loop.policy=aple"]),
        ("native-locks.toml", &[]),
        ("two-sockets.toml", &["--set", "host.core_scheduling=vm"]),
    ] {
        let path = scenario(name);
        let args = ["run", &path, "--duration", "120ms", "--set", "warmup=0"];
        let output = output(&[&args[..], more].concat());
        assert_eq!(output["schema"], 1);
        check("sim-run-1", &output);
    }
}

#[test]
fn comparison_matches_its_schema() {
    let path = scenario("mutex-halt.toml");
    let args = ["compare", &path, "--duration", "40ms", "--set", "warmup=5ms"];
    for runs in ["1", "2"] {
        let more = ["--vary", "host.scheduler=cfs,eevdf", "--runs", runs];
        let output = output(&[&args[..], &more].concat());
        assert_eq!(output["schema"], 1);
        check("sim-compare-1", &output);
    }
}

#[test]
fn scalability_matches_its_schema() {
    let worked = scenario("../research/scenarios/papers/scalability-worked-case.toml");
    check("sim-scalability-1", &output(&["scalability", &worked]));
    let native = scenario("native-locks.toml");
    let args = ["scalability", &native, "--duration", "100ms"];
    check("sim-scalability-1", &output(&args));
}

#[test]
fn mixed_hosts_match_their_schema() {
    for hosts in [["--pcpus", "4"], ["--topology", "1:1:1:2:2"]] {
        let args = ["mixed", "--seeds", "1..2", "--warmup", "50ms", "--duration", "150ms"];
        check("sim-mixed-1", &output(&[&args[..], &hosts].concat()));
    }
}

/// The tests above and docs/reference/json.md cover every schema.
#[test]
fn every_schema_is_listed_and_tested() {
    let reference = std::fs::read_to_string(schemas().join("../reference/json.md")).unwrap();
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(schemas()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let link = format!("(../schemas/{name}.json)");
            assert!(reference.contains(&link), "{name} is not in docs/reference/json.md");
            schema(&schemas(), &name);
            names.insert(name);
        }
    }
    let tested = ["sim-compare-1", "sim-mixed-1", "sim-run-1", "sim-scalability-1"];
    assert_eq!(names, tested.map(str::to_owned).into());
}
