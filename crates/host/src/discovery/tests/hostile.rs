//! Tenants that impersonate others, or hold as much as they can.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::discovery::descriptors::CHUNK;

impl FakeProc {
    /// Sets the owner and the cgroup of a process.
    fn belongs(&self, pid: u32, user: u32, cgroup: &str) {
        let users = format!("Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\n");
        fs::write(self.folder(pid).join("status"), users).unwrap();
        fs::write(self.folder(pid).join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }

    /// Adds descriptors other than vCPUs, starting at a number.
    fn hold_files(&self, pid: u32, from: usize, count: usize) {
        for n in from..from + count {
            symlink("/dev/null", self.folder(pid).join(format!("fd/{n}"))).unwrap();
        }
    }

    /// Starts processes with a VM each, without a tree for each.
    fn start(&self, discovery: &mut Discovery, user: u32, first: u32, count: u32) {
        let stat = ThreadStat::read(&self.folder(100)).unwrap();
        for pid in (first..first + count).map(Pid) {
            let mut host = Host::new(1, pid, &stat, Some(1), self.now);
            host.user = Some(user);
            discovery.hosts.insert(pid, host);
        }
    }

    /// A scan without time: it does the minimum of each kind of work.
    fn scan_in_no_time(&mut self, discovery: &mut Discovery) -> Vec<Vm> {
        self.now += Duration::from_millis(500);
        discovery.scan_at(self.now, Duration::ZERO).unwrap().vms
    }
}

#[test]
fn hostile_names_without_kvm_are_no_vms() {
    let mut proc = FakeProc::new();
    for (pid, name) in [(10, "db-1/vcpu0"), (20, "CPU 0/TCG"), (30, "ALL CPUs/TCG")] {
        proc.add(&process(pid, "poser").thread(pid + 1, name));
        proc.belongs(pid, 1000, "/user.slice");
    }
    let mut find = |options| {
        let vms = proc.scan(&mut proc.discovery(options), 0);
        vms.iter().map(|vm| vm.process.pid.0).collect::<Vec<_>>()
    };
    assert!(find(DiscoveryOptions::default()).is_empty());
    assert!(find(named(&["uid:0", "/vms/*", "11"])).is_empty());
    assert_eq!(find(named(&["20"])), [20]);
    assert_eq!(find(named(&["uid:1000"])), [10, 20, 30]);
    assert_eq!(find(named(&["/user.slice"])), [10, 20, 30]);
}

#[test]
fn hostile_names_in_unreadable_processes_are_no_vms() {
    let mut proc = FakeProc::new();
    let p = process(10, "poser").thread(11, "CPU 0/KVM");
    proc.add(&p);
    // A process without permission to inspect it; root could inspect this one.
    let mut host =
        Host::new(1, Pid(10), &ThreadStat::read(&proc.folder(10)).unwrap(), None, proc.now);
    let slice = Budget::new(UNHURRIED).slice();
    host.read_tasks(&ProcFs::at(proc.root.path()), None, proc.now, false, slice);
    assert!(host.holds_vm());
    host.strict = true;
    assert!(!host.holds_vm());
    assert!(proc.scan(&mut proc.discovery(DiscoveryOptions::default()), 0).is_empty());
}

#[test]
fn hostile_vmms_are_limited_to_kvm_vcpus() {
    let mut proc = FakeProc::new();
    let names = ["a/vcpu0", "b/vcpu0", "c/vcpu0", "d/vcpu0"];
    let mut p = process(100, "qemu-system-x86").kvm(2);
    for (n, name) in (0..).zip(names) {
        p = p.thread(101 + n, name);
    }
    proc.add(&p);
    let vms = proc.scan(&mut proc.discovery(DiscoveryOptions::default()), 0);
    let found: usize = vms.iter().map(|vm| vm.vcpus.len()).sum();
    assert_eq!((vms.len(), found), (2, 2));
}

#[test]
fn hostile_descriptor_tables_are_read_in_parts() {
    const FILES: usize = 10 * CHUNK;
    let mut proc = FakeProc::new();
    for pid in 10..20 {
        proc.add(&process(pid, "hoard"));
        proc.hold_files(pid, 100, FILES);
        proc.belongs(pid, 1000, "/user.slice");
    }
    // A VMM that follows them, and opened many files before it made its vCPUs.
    proc.add(&qemu());
    proc.hold_files(100, 1000, FILES);
    proc.belongs(100, 0, "/machine.slice");
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    let progress = |discovery: &Discovery| -> usize {
        let counts = discovery.others.values().filter_map(|other| other.count);
        counts.map(|count| count.looked_at).sum()
    };
    let (mut before, mut found) = (0, None);
    for scan in 0..400 {
        if proc.scan_in_no_time(&mut discovery).first().is_some_and(|vm| vm.vcpus.len() == 2) {
            found = found.or(Some(scan));
        }
        let now = progress(&discovery);
        assert!(now <= before + CHUNK, "scan {scan}: from {before} to {now}");
        before = now;
    }
    assert!(found.is_some(), "a VM is found despite the descriptors");
    // With enough time, one scan inspects everything.
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    assert_eq!(proc.scan(&mut discovery, 0).len(), 1);
    assert!(discovery.others.values().all(|other| other.count.is_none()));
}

#[test]
fn hostile_descriptors_delay_only_their_owner() {
    let mut budget = Budget::new(Duration::from_millis(10));
    let mut proc = FakeProc::new();
    proc.add(&process(10, "hoard"));
    proc.belongs(10, 1000, "/user.slice");
    proc.add(&qemu());
    proc.belongs(100, 0, "/machine.slice");
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    let slice = budget.slice();
    std::thread::sleep(Duration::from_millis(6));
    budget.charge(Some(1000), slice);
    discovery.look_into(Pid(10), 1, proc.now, &mut budget);
    discovery.look_into(Pid(100), 2, proc.now, &mut budget);
    assert!(discovery.hosts.contains_key(&Pid(100)));
    let waits = &discovery.others[&Pid(10)];
    assert!(waits.is_due(proc.now), "it is looked into when there is time");
    assert!(holds_much(Some(1000)).contains("user 1000"));
    assert!(!proc.scan(&mut discovery, 500).is_empty());
}

#[test]
fn hostile_threads_are_read_in_parts() {
    let mut proc = FakeProc::new();
    let mut p = process(100, "qemu-system-x86").kvm(1);
    for tid in 0..100 {
        p = p.thread(1000 + tid, "worker");
    }
    proc.add(&p.thread(2000, "CPU 0/KVM"));
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    let mut tasks = 0;
    for _ in 0..20 {
        proc.scan_in_no_time(&mut discovery);
        let now = discovery.hosts[&Pid(100)].tasks.len();
        assert!(now <= tasks + 16, "from {tasks} to {now}");
        tasks = now;
    }
    assert_eq!(tasks, 102);
    let vm = &proc.scan_in_no_time(&mut discovery)[0];
    assert_eq!(vcpus(vm), [(0, 2000)]);
}

#[test]
fn hostile_users_leave_others_their_vcpus() {
    let mut proc = FakeProc::new();
    proc.add(&qemu());
    proc.belongs(100, 0, "/machine.slice");
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.scan(&mut discovery, 0);
    // The maximum number of VMs, and one more.
    proc.start(&mut discovery, 1000, 10_000, MAX_VMS_OF_USER as u32 + 1);
    let mut scan = Scan::default();
    discovery.assemble(proc.now, &mut scan);
    assert_eq!(scan.vms.len(), MAX_VMS_OF_USER + 1);
    assert_eq!(scan.left_out, 1);
    assert_eq!(scan.vms[0].process.pid, Pid(100));
    assert_eq!(scan.problems.len(), 1, "{:?}", scan.problems);
    assert!(scan.problems[0].contains("user 1000"), "{:?}", scan.problems);
}

#[test]
fn hostile_users_are_limited_per_host() {
    let proc = FakeProc::new();
    proc.add(&qemu());
    proc.belongs(100, 1000, "/machine.slice");
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    // The order of discovery does not matter: their VM is the newest.
    for user in 0..4 {
        let first = 10_000 * (user + 1);
        proc.start(&mut discovery, 100_000 + user, first, 3000);
    }
    let mut scan = Scan::default();
    discovery.assemble(proc.now, &mut scan);
    assert_eq!(scan.vms.len(), MAX_VMS_OF_HOST);
    let listed = |pid: u32, discovery: &mut Discovery| {
        let stat = ThreadStat::read(&proc.folder(pid)).unwrap();
        let mut host = Host::new(1, Pid(pid), &stat, Some(2), proc.now);
        host.user = Some(1000);
        discovery.hosts.insert(Pid(pid), host);
    };
    listed(100, &mut discovery);
    let mut scan = Scan::default();
    discovery.assemble(proc.now, &mut scan);
    assert_eq!(scan.vms.len(), MAX_VMS_OF_HOST);
    assert!(scan.vms.iter().any(|vm| vm.process.pid == Pid(100)));
    assert_eq!(discovery.hosts.len(), MAX_VMS_OF_HOST);
    assert_eq!(scan.left_out, 12_001 - MAX_VMS_OF_HOST);
    assert_eq!(scan.problems.len(), 1, "{:?}", scan.problems);
    assert!(scan.problems[0].contains("this host has more than 8192 VMs"));
    // The problem is reported while it lasts, and the processes are inspected again later.
    let mut scan = Scan::default();
    discovery.assemble(proc.now, &mut scan);
    assert_eq!((scan.left_out, scan.problems.len()), (12_001 - MAX_VMS_OF_HOST, 1));
    let left_out = discovery.others.values().filter(|o| o.left_out.is_some());
    let next: Vec<bool> = left_out.map(|other| other.is_due(proc.now)).collect();
    assert_eq!(next.len(), scan.left_out);
    assert!(!next.contains(&true));
}

#[test]
fn excluded_vm_is_admitted_when_there_is_room() {
    let mut proc = FakeProc::new();
    proc.add(&qemu());
    proc.belongs(100, 1000, "/machine.slice");
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.start(&mut discovery, 1000, 10_000, MAX_VMS_OF_USER as u32);
    discovery.assemble(proc.now, &mut Scan::default());
    // Found after all others of its user, which are gone at the next scan because they have no folder.
    let listed = HashMap::from([(Pid(100), 1)]);
    discovery.look_into_due(&listed, proc.now, &mut Budget::new(UNHURRIED));
    let mut scan = Scan::default();
    discovery.assemble(proc.now, &mut scan);
    assert!(scan.vms.iter().all(|vm| vm.process.pid != Pid(100)));
    assert_eq!((scan.left_out, scan.unreadable_vmms), (1, 0));
    let inode = fs::metadata(proc.folder(100)).unwrap().ino();
    discovery.others.get_mut(&Pid(100)).unwrap().inode = inode;
    assert!(proc.scan(&mut discovery, 0).is_empty(), "not due yet");
    assert_eq!(proc.scan(&mut discovery, 1000).len(), 1);
    let scan = discovery.scan_at(proc.now, UNHURRIED).unwrap();
    assert_eq!((scan.left_out, scan.problems.len()), (0, 0));
}

#[test]
fn hostile_command_lines_are_read_to_4_kib() {
    let mut proc = FakeProc::new();
    proc.add(&qemu());
    let late = format!("qemu\0{}\0-name\0late\0", "x".repeat(2 << 20));
    fs::write(proc.folder(100).join("cmdline"), late).unwrap();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    assert_eq!(proc.scan(&mut discovery, 0)[0].name, "qemu-system-x86-100");

    let early = format!("qemu\0-name\0guest=web\0{}", "y".repeat(2 << 20));
    fs::write(proc.folder(100).join("cmdline"), early).unwrap();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    assert_eq!(proc.scan(&mut discovery, 0)[0].name, "web");

    // A name that was cut off does not count, and a long one is shortened.
    let cut = format!("qemu\0-name\0{}", "n".repeat(2 << 20));
    fs::write(proc.folder(100).join("cmdline"), cut).unwrap();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    assert_eq!(proc.scan(&mut discovery, 0)[0].name, "qemu-system-x86-100");
    let long = format!("qemu\0-name\0{}\0", "n".repeat(1000));
    fs::write(proc.folder(100).join("cmdline"), long).unwrap();
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    assert_eq!(proc.scan(&mut discovery, 0)[0].name, "n".repeat(128));
}

#[test]
fn hostile_names_of_vms_are_written_out() {
    let mut proc = FakeProc::new();
    proc.add(&process(9, "tandem\x1b[2J").kvm(1).thread(11, "a\nb/vcpu0"));
    proc.add(&qemu());
    let cmdline = "qemu\0-name\0db\x1b]0;x\x07\nerror: forged\0";
    fs::write(proc.folder(100).join("cmdline"), cmdline).unwrap();
    let vms = proc.scan(&mut proc.discovery(DiscoveryOptions::default()), 0);
    let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["a\\x0ab", "db\\x1b]0;x\\x07\\x0aerror: forged"]);
}

#[test]
fn qmp_hostile_sockets_claim_no_foreign_threads() {
    let mut proc = FakeProc::new();
    proc.add(&qemu());
    proc.belongs(100, 1000, "/machine.slice");
    let mut discovery = proc.discovery(DiscoveryOptions::default());
    proc.scan(&mut discovery, 0);
    let answer = |pid, uid| QmpAnswer {
        peer: crate::qmp::Peer { pid: Pid(pid), uid },
        vcpus: vec![crate::qmp::QmpVcpu {
            index: tandem_model::VcpuId(0),
            tid: tandem_linux::thread::Tid(100),
        }],
    };
    proc.add(&process(66, "liar"));
    let mut owner = |pid, uid| {
        let owner = owner_of(&mut discovery.hosts, &answer(pid, uid));
        owner.map(|owner| owner.map(|host| host.process.pid))
    };
    assert_eq!(owner(100, 1000), Ok(Some(Pid(100))));
    let error = owner(66, 1001).unwrap_err();
    assert!(error.contains("process 66 of user 1001"), "{error}");
    assert!(owner(66, 1000).is_err());
    // A process that has ended, of the same user.
    assert!(owner(65, 1000).is_err());
    assert_eq!(owner(65, 0), Ok(Some(Pid(100))));
}
