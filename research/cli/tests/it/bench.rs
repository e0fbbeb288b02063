//! Runs the benches for seconds each: checks the form of their figures, and that they leave no state behind.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use std::process::{Command, Output};

use tandem_testing::processes::{cgroups_named, may_change_cgroups};

/// Returns a command with these arguments.
fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-lab"));
    command.args(args);
    command
}

/// Runs the program; panics with its error output if it fails.
fn succeed(args: &[&str]) -> Output {
    tandem_testing::processes::succeed(&mut tandem(args))
}

/// Serializes the benches: some count cgroups of the whole host.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a bench with a state directory and a file for its figures, and returns the figures.
fn figures(args: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let (state, json) = (dir.path().join("state"), dir.path().join("figures.json"));
    let mut whole = vec!["bench"];
    whole.extend(args);
    whole.extend(["--state-dir", state.to_str().unwrap(), "--json", json.to_str().unwrap()]);
    let output = succeed(&whole);
    assert!(output.stdout.starts_with(b"| "), "no table");
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
}

#[test]
fn flexs_reports_work_shares_and_verdicts() {
    if !may_change_cgroups() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let figures = figures(&[
        "flexs",
        "--mixes",
        "one-burner",
        "--runs",
        "1",
        "--seconds",
        "2",
        "--settle-seconds",
        "1",
        "--alone-seconds",
        "0.5",
        "--work",
        "20",
        "--period-ms",
        "30",
        "--backend",
        "threads",
    ]);
    assert_eq!(figures["counters"], "synthetic");
    let modes = figures["mixes"][0]["modes"].as_array().unwrap();
    let names: Vec<&str> = modes.iter().map(|m| m["mode"].as_str().unwrap()).collect();
    assert_eq!(names, ["stock", "tandem", "flexs"]);
    for mode in modes {
        assert_eq!(mode["measured_runs"], 1, "{mode}");
        let verdicts = &mode["vms"][0]["verdicts"];
        assert_eq!(verdicts.is_object(), mode["mode"] == "flexs", "{mode}");
    }
    let told = &modes[2]["vms"][0]["verdicts"];
    assert!(told["judged"].as_u64().unwrap() > 0, "{told}");
    // A spinning period that is too short to be judged counts as missed.
    let spun = told["spun"].as_u64().unwrap();
    let not_judged = told["missed"]["too-few"].as_u64().unwrap_or(0);
    let known = spun - not_judged + told["worked"].as_u64().unwrap();
    assert!(spun > 0 && known <= told["judged"].as_u64().unwrap(), "{told}");
    assert!(figures["promised"]["least_of_due"].as_f64().unwrap() > 0.0);
}

#[test]
fn fairness_reports_every_mode_of_every_mix() {
    if !may_change_cgroups() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let figures = figures(&[
        "fairness",
        "--runs",
        "2",
        "--seconds",
        "0.5",
        "--mixes",
        "2+1,bursty,barrier-2+2",
        "--alone-seconds",
        "0.5",
        "--backend",
        "threads",
        "--modes",
        "equal-weights,tandem",
    ]);
    let mixes = figures["mixes"].as_array().unwrap();
    assert_eq!(
        mixes.iter().map(|mix| mix["mix"].as_str().unwrap()).collect::<Vec<_>>(),
        ["2+1", "bursty", "barrier-2+2"]
    );
    for mode in mixes.iter().flat_map(|mix| mix["modes"].as_array().unwrap()) {
        assert_eq!(mode["measured_runs"], 2, "{mode}");
        assert!(mode["mean_abs_lag"].as_f64().unwrap() <= mode["max_abs_lag"].as_f64().unwrap());
        assert_eq!(mode["runs"].as_array().unwrap().len(), 2);
        assert!(mode["deserved_work"].as_f64().unwrap() > 0.0, "{mode}");
        assert_eq!(mode["windows"][0]["seconds"], 0.25, "{mode}");
    }
    for mode in mixes[1]["modes"].as_array().unwrap() {
        let times = &mode["completion"][0];
        assert_eq!(times["vm"], "vm0", "{mode}");
        assert_eq!(mode["completion"].as_array().unwrap().len(), 1, "{mode}");
        // On a busy host no burst may complete in half a second.
        let done = times["count"].as_u64().unwrap() > 0;
        for quantile in ["p50_ns", "p99_ns"] {
            assert_eq!(times.get(quantile).is_some(), done, "{mode}");
        }
        assert!(times["dropped"].is_u64(), "{mode}");
    }
    assert!(mixes[0]["modes"][0].get("completion").is_none());
}

#[test]
fn work_measures_every_mode_of_every_cell() {
    if !may_change_cgroups() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (state, json) = (dir.path().join("state"), dir.path().join("work.json"));
    let page = dir.path().join("work.html");
    let output = succeed(&[
        "bench",
        "work",
        "--workloads",
        "mutex",
        "--vcpus",
        "2",
        "--with",
        "burn1,pairs",
        "--runs",
        "2",
        "--seconds",
        "0.5",
        "--settle-seconds",
        "0",
        "--alone-seconds",
        "0.5",
        "--placements",
        "free",
        "--backend",
        "threads",
        "--state-dir",
        state.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("2 cells in 6 modes, 2 runs: about 1 minute"), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.trim_end().lines().last().unwrap();
    assert!(last.starts_with("Tandem against stock: work "), "{last}");
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let cells = figures["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2);
    for cell in cells {
        let modes = cell["modes"].as_array().unwrap();
        let names: Vec<&str> = modes.iter().map(|mode| mode["mode"].as_str().unwrap()).collect();
        assert_eq!(names, ["stock", "hard-cap", "pinning", "nice", "batch", "tandem"]);
        for mode in modes {
            assert_eq!(mode["measured_runs"], 2, "{mode}");
            for vm in mode["vms"].as_array().unwrap() {
                assert!(vm["work_of_alone"]["median"].as_f64().unwrap() > 0.0, "{mode}");
            }
        }
    }
    assert_eq!(figures["tandem_vs_stock"]["cells"], 3);
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
    assert!(!state.exists());
    assert_eq!(cgroups_named("subject"), Vec::<String>::new());
}

#[test]
fn overhead_counts_the_daemon() {
    if !may_change_cgroups() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let figures = figures(&["overhead", "--vms", "3", "--vcpus", "2", "--seconds", "1"]);
    assert_eq!(figures["vcpus"], 6);
    assert!(figures["daemon_cpu"].as_f64().unwrap() > 0.0);
    assert!(figures["daemon"]["peak_rss_kib"].as_u64().unwrap() > 0);
    assert_eq!(figures["daemon_errors"], serde_json::json!([]));
    assert_eq!(cgroups_named("ovh"), Vec::<String>::new());
}

#[test]
fn churn_leaves_no_state_behind() {
    if !may_change_cgroups() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let figures = figures(&["churn", "--starts", "8", "--vcpus", "1", "--backend", "threads"]);
    assert_eq!(figures["daemon_errors"], serde_json::json!([]));
    assert!(figures["most_cgroups"].as_u64().unwrap() > 0);
    let samples = figures["samples"].as_array().unwrap();
    assert!(samples.iter().all(|sample| sample["daemon"]["rss_kib"].as_u64() > Some(0)));
    assert!(figures["quarters"].is_null(), "two seconds have no quarters");
    assert_eq!(figures["after"]["cgroups"], figures["before"]["cgroups"]);
    assert_eq!(figures["after"]["open_files"], figures["before"]["open_files"]);
}

#[test]
fn errors_state_the_valid_range() {
    for (args, said) in [
        (&["fairness", "--runs", "0"][..], "--runs 0 is not possible: 1 … 100"),
        (&["fairness", "--mixes", "x"], "'x' is no mix; the mixes are 2+1"),
        (&["fairness", "--seconds", "0"], "0.5 … 3600"),
        (&["work", "--vcpus", "0"], "a VM has 1 to 64, as in --vcpus 2,4"),
        (&["work", "--json", "/nowhere/x.json"], "/nowhere/x.json"),
        (&["overhead", "--vms", "0"], "--vms 0 is not possible: 1 … 1000"),
        (&["overhead", "--vcpus", "65"], "--vcpus 65 is not possible: 1 … 64"),
        (&["overhead", "--period-ms", "1"], "30 … 1000"),
        (&["churn", "--starts", "0"], "--starts 0 is not possible"),
        (&["churn", "--minutes", "0"], "--minutes 0 is not possible"),
        (&["churn", "--json", "/nowhere/x.json"], "/nowhere/x.json"),
    ] {
        let mut whole = vec!["bench"];
        whole.extend(args);
        let output = tandem(&whole).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(said), "{args:?}: {errors}");
    }
}
