//! The daemon on a state directory that fills up: it goes on, says so once, and puts everything back, also after kill -9.

use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::ProcFs;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;

/// So many VMs of two vCPUs do not fit into a page of the journal.
const MOST_VMS: usize = 16;

/// So long may a busy host take to look.
const PATIENCE: Duration = Duration::from_secs(20);

/// A child that does not outlive the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A small file system in memory over a state directory.
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

fn name() -> String {
    // A VM's name has eight characters at most.
    format!("dd{:04x}", std::process::id() & 0xffff)
}

fn start_vm() -> Guard {
    let mut vm = Guard(
        tandem()
            .args(["vm", "run", "--control-stdio", "--backend", "threads"])
            .args(["--workload", "burn", "--vcpus", "2", "--name", &name()])
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
    let mut tids: Vec<u32> = tasks
        .filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    tids.sort_unstable();
    let threads = tids
        .iter()
        .filter_map(|&tid| ThreadRef::read(&ProcFs::host(), pid, Tid(tid)).ok());
    threads
        .filter_map(|thread| controller.cgroup_of(&thread).ok())
        .collect()
}

#[test]
fn a_full_state_directory_ends_nothing_and_everything_is_put_back() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: cgroups need root");
        return;
    }
    let controller = match cgroup::open(&ProcFs::host()) {
        Ok(controller) => controller,
        Err(error) => {
            println!("skipped: no usable cpu controller: {error}");
            return;
        }
    };
    let Some(disk) = Disk::new() else {
        println!("skipped: no tmpfs can be mounted here");
        return;
    };
    for is_killed in [false, true] {
        let first = start_vm();
        let before = places(&*controller, &first);
        let log = disk
            .0
            .path()
            .parent()
            .unwrap()
            .join(format!("{}.log", name()));
        let mut daemon = Guard(
            tandem()
                .args(["host", "run", "--select-name", &format!("{}*", name())])
                .args(["--without-kvm", "uid:0"])
                .args(["--period-ms", "30", "--scan-ms", "100", "--print-ready"])
                .arg("--state-dir")
                .arg(disk.dir())
                .stdout(Stdio::piped())
                .stderr(fs::File::create(&log).unwrap())
                .spawn()
                .unwrap(),
        );
        let mut ready = String::new();
        let stdout = daemon.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{}", fs::read_to_string(&log).unwrap());
        assert_ne!(places(&*controller, &first), before, "it has a group");
        disk.fill();
        // The journal's last page has room for some more VMs.
        let is_said = || {
            let said = fs::read_to_string(&log).unwrap();
            said.contains("nothing more is changed")
        };
        let mut others = Vec::new();
        while !is_said() {
            assert!(others.len() < MOST_VMS, "there is room for all of them");
            let vm = start_vm();
            let begin = Instant::now();
            while places(&*controller, &vm)
                .iter()
                .all(|place| before.contains(place))
                && !is_said()
            {
                assert!(begin.elapsed() < PATIENCE, "nobody looked after it");
                std::thread::sleep(Duration::from_millis(20));
            }
            others.push(vm);
        }
        // One that cannot be journaled is left as it is.
        let last = start_vm();
        let untouched = places(&*controller, &last);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(daemon.0.try_wait().unwrap().is_none(), "it goes on");
        assert_eq!(places(&*controller, &last), untouched);
        let said = fs::read_to_string(&log).unwrap();
        let warnings = said
            .lines()
            .filter(|line| line.contains("nothing more is changed"));
        assert_eq!(warnings.count(), 1, "{said}");
        if is_killed {
            daemon.0.kill().unwrap();
            daemon.0.wait().unwrap();
            let restored = tandem()
                .args(["host", "restore", "--state-dir"])
                .arg(disk.dir())
                .output()
                .unwrap();
            assert!(restored.status.success(), "{restored:?}");
        } else {
            let told = Command::new("kill").arg(daemon.0.id().to_string()).status();
            assert!(told.unwrap().success());
            assert!(daemon.0.wait().unwrap().success(), "it ends in order");
        }
        for vm in others.iter().chain([&first, &last]) {
            assert_eq!(places(&*controller, vm), before, "killed: {is_killed}");
        }
        fs::remove_file(disk.dir().join("filling")).unwrap();
        let _ = fs::remove_file(log);
    }
}
