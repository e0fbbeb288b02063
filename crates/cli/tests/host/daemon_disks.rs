//! The daemon on a full state directory: it continues, logs a warning once, and reverts everything, also after kill -9.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};

/// Number of VMs with two vCPUs that do not fit into a page of the journal.
const MAX_VMS: usize = 16;

/// Timeout of a discovery on a busy host.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A child that is killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A small tmpfs, mounted on a state directory.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Option<Disk> {
        let disk = Disk(tempfile::tempdir().unwrap());
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs"])
            .arg(disk.dir())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(disk)
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.dir().join("filling")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir()).status();
    }
}

fn tandem() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tandem"))
}

/// Returns the name of a test's VMs.
fn name(test: char) -> String {
    // Names of VMs have at most 8 characters.
    format!("d{test}{:04x}", std::process::id() & 0xffff)
}

fn start_vm(test: char) -> Guard {
    let mut vm = Guard(
        tandem()
            .args(["vm", "run", "--control-stdio", "--backend", "threads"])
            .args(["--workload", "burn", "--vcpus", "2", "--name", &name(test)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut ready = String::new();
    let stdout = vm.0.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    assert!(ready.contains("\"ready\":true"), "{ready}");
    vm
}

fn places(controller: &dyn CpuController, vm: &Guard) -> Vec<CgroupPath> {
    let pid = Pid(vm.0.id());
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut tids: Vec<u32> =
        tasks.filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    let threads =
        tids.iter().filter_map(|&tid| ThreadRef::read(&ProcFs::host(), pid, Tid(tid)).ok());
    threads.filter_map(|thread| controller.cgroup_of(&thread).ok()).collect()
}

/// Returns the requirements of a test, or prints the missing one.
fn ground() -> Option<(Box<dyn CpuController>, Disk)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: cgroups need root");
        return None;
    }
    let controller = match cgroup::open(&ProcFs::host()) {
        Ok(controller) => controller,
        Err(error) => {
            println!("skipped: no usable cpu controller: {error}");
            return None;
        }
    };
    let disk = Disk::new();
    if disk.is_none() {
        println!("skipped: no tmpfs can be mounted here");
    }
    Some((controller, disk?))
}

/// Returns the command of a daemon for the VMs of this test.
fn daemon(disk: &Disk, test: char) -> Command {
    let mut daemon = tandem();
    daemon
        .args(["host", "run", &format!("{}*", name(test))])
        .args(["--without-kvm", "uid:0"])
        .args(["--period-ms", "30", "--scan-ms", "100", "--print-ready"])
        .arg("--state-dir")
        .arg(disk.dir());
    daemon
}

#[test]
#[ignore = "needs root and KVM"]
fn initially_full_state_directory_is_an_error() {
    let Some((controller, disk)) = ground() else {
        return;
    };
    let vm = start_vm('s');
    let before = places(&*controller, &vm);
    fs::write(disk.dir().join("lock"), "").unwrap();
    disk.fill();
    let ended = daemon(&disk, 's').args(["--duration", "2s"]).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing could be changed"), "{said}");
    assert!(!said.contains("they take turns"), "no VM takes turns: {said}");
    assert_eq!(places(&*controller, &vm), before);
    assert!(!disk.dir().join("status.json.new").exists());
}

#[test]
#[ignore = "needs root and KVM"]
fn daemon_survives_a_full_state_directory() {
    let Some((controller, disk)) = ground() else {
        return;
    };
    for is_killed in [false, true] {
        let first = start_vm('f');
        let before = places(&*controller, &first);
        let log = disk.0.path().parent().unwrap().join(format!("{}.log", name('f')));
        let mut daemon = Guard(
            daemon(&disk, 'f')
                .stdout(Stdio::piped())
                .stderr(fs::File::create(&log).unwrap())
                .spawn()
                .unwrap(),
        );
        let mut ready = String::new();
        let stdout = daemon.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{}", fs::read_to_string(&log).unwrap());
        assert_ne!(places(&*controller, &first), before, "the VM has a group");
        disk.fill();
        // The last page of the journal has space for some more VMs.
        let is_said = || {
            let said = fs::read_to_string(&log).unwrap();
            said.contains("nothing more is changed")
        };
        let mut others = Vec::new();
        while !is_said() {
            assert!(others.len() < MAX_VMS, "all VMs fit into the journal");
            let vm = start_vm('f');
            let begin = Instant::now();
            while places(&*controller, &vm).iter().all(|place| before.contains(place)) && !is_said()
            {
                assert!(begin.elapsed() < TIMEOUT, "the daemon ignored the VM");
                std::thread::sleep(Duration::from_millis(20));
            }
            others.push(vm);
        }
        // The daemon does not change a VM that it cannot journal.
        let last = start_vm('f');
        let untouched = places(&*controller, &last);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(daemon.0.try_wait().unwrap().is_none(), "the daemon exited");
        assert_eq!(places(&*controller, &last), untouched);
        let said = fs::read_to_string(&log).unwrap();
        let warnings = said.lines().filter(|line| line.contains("nothing more is changed"));
        assert_eq!(warnings.count(), 1, "{said}");
        if is_killed {
            daemon.0.kill().unwrap();
            daemon.0.wait().unwrap();
            let restored =
                tandem().args(["host", "restore", "--state-dir"]).arg(disk.dir()).output().unwrap();
            assert!(restored.status.success(), "{restored:?}");
        } else {
            let told = Command::new("kill").arg(daemon.0.id().to_string()).status();
            assert!(told.unwrap().success());
            assert!(daemon.0.wait().unwrap().success(), "the daemon exits cleanly");
        }
        for vm in others.iter().chain([&first, &last]) {
            assert_eq!(places(&*controller, vm), before, "killed: {is_killed}");
        }
        fs::remove_file(disk.dir().join("filling")).unwrap();
        let _ = fs::remove_file(log);
    }
}
