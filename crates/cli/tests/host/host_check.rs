//! `tandem host check` through the real binary: its output, and its cleanup after an interruption.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tandem_linux::{ProcFs, cgroup};

fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the reason if this machine does not permit the check.
fn reason_to_skip(output: &Output) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let reasons = ["run it as root", "no cgroup hierarchy", "read-only"];
    reasons.iter().any(|reason| said.contains(reason)).then_some(said)
}

/// Returns the cgroup of the check with this process id.
fn cgroup_of_check(pid: u32) -> Option<PathBuf> {
    let controller = cgroup::open(&ProcFs::host()).ok()?;
    Some(controller.mount().join(format!("tandem-check-{pid}")))
}

#[test]
#[ignore = "needs root and KVM"]
fn check_has_a_finding_per_subject() {
    let output = tandem(&["host", "check", "--json"]).output().unwrap();
    if let Some(reason) = reason_to_skip(&output) {
        println!("skipped: check_has_a_finding_per_subject: {reason}");
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 11, "{report:#}");
    let mut measured = 0;
    for finding in findings {
        match finding["verdict"].as_str().unwrap() {
            "not-measured" => assert!(!finding["why"].as_str().unwrap().is_empty(), "{finding:#}"),
            _ => {
                assert!(!finding["figure"].as_str().unwrap().is_empty(), "{finding:#}");
                measured += 1;
            }
        }
    }
    assert!(measured > 0 || !output.status.success());
    assert!(report["kernel"]["tick"].as_u64().unwrap() > 0);
}

#[test]
#[ignore = "needs root and KVM"]
fn interrupted_check_cleans_up() {
    let mut child = tandem(&["host", "check"]).spawn().unwrap();
    let cgroup = cgroup_of_check(child.id());
    // Wait until it measures, or exits.
    let begin = Instant::now();
    while !cgroup.as_ref().is_some_and(|cgroup| cgroup.exists())
        && child.try_wait().unwrap().is_none()
    {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let output = child.wait_with_output().unwrap();
    if let Some(reason) = reason_to_skip(&output) {
        println!("skipped: interrupted_check_cleans_up: {reason}");
        return;
    }
    assert!(interrupted.unwrap().success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted") || output.status.success(), "{said}");
    let cgroup = cgroup.unwrap();
    assert!(!fs::exists(&cgroup).unwrap(), "{} is left", cgroup.display());
}
