//! `tandem-lab reproduce` and `tandem-lab survey`: form of the list, the same bytes from any number of workers, unknown names.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn tandem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tandem-lab"))
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap()
}

/// Returns the standard output of a command that succeeds.
fn stdout(args: &[&str]) -> String {
    let output = tandem(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the standard error of a command that fails.
fn refusal(args: &[&str]) -> String {
    let output = tandem(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

const CLAIMS: &str = "scal.f4_7,gleaner.t2.A";

#[test]
fn claims_keep_their_form() {
    let list = |workers: &str| {
        stdout(&["reproduce", "--claims", CLAIMS, "--runs", "2", "--json", "--workers", workers])
    };
    let text = list("1");
    for workers in ["2", "3", "16"] {
        assert_eq!(text, list(workers), "the same from any number of workers");
    }
    let claims: Vec<Value> = serde_json::from_str(&text).unwrap();
    let ids: Vec<&str> = claims.iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["gleaner.t2.A", "scal.f4_7"]);
    for claim in &claims {
        for key in ["use", "covered", "in_band", "ours", "published", "command"] {
            assert!(claim.get(key).is_some(), "{key} of {claim}");
        }
    }
    let [wakes, scales] = claims.as_slice() else {
        panic!("{claims:?}");
    };
    assert_eq!(wakes["use"], "fit");
    assert_eq!(wakes["covered"], true);
    let native = wakes["ours"]["native_us"].as_f64().unwrap();
    assert!(native > 0.5 && native < 50.0, "{native} us");
    assert_eq!(scales["covered"], true);
    assert_eq!(scales["published"]["speedup"][0], 5.9);
}

#[test]
fn unknown_claims_and_folders_are_refused() {
    let error = refusal(&["reproduce", "--claims", "apples.f99"]);
    assert!(error.contains("apples.f6.ebizzy"), "{error}");
    let error = refusal(&["reproduce", "--scenarios", "no/such"]);
    assert!(error.contains("no/such"), "{error}");
    let error = refusal(&["reproduce", "--runs", "0"]);
    assert!(error.contains("--runs"), "{error}");
}

#[test]
fn survey_covers_policies_and_overcommit() {
    let text = stdout(&[
        "survey",
        "--policies",
        "hvs",
        "--workloads",
        "forkjoin-fixed",
        "--runs",
        "1",
        "--json",
    ]);
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
    let places: Vec<(u64, &str)> = entries
        .iter()
        .map(|e| (e["overcommit"].as_u64().unwrap(), e["policy"].as_str().unwrap()))
        .collect();
    let expected = [1, 2, 4].map(|times| [(times, "stock"), (times, "hvs")]);
    assert_eq!(places, expected.concat());
    for entry in &entries {
        let [throughput, worst, unfairness] =
            ["throughput", "worst", "unfairness"].map(|key| entry[key].as_f64().unwrap());
        assert!(worst <= throughput && unfairness >= 1.0, "{entry}");
        if entry["policy"] == "stock" {
            assert_eq!((throughput, worst), (1.0, 1.0), "{entry}");
        }
    }
    assert_eq!(entries[0]["unfairness"], 1.0, "a VM alone");
}

#[test]
fn survey_refuses_unknown_names() {
    let error = refusal(&["survey", "--overcommit", "3"]);
    assert!(error.contains("1, 2 or 4"), "{error}");
    let error = refusal(&["survey", "--workloads", "no-such"]);
    assert!(error.contains("no-such"), "{error}");
    let error = refusal(&["survey", "--policies", "no-such"]);
    assert!(error.contains("cpth-r"), "{error}");
}
