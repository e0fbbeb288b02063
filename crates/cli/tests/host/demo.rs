//! The demo through the real binary: its JSON document, its page, its errors, and its cleanup, also after an
//! interruption or a kill.
//!
//! Because tests run on loaded machines, they do not check fairness.
//! They check the form of the output, and that the sum of CPU times does not exceed the capacity.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use std::process::{Child, Command, Output, Stdio};

use tandem_testing::browser;
use tandem_testing::processes::{cgroups_named, may_change_cgroups, processes_with};

/// Returns the command with these words as arguments.
fn tandem(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args.split_whitespace());
    command
}

/// Runs the command; panics with its stderr if it fails.
fn succeed(args: &str) -> Output {
    tandem_testing::processes::succeed(&mut tandem(args))
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number in {value}"))
}

/// Checks a measured mode; received and idle time together must not exceed the capacity.
fn check_mode(mode: &Value, pcpus: f64, names: &[&str]) {
    assert_eq!(mode["measured"], true, "{mode}");
    let vms = mode["vms"].as_array().unwrap();
    assert_eq!(vms.iter().map(|vm| vm["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    let mut sum = number(mode, "idle");
    for vm in vms {
        let (share, fair, lag) = (number(vm, "share"), number(vm, "fair"), number(vm, "lag"));
        assert!(share > 0.0 && number(vm, "work_per_second") > 0.0, "{vm} in {mode}");
        assert!((lag - (fair - share) / fair).abs() < 1e-3, "{vm}");
        assert!(number(mode, "max_abs_lag") >= lag.abs(), "{mode}");
        sum += share;
    }
    assert!(sum <= pcpus * 1.05, "{sum} of {pcpus} pCPUs in {mode}");
    assert!(!mode["series"].as_array().unwrap().is_empty());
}

#[test]
#[ignore = "needs root and KVM"]
fn json_document_has_every_mode() {
    if !may_change_cgroups() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let page = dir.path().join("page.html");
    let output = succeed(&format!(
        "demo --json --seconds 1 --settle-seconds 0.5 --mix 1,1 --alone-seconds 0.5 --backend \
         threads --state-dir {} --html {}",
        state.display(),
        page.display()
    ));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["backend"], "threads");
    assert_eq!(json["mix"], serde_json::json!([1, 1]));
    assert_eq!(json["weights"], serde_json::json!([1.0, 1.0]));
    assert_eq!((&json["pinned"], &json["seconds"]), (&Value::from(true), &Value::from(1.0)));
    let modes = json["modes"].as_array().unwrap();
    let names: Vec<&str> = modes.iter().map(|mode| mode["mode"].as_str().unwrap()).collect();
    assert_eq!(names, ["as-is", "equal-weights", "hard-cap", "tandem"]);
    for mode in modes {
        check_mode(mode, number(&json, "pcpus"), &["vm0", "vm1"]);
        assert!(number(mode, "work_vs_stock") > 0.0);
        for vm in mode["vms"].as_array().unwrap() {
            assert!(number(vm, "work_of_alone") > 0.0);
            let windows = vm["windows"].as_array().unwrap();
            let short = &windows[0];
            assert!(number(short, "windows") > 0.0, "{vm}");
            assert!(number(short, "least") <= number(short, "greatest"), "{vm}");
            assert!(number(&vm["waits"], "runs") > 0.0, "{vm}");
        }
    }
    for vm in json["vms"].as_array().unwrap() {
        let deserved = number(&vm["alone"], "deserved");
        assert!(deserved > 0.0 && deserved <= 1.0, "{vm}");
    }
    browser::check_if_there(&page);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.matches("<svg").count() == 9);
    assert!(!state.exists(), "the demo did not remove its state directory");
}

#[test]
#[ignore = "needs root and KVM"]
fn kvm_vcpus_are_measured() {
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        println!("skipped: /dev/kvm: {error}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = succeed(&format!(
        "demo --json --seconds 1 --settle-seconds 0 --alone-seconds 0 --backend kvm --modes \
         as-is --vm name=big,vcpus=3,cpus=0 --vm name=small,vcpus=1,weight=2 --state-dir {}",
        dir.path().display()
    ));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["backend"], "kvm");
    assert_eq!(json["vms"][0]["pins"], serde_json::json!([0, 0, 0]));
    check_mode(&json["modes"][0], number(&json, "pcpus"), &["big", "small"]);
}

#[test]
#[ignore = "needs root and KVM"]
fn default_demo_ends_with_the_worst_vm() {
    if !may_change_cgroups() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let output = succeed(&format!(
        "demo --no-html --seconds 1 --settle-seconds 0.5 --alone-seconds 0.5 --backend \
         threads --state-dir {}",
        state.display()
    ));
    let text = String::from_utf8_lossy(&output.stdout);
    for name in ["spin", "block", "compute", "bursty"] {
        assert!(text.contains(name), "{text}");
    }
    let last = text.trim_end().lines().last().unwrap();
    assert!(last.contains("The worst VM with Tandem is "), "{last}");
    assert!(!state.exists());
}

/// A server that is busy for a while and then serves, next to a computing VM: only the former has completion times.
#[test]
#[ignore = "needs root and KVM"]
fn requests_have_completion_times() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let run = |options: &str| {
        let output = succeed(&format!(
            "demo --seconds 1 --settle-seconds 0 --alone-seconds 0 --backend threads --modes as-is \
             --vm name=srv,vcpus=2,workload=server,set.busy=100k,set.serve=100k \
             --vm name=burn,vcpus=1 --html {} --state-dir {} {options}",
            page.display(),
            dir.path().join("state").display()
        ));
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&run("--json")).unwrap();
    let vms = &json["modes"][0]["vms"];
    let times = &vms[0]["completion"];
    assert!(times["count"].as_u64().unwrap() > 0, "{times}");
    assert!(number(times, "p50_ns") > 0.0 && number(times, "p99_ns") >= number(times, "p50_ns"));
    assert_eq!(times["dropped"], 0);
    assert_eq!(vms[1].get("completion"), None);
    assert!(run("").contains("| done | given up |"));
    browser::check_if_there(&page);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Completion times"));
}

#[test]
#[ignore = "needs root and KVM"]
fn failed_mode_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    // A file with the name of the journal's directory.
    std::fs::write(dir.path().join("groups"), "").unwrap();
    let output = succeed(&format!(
        "demo --json --seconds 0.5 --settle-seconds 0 --alone-seconds 0 --mix 1 --backend \
         threads --modes equal-weights,as-is --state-dir {}",
        dir.path().display()
    ));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["modes"][0]["measured"], false);
    assert!(json["modes"][0]["reason"].as_str().unwrap().contains("groups"), "{json}");
    assert!(json["modes"][0].get("idle").is_none());
    check_mode(&json["modes"][1], number(&json, "pcpus"), &["vm0"]);
}

#[test]
fn unknown_workload_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display();
    let line = "demo --no-html --backend threads --mix 1 --workload sleepy --state-dir";
    let output = tandem(&format!("{line} {state}")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("sleepy") && errors.contains("burn"), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Starts a demo of an hour in one mode, and waits until `there` detects the mode.
fn long_demo(name: &str, mode: &str, state: &str, there: impl Fn() -> bool) -> Child {
    let mut demo = tandem(&format!(
        "demo --json --seconds 3600 --alone-seconds 0 --backend threads --vm name={name},vcpus=2 --modes \
         {mode} --state-dir {state}"
    ));
    let mut demo = demo.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !there() {
        let ended = demo.try_wait().unwrap();
        assert!(ended.is_none(), "the demo ended early: {ended:?}");
        assert!(Instant::now() < deadline, "the demo does not enter the mode");
        sleep(Duration::from_millis(20));
    }
    demo
}

fn gone_in_time(what: impl Fn() -> Vec<String>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what().is_empty() {
        assert!(Instant::now() < deadline, "these remain: {:?}", what());
        sleep(Duration::from_millis(20));
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
#[ignore = "needs root and KVM"]
fn interrupted_demo_cleans_up() {
    if !may_change_cgroups() {
        return;
    }
    for (vm, mode, which) in
        [("intcap", "hard-cap", Signal::INT), ("inttan", "tandem", Signal::TERM)]
    {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_str().unwrap().to_owned();
        let mut demo = long_demo(vm, mode, &state, || !cgroups_named(vm).is_empty());
        signal(&demo, which);
        let status = demo.wait().unwrap();
        assert!(!status.success(), "an interrupted demo has no result");
        assert_eq!(cgroups_named(vm), Vec::<String>::new());
        assert_eq!(processes_with(&state), Vec::<String>::new());
        assert_eq!(processes_with(&format!("--name {vm}")), Vec::<String>::new());
    }
}

#[test]
#[ignore = "needs root and KVM"]
fn next_demo_reverts_a_killed_one() {
    if !may_change_cgroups() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap().to_owned();
    let mut demo =
        long_demo("killed", "equal-weights", &state, || !cgroups_named("killed").is_empty());
    signal(&demo, Signal::KILL);
    demo.wait().unwrap();
    gone_in_time(|| processes_with("--name killed"));
    assert!(!cgroups_named("killed").is_empty());
    succeed(&format!(
        "demo --json --seconds 0.5 --settle-seconds 0 --alone-seconds 0 --mix 1 --backend \
         threads --modes as-is --state-dir {state}"
    ));
    assert_eq!(cgroups_named("killed"), Vec::<String>::new());
}

#[test]
#[ignore = "needs root and KVM"]
fn killed_demo_stops_its_daemon() {
    if !may_change_cgroups() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap().to_owned();
    let mut demo = long_demo("orphan", "tandem", &state, || !cgroups_named("orphan").is_empty());
    signal(&demo, Signal::KILL);
    demo.wait().unwrap();
    gone_in_time(|| processes_with(&state));
    gone_in_time(|| processes_with("--name orphan"));
    gone_in_time(|| cgroups_named("orphan"));
}
