//! Discovery on fake process trees in a temporary folder, with a simulated clock.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

mod hostile;

/// A fake `/proc`.
struct FakeProc {
    root: TempDir,
    now: Instant,
}

/// A process of the tree.
struct Process {
    pid: u32,
    start: u64,
    comm: &'static str,
    cmdline: &'static str,
    kvm_vcpus: usize,
    threads: Vec<(u32, &'static str)>,
}

fn process(pid: u32, comm: &'static str) -> Process {
    Process {
        pid,
        start: u64::from(pid) * 10,
        comm,
        cmdline: "",
        kvm_vcpus: 0,
        threads: Vec::new(),
    }
}

impl Process {
    fn kvm(mut self, vcpus: usize) -> Process {
        self.kvm_vcpus = vcpus;
        self
    }

    fn thread(mut self, tid: u32, comm: &'static str) -> Process {
        self.threads.push((tid, comm));
        self
    }

    fn cmdline(mut self, cmdline: &'static str) -> Process {
        self.cmdline = cmdline;
        self
    }
}

impl FakeProc {
    fn new() -> FakeProc {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        FakeProc { root, now: Instant::now() }
    }

    fn folder(&self, pid: u32) -> PathBuf {
        self.root.path().join(format!("proc/{pid}"))
    }

    fn thread(&self, pid: u32, tid: u32, start: u64, comm: &str, threads: usize) {
        let folder = self.folder(pid).join(format!("task/{tid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("stat"), stat(tid, start, comm, threads, 0)).unwrap();
    }

    fn add(&self, p: &Process) {
        let folder = self.folder(p.pid);
        fs::create_dir_all(folder.join("fd")).unwrap();
        let threads = p.threads.len() + 1;
        fs::write(folder.join("stat"), stat(p.pid, p.start, p.comm, threads, 0)).unwrap();
        fs::write(folder.join("cmdline"), p.cmdline.replace(' ', "\0")).unwrap();
        self.thread(p.pid, p.pid, p.start, p.comm, threads);
        for &(tid, comm) in &p.threads {
            self.thread(p.pid, tid, p.start + 1, comm, threads);
        }
        symlink("/dev/null", folder.join("fd/0")).unwrap();
        self.hold_vcpus(p.pid, 0..p.kvm_vcpus);
    }

    fn hold_vcpus(&self, pid: u32, vcpus: std::ops::Range<usize>) {
        for n in vcpus {
            let fd = self.folder(pid).join(format!("fd/{}", n + 10));
            symlink(format!("anon_inode:kvm-vcpu:{n}"), fd).unwrap();
        }
    }

    /// Removes a process; its inode stays in use, because the kernel does not reuse inodes.
    fn end(&self, pid: u32) {
        let grave = self.root.path().join("ended");
        fs::create_dir_all(&grave).unwrap();
        let place = grave.join(format!("{pid}-{}", fs::read_dir(&grave).unwrap().count()));
        fs::rename(self.folder(pid), place).unwrap();
    }

    fn discovery(&self, options: DiscoveryOptions) -> Discovery {
        Discovery::new(options, ProcFs::at(self.root.path())).unwrap()
    }

    fn scan(&mut self, discovery: &mut Discovery, after_ms: u64) -> Vec<Vm> {
        self.now += Duration::from_millis(after_ms);
        discovery.scan_at(self.now, UNHURRIED).unwrap().vms
    }
}

fn stat(number: u32, start: u64, comm: &str, threads: usize, flags: u64) -> String {
    format!("{number} ({comm}) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 {start} 0 0\n")
}

/// Options with processes that the operator named.
fn named(texts: &[&str]) -> DiscoveryOptions {
    DiscoveryOptions {
        without_kvm: texts.iter().map(|&text| text.to_owned()).collect(),
        ..DiscoveryOptions::default()
    }
}

fn vcpus(vm: &Vm) -> Vec<(u32, u32)> {
    let pairs = vm.vcpus.iter().map(|v| (v.index.0, v.thread.tid.0));
    pairs.collect()
}

fn qemu() -> Process {
    process(100, "qemu-system-x86")
        .cmdline("qemu-system-x86_64 -name guest=web,debug-threads=on")
        .kvm(2)
        .thread(103, "CPU 1/KVM")
        .thread(102, "CPU 0/KVM")
        .thread(104, "IO mon_iothread")
}

#[test]
fn vms_of_each_vmm_have_ordered_vcpus() {
    let mut proc = FakeProc::new();
    proc.add(&qemu());
    proc.add(&process(1, "systemd"));
    proc.add(
        &process(200, "firecracker").cmdline("firecracker --id f1").kvm(1).thread(201, "fc_vcpu 0"),
    );
    proc.add(&process(300, "cloud-hyperviso").kvm(1).thread(301, "vcpu0"));
    proc.add(&process(400, "java").thread(401, "vcpu0"));
    proc.add(&process(500, "qemu-system-arm").thread(501, "CPU 0/TCG"));
    let vms = proc.scan(&mut proc.discovery(named(&["500"])), 0);
    let found: Vec<_> =
        vms.iter().map(|vm| (vm.process.pid.0, vm.name.as_str(), vm.vmm, vcpus(vm))).collect();
    assert_eq!(
        found,
        [
            (100, "web", Vmm::Qemu, vec![(0, 102), (1, 103)]),
            (200, "f1", Vmm::Firecracker, vec![(0, 201)]),
            (300, "cloud-hyperviso-300", Vmm::CloudHypervisor, vec![(0, 301)]),
            (500, "qemu-system-arm-500", Vmm::Qemu, vec![(0, 501)]),
        ]
    );
    assert!(vms.iter().all(|vm| vm.unidentified == 0));
    assert_eq!(vms[0].vcpus[0].thread.start.0, 1001);
}

#[test]
fn vms_in_one_process_differ_by_name() {
    let mut proc = FakeProc::new();
    let p = process(9, "tandem").kvm(3).thread(11, "b/vcpu0").thread(12, "a/vcpu0");
    proc.add(&p.thread(13, "b/vcpu1"));
    let vms = proc.scan(&mut proc.discovery(DiscoveryOptions::default()), 0);
    let found: Vec<_> = vms.iter().map(|vm| (vm.name.as_str(), vcpus(vm))).collect();
    assert_eq!(found, [("a", vec![(0, 12)]), ("b", vec![(0, 11), (1, 13)])]);
    assert_ne!(vms[0].id, vms[1].id);
}

#[test]
fn vcpus_without_a_known_thread_are_counted() {
    let mut proc = FakeProc::new();
    proc.add(&process(7, "toy").kvm(3).thread(8, "my-cpu-1").thread(9, "worker"));
    let vms = proc.scan(&mut proc.discovery(DiscoveryOptions::default()), 0);
    assert_eq!((vms[0].unidentified, vms[0].vmm), (3, Vmm::Other));
    assert_eq!(vms[0].name, "toy-7");
    let options = DiscoveryOptions {
        thread_pattern: Some("my-cpu-{n}".into()),
        ..DiscoveryOptions::default()
    };
    let vms = proc.scan(&mut proc.discovery(options), 0);
    assert_eq!((vms[0].unidentified, vcpus(&vms[0])), (2, vec![(1, 8)]));
}

#[test]
fn a_reused_pid_is_another_vm() {
    let mut proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.add(&qemu());
    let first = proc.scan(&mut discovery, 0)[0].clone();
    assert_eq!(proc.scan(&mut discovery, 100)[0], first, "the same VM keeps its id");
    proc.end(100);
    let mut again = qemu();
    again.start = 7777;
    proc.add(&again);
    let second = proc.scan(&mut discovery, 100)[0].clone();
    assert_ne!(second.id, first.id);
    assert_eq!(second.process.start.0, 7777);
    proc.end(100);
    assert!(proc.scan(&mut discovery, 100).is_empty());
    assert!(discovery.hosts.is_empty() && discovery.others.is_empty());
}

#[test]
fn reused_pid_with_same_inode_is_detected() {
    let mut proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.add(&qemu());
    let first = proc.scan(&mut discovery, 0)[0].clone();
    proc.thread(100, 100, 5555, "qemu-system-x86", 4);
    fs::write(proc.folder(100).join("stat"), stat(100, 5555, "qemu", 4, 0)).unwrap();
    let ids: Vec<_> =
        (0..2 * VERIFY_EVERY).map(|_| proc.scan(&mut discovery, 100)[0].clone()).collect();
    let last = ids.last().unwrap();
    assert_ne!(last.id, first.id);
    assert_eq!(last.process.start.0, 5555);
}

#[test]
fn younger_processes_are_found_sooner() {
    let mut proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.add(&process(50, "sh"));
    assert!(proc.scan(&mut discovery, 0).is_empty());
    proc.hold_vcpus(50, 0..1);
    assert!(proc.scan(&mut discovery, 100).is_empty(), "not due yet");
    assert_eq!(proc.scan(&mut discovery, 200).len(), 1);

    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.add(&process(51, "sh"));
    for _ in 0..100 {
        assert_eq!(proc.scan(&mut discovery, 1000).len(), 1);
    }
    proc.hold_vcpus(51, 0..1);
    let waits = (0..).find(|_| proc.scan(&mut discovery, 1000).len() == 2).unwrap();
    assert!((1..=32).contains(&waits), "{waits}");
}

#[test]
fn kernel_threads_are_inspected_once() {
    let mut proc = FakeProc::new();
    proc.add(&process(2, "kthreadd"));
    let kernel = stat(2, 0, "kthreadd", 1, 0x0020_8040);
    fs::write(proc.folder(2).join("stat"), kernel).unwrap();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    assert!(proc.scan(&mut discovery, 0).is_empty());
    proc.hold_vcpus(2, 0..1);
    assert!(proc.scan(&mut discovery, 100_000).is_empty());
}

#[test]
fn hot_plugged_vcpus_and_late_names_are_seen() {
    let mut proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.add(&qemu());
    let id = proc.scan(&mut discovery, 0)[0].id;
    // Started with the process's name, and renamed a moment later.
    proc.thread(100, 110, 1100, "qemu-system-x86", 5);
    proc.hold_vcpus(100, 2..3);
    let vm = proc.scan(&mut discovery, 100).remove(0);
    assert_eq!((vm.unidentified, vm.vcpus.len()), (1, 2));
    proc.thread(100, 110, 1100, "CPU 2/KVM", 5);
    let vm = proc.scan(&mut discovery, 300).remove(0);
    assert_eq!((vm.unidentified, vcpus(&vm)[2]), (0, (2, 110)));
    fs::remove_dir_all(proc.folder(100).join("task/110")).unwrap();
    fs::remove_file(proc.folder(100).join("fd/12")).unwrap();
    let vm = proc.scan(&mut discovery, 100).remove(0);
    assert_eq!((vm.id, vm.unidentified, vm.vcpus.len()), (id, 0, 2));
}

#[test]
fn vm_without_vcpus_is_dropped() {
    let mut proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.add(&process(60, "toy").kvm(1));
    assert_eq!(proc.scan(&mut discovery, 0).len(), 1);
    fs::remove_file(proc.folder(60).join("fd/10")).unwrap();
    assert!(proc.scan(&mut discovery, 60_000).is_empty());
}

#[test]
fn processes_that_vanish_half_read_are_no_error() {
    let mut proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    for (pid, files) in [(70, vec![]), (71, vec!["stat"]), (72, vec!["stat", "task"])] {
        proc.add(&process(pid, "half").kvm(1));
        for file in ["stat", "task", "fd", "cmdline"] {
            let path = proc.folder(pid).join(file);
            if !files.contains(&file) {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
    assert!(proc.scan(&mut discovery, 0).is_empty());
    proc.add(&process(73, "gone").kvm(1).thread(74, "CPU 0/KVM"));
    assert_eq!(proc.scan(&mut discovery, 100).len(), 1);
    fs::remove_dir_all(proc.folder(73).join("task")).unwrap();
    fs::remove_dir_all(proc.folder(73).join("fd")).unwrap();
    assert!(proc.scan(&mut discovery, 100).is_empty());
}

#[test]
fn missing_proc_error_names_the_path() {
    let proc = FakeProc::new();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    fs::remove_dir(proc.root.path().join("proc")).unwrap();
    let error = discovery.scan_at(proc.now, UNHURRIED).unwrap_err().to_string();
    assert!(error.contains("/proc") && error.contains("mounted"), "{error}");
}

#[test]
fn vcpu_statistics_files_are_not_vcpus() {
    for link in ["anon_inode:kvm-vcpu", "anon_inode:kvm-vcpu:12"] {
        assert!(descriptors::is_vcpu_link(link.as_bytes()), "{link}");
    }
    for link in ["anon_inode:kvm-vcpu-stats:0", "anon_inode:kvm-vm", "/dev/kvm"] {
        assert!(!descriptors::is_vcpu_link(link.as_bytes()), "{link}");
    }
}

#[test]
fn qmp_identifies_unnamed_threads() {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    let mut proc = FakeProc::new();
    // This process listens on the socket.
    let pid = std::process::id();
    let p = process(pid, "qemu-system-x86").cmdline("qemu -name web").kvm(2);
    // TIDs that are not threads of this process.
    proc.add(&p.thread(pid + 1, "qemu-system-x86").thread(pid + 2, "qemu-system-x86"));
    let answer = format!(
        "{{\"return\": [{{\"cpu-index\": 0, \"thread-id\": {}}}, {{\"cpu-index\": 1, \"thread-id\": {}}}]}}\n",
        pid + 2,
        pid + 1
    );
    let listener = UnixListener::bind(proc.root.path().join("web.qmp")).unwrap();
    let serve = move |mut stream: std::os::unix::net::UnixStream| -> io::Result<()> {
        stream.write_all(b"{\"QMP\": {}}\n")?;
        let mut requests = BufReader::new(stream.try_clone()?).lines();
        for answer in ["{\"return\": {}}\n", &answer] {
            requests.next().transpose()?;
            stream.write_all(answer.as_bytes())?;
        }
        Ok(())
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The next round serves a client that gave up.
            let _ = serve(stream.unwrap());
        }
    });
    let mut discovery = proc.discovery(DiscoveryOptions {
        qmp_sockets: vec!["/*.qmp".into()],
        ..DiscoveryOptions::default()
    });
    // On a loaded machine the first exchange may time out and is repeated.
    let vms = (0..100)
        .map(|_| proc.scan(&mut discovery, 40_000))
        .find(|vms| vms[0].unidentified == 0)
        .expect("QMP answers in time");
    assert_eq!(vcpus(&vms[0]), [(0, pid + 2), (1, pid + 1)]);
    assert_eq!((vms[0].name.as_str(), vms[0].vmm), ("web", Vmm::Qemu));
    assert_eq!(proc.scan(&mut discovery, 100)[0].unidentified, 0, "and stays known");
}

#[test]
fn silent_qmp_socket_is_reported_and_queried_less() {
    let mut proc = FakeProc::new();
    proc.add(&qemu());
    let path = proc.root.path().join("web.qmp");
    let mut discovery = proc.discovery(DiscoveryOptions {
        qmp_by_pid: BTreeMap::from([(Pid(100), path.clone())]),
        ..DiscoveryOptions::default()
    });
    let mut told = 0;
    for _ in 0..64 {
        proc.now += Duration::from_millis(500);
        let scan = discovery.scan_at(proc.now, UNHURRIED).unwrap();
        assert_eq!(scan.vms[0].vcpus.len(), 2, "names still count");
        told += scan.problems.iter().filter(|p| p.contains("web.qmp")).count();
    }
    assert!((4..=8).contains(&told), "{told}");
}

#[test]
fn own_process_is_inspected_once() {
    let mut discovery = Discovery::new(DiscoveryOptions::default(), ProcFs::host()).unwrap();
    let (me, now) = (Pid(std::process::id()), Instant::now());
    assert!(discovery.is_due(me, now));
    discovery.scan_at(now, UNHURRIED).unwrap();
    let later = now + Duration::from_secs(3_600);
    assert!(!discovery.is_due(me, later));
    let is_of_others = |pid: &Pid| *pid != me && discovery.is_due(*pid, later);
    assert!(discovery.others.keys().any(is_of_others), "others are again");
}
