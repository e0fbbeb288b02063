//! `tandem host why --try` on real VMs: helpful remedies can be kept, others are reverted, and so is everything after
//! Ctrl-C and kill -9.
//!
//! Reverts are checked after every run; the results of a trial count only if the host was quiet.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid as ProcessId, Signal, kill_process};
use serde_json::Value;
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::{CgroupPath, Knob};
use tandem_linux::claims::{Claims, HOST_CLAIMS};
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_model::PcpuSet;

use super::harness::{Skip, Test};
use super::vm_support::{Guard, start_vm};
use super::{DURATION, least_busy, limit, name, pcpu, pcpus, places_of, skip, tandem, text, vcpus};
use tandem_testing::quiet;

/// The tests of this file.
pub const ALL: &[(&str, Test)] = &[
    ("helpful_remedy_is_kept_until_restore", helpful_remedy_is_kept_until_restore),
    ("useless_remedy_is_reverted", useless_remedy_is_reverted),
    ("restore_reverts_a_killed_trial", restore_reverts_a_killed_trial),
    ("vm_of_another_daemon_is_not_tried", vm_of_another_daemon_is_not_tried),
    ("interrupted_trial_reverts_immediately", interrupted_trial_reverts_immediately),
    ("unnamed_vms_are_not_tried", unnamed_vms_are_not_tried),
];

/// Timeout until the first change of a trial, on a busy host.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a VM with two computing vCPUs on one pCPU.
fn stacked(name: &str, pcpu: &str) -> Guard {
    let pinned = ["--vcpus", "2", "--workload", "burn", "--pin", pcpu];
    start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &pinned)
}

/// Returns the affinities of threads.
fn places(threads: &[ThreadRef]) -> Vec<String> {
    let places = threads.iter().map(|thread| affinity(thread.tid).unwrap());
    places.map(|place| place.to_string()).collect()
}

fn arguments<'a>(vm: &'a str, state: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["host", "why", vm, "--try", "--json", "--state-dir", state];
    [all.as_slice(), more].concat()
}

/// Maximum number of undisturbed trials: other load may start between the change and the measurement after it.
const CALM_RUNS: usize = 4;

/// Runs trials until one of the finding has this outcome; else returns the last one. `check` runs after each trial.
fn tried(
    pcpus: &PcpuSet,
    vm: &str,
    state: &str,
    more: &[&str],
    wanted: (&str, &str),
    check: impl Fn(&Value),
) -> Result<Value, Skip> {
    let more = [more, &["--duration", DURATION]].concat();
    let (kind, outcome) = wanted;
    let mut last = None;
    for _ in 0..CALM_RUNS {
        let said = quiet::measure(pcpus, || {
            let output = tandem(&arguments(vm, state, &more));
            assert!(output.status.success(), "{}", text(&output.stderr));
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(said["schema"], 1);
            check(&said);
            said
        })?;
        let trials = said["trials"].as_array().unwrap();
        match trials.iter().find(|trial| trial["kind"] == kind) {
            Some(trial) if trial["outcome"] == outcome => return Ok(trial.clone()),
            trial => last = Some(trial.cloned().ok_or(said)),
        }
    }
    match last.expect("it was tried") {
        Ok(trial) => Ok(trial),
        Err(said) => panic!("no {kind} was tried: {said:#}"),
    }
}

fn helpful_remedy_is_kept_until_restore() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let name = name('t');
    let vm = stacked(&name, &one);
    let vcpus = vcpus(&vm);
    let before = places(&vcpus);
    assert_eq!(before, [one.as_str(), one.as_str()]);
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let stacked = ("stacked", "helped");
    let both: PcpuSet = format!("{one},{two}").parse().unwrap();
    let trial = tried(&both, &name, state, &[], stacked, |said| {
        assert_eq!(places(&vcpus), before, "{said:#}");
        assert_eq!(said["put_back"]["failures"], Value::Array(Vec::new()));
    })?;
    assert_eq!(
        (&trial["outcome"], &trial["in_force"]),
        (&"helped".into(), &false.into()),
        "{trial:#}"
    );
    let cost = |when: &str| trial[when]["cost"].as_f64().unwrap();
    // Other load may take a part of the shared pCPU, and of the waits.
    assert!(cost("before") > 0.6e9 && cost("after") < 0.2e9, "{trial:#}");
    assert!(cost("again") > 0.6e9, "without the remedy the cost returns: {trial:#}");

    // A run with --keep first reverts the remedies that the previous one kept, so all start from the same state.
    let trial = tried(&both, &name, state, &["--keep"], stacked, |said| {
        let mut trials = said["trials"].as_array().unwrap().iter();
        let is_kept = trials.any(|trial| trial["in_force"] == true);
        assert_eq!(is_kept, places(&vcpus) != before, "{said:#}");
    })?;
    assert_eq!(trial["in_force"], true, "{trial:#}");
    let kept = places(&vcpus);
    for place in &kept {
        let place: tandem_model::PcpuSet = place.parse().unwrap();
        let has = |pcpu: &str| place.contains(tandem_model::PcpuId(pcpu.parse().unwrap()));
        assert!(has(&one) && has(&two), "{kept:?}");
    }
    // A mistyped name reverts nothing.
    let output = tandem(&arguments("nosuch", state, &[]));
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no VM matches 'nosuch'"));
    assert_eq!(places(&vcpus), kept);
    restore(state);
    assert_eq!(places(&vcpus), before);
    Ok(())
}

fn restore(state: &str) {
    let output = tandem(&["host", "restore", "--state-dir", state]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn useless_remedy_is_reverted() -> Result<(), Skip> {
    let one = pcpu()?;
    let name = name('u');
    let vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "burn", "--pin", &one],
    );
    let own = tempfile::tempdir().unwrap();
    // If one of the two quotas is lifted, the other one still limits the VM.
    let names = [format!("why-{name}"), "inner".to_owned()];
    let (actuator, groups) = match limit(&vm, &names, own.path()) {
        Ok(limited) => limited,
        Err(error) => return skip(error),
    };
    let quotas = || {
        let read = groups.iter();
        let read = read.map(|group| actuator.controller().read_knob(group, Knob::Quota));
        read.map(Result::unwrap).collect::<Vec<String>>()
    };
    let before = quotas();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let wanted = ("quota", "did-not-help");
    let trial = tried(&places_of(&[&name]), &name, state, &["--keep"], wanted, |said| {
        assert_eq!(quotas(), before, "{said:#}");
    })?;
    assert_eq!(
        (&trial["outcome"], &trial["in_force"]),
        (&"did-not-help".into(), &false.into()),
        "{trial:#}"
    );
    let cost = |when: &str| trial[when]["cost"].as_f64().unwrap();
    assert!(cost("before") > 0.6e9 && cost("after") > 0.6e9, "{trial:#}");
    Ok(())
}

/// A VM with a quota, and its value before the trial; the cgroup is dropped first.
struct Limited {
    name: String,
    group: CgroupPath,
    actuator: Actuator,
    _journal: tempfile::TempDir,
    vm: Guard,
    before: String,
    state: tempfile::TempDir,
}

impl Limited {
    fn start(first: char) -> Result<Limited, Skip> {
        let [one, _] = least_busy()?;
        let name = name(first);
        let burn = ["--workload", "burn", "--pin", &one];
        let vm = start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), &name, &burn);
        let journal = tempfile::tempdir().unwrap();
        let (actuator, mut groups) = match limit(&vm, &[format!("why-{name}")], journal.path()) {
            Ok(limited) => limited,
            Err(error) => return skip(error),
        };
        let group = groups.remove(0);
        let before = actuator.controller().read_knob(&group, Knob::Quota).unwrap();
        let state = tempfile::tempdir().unwrap();
        Ok(Limited { name, group, actuator, _journal: journal, vm, before, state })
    }

    fn state(&self) -> &str {
        self.state.path().to_str().unwrap()
    }

    fn is_as_before(&self) -> bool {
        let quota = self.actuator.controller().read_knob(&self.group, Knob::Quota);
        quota.unwrap() == self.before
    }

    /// Starts a trial, and waits until it has lifted the quota.
    fn trial(&self) -> Result<Child, Skip> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(arguments(&self.name, self.state(), &["--duration", "2s"]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            if !self.is_as_before() {
                return Ok(child);
            }
            if child.try_wait().unwrap().is_some() {
                return skip("the host is too busy to find the quota");
            }
            sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("the trial changed nothing and still runs");
    }
}

fn restore_reverts_a_killed_trial() -> Result<(), Skip> {
    let limited = Limited::start('v')?;
    let mut child = limited.trial()?;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!limited.is_as_before(), "a killed trial cannot revert it");
    restore(limited.state());
    assert!(limited.is_as_before());
    Ok(())
}

fn vm_of_another_daemon_is_not_tried() -> Result<(), Skip> {
    let limited = Limited::start('y')?;
    let mut claims = match Claims::open(Path::new(HOST_CLAIMS)) {
        Ok(claims) => claims,
        Err(error) => return skip(error),
    };
    // Claim the VM like a daemon with another state directory.
    assert!(claims.claim(Pid(limited.vm.0.id())).unwrap());
    let wanted = ("quota", "not-tried");
    let pcpus = places_of(&[&limited.name]);
    let trial = tried(&pcpus, &limited.name, limited.state(), &[], wanted, |said| {
        assert!(limited.is_as_before(), "{said:#}");
    })?;
    let because = trial["because"].as_str().unwrap();
    assert!(because.contains("another state directory"), "{trial:#}");
    Ok(())
}

fn interrupted_trial_reverts_immediately() -> Result<(), Skip> {
    let limited = Limited::start('w')?;
    let mut child = limited.trial()?;
    kill_process(ProcessId::from_child(&child), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(limited.is_as_before());
    Ok(())
}

fn unnamed_vms_are_not_tried() -> Result<(), Skip> {
    let limited = Limited::start('x')?;
    let output = tandem(&["host", "why", "--try", "--duration", "0.5s"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("name the VM") && said.contains("--yes"), "{said}");
    assert!(limited.is_as_before());
    Ok(())
}
