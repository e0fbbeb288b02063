//! `tandem host why --try` on real VMs: what helps stays for as long as it is wanted, what does not is put back, and so is everything
//! after Ctrl-C and kill -9.
//!
//! What must be as it was is looked up after every run, whether the host was calm in it or not; what a trial says counts only if it was.

use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use rustix::process::Pid as ProcessId;
use rustix::process::Signal;
use rustix::process::kill_process;
use serde_json::Value;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::Knob;
use tandem_linux::claims::Claims;
use tandem_linux::claims::HOST_CLAIMS;
use tandem_linux::thread::ThreadRef;

use super::Allowed;
use super::LOOKS;
use super::SECONDS;
use super::harness::Skip;
use super::harness::Test;
use super::is_calm;
use super::limit;
use super::name;
use super::pcpus;
use super::skip;
use super::tandem;
use super::text;
use super::vcpus;
use super::vm_support::Guard;
use super::vm_support::start_vm;

/// All that is here.
pub const ALL: &[(&str, Test)] = &[
    (
        "stacked_vcpus_are_taken_apart_and_kept_so_until_a_restore",
        stacked_vcpus_are_taken_apart_and_kept_so_until_a_restore,
    ),
    (
        "a_cure_that_does_not_help_is_put_back",
        a_cure_that_does_not_help_is_put_back,
    ),
    (
        "a_trial_that_is_killed_is_put_back_by_restore",
        a_trial_that_is_killed_is_put_back_by_restore,
    ),
    (
        "a_vm_of_a_daemon_elsewhere_is_not_tried",
        a_vm_of_a_daemon_elsewhere_is_not_tried,
    ),
    (
        "an_interrupted_trial_puts_back_at_once",
        an_interrupted_trial_puts_back_at_once,
    ),
    (
        "nothing_is_tried_on_a_vm_that_nobody_named",
        nothing_is_tried_on_a_vm_that_nobody_named,
    ),
];

/// How long a trial may take until it changes something, on a busy host.
const PATIENCE: Duration = Duration::from_secs(20);

/// A VM of two vCPUs that compute, on one pCPU.
fn stacked(name: &str, pcpu: &str) -> Guard {
    let pinned = ["--vcpus", "2", "--workload", "burn", "--pin", pcpu];
    start_vm(name, &pinned)
}

/// Where threads may run.
fn places(threads: &[ThreadRef]) -> Vec<String> {
    let places = threads.iter().map(|thread| affinity(thread.tid).unwrap());
    places.map(|place| place.to_string()).collect()
}

fn arguments<'a>(vm: &'a str, state: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["host", "why", vm, "--try", "--json", "--state-dir", state];
    [all.as_slice(), more].concat()
}

/// How often a trial on a calm host may come out otherwise: it was calm before the change, and perhaps not after it.
const CALM_RUNS: usize = 4;

/// What a trial of a finding says, with this outcome or else the last one of some on a calm host. `check` is made after every run.
fn tried(
    vm: &str,
    state: &str,
    more: &[&str],
    wanted: (&str, &str),
    check: impl Fn(&Value),
) -> Result<Value, Skip> {
    let seconds = SECONDS.to_string();
    let more = [more, &["--seconds", &seconds]].concat();
    let mut calm = 0;
    for _ in 0..LOOKS {
        let output = tandem(&arguments(vm, state, &more));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["schema"], 1);
        check(&said);
        let (kind, outcome) = wanted;
        let trials = said["trials"].as_array().unwrap();
        let trial = trials.iter().find(|trial| trial["kind"] == kind);
        if !is_calm(&said["found"], &[vm], &Allowed::default()) {
            continue;
        }
        calm += 1;
        match trial {
            Some(trial) if trial["outcome"] == outcome || calm >= CALM_RUNS => {
                return Ok(trial.clone());
            }
            None if calm >= CALM_RUNS => panic!("no {kind} was tried: {said:#}"),
            _ => {}
        }
    }
    skip("others use this host all the time")
}

fn stacked_vcpus_are_taken_apart_and_kept_so_until_a_restore() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let name = name('t');
    let vm = stacked(&name, &one);
    let vcpus = vcpus(&vm);
    let before = places(&vcpus);
    assert_eq!(before, [one.as_str(), one.as_str()]);
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let stacked = ("stacked", "helped");
    let trial = tried(&name, state, &[], stacked, |said| {
        assert_eq!(places(&vcpus), before, "{said:#}");
        assert_eq!(said["put_back"]["failures"], Value::Array(Vec::new()));
    })?;
    assert_eq!(
        (&trial["outcome"], &trial["in_force"]),
        (&"helped".into(), &false.into()),
        "{trial:#}"
    );
    let cost = |when: &str| trial[when]["cost"].as_f64().unwrap();
    // Others may take some of the pCPU that they share, and of the time that they wait.
    assert!(cost("before") > 0.6e9 && cost("after") < 0.2e9, "{trial:#}");
    assert!(
        cost("again") > 0.6e9,
        "without it, it is there again: {trial:#}"
    );

    // A run that keeps puts back what the one before kept, so all of them begin alike.
    let trial = tried(&name, state, &["--keep"], stacked, |said| {
        let mut trials = said["trials"].as_array().unwrap().iter();
        let is_kept = trials.any(|trial| trial["in_force"] == true);
        assert_eq!(is_kept, places(&vcpus) != before, "{said:#}");
    })?;
    assert_eq!(trial["in_force"], true, "{trial:#}");
    let kept = places(&vcpus);
    for place in &kept {
        let place: tandem_policy::PcpuSet = place.parse().unwrap();
        let has = |pcpu: &str| place.contains(tandem_policy::PcpuId(pcpu.parse().unwrap()));
        assert!(has(&one) && has(&two), "{kept:?}");
    }
    // For a name that is mistyped nothing is undone.
    let output = tandem(&arguments("nosuch", state, &[]));
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no VM is called 'nosuch'"));
    assert_eq!(places(&vcpus), kept);
    restore(state);
    assert_eq!(places(&vcpus), before);
    Ok(())
}

fn restore(state: &str) {
    let output = tandem(&["host", "restore", "--state-dir", state]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn a_cure_that_does_not_help_is_put_back() -> Result<(), Skip> {
    let [one, _] = pcpus()?;
    let name = name('u');
    let vm = start_vm(&name, &["--workload", "burn", "--pin", &one]);
    let own = tempfile::tempdir().unwrap();
    // Whichever of the two is lifted, the other holds the VM back all the same.
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
    let trial = tried(&name, state, &["--keep"], wanted, |said| {
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

/// A trial of the VM's stacked vCPUs, once it has changed where they may run.
fn in_the_middle(
    name: &str,
    state: &str,
    vcpus: &[ThreadRef],
    before: &[String],
) -> Result<Child, Skip> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(arguments(name, state, &["--seconds", "2"]))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if places(vcpus) != before {
            return Ok(child);
        }
        if child.try_wait().unwrap().is_some() {
            return skip("the host was too busy for stacked vCPUs to be found");
        }
        sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("nothing was changed, and the trial goes on");
}

/// A VM of stacked vCPUs, and where these may run before anything is tried.
struct Stacked {
    name: String,
    _vm: Guard,
    vcpus: Vec<ThreadRef>,
    before: Vec<String>,
    state: tempfile::TempDir,
}

impl Stacked {
    fn start(first: char) -> Result<Stacked, Skip> {
        let [one, _] = pcpus()?;
        let name = name(first);
        let vm = stacked(&name, &one);
        let vcpus = vcpus(&vm);
        Ok(Stacked {
            name,
            _vm: vm,
            before: places(&vcpus),
            vcpus,
            state: tempfile::tempdir().unwrap(),
        })
    }

    fn state(&self) -> &str {
        self.state.path().to_str().unwrap()
    }

    /// A trial that has changed where they may run.
    fn trial(&self) -> Result<Child, Skip> {
        in_the_middle(&self.name, self.state(), &self.vcpus, &self.before)
    }

    fn is_as_before(&self) -> bool {
        places(&self.vcpus) == self.before
    }
}

fn a_trial_that_is_killed_is_put_back_by_restore() -> Result<(), Skip> {
    let stacked = Stacked::start('v')?;
    let mut child = stacked.trial()?;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!stacked.is_as_before(), "nobody could put it back");
    restore(stacked.state());
    assert!(stacked.is_as_before());
    Ok(())
}

fn a_vm_of_a_daemon_elsewhere_is_not_tried() -> Result<(), Skip> {
    let stacked = Stacked::start('y')?;
    let mut claims = match Claims::open(Path::new(HOST_CLAIMS)) {
        Ok(claims) => claims,
        Err(error) => return skip(error),
    };
    // As a daemon with another state directory does.
    let pid = stacked.vcpus[0].pid;
    assert!(claims.claim(pid).unwrap());
    let wanted = ("stacked", "not-tried");
    let trial = tried(&stacked.name, stacked.state(), &[], wanted, |said| {
        assert!(stacked.is_as_before(), "{said:#}");
    })?;
    let because = trial["because"].as_str().unwrap();
    assert!(because.contains("another state directory"), "{trial:#}");
    Ok(())
}

fn an_interrupted_trial_puts_back_at_once() -> Result<(), Skip> {
    let stacked = Stacked::start('w')?;
    let mut child = stacked.trial()?;
    kill_process(ProcessId::from_child(&child), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(stacked.is_as_before());
    Ok(())
}

fn nothing_is_tried_on_a_vm_that_nobody_named() -> Result<(), Skip> {
    let stacked = Stacked::start('x')?;
    let output = tandem(&["host", "why", "--try", "--seconds", "0.5"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(
        said.contains("name the VM") && said.contains("--yes"),
        "{said}"
    );
    assert!(stacked.is_as_before());
    Ok(())
}
