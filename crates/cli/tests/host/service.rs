//! The running daemon through the real binary: status, pause, resume and reload, with a VM of plain threads.

use tandem_testing::vm as vm_support;

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::{ProcFs, cgroup};

use vm_support::{Guard, start_vm};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns whether this machine permits reading weights; if not, prints the reason.
fn runs_here(test: &str) -> bool {
    match cgroup::open(&ProcFs::host()) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {test}: {error}");
            false
        }
    }
}

/// A daemon with its own settings file and state directory.
struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
}

impl Daemon {
    /// Starts it and waits until it answers; VMs of this user may run without KVM.
    fn start(settings: &str) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        let user = rustix::process::getuid().as_raw();
        let settings = format!("[host]\nwithout_kvm = [\"uid:{user}\"]\n{settings}");
        fs::write(dir.path().join("tandem.toml"), settings).unwrap();
        let daemon = Daemon { child: Daemon::spawn(&dir), dir };
        daemon.wait("it answers", || daemon.run(&["status"]).status.success());
        daemon
    }

    fn spawn(dir: &tempfile::TempDir) -> Child {
        let log = fs::File::options().create(true).append(true).open(dir.path().join("log"));
        Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(["host", "run", "--config"])
            .arg(dir.path().join("tandem.toml"))
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap()
    }

    /// Kills it with SIGKILL and starts another one.
    fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Daemon::spawn(&self.dir);
        self.wait("it answers", || self.run(&["status"]).status.success());
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Runs `tandem host …` with its state directory.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        command.arg("host").args(args).arg("--state-dir").arg(self.state()).output().unwrap()
    }

    fn service(&self) -> Value {
        let output = self.run(&["status", "--json"]);
        assert!(output.status.success(), "{}{}", text(&output.stderr), self.log());
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["daemon"], "running");
        status["service"].clone()
    }

    /// Returns the daemon's description of the VM with this name.
    fn vm(&self, name: &str) -> Option<Value> {
        let service = self.service();
        let vms = service["vms"].as_array().unwrap();
        vms.iter().find(|vm| vm["name"] == name).cloned()
    }

    fn wait(&self, what: &str, mut is: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < deadline, "not within a minute: {what}; {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes other settings, and requests a reload.
    fn reload(&self, settings: &str) {
        fs::write(self.dir.path().join("tandem.toml"), settings).unwrap();
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn name(first: char) -> String {
    format!("{first}{}", std::process::id())
}

fn vm(name: &str) -> Guard {
    let args = ["--vcpus", "2", "--workload", "burn", "--backend", "threads"];
    start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &args)
}

fn selecting(pid: u32) -> String {
    format!("[host.select]\npids = [{pid}]\n")
}

#[test]
#[ignore = "needs root and KVM"]
fn daemon_starts_without_a_selected_vm() {
    if !runs_here("daemon_starts_without_a_selected_vm") {
        return;
    }
    let daemon = Daemon::start("dry_run = true\n");
    let service = daemon.service();
    assert_eq!((&service["dry_run"], &service["selects"]), (&true.into(), &false.into()));
    assert_eq!(service["pid"], daemon.child.id());
    assert!(daemon.log().contains("no VM is selected"), "{}", daemon.log());
    let output = daemon.run(&["status"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("dry run") && shown.contains("[host.select]"), "{shown}");
    let socket = fs::symlink_metadata(daemon.state().join("control")).unwrap();
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
}

#[test]
#[ignore = "needs root and KVM"]
fn pause_survives_a_reload() {
    if !runs_here("pause_survives_a_reload") {
        return;
    }
    let (first, second) = (name('p'), name('q'));
    let vms = [vm(&first), vm(&second)];
    let pids = vms.each_ref().map(|vm| vm.0.id());
    let select = format!("dry_run = true\nselect.pids = [{}, {}]\n", pids[0], pids[1]);
    let daemon = Daemon::start(&select);
    daemon.wait("both are managed", || daemon.vm(&first).is_some() && daemon.vm(&second).is_some());
    let missing = daemon.run(&["pause", &first, "no-such-vm"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("no managed VM matches 'no-such-vm'"));
    assert_eq!(daemon.vm(&first).unwrap()["paused"], false, "all or none is paused");
    let paused = daemon.run(&["pause", &pids[0].to_string()]);
    assert!(paused.status.success(), "{}", text(&paused.stderr));
    assert!(text(&paused.stdout).contains("is paused, all changes on it are reverted"));
    let is_paused = |name: &str| daemon.vm(name).map(|vm| vm["paused"] == true);
    assert_eq!((is_paused(&first), is_paused(&second)), (Some(true), Some(false)));
    let user = rustix::process::getuid().as_raw();
    let found = format!("[host]\nwithout_kvm = [\"uid:{user}\"]\ngain = 0.5\n{select}");
    daemon.reload(&found);
    daemon.wait("it reloads", || daemon.log().contains("tandem.toml apply"));
    assert_eq!(is_paused(&first), Some(true), "{}", daemon.log());
    assert_eq!(daemon.run(&["resume", &second]).status.code(), Some(3), "it is not paused");
    assert!(daemon.run(&["resume", &first]).status.success());
    daemon.wait("it is managed again", || is_paused(&first) == Some(false));
}

#[test]
#[ignore = "needs root and KVM"]
fn reload_applies_valid_files_only() {
    if !runs_here("reload_applies_valid_files_only") {
        return;
    }
    let name = name('r');
    let vm = vm(&name);
    let daemon = Daemon::start("dry_run = true\n");
    let user = rustix::process::getuid().as_raw();
    let head = format!("[host]\nwithout_kvm = [\"uid:{user}\"]\ndry_run = true\n");
    daemon.reload(&format!("{head}gain = 7.0\n{}", selecting(vm.0.id())));
    daemon.wait("the error is logged", || daemon.log().contains("gain = 7"));
    let log = daemon.log();
    assert!(log.contains("error: cannot reload") && log.contains("the earlier settings stay"));
    assert!(daemon.vm(&name).is_none(), "{}", daemon.log());
    let port = "metrics_listen = \"127.0.0.1:1\"\n";
    daemon.reload(&format!("{head}{port}{}", selecting(vm.0.id())));
    daemon.wait("the VM is managed", || daemon.vm(&name).is_some());
    assert!(daemon.log().contains("metrics_listen changes with a restart"), "{}", daemon.log());
    daemon.reload(&head);
    daemon.wait("the VM is not managed", || daemon.vm(&name).is_none());
}

#[test]
#[ignore = "needs root and KVM"]
fn pause_reverts_and_reload_does_not() {
    let test = "pause_reverts_and_reload_does_not";
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {test}: needs root");
        return;
    }
    if !runs_here(test) {
        return;
    }
    let name = name('x');
    let vm = vm(&name);
    let mut daemon = Daemon::start(&selecting(vm.0.id()));
    let managed = |daemon: &Daemon| daemon.vm(&name).filter(|vm| vm["paused"] == false);
    let deadline = Instant::now() + Duration::from_secs(10);
    while managed(&daemon).is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    if managed(&daemon).is_none() {
        println!("skipped: {test}: the VM cannot be managed here: {}", daemon.log());
        return;
    }
    assert!(daemon.log().contains("changes on each managed VM"), "{}", daemon.log());
    let group_of = |vm: Option<Value>| -> Option<CgroupPath> {
        Some(CgroupPath(vm?["cgroup"].as_str()?.to_owned()))
    };
    let group = group_of(managed(&daemon)).unwrap();
    let controller = cgroup::open(&ProcFs::host()).unwrap();
    assert!(controller.exists(&group), "its vCPUs are in a cgroup of the daemon's");
    let user = rustix::process::getuid().as_raw();
    let head = format!("[host]\nwithout_kvm = [\"uid:{user}\"]\ngain = 0.4\n");
    daemon.reload(&(head + &selecting(vm.0.id())));
    daemon.wait("it reloads", || daemon.log().contains("tandem.toml apply"));
    assert_eq!(
        group_of(managed(&daemon)),
        Some(group.clone()),
        "it keeps its state: {}",
        daemon.log()
    );
    assert!(!daemon.log().contains("is not managed any more"), "{}", daemon.log());
    let paused = daemon.run(&["pause", &name]);
    assert!(paused.status.success(), "{}", text(&paused.stderr));
    assert!(!controller.exists(&group), "{}", daemon.log());
    daemon.kill_and_restart();
    assert_eq!(daemon.vm(&name).unwrap()["paused"], true, "{}", daemon.log());
    assert!(!controller.exists(&group), "{}", daemon.log());
    assert!(daemon.run(&["resume", &name]).status.success());
    daemon.wait("it is managed again", || managed(&daemon).is_some() && controller.exists(&group));
}
