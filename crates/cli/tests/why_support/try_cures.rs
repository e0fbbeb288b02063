//! `tandem host why --try` on real VMs: what helps stays for as long as it is wanted, what does not is put back, and so is everything
//! after Ctrl-C and kill -9.
//!
//! What must be as it was is looked up after every run, whether the host was calm in it or not; what a trial says counts only if it was.

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

/// All that is here.
pub const ALL: &[(&str, Test)] = &[
    (
        "stacked_vcpus_are_taken_apart_and_kept_so_until_a_restore",
        stacked_vcpus_are_taken_apart_and_kept_so_until_a_restore,
    ),
    ("a_cure_that_does_not_help_is_put_back", a_cure_that_does_not_help_is_put_back),
    (
        "a_trial_that_is_killed_is_put_back_by_restore",
        a_trial_that_is_killed_is_put_back_by_restore,
    ),
    ("a_vm_of_a_daemon_elsewhere_is_not_tried", a_vm_of_a_daemon_elsewhere_is_not_tried),
    ("an_interrupted_trial_puts_back_at_once", an_interrupted_trial_puts_back_at_once),
    ("nothing_is_tried_on_a_vm_that_nobody_named", nothing_is_tried_on_a_vm_that_nobody_named),
];

/// How long a trial may take until it changes something, on a busy host.
const PATIENCE: Duration = Duration::from_secs(20);

/// A VM of two vCPUs that compute, on one pCPU.
fn stacked(name: &str, pcpu: &str) -> Guard {
    let pinned = ["--vcpus", "2", "--workload", "burn", "--pin", pcpu];
    start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &pinned)
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

/// Maximum number of undisturbed trials: others may come between the change and the measurement after it.
const CALM_RUNS: usize = 4;

/// A trial of a finding with this outcome, or else the last one of several. `check` is made after every run.
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
    // Others may take some of the pCPU that they share, and of the time that they wait.
    assert!(cost("before") > 0.6e9 && cost("after") < 0.2e9, "{trial:#}");
    assert!(cost("again") > 0.6e9, "without it, it is there again: {trial:#}");

    // A run that keeps puts back what the one before kept, so all of them begin alike.
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
    // For a name that is mistyped nothing is undone.
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

fn a_cure_that_does_not_help_is_put_back() -> Result<(), Skip> {
    let one = pcpu()?;
    let name = name('u');
    let vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "burn", "--pin", &one],
    );
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

/// A VM with a quota, and its quota before anything is tried. The cgroup goes first.
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

    /// A trial that has lifted the quota.
    fn trial(&self) -> Result<Child, Skip> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(arguments(&self.name, self.state(), &["--duration", "2s"]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if !self.is_as_before() {
                return Ok(child);
            }
            if child.try_wait().unwrap().is_some() {
                return skip("the host was too busy for the quota to be found");
            }
            sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("nothing was changed, and the trial goes on");
    }
}

fn a_trial_that_is_killed_is_put_back_by_restore() -> Result<(), Skip> {
    let limited = Limited::start('v')?;
    let mut child = limited.trial()?;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!limited.is_as_before(), "nobody could put it back");
    restore(limited.state());
    assert!(limited.is_as_before());
    Ok(())
}

fn a_vm_of_a_daemon_elsewhere_is_not_tried() -> Result<(), Skip> {
    let limited = Limited::start('y')?;
    let mut claims = match Claims::open(Path::new(HOST_CLAIMS)) {
        Ok(claims) => claims,
        Err(error) => return skip(error),
    };
    // As a daemon with another state directory does.
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

fn an_interrupted_trial_puts_back_at_once() -> Result<(), Skip> {
    let limited = Limited::start('w')?;
    let mut child = limited.trial()?;
    kill_process(ProcessId::from_child(&child), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(limited.is_as_before());
    Ok(())
}

fn nothing_is_tried_on_a_vm_that_nobody_named() -> Result<(), Skip> {
    let limited = Limited::start('x')?;
    let output = tandem(&["host", "why", "--try", "--duration", "0.5s"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("name the VM") && said.contains("--yes"), "{said}");
    assert!(limited.is_as_before());
    Ok(())
}
