//! Tests the source on artificial trees of `/proc` and cgroups, with an artificial clock.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use tandem_linux::thread::StartTime;
use tandem_model::states::edges::{EdgeKind, Evidence, Party};
use tandem_model::states::interval::{Column, Interval, Missing};
use tandem_model::{State, VcpuId};

use super::*;

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A thread as shown by its files; times in ms.
#[derive(Clone)]
struct Thread {
    pid: u32,
    tid: u32,
    comm: &'static str,
    state: char,
    kernel: bool,
    allowed: &'static str,
    cgroup: &'static str,
    ran: u64,
    waited: u64,
    guest: u64,
}

impl Thread {
    fn new(pid: u32, tid: u32, comm: &'static str) -> Thread {
        Thread {
            pid,
            tid,
            comm,
            state: 'S',
            kernel: false,
            allowed: "0-1",
            cgroup: "/",
            ran: 0,
            waited: 0,
            guest: 0,
        }
    }

    fn at(mut self, ran: u64, waited: u64) -> Thread {
        (self.ran, self.waited) = (ran, waited);
        self
    }

    fn guest(mut self, guest: u64) -> Thread {
        self.guest = guest;
        self
    }

    fn on(mut self, allowed: &'static str) -> Thread {
        self.allowed = allowed;
        self
    }

    fn within(mut self, cgroup: &'static str) -> Thread {
        self.cgroup = cgroup;
        self
    }

    fn ready(mut self) -> Thread {
        self.state = 'R';
        self
    }
}

/// A host of two pCPUs in a folder.
struct Tree {
    root: TempDir,
    source: Plain,
    /// The time of the source's clock, and its advance at each reading.
    now: Arc<AtomicU64>,
    step: Arc<AtomicU64>,
}

impl Tree {
    fn new() -> Tree {
        let root = tempfile::tempdir().unwrap();
        for folder in ["proc", "cg"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let put = |file: &str, text: &str| fs::write(root.path().join(file), text).unwrap();
        put("proc/mounts", "cgroup2 /cg cgroup2 rw 0 0\n");
        put("cg/cgroup.controllers", "cpu\n");
        let mut tree = Tree {
            source: Plain::new(ProcFs::at(root.path())),
            root,
            now: Arc::default(),
            step: Arc::default(),
        };
        tree.set_clock();
        tree.idle(0, 0);
        tree
    }

    fn set_clock(&mut self) {
        let (now, step) = (self.now.clone(), self.step.clone());
        self.source.clock =
            Box::new(move || Nanos(now.fetch_add(step.load(Ordering::Relaxed), Ordering::Relaxed)));
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Sets the idle ticks of the two pCPUs so far.
    fn idle(&mut self, first: u64, second: u64) {
        self.put(
            "proc/stat",
            &format!("cpu 0 0 0 0 0\ncpu0 0 0 0 {first} 0 0\ncpu1 0 0 0 {second} 0 0\n"),
        );
    }

    fn set(&self, thread: &Thread) {
        let tick_ms = 1_000 / rustix::param::clock_ticks_per_second();
        let mut fields = vec!["0".to_owned(); 53];
        fields[9] = if thread.kernel { 0x0020_0000 } else { 0 }.to_string();
        fields[20] = "1".to_owned();
        fields[22] = (thread.tid * 10).to_string();
        fields[43] = (thread.guest / tick_ms).to_string();
        let stat = format!(
            "{} ({}) {} {}\n",
            thread.tid,
            thread.comm,
            thread.state,
            fields[4..].join(" ")
        );
        let folder = format!("proc/{}/task/{}", thread.pid, thread.tid);
        if thread.pid == thread.tid {
            self.put(&format!("proc/{}/stat", thread.pid), &stat);
        }
        self.put(&format!("{folder}/stat"), &stat);
        self.put(&format!("{folder}/comm"), &format!("{}\n", thread.comm));
        let account = format!("{} {} 1\n", ms(thread.ran).0, ms(thread.waited).0);
        self.put(&format!("{folder}/schedstat"), &account);
        let status = format!("Name:\tx\nCpus_allowed_list:\t{}\n", thread.allowed);
        self.put(&format!("{folder}/status"), &status);
        self.put(&format!("{folder}/cgroup"), &format!("0::{}\n", thread.cgroup));
    }

    fn set_all(&self, threads: &[Thread]) {
        threads.iter().for_each(|thread| self.set(thread));
    }

    fn throttle(&self, cgroup: &str, ms: u64) {
        let text = format!("usage_usec 1\nthrottled_usec {}\n", ms * 1000);
        self.put(&format!("cg{cgroup}/cpu.stat"), &text);
        self.put(&format!("cg{cgroup}/cpu.max"), "50000 100000\n");
    }

    fn task_folder(&self, pid: u32, tid: u32) -> PathBuf {
        self.root.path().join(format!("proc/{pid}/task/{tid}"))
    }

    fn begin(&mut self, vms: &[WatchedVm]) {
        self.now.store(ms(1_000).0, Ordering::Relaxed);
        self.source.begin(vms).unwrap();
    }

    /// Returns the interval that ends `at` ms after the beginning.
    fn interval(&mut self, vms: &[WatchedVm], at: u64) -> Interval {
        self.now.store(ms(1_000 + at).0, Ordering::Relaxed);
        self.source.interval(vms).unwrap()
    }
}

/// Returns a VM of process `pid`, whose vCPUs are the threads after it.
fn vm(id: u64, pid: u32, vcpus: u32) -> WatchedVm {
    let thread = |tid: u32| ThreadRef {
        pid: Pid(pid),
        tid: Tid(tid),
        start: StartTime(u64::from(tid) * 10),
    };
    WatchedVm {
        vm: VmId(id),
        process: thread(pid),
        vcpus: (0..vcpus)
            .map(|n| WatchedVcpu { vcpu: VcpuId(n), thread: thread(pid + 1 + n) })
            .collect(),
    }
}

/// Returns a state's time in ms.
fn time(interval: &Interval, vm: usize, vcpu: usize, state: State) -> Option<u64> {
    let times = &interval.vms[vm].vcpus[vcpu].times;
    times.get(state).map(|time| time.0 / 1_000_000)
}

#[test]
fn states_sum_and_culprits_are_named() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1), vm(2, 200, 1)];
    let main = [Thread::new(100, 100, "qemu"), Thread::new(200, 200, "qemu")];
    tree.set_all(&main);
    let one = Thread::new(100, 101, "CPU 0/KVM").on("0");
    let two = Thread::new(200, 201, "CPU 0/KVM").on("0");
    let make = Thread::new(300, 300, "make").on("0");
    tree.set_all(&[one.clone().at(5_000, 70), two.clone(), make.clone()]);
    tree.begin(&vms);
    tree.set_all(&[one.at(5_300, 570).ready(), two.at(450, 100), make.at(150, 0)]);
    tree.idle(10, 100);
    let interval = tree.interval(&vms, 1_000);
    assert_eq!(interval.length, ms(1_000));
    for (state, expected) in [
        (State::Run, Some(300)),
        (State::Ready, Some(500)),
        (State::Limited, Some(0)),
        (State::Halted, Some(200)),
        (State::Poll, None),
        (State::Vmm, None),
        (State::Costop, None),
    ] {
        assert_eq!(time(&interval, 0, 0, state), expected, "{state}");
    }
    // 500 ms are divided in proportion to the run times of the others on that pCPU: 450 and 150.
    let victim = |vm: u64| Party::Vcpu { vm: VmId(vm), vcpu: VcpuId(0) };
    let make = Party::Process { name: "make".to_owned(), cgroup: Some("/".to_owned()) };
    let charged: Vec<_> = interval
        .edges
        .of(&victim(1), EdgeKind::Pcpu)
        .map(|edge| (edge.culprit.clone(), edge.time(), edge.evidence))
        .collect();
    let expected =
        [(victim(2), ms(375), Evidence::Estimated), (make, ms(125), Evidence::Estimated)];
    assert_eq!(charged, expected);
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    let host = &interval.host;
    assert_eq!((host.pcpus, host.idle), (2, Some(Nanos(110 * tick))));
    assert_eq!((host.vcpus, host.tasks, host.kernel), (ms(750), ms(150), Nanos::ZERO));
    assert_eq!(host.top_tasks[0].name, "make");
    assert_eq!(host.top_tasks[0].cgroup, Some("/".to_owned()));
    let account = &interval.vms[0].vcpus[0];
    assert_eq!((account.ran, account.waited, account.runnable), (ms(300), ms(500), true));
}

#[test]
fn pending_wait_counts_once() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1)];
    tree.set(&Thread::new(100, 100, "qemu"));
    let vcpu = Thread::new(100, 101, "CPU 0/KVM").ready();
    tree.set(&vcpu.clone().at(10, 10));
    tree.begin(&vms);
    let first = tree.interval(&vms, 1_000);
    assert_eq!(time(&first, 0, 0, State::Ready), Some(1_000), "all of it");
    let second = tree.interval(&vms, 2_000);
    assert_eq!(time(&second, 0, 0, State::Ready), Some(1_000));
    // It ends 100 ms later. The kernel counts 2.1 s, of which 2 s were counted here.
    tree.set(&vcpu.clone().at(400, 2_110));
    let third = tree.interval(&vms, 3_000);
    assert_eq!(time(&third, 0, 0, State::Ready), Some(100));
    assert_eq!(time(&third, 0, 0, State::Run), Some(390));
    // A wait that began unseen and ends now counts for the interval's length at most.
    tree.set(&vcpu.at(450, 9_000));
    let last = tree.interval(&vms, 4_000);
    assert_eq!(time(&last, 0, 0, State::Ready), Some(950));
    assert_eq!(time(&last, 0, 0, State::Halted), Some(0));
}

#[test]
fn sleeping_vcpu_does_not_wait() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1)];
    tree.set_all(&[Thread::new(100, 100, "qemu"), Thread::new(100, 101, "CPU 0/KVM")]);
    tree.begin(&vms);
    // It wakes up just before the end: this wait is unknown so far.
    tree.set(&Thread::new(100, 101, "CPU 0/KVM").ready());
    let interval = tree.interval(&vms, 1_000);
    assert_eq!(time(&interval, 0, 0, State::Ready), Some(0));
    assert_eq!(time(&interval, 0, 0, State::Halted), Some(1_000));
}

#[test]
fn starved_vm_is_noticed_after_some_intervals() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 2)];
    let threads = [101, 102].map(|tid| Thread::new(100, tid, "CPU/KVM"));
    tree.set(&Thread::new(100, 100, "qemu"));
    tree.set_all(&threads);
    tree.begin(&vms);
    tree.set_all(&threads.map(Thread::ready));
    let waits: Vec<_> = (1..=RELOOK + 2)
        .map(|second| {
            let interval = tree.interval(&vms, second * 1_000);
            [0, 1].map(|vcpu| time(&interval, 0, vcpu, State::Ready))
        })
        .collect();
    assert_eq!(waits[0], [Some(0); 2], "nothing is known yet: {waits:?}");
    assert_eq!(waits.last(), Some(&[Some(1_000); 2]), "{waits:?}");
}

#[test]
fn guest_time_separates_run_from_vmm() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 2), vm(2, 200, 1)];
    tree.set_all(&[Thread::new(100, 100, "qemu"), Thread::new(200, 200, "x")]);
    let first = Thread::new(100, 101, "CPU 0/KVM");
    let second = Thread::new(100, 102, "CPU 1/KVM");
    let without = Thread::new(200, 201, "CPU 0/TCG");
    tree.set_all(&[first.clone().guest(500), second.clone(), without.clone()]);
    tree.begin(&vms);
    tree.set_all(&[first.at(600, 0).guest(950), second.at(80, 0), without.at(700, 0)]);
    let interval = tree.interval(&vms, 1_000);
    assert_eq!(time(&interval, 0, 0, State::Run), Some(450));
    assert_eq!(time(&interval, 0, 0, State::Vmm), Some(150));
    // For a sibling that was never in the guest, all of it is VMM.
    assert_eq!(time(&interval, 0, 1, State::Run), Some(0));
    assert_eq!(time(&interval, 0, 1, State::Vmm), Some(80));
    assert_eq!(time(&interval, 1, 0, State::Run), Some(700));
    assert_eq!(time(&interval, 1, 0, State::Vmm), None);
    let vmm = interval.missing.iter().find(|m| m.what == Column::State(State::Vmm));
    assert_eq!(vmm.map(|missing| (missing.vms, missing.of)), Some((1, 2)));
}

#[test]
fn idle_vm_is_not_reported_without_kvm() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1), vm(2, 200, 1)];
    tree.set_all(&[Thread::new(100, 100, "x"), Thread::new(200, 200, "x")]);
    let young = Thread::new(100, 101, "CPU 0/KVM");
    let without = Thread::new(200, 201, "CPU 0/TCG");
    tree.set_all(&[young.clone(), without.clone()]);
    tree.begin(&vms);
    tree.set_all(&[young.clone().at(60, 0), without.at(700, 0)]);
    let said = |interval: &Interval| -> Vec<String> {
        let missing = interval.missing.iter();
        let of_vmm = missing.filter(|missing| missing.what == Column::State(State::Vmm));
        of_vmm.map(Missing::to_string).collect()
    };
    let first = said(&tree.interval(&vms, 1_000));
    assert!(first[0].contains("1 of 2") && first[0].contains("too little to tell"), "{first:?}");
    assert!(first[1].contains("1 of 2") && first[1].contains("no KVM"), "{first:?}");
    // A clock tick found it in the guest.
    tree.set(&young.at(160, 0).guest(80));
    let second = said(&tree.interval(&vms, 2_000));
    assert_eq!(second.len(), 1, "{second:?}");
    assert!(second[0].contains("no KVM"), "{second:?}");
}

#[test]
fn throttling_counts_from_the_first_interval_on() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 2)];
    tree.set(&Thread::new(100, 100, "qemu"));
    let first = Thread::new(100, 101, "CPU 0/KVM").within("/vms/one/vcpu0");
    let second = Thread::new(100, 102, "CPU 1/KVM").within("/vms/one");
    tree.set_all(&[first.clone(), second.clone()]);
    tree.throttle("/vms/one", 10_000);
    tree.throttle("/vms/one/vcpu0", 500);
    tree.begin(&vms);
    tree.set_all(&[first.at(100, 600), second.at(100, 300)]);
    tree.throttle("/vms/one", 10_250);
    tree.throttle("/vms/one/vcpu0", 900);
    let interval = tree.interval(&vms, 1_000);
    // 400 ms of the first's own; then 250 ms of the 200 and 300 that are left.
    assert_eq!(time(&interval, 0, 0, State::Limited), Some(500));
    assert_eq!(time(&interval, 0, 0, State::Ready), Some(100));
    assert_eq!(time(&interval, 0, 1, State::Limited), Some(150));
    assert_eq!(time(&interval, 0, 1, State::Ready), Some(150));
    let later = tree.interval(&vms, 2_000);
    assert_eq!(time(&later, 0, 0, State::Limited), Some(0));
}

#[test]
fn limits_need_a_cpu_controller() {
    let mut tree = Tree::new();
    tree.put("proc/mounts", "\n");
    tree.source = Plain::new(ProcFs::at(tree.root.path()));
    tree.set_clock();
    let vms = [vm(1, 100, 1)];
    let vcpu = Thread::new(100, 101, "CPU 0/KVM");
    tree.set_all(&[Thread::new(100, 100, "qemu"), vcpu]);
    tree.begin(&vms);
    let interval = tree.interval(&vms, 1_000);
    assert_eq!(time(&interval, 0, 0, State::Limited), None);
    let said: Vec<String> = interval.missing.iter().map(Missing::to_string).collect();
    let of = |state: &str| said.iter().find(|line| line.starts_with(state));
    assert!(of("LIM").unwrap().contains("cpu controller"), "{said:?}");
    assert!(of("POLL").unwrap().contains("KVM_GET_STATS_FD"), "{said:?}");
    assert!(of("CSTP").unwrap().contains("BPF"), "{said:?}");
}

#[test]
fn other_threads_and_vhost_count_for_the_vm() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1)];
    let main = Thread::new(100, 100, "qemu");
    let vcpu = Thread::new(100, 101, "CPU 0/KVM");
    let io = Thread::new(100, 102, "IO iothread1");
    let mut vhost = Thread::new(400, 400, "vhost-100");
    let mut worker = Thread::new(401, 401, "kworker/0:1-events");
    (vhost.kernel, worker.kernel) = (true, true);
    tree.set_all(&[main.clone().at(9_000, 0), vcpu.clone(), vhost.clone(), worker.clone()]);
    tree.begin(&vms);
    // The I/O thread is new, so all its run time is in the interval.
    tree.set_all(&[
        main.at(9_020, 0),
        vcpu.at(100, 50),
        io.at(200, 0),
        vhost.at(70, 0),
        worker.at(30, 0),
    ]);
    let interval = tree.interval(&vms, 1_000);
    let threads: Vec<_> = interval.vms[0]
        .threads
        .iter()
        .map(|thread| (thread.name.as_str(), thread.time.0 / 1_000_000))
        .collect();
    assert_eq!(threads, [("IO iothread1", 200), ("vhost", 70), ("qemu", 20)]);
    let host = &interval.host;
    assert_eq!((host.vm_threads, host.kernel, host.tasks), (ms(290), ms(30), Nanos::ZERO));
    let culprits: Vec<&Party> = interval.edges.iter().map(|edge| edge.culprit).collect();
    assert!(culprits.contains(&&Party::KernelThread("kworker".to_owned())));
    assert!(culprits.contains(&&Party::VmThread { vm: VmId(1), name: "vhost".to_owned() }));
}

#[test]
fn vms_come_and_go() {
    let mut tree = Tree::new();
    let all = [vm(1, 100, 1), vm(2, 200, 1)];
    tree.set_all(&[Thread::new(100, 100, "qemu"), Thread::new(100, 101, "CPU 0/KVM")]);
    tree.begin(&all[..1]);
    tree.set_all(&[
        Thread::new(200, 200, "qemu").at(4_000, 0),
        Thread::new(200, 201, "CPU 0/KVM").at(4_000, 0),
    ]);
    let interval = tree.interval(&all, 1_000);
    assert_eq!(interval.vms.len(), 1, "the new one has no beginning yet");
    assert_eq!(interval.host.vm_threads, Nanos::ZERO);
    tree.set(&Thread::new(200, 201, "CPU 0/KVM").at(4_500, 0));
    fs::remove_dir_all(tree.task_folder(100, 101)).unwrap();
    tree.source.sampler.retain(|_| false);
    let interval = tree.interval(&all, 2_000);
    let there: Vec<VmId> = interval.vms.iter().map(|vm| vm.vm).collect();
    assert_eq!(there, [VmId(2)]);
    assert_eq!(time(&interval, 0, 0, State::Run), Some(500));
    assert_eq!(tree.source.vcpus.len(), 1);
}

#[test]
fn missing_proc_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let mut source = Plain::new(ProcFs::at(root.path()));
    let error = source.interval(&[]).unwrap_err().to_string();
    assert!(error.contains("is /proc mounted?"), "{error}");
}

#[test]
fn vcpus_have_their_own_wall_time() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 2)];
    let threads = [101, 102].map(|tid| Thread::new(100, tid, "CPU/KVM").ready());
    tree.set(&Thread::new(100, 100, "qemu"));
    tree.set_all(&threads);
    tree.begin(&vms);
    // Reading takes time: 1 ms per reading of the clock.
    tree.step.store(ms(1).0, Ordering::Relaxed);
    let interval = tree.interval(&vms, 1_000);
    assert_eq!(interval.length, ms(1_000));
    let walls: Vec<u64> =
        interval.vms[0].vcpus.iter().map(|vcpu| vcpu.times.wall().0 / 1_000_000).collect();
    assert_eq!(walls, [1_001, 1_002]);
    // Both waited all of their own wall time.
    assert_eq!(time(&interval, 0, 0, State::Ready), Some(1_001));
    assert_eq!(time(&interval, 0, 1, State::Ready), Some(1_002));
}

#[test]
fn former_vm_counts_as_process_from_then_on() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1)];
    let main = Thread::new(100, 100, "qemu");
    let vcpu = Thread::new(100, 101, "CPU 0/KVM");
    tree.set_all(&[main.clone().at(70_000, 0), vcpu.clone().at(500_000, 0)]);
    tree.begin(&vms);
    tree.set(&vcpu.clone().at(500_400, 0));
    assert_eq!(tree.interval(&vms, 1_000).host.tasks, Nanos::ZERO);
    tree.set(&vcpu.at(500_450, 0));
    let interval = tree.interval(&[], 2_000);
    assert_eq!(interval.host.tasks, ms(50));
    assert_eq!(interval.host.top_tasks[0].time, ms(50));
}

#[test]
fn former_vcpu_counts_as_thread_from_then_on() {
    let mut tree = Tree::new();
    let main = Thread::new(100, 100, "qemu").at(10, 0);
    let vcpus = [101, 102].map(|tid| Thread::new(100, tid, "CPU/KVM").at(9_000, 0));
    tree.set(&main);
    tree.set_all(&vcpus);
    tree.begin(&[vm(1, 100, 2)]);
    tree.set(&vcpus[1].clone().at(9_030, 0));
    let interval = tree.interval(&[vm(1, 100, 1)], 1_000);
    assert_eq!(interval.host.vm_threads, ms(30));
}

#[test]
fn throttling_is_shared_with_other_threads() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1)];
    let main = Thread::new(100, 100, "qemu").within("/vm");
    let vcpu = Thread::new(100, 101, "CPU 0/KVM").within("/vm");
    tree.set_all(&[main.clone(), vcpu.clone()]);
    tree.throttle("/vm", 0);
    tree.begin(&vms);
    tree.set_all(&[main.at(10, 300), vcpu.at(10, 100)]);
    tree.throttle("/vm", 200);
    let interval = tree.interval(&vms, 1_000);
    // 200 ms for waits of 100 and 300 ms: half of each.
    assert_eq!(time(&interval, 0, 0, State::Limited), Some(50));
    assert_eq!(time(&interval, 0, 0, State::Ready), Some(50));
}

#[test]
fn unreadable_quota_is_missing_and_not_zero() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1), vm(2, 200, 1)];
    for pid in [100, 200] {
        tree.set(&Thread::new(pid, pid, "qemu"));
    }
    let limited = Thread::new(100, 101, "CPU 0/KVM").within("/vm");
    tree.set_all(&[limited.clone(), Thread::new(200, 201, "CPU 0/KVM")]);
    tree.throttle("/vm", 0);
    // A folder in its place cannot be read as a file.
    fs::remove_file(tree.root.path().join("cg/vm/cpu.stat")).unwrap();
    fs::create_dir(tree.root.path().join("cg/vm/cpu.stat")).unwrap();
    tree.begin(&vms);
    tree.set(&limited.at(100, 300));
    let interval = tree.interval(&vms, 1_000);
    assert_eq!(time(&interval, 0, 0, State::Limited), None);
    assert_eq!(time(&interval, 0, 0, State::Ready), Some(300));
    assert_eq!(time(&interval, 1, 0, State::Limited), Some(0));
    let missing = interval.missing.iter();
    let limited: Vec<_> = missing
        .filter(|missing| missing.what == Column::State(State::Limited))
        .map(|missing| (missing.vms, missing.of))
        .collect();
    assert_eq!(limited, [(1, 2)]);
}

#[test]
fn process_affinity_covers_all_its_threads() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 1)];
    let vcpu = Thread::new(100, 101, "CPU 0/KVM").on("1");
    let worker = Thread::new(300, 302, "worker").on("1");
    tree.set_all(&[
        Thread::new(100, 100, "qemu"),
        vcpu.clone(),
        Thread::new(300, 300, "make").on("0").within("/build"),
        worker.clone(),
    ]);
    tree.begin(&vms);
    tree.set_all(&[vcpu.at(500, 400), worker.at(400, 0)]);
    let interval = tree.interval(&vms, 1_000);
    let victim = Party::Vcpu { vm: VmId(1), vcpu: VcpuId(0) };
    let charged: Vec<_> = interval
        .edges
        .of(&victim, EdgeKind::Pcpu)
        .map(|edge| (edge.culprit.clone(), edge.time()))
        .collect();
    // It may run on two pCPUs, so half of its 400 ms are where the vCPU may run. The rest of the wait is unseen.
    let make = Party::Process { name: "make".to_owned(), cgroup: Some("/build".to_owned()) };
    assert_eq!(charged, [(make, ms(200)), (Party::Unseen, ms(200))]);
}

#[test]
fn wakeups_are_counted_on_request() {
    let mut tree = Tree::new();
    let vms = [vm(1, 100, 2)];
    let status = |tree: &Tree, tid: u32, voluntary: &str| {
        let text = format!("Cpus_allowed_list:\t0-1\n{voluntary}nonvoluntary_ctxt_switches:\t9\n");
        tree.put(&format!("proc/100/task/{tid}/status"), &text);
    };
    let threads = [101, 102].map(|tid| Thread::new(100, tid, "CPU 0/KVM"));
    tree.set(&Thread::new(100, 100, "qemu"));
    tree.set_all(&threads);
    status(&tree, 101, "voluntary_ctxt_switches:\t40\n");
    status(&tree, 102, "");
    let ran = |tree: &Tree, ms: u64| {
        let [one, two] = threads.clone();
        tree.set_all(&[one.at(ms, 0), two.at(ms, 0)]);
    };
    let wakeups = |interval: &Interval| {
        let vcpus = interval.vms[0].vcpus.iter();
        vcpus.map(|vcpu| vcpu.wakeups).collect::<Vec<_>>()
    };
    tree.begin(&vms);
    ran(&tree, 100);
    status(&tree, 101, "voluntary_ctxt_switches:\t50\n");
    assert_eq!(wakeups(&tree.interval(&vms, 1_000)), [None, None]);
    tree.source.count_wakeups();
    tree.begin(&vms);
    ran(&tree, 300);
    status(&tree, 101, "voluntary_ctxt_switches:\t175\n");
    assert_eq!(wakeups(&tree.interval(&vms, 1_000)), [Some(125), None]);
}
