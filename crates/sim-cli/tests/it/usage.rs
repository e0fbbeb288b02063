//! `tandem-sim` through the real binary: tables, JSON, Parquet, comparisons; a seed determines the output,
//! independent of the number of workers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::scenario;
/// Runs a command, checks that it succeeds, and returns its standard output.
fn tandem(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-sim")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn run_shows_the_use_of_cpu_time() {
    let path = scenario("unfair-host.toml");
    let text = tandem(&["run", &path, "--duration", "200ms"]);
    for needle in ["unfair-host, seed 1", "| VM |", "ms of CPU", "useful", "idle"] {
        assert!(text.contains(needle), "'{needle}' is not in:\n{text}");
    }
}

#[test]
fn flexw_makes_the_unfair_host_fair() {
    let received = |name: &str| -> Vec<f64> {
        let figures = json(&tandem(&["run", &scenario(name), "--json"]));
        let measured = figures["measured"].as_f64().unwrap();
        let vms = figures["vms"].as_array().unwrap();
        vms.iter().map(|vm| vm["received"].as_f64().unwrap() / measured).collect()
    };
    let unfair = received("unfair-host.toml");
    assert!((unfair[0] - 2.286).abs() < 0.03, "{unfair:?}");
    assert!((unfair[1] - 1.714).abs() < 0.03, "{unfair:?}");
    let fair = received("flexw.toml");
    assert!((fair[0] - 2.0).abs() < 0.06, "{fair:?}");
}

#[test]
fn seed_determines_the_output() {
    let path = scenario("pipeline.toml");
    let run = |seed: &str| {
        let args = ["run", &path, "--duration", "60ms", "--set", "warmup=0"];
        tandem(&[&args[..], &["--seed", seed, "--json", "-"]].concat())
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn set_replaces_values() {
    let path = scenario("credit-shares.toml");
    let args = ["run", &path, "--duration", "30ms", "--json"];
    let settings = ["--set", "warmup=0", "--set", "vm.*.vcpus=1", "--set", "machine.pcpus=3"];
    let figures = json(&tandem(&[&args[..], &settings[..]].concat()));
    assert_eq!(figures["pcpus"].as_array().unwrap().len(), 3);
    for vm in figures["vms"].as_array().unwrap() {
        assert_eq!(vm["vcpus"].as_array().unwrap().len(), 1);
    }
}

fn compare(dir: &Path, workers: &str) -> (String, Vec<u8>, Vec<u8>) {
    let file = |extension: &str| -> PathBuf { dir.join(format!("{workers}.{extension}")) };
    let (json, parquet) = (file("json"), file("parquet"));
    let text = tandem(&[
        "compare",
        &scenario("mutex-halt.toml"),
        "--vary",
        "host.scheduler=cfs,eevdf,credit",
        "--vary",
        "host.halt_poll=0,200us",
        "--set",
        "warmup=5ms",
        "--duration",
        "40ms",
        "--runs",
        "3",
        "--workers",
        workers,
        "--json",
        json.to_str().unwrap(),
        "--parquet",
        parquet.to_str().unwrap(),
    ]);
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    (text, read(json), read(parquet))
}

#[test]
fn workers_do_not_change_a_comparison() {
    let dir = tempfile::tempdir().unwrap();
    let one = compare(dir.path(), "1");
    let two = compare(dir.path(), "2");
    assert_eq!(one.0, two.0);
    assert!(one.1 == two.1, "the JSON differs");
    assert!(one.2 == two.2, "the Parquet file differs");
    let figures = json(&String::from_utf8(one.1).unwrap());
    assert_eq!(figures["seeds"], serde_json::json!([1, 2, 3]));
    let combinations = figures["combinations"].as_array().unwrap();
    assert_eq!(combinations.len(), 6);
    assert_eq!(combinations[1]["settings"]["host.halt_poll"], "200us");
    let last = combinations[5]["figures"].as_array().unwrap();
    let figure = last
        .iter()
        .find(|figure| figure["metric"] == "received" && figure["vm"] == "burn")
        .unwrap();
    assert!(figure["ci95"].is_f64() && figure["against_first"]["mean"].is_f64());
    assert_eq!(figure["values"].as_array().unwrap().len(), 3);
    assert_eq!(one.2.get(..4), Some(&b"PAR1"[..]));
}

#[test]
fn policies_are_compared_by_name() {
    let path = scenario("ticket-ple-fixed.toml");
    let compare = |policies: &str| {
        tandem(&[
            "compare",
            &path,
            "--runs",
            "2",
            "--duration",
            "100ms",
            "--policies",
            policies,
            "--json",
        ])
    };
    let comparison = json(&compare("stock,aple+cch,cap"));
    let names: Vec<&str> = comparison["combinations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|combination| combination["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["stock", "aple+cch", "cap"]);
    let set = &comparison["combinations"][1]["settings"];
    assert_eq!(set["host.pause_loop.candidate"], "cch");
}
