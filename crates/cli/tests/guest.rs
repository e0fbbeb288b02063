//! `tandem guest` on this machine in the role of a VM: its settings take effect, and all of its exits revert them.
//!
//! The tests need root and the cpuset controller; without them each test prints the reason and is skipped.
//! They also run in the test VM (`make test-vm`), where cgroup v2 has the controller and `tandem` is in `PATH`.
//! No test depends on timing.

use tandem_testing::kills;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_guest::births::Births;
use tandem_guest::cpusets::Cpusets;
use tandem_linux::ProcFs;
use tandem_linux::cgroup::{CgroupPath, Version};

/// Lock of the kernel parameters, which all tests share.
static ALONE: Mutex<()> = Mutex::new(());

/// Timeout of expected events on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The environment of a test.
struct Vm {
    cpusets: Cpusets,
    state: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// The state that an agent may change.
#[derive(Debug, PartialEq, Eq)]
struct KnobValues {
    cgroups: BTreeSet<PathBuf>,
    poll: Option<String>,
    controllers: Option<String>,
}

impl Vm {
    /// Returns `None`, and prints the reason, if the agent cannot work here.
    fn find() -> Option<Vm> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = match Cpusets::open(&ProcFs::host()) {
            Err(error) => error.to_string(),
            Ok(_) if !rustix::process::geteuid().is_root() => "needs root".to_owned(),
            Ok(cpusets) => match cpusets.vcpus(&CgroupPath::root()) {
                Ok(all) if all.len() < 2 => "needs two vCPUs".to_owned(),
                Ok(_) => {
                    return Some(Vm {
                        cpusets,
                        state: tempfile::tempdir().unwrap(),
                        _alone: alone,
                    });
                }
                Err(error) => error.to_string(),
            },
        };
        println!("skipped: the agent in a VM: {reason}");
        None
    }

    fn knob_values(&self) -> KnobValues {
        let mount = self.cpusets.mount();
        let poll = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
        KnobValues {
            cgroups: folders(mount),
            poll: fs::read_to_string(poll).ok(),
            controllers: fs::read_to_string(mount.join("cgroup.subtree_control")).ok(),
        }
    }

    fn state(&self) -> &str {
        self.state.path().to_str().unwrap()
    }

    fn tandem(&self, arguments: &[&str]) -> Command {
        let built = option_env!("CARGO_BIN_EXE_tandem").filter(|path| Path::new(path).exists());
        let mut command = Command::new(built.unwrap_or("tandem"));
        command.args(["guest", arguments[0], "--state-dir", self.state()]).args(&arguments[1..]);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut all = vec!["run"];
        all.extend(arguments);
        self.tandem(&all).output().unwrap()
    }

    fn restore(&self) -> String {
        let output = self.once_free(|| self.tandem(&["restore"]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command; retries while a child that the killed agent has just forked holds a copy of the lock.
    fn once_free(&self, command: impl Fn() -> Command) -> Output {
        let begin = Instant::now();
        loop {
            let output = command().output().unwrap();
            let is_locked = text(&output.stderr).contains("is in use by");
            if !is_locked || begin.elapsed() > TIMEOUT {
                return output;
            }
            sleep(Duration::from_millis(5));
        }
    }
}

fn folders(below: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let Ok(entries) = fs::read_dir(below) else {
        return found;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(folders(&entry.path()));
            found.insert(entry.path());
        }
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the vCPUs that a process may use, in the kernel's list format.
fn allowed(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Closes the standard streams of a command, because a process that outlives the test would keep its pipes open.
fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// A program that sleeps, and ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        let child = quiet(Command::new("sleep").arg("60")).spawn();
        Sleeper(child.unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup of the test with a sleeper in it.
struct Group<'a> {
    cpusets: &'a Cpusets,
    path: CgroupPath,
    sleeper: Option<Sleeper>,
}

impl<'a> Group<'a> {
    fn make(cpusets: &'a Cpusets) -> Group<'a> {
        let root = CgroupPath::root();
        let name = format!("tandem-test-{}", std::process::id());
        let path = cpusets.make(&root, &name).unwrap();
        let sleeper = Sleeper::start();
        let pid = tandem_linux::thread::Pid(sleeper.0.id());
        cpusets.move_process(pid, &path).unwrap();
        Group { cpusets, path, sleeper: Some(sleeper) }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        drop(self.sleeper.take());
        let begin = Instant::now();
        while self.cpusets.remove(&self.path).is_err() && begin.elapsed() < TIMEOUT {
            sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn command_is_restricted_and_passes_its_status() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let script = "grep Cpus_allowed_list /proc/self/status; exit 7";
    let held = ["--vcpus", "1", "--retention", "off", "--", "sh", "-c", script];
    let output = vm.run(&held);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let list = text(&output.stdout);
    let list = list.split_whitespace().last().unwrap().to_owned();
    assert!(list.parse::<u32>().is_ok(), "one vCPU, not '{list}'");
    assert_eq!(vm.knob_values(), before);
    assert!(vm.restore().starts_with("0 changes"));
}

#[test]
fn signalled_command_exits_like_a_shell() {
    let Some(vm) = Vm::find() else { return };
    let output = vm.run(&["-q", "--retention", "off", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(128 + 9));
}

#[test]
fn missing_command_changes_nothing() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let output = vm.run(&["--", "/no/such/program"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("cannot start '/no/such/program'"));
    assert_eq!(vm.knob_values(), before);
}

#[test]
fn both_means_of_retention_work() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let report = vm.state.path().join("report.json");
    let report = report.to_str().unwrap();
    for (means, name) in [("yield", "yielding threads"), ("best", "")] {
        let arguments = ["-q", "--means", means, "--retention", "100us", "--json", report];
        let output = vm.run(&[&arguments[..], &["--", "sleep", "0.3"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
        assert!(report["means"].as_str().unwrap().contains(name));
        assert_eq!(report["choice"]["retention_ns"], 100_000);
        assert!(report["periods"].as_u64().unwrap() > 0, "{report}");
    }
    assert_eq!(vm.knob_values(), before);
}

#[test]
fn dry_run_changes_nothing() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let mut agent = vm
        .tandem(&["run", "--dry-run", "--print-ready", "--interval", "20ms", "--", "sleep", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(500));
    assert_eq!(vm.knob_values(), before);
    assert!(agent.wait().unwrap().success());
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut agent.stdout.take().unwrap(), &mut printed).unwrap();
    assert!(printed.contains("ready"), "{printed}");
    assert!(printed.contains("would set vCPUs"), "{printed}");
}

#[test]
fn cgroup_is_restricted_and_reverted() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let group = Group::make(&vm.cpusets);
    let had = vm.cpusets.vcpus(&group.path).unwrap();
    let pid = group.sleeper.as_ref().unwrap().0.id();
    let mut agent = vm
        .tandem(&["run", "-q", "--vcpus", "1", "--retention", "off", "--cgroup", &group.path.0])
        .spawn()
        .unwrap();
    wait_until("the sleeper has one vCPU", || {
        allowed(pid).is_some_and(|list| list.parse::<u32>().is_ok())
    });
    wait_until("the agent has a status", || {
        let output = vm.tandem(&["status"]).output().unwrap();
        text(&output.stdout).contains(&group.path.0)
    });
    terminate(&agent);
    assert!(agent.wait().unwrap().success());
    assert_eq!(vm.cpusets.vcpus(&group.path).unwrap(), had);
    let status = vm.tandem(&["status"]).output().unwrap();
    assert!(text(&status.stdout).contains("no agent runs here"));
    drop(group);
    assert_eq!(vm.knob_values(), before);
}

#[test]
fn process_is_moved_back_or_rejected() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    let had = allowed(pid);
    let was = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let arguments = ["-q", "--vcpus", "1", "--retention", "off", "--duration", "1s"];
    let output = vm.run(&[&arguments[..], &["--pid", &pid.to_string()]].concat());
    match vm.cpusets.version() {
        Version::V1 => assert!(output.status.success(), "{}", text(&output.stderr)),
        // The process is in the same cgroup as this test.
        Version::V2 => assert!(text(&output.stderr).contains("--cgroup")),
    }
    assert_eq!(allowed(pid), had);
    let is = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(is, was);
    assert_eq!(vm.knob_values(), before);
}

#[test]
fn per_thread_binds_threads_round_robin() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let script = "sleep 60 & sleep 60 & sleep 60 & wait";
    let mut agent = vm
        .tandem(&["run", "-q", "--per-thread", "--retention", "off", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let bound = || -> Vec<String> {
        let mine = vm.cpusets.family(tandem_linux::thread::Pid(agent.id())).unwrap();
        let of_agent = mine.iter().filter(|pid| pid.0 != agent.id());
        of_agent.filter_map(|pid| allowed(pid.0)).collect()
    };
    wait_until("the shell and three sleepers are bound, two to each vCPU", || {
        let lists = bound();
        let single = lists.iter().all(|list| list.parse::<u32>().is_ok());
        let count = |list: &String| lists.iter().filter(|other| *other == list).count();
        lists.len() == 4 && single && lists.iter().all(|list| count(list) <= 2)
    });
    let family = vm.cpusets.family(tandem_linux::thread::Pid(agent.id())).unwrap();
    terminate(&agent);
    // The agent forwards the signal, which ends the shell.
    assert_eq!(agent.wait().unwrap().code(), Some(128 + 15));
    for pid in family.iter().filter(|pid| pid.0 != agent.id()) {
        let everywhere = allowed(std::process::id());
        assert!(allowed(pid.0).is_none_or(|list| Some(list) == everywhere));
        end(pid.0);
    }
    assert_eq!(vm.knob_values(), before);
}

fn has_birth_events() -> bool {
    let Ok(births) = Births::listen() else {
        return false;
    };
    (0..100).any(|_| {
        sleep(Duration::from_millis(10));
        Command::new("true").status().unwrap();
        births.take().is_ok_and(|born| !born.is_empty())
    })
}

#[test]
fn threads_are_bound_at_birth() {
    let Some(vm) = Vm::find() else { return };
    if !has_birth_events() {
        println!("skipped: the kernel's process connector sends no events here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("long.toml");
    fs::write(&config, "[guest]\nperiod_ms = 2000\n").unwrap();
    // Sequential, so that few run at the same time and most end within a period.
    let script = "i=0; while [ $i -lt 30 ]; do sleep 0.1; i=$((i+1)); done";
    let report = folder.path().join("report.json");
    let run = vm
        .tandem(&["run", "-q", "--per-thread", "--retention", "off"])
        .arg("--config")
        .arg(&config)
        .arg("--json")
        .arg(&report)
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    let count = |key: &str| report[key].as_u64().unwrap();
    let (born, later) = (count("bound_at_birth"), count("bound_later"));
    assert!(born > later, "{born} at birth, {later} at a period");
}

#[test]
fn actions_of_processes_cause_no_error() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    // The processes fork and exit, bind themselves, and leave the agent's cgroup.
    let home = vm.cpusets.entrance(&CgroupPath::root());
    let script = format!(
        "for i in $(seq 60); do (sleep 0.02; :) & (taskset -p 1 $$ >/dev/null 2>&1) & \
         (echo 0 > {} 2>/dev/null; sleep 0.01) & done; wait; exit 0",
        home.display()
    );
    let output = vm.run(&["-q", "--interval", "20ms", "--", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(vm.knob_values(), before);
}

#[test]
fn sigkill_at_any_moment_is_reverted() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let mut random = 20_261_121_u64;
    let kills = kills::kills(50);
    for round in 0..kills {
        let arguments = ["run", "-q", "--interval", "20ms", "--vcpus", "1"];
        let held = ["--retention", "100us", "--", "sleep", "10"];
        let mut command = vm.tandem(&[&arguments[..], &held].concat());
        let mut agent = quiet(&mut command).spawn().unwrap();
        // Knuth's LCG chooses a moment within 120 ms of the start.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_micros((random >> 33) % 120_000));
        let family = vm.cpusets.family(tandem_linux::thread::Pid(agent.id())).unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
        let status = vm.tandem(&["status"]).output().unwrap();
        let is_left = tandem_linux::journal::is_pending(vm.state.path());
        assert_eq!(text(&status.stdout).contains("reverts its changes"), is_left);
        // In every other round the next start reverts the changes.
        match round % 2 {
            0 => drop(vm.restore()),
            _ => {
                let next = ["run", "-q", "--retention", "off", "--", "true"];
                assert!(vm.once_free(|| vm.tandem(&next)).status.success());
            }
        }
        for pid in family.iter().filter(|pid| pid.0 != agent.id()) {
            end(pid.0);
        }
        assert_eq!(vm.knob_values(), before, "round {round}");
    }
    assert!(vm.restore().starts_with("0 changes"));
}

#[test]
fn invalid_options_name_valid_values() {
    let Some(vm) = Vm::find() else { return };
    let before = vm.knob_values();
    let error = |arguments: &[&str]| {
        let output = vm.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        text(&output.stderr)
    };
    assert!(error(&[]).contains("no target"));
    assert!(error(&["--vcpus", "0", "--", "true"]).contains("auto, all, or 1"));
    assert!(error(&["--retention", "1h", "--", "true"]).contains("such as 200us"));
    assert!(error(&["--vcpus", "4096", "--", "true"]).contains("'all'"));
    assert!(error(&["--cgroup", "no-slash"]).contains("begins with '/'"));
    assert!(error(&["--cgroup", "/"]).contains("root cgroup"));
    assert!(error(&["--cgroup", "/no/such/cgroup"]).contains("does not exist"));
    assert!(error(&["--pid", "4194304"]).contains("--pid 4194304"));
    assert!(error(&["--config", "/no/such.toml", "--", "true"]).contains("/no/such.toml"));
    assert_eq!(vm.knob_values(), before);
}

/// Sends SIGTERM.
fn terminate(agent: &Child) {
    let pid = rustix::process::Pid::from_child(agent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

/// Kills a process that an agent left, if it still exists.
fn end(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
