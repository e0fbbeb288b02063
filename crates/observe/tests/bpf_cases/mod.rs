//! Separate tests for special cases of the BPF programs, such as migration, thread exit and co-stop.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_linux::affinity::{affinity, set_affinity};
use tandem_linux::cgroup::{CgroupPath, Knob};
use tandem_linux::thread::{StartTime, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Nanos, PcpuSet, VcpuId, VmId};
use tandem_observe::bpf::{Absence, Bpf, BpfSource, Culprit, Options};
use tandem_observe::{Source, WatchedVcpu, WatchedVm};

use crate::bpf_span::Span;
use crate::harness::Skip;
use crate::{
    TICK, all_waits, helper, is_near, myself, open, spinning, start_sleeper, sums, waited_for,
    watch,
};

/// The BTF of the kernel and its modules.
const BTF: &str = "/sys/kernel/btf";

/// Whether BTF of the kernel or a KVM module contains this word.
fn describes(word: &str) -> bool {
    let word: Vec<u8> = [b"\0", word.as_bytes(), b"\0"].concat();
    ["vmlinux", "kvm", "kvm_intel", "kvm_amd", "kvm_pvm"]
        .iter()
        .filter_map(|module| fs::read(Path::new(BTF).join(module)).ok())
        .any(|types| types.windows(word.len()).any(|bytes| bytes == word))
}

/// Returns a skip reason for figures that need these events, if the kernel lacks them or they never fire. Fails if the kernel has them, and
/// the programs do not receive them.
pub fn excuse(bpf: &Bpf, events: &[&str]) -> Skip {
    let missing = bpf.missing();
    let missing: Vec<_> = missing
        .iter()
        .filter(|one| events.iter().any(|event| one.event.ends_with(&format!(" {event}"))))
        .collect();
    assert!(!missing.is_empty(), "none of {events:?} is missing");
    for one in &missing {
        assert_ne!(one.absence, Absence::Refused, "{one}");
        let tracepoint = one.event.strip_prefix("tracepoint ");
        if let Some(name) = tracepoint.filter(|_| one.absence == Absence::NotThere) {
            assert!(!describes(&format!("btf_trace_{name}")), "{one}");
        }
    }
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    Skip(missing.join("; "))
}

pub fn nothing_is_refused() -> Result<(), Skip> {
    let bpf = open()?;
    for missing in bpf.missing() {
        assert_ne!(missing.absence, Absence::Refused, "{missing}");
        assert_ne!(missing.absence, Absence::NotAsked, "{missing}");
        if let Some(name) = missing.event.strip_prefix("tracepoint ") {
            assert!(!describes(&format!("btf_trace_{name}")), "{missing}");
        }
    }
    Ok(())
}

/// Returns the first two pCPUs that this process may use.
fn two_pcpus() -> Result<[PcpuSet; 2], Skip> {
    let allowed = affinity(Tid(helper::gettid())).expect("an affinity");
    let mut each = allowed.iter().map(|pcpu| [pcpu].into_iter().collect());
    match (each.next(), each.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err(Skip("it takes two pCPUs".to_owned())),
    }
}

/// A thread migrates between two pCPUs, on each of which another thread spins.
pub fn migrating() -> Result<(), Skip> {
    let mut bpf = open()?;
    let pcpus = two_pcpus()?;
    let (_vm, threads) = spinning(3, 3);
    for (thread, pcpu) in threads.iter().zip(&pcpus) {
        set_affinity(thread.tid, pcpu).expect("it may be pinned");
    }
    let moved = threads[2];
    bpf.watch(&watch(&threads)).expect("they can be watched");
    bpf.read().expect("a reading");
    let begin = Instant::now();
    let mut moves = 0;
    while begin.elapsed() < Duration::from_secs(2) {
        moves += 1;
        set_affinity(moved.tid, &pcpus[moves % 2]).expect("it may be moved");
        sleep(Duration::from_millis(7));
    }
    let reading = bpf.read().expect("a reading");
    for vcpu in &reading.vcpus {
        assert_eq!(vcpu.times.sum(), vcpu.wall, "{vcpu:?}");
        let edges = all_waits(&reading, vcpu.index);
        // 3.1 % were seen on emulated pCPUs of a busy machine.
        assert!(is_near(edges, vcpu.times.ready, 0.05), "{vcpu:?}: {edges} in edges");
        let own = waited_for(&reading, vcpu.index, &Culprit::Watched(vcpu.index));
        assert_eq!(own, Nanos::ZERO, "no vCPU waits for itself: {own} of {vcpu:?}");
    }
    let ready = reading.vcpus[2].times.ready;
    assert!(ready > Nanos::from_millis(300), "{moves} moves: {reading:?}");
    // It waited for both, regardless of other load.
    for n in 0..2 {
        let waited = waited_for(&reading, 2, &Culprit::Watched(n));
        assert!(waited > TICK, "{waited} of {ready} for {n}");
    }
    Ok(())
}

/// Readings so short that most contain no switch still name the thread that runs all the time.
pub fn staying() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (vm, threads) = spinning(2, 2);
    bpf.watch(&watch(&threads[..1])).expect("it can be watched");
    bpf.read().expect("a reading");
    let hog = threads[1].tid;
    let mut seen = 0;
    for _ in 0..300 {
        sleep(Duration::from_millis(1));
        for edge in bpf.read().expect("a reading").edges {
            match edge.culprit {
                Culprit::Task { tid, pid, comm, .. } if tid == hog => {
                    assert_eq!((pid, comm.as_str()), (Some(vm.pid()), "bpf/vcpu1"));
                    seen += 1;
                }
                // Other threads have names too.
                Culprit::Task { pid, .. } => assert!(pid.is_some(), "{edge:?}"),
                _ => {}
            }
        }
    }
    assert!(seen > 50, "{seen} of 300 readings");
    Ok(())
}

/// A thread with another start time is a different thread, even with the same number.
pub fn renumbered() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (_vm, threads) = spinning(2, 2);
    let mut before = threads[1];
    // As if the thread of that number had started ten ticks earlier.
    before.start = StartTime(before.start.0 - 10);
    bpf.watch(&watch(&[threads[0], before])).expect("they can be watched");
    sleep(Duration::from_millis(200));
    let reading = bpf.read().expect("a reading");
    let [right, wrong] = &reading.vcpus[..] else {
        panic!("{reading:?}");
    };
    assert!(!right.ended && right.times.on_pcpu() > TICK, "{right:?}");
    assert!(wrong.ended, "{wrong:?}");
    // Activity before the kernel was asked is not attributed to it.
    assert_eq!((wrong.wall, wrong.runs), (Nanos::ZERO, 0), "{wrong:?}");
    assert_eq!(all_waits(&reading, wrong.index), Nanos::ZERO);
    // The other vCPU waits for it as for any thread.
    let stranger = reading
        .edges
        .iter()
        .any(|edge| matches!(&edge.culprit, Culprit::Task { tid, .. } if *tid == before.tid));
    assert!(stranger, "{:?}", reading.edges);
    let reading = bpf.read().expect("a reading");
    assert_eq!(reading.vcpus.len(), 1, "it is reported once: {reading:?}");
    Ok(())
}

/// A runs and B waits for it; then switches are missed, A sleeps, and B runs.
pub fn not_told() -> Result<(), Skip> {
    const GAP: Duration = Duration::from_millis(600);
    let mut bpf = open()?;
    let (mut vm, threads) = spinning(2, 2);
    let tid = threads[0].tid.to_string();
    let chrt = Command::new("chrt").args(["-f", "-p", "10", &tid]).status();
    if !chrt.is_ok_and(|status| status.success()) {
        return Err(Skip("chrt cannot make a thread real-time here".to_owned()));
    }
    bpf.watch(&watch(&threads)).expect("they can be watched");
    let mut seen = String::new();
    // A is nearly always running at the begin, since it is real-time. If it is not, no event contradicts its state.
    for _ in 0..6 {
        bpf.read().expect("a reading");
        bpf.without_switches(|| {
            vm.tell("rest 0");
            sleep(GAP);
        })
        .expect("it is possible again");
        sleep(Duration::from_millis(20));
        vm.tell("spin 0");
        sleep(Duration::from_millis(100));
        let reading = bpf.read().expect("a reading");
        let [a, b] = &reading.vcpus[..] else {
            panic!("{reading:?}");
        };
        for vcpu in [a, b] {
            assert_eq!(vcpu.times.sum(), vcpu.wall, "{vcpu:?}");
            assert!(vcpu.wall + vcpu.unseen >= Nanos(GAP.as_nanos() as u64));
        }
        // B waits for A as long as A runs, but not during the missed switches.
        let ran = a.times.on_pcpu();
        let waited = waited_for(&reading, 1, &Culprit::Watched(0));
        if a.unseen >= Nanos::from_millis(500) && waited <= ran + TICK {
            return Ok(());
        }
        seen += &format!("\n{waited} of {reading:?}");
    }
    panic!("activity is reported for the time of missed switches: {seen}");
}

/// A vCPU whose thread exited, but which is still listed.
pub fn dead() -> Result<(), Skip> {
    let _ = open()?;
    let (mut vm, threads) = spinning(2, 1);
    let procfs = ProcFs::host();
    let process = ThreadRef::of_process(&procfs, vm.pid()).expect("it lives");
    let vcpus =
        (0..).zip(&threads).map(|(n, thread)| WatchedVcpu { vcpu: VcpuId(n), thread: *thread });
    let vms = [WatchedVm { vm: VmId(7), process, vcpus: vcpus.collect() }];
    let mut source = BpfSource::open(procfs.clone(), Options::default()).expect("it was possible");
    source.begin(&vms).expect("it begins");
    vm.tell("end 1");
    helper::wait_until("it ended", || !threads[1].is_alive(&procfs));
    for round in 0..3 {
        sleep(Duration::from_millis(100));
        let interval = source.interval(&vms).expect("an interval");
        let vcpus = &interval.vms[0].vcpus;
        let which: Vec<VcpuId> = vcpus.iter().map(|vcpu| vcpu.vcpu).collect();
        assert!(which.contains(&VcpuId(0)), "{round}: {which:?}");
        // It can be in the first interval, with the time until it exited.
        assert!(round == 0 || which.len() == 1, "{round}: {which:?}");
        let programs = interval.programs.expect("they say what they saw");
        assert!(programs.latency.contains_key(&VmId(7)), "{programs:?}");
        assert_eq!(programs.not_counted.waits, 0);
    }
    Ok(())
}

/// Starts a thread on a pCPU that waits for tokens, works for each, and passes it on.
fn worker(
    pcpu: &PcpuSet,
    tokens: Receiver<()>,
    next: Sender<()>,
    work: Duration,
    stop: &Arc<AtomicBool>,
) -> (ThreadRef, std::thread::JoinHandle<()>) {
    let (tell, told) = channel();
    let (pcpu, stop) = (pcpu.clone(), stop.clone());
    let body = move || {
        set_affinity(Tid(helper::gettid()), &pcpu).expect("it may be pinned");
        tell.send(helper::gettid()).expect("the test waits");
        while tokens.recv().is_ok() {
            let begin = Instant::now();
            while begin.elapsed() < work {}
            if stop.load(Ordering::Relaxed) || next.send(()).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::spawn(body);
    let tid = Tid(told.recv().expect("it starts"));
    (myself(tid), thread)
}

/// A sleeps until B has worked for it, and B shares its pCPU with a hog. C sleeps independently.
pub fn costop() -> Result<(), Skip> {
    let mut bpf = open()?;
    let [first, second] = two_pcpus()?;
    let (_hog, hogs) = spinning(1, 1);
    let hogged = affinity(hogs[0].tid).expect("it lives");
    let free = if hogged == first { &second } else { &first };
    let (to_a, for_a) = channel();
    let (to_b, for_b) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let (a, a_ends) = worker(free, for_a, to_b, Duration::ZERO, &stop);
    let work = Duration::from_millis(2);
    let (b, b_ends) = worker(&hogged, for_b, to_a.clone(), work, &stop);
    let (c, c_sender, c_ends) = start_sleeper();
    set_affinity(c, free).expect("it may be pinned");
    bpf.watch(&watch(&[a, b, myself(c)])).expect("they can be watched");
    to_a.send(()).expect("it listens");
    sleep(Duration::from_millis(100));
    bpf.read().expect("a reading");
    sleep(Duration::from_secs(2));
    let reading = bpf.read().expect("a reading");
    stop.store(true, Ordering::Relaxed);
    drop((to_a, c_sender));
    for thread in [a_ends, b_ends, c_ends] {
        thread.join().expect("it ends");
    }
    for vcpu in &reading.vcpus {
        assert_eq!(vcpu.times.sum(), vcpu.wall, "{vcpu:?}");
    }
    let [of_a, of_b, of_c] = &reading.vcpus[..] else {
        panic!("{reading:?}");
    };
    let Some(costop) = of_a.times.costop else {
        return Err(excuse(&bpf, &["sched_waking"]));
    };
    let waited = of_b.times.ready;
    if waited <= Nanos::from_millis(300) {
        // CFS lets a sleeper run nearly at once, so there is hardly any co-stop.
        return Err(Skip(format!("B waited for {waited} of {}", of_b.wall)));
    }
    // Only the last of several waits in a round counts, and A sleeps all the time that B waits.
    assert!(costop.0 > waited.0 / 3, "{costop} of {waited}: {reading:?}");
    assert!(costop <= waited + TICK, "{costop} of {waited}: {reading:?}");
    let link = reading.links.iter().find(|link| (link.from, link.to) == (1, 0));
    // A sleep that began before the reading counts in the link as a whole.
    let link = link.expect("B woke A");
    assert!(is_near(link.costop_time, costop, 0.15) && link.costops > 20, "{link:?}: {costop}");
    // C's sleep is ended by its timer, not by a sibling, but an interrupt that hits a running sibling can look like it.
    let none = of_c.times.costop.expect("it is measured of A");
    assert!(none.0 <= costop.0 / 8, "{costop}, {of_c:?}");
    assert!(of_c.times.halted > Nanos::from_millis(1500), "{of_c:?}");
    Ok(())
}

/// Removes a cgroup at the end of the test.
struct Removed(CgroupPath);

impl Drop for Removed {
    fn drop(&mut self) {
        if let Ok(controller) = cgroup::open(&ProcFs::host()) {
            for tid in controller.threads(&self.0).unwrap_or_default() {
                let _ = controller.move_thread(tid, &self.0.parent().expect("it has one"));
            }
            let _ = controller.remove(&self.0);
        }
    }
}

/// A thread alone on its pCPU has a quota of a fifth of it.
pub fn quota() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (_vm, threads) = spinning(1, 1);
    let controller = cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))?;
    let parent = controller.cgroup_of(&threads[0]).expect("it has a cgroup");
    controller.check_parent(&parent).map_err(|error| Skip(error.to_string()))?;
    let name = helper::unique("quota");
    let group = controller.create_child(&parent, &name).map_err(|error| Skip(error.to_string()))?;
    let group = Removed(group);
    // On v2 the controller may not be enabled for children, which is up to the operator.
    controller
        .write_knob(&group.0, Knob::Quota, "20000 100000")
        .map_err(|error| Skip(error.to_string()))?;
    controller.move_thread(threads[0].tid, &group.0).expect("it may be moved");
    sleep(Duration::from_millis(300));
    bpf.watch(&watch(&threads)).expect("it can be watched");
    let before = controller.throttled(&group.0).expect("it is counted");
    let span = Span::measure(&mut bpf, &threads, Duration::from_secs(2));
    let after = controller.throttled(&group.0).expect("it is counted");
    let vcpu = &span.reading.vcpus[0];
    sums(vcpu, span.lasted);
    let Some(limited) = vcpu.times.limited else {
        return Err(excuse(&bpf, &["cfs_bandwidth"]));
    };
    let on_pcpu = vcpu.times.on_pcpu();
    assert!(on_pcpu.0 as f64 <= vcpu.wall.0 as f64 * 0.25, "{vcpu:?}");
    let (Some(before), Some(after)) = (before, after) else {
        return Err(Skip("this kernel does not count throttled time".to_owned()));
    };
    let throttled = after.time - before.time;
    if throttled < Nanos::from_millis(500) {
        return Err(Skip(format!("others took the pCPU: throttled for {throttled} of 2 s only")));
    }
    // One period at each end, and the delay of detection.
    let off = limited.0.abs_diff(throttled.0);
    assert!(off < 200_000_000, "{vcpu:?}: throttled {throttled}");
    Ok(())
}

/// Two threads with long system calls, on one pCPU, in a group with a small quota. Since 6.18 a thread is throttled only when it leaves the kernel,
/// so they wait for each other.
pub fn throttled_in_the_kernel() -> Result<(), Skip> {
    if !describes("sched_throttle_work") {
        return Err(Skip("this kernel throttles groups as a whole".to_owned()));
    }
    let mut bpf = open()?;
    let [pcpu, _] = two_pcpus()?;
    let controller = cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))?;
    let skip = |error: cgroup::CgroupError| Skip(error.to_string());
    let parent = controller.cgroup_of(&myself(Tid(helper::gettid()))).map_err(skip)?;
    controller.check_parent(&parent).map_err(skip)?;
    let name = helper::unique("kernel");
    let group = Removed(controller.create_child(&parent, &name).map_err(skip)?);
    controller.write_knob(&group.0, Knob::Quota, "20000 100000").map_err(skip)?;
    let go = Arc::new(Barrier::new(3));
    let mut waiting = Vec::new();
    let mut threads = Vec::new();
    for _ in 0..2 {
        let (tell, told) = channel();
        let (go, pcpu) = (go.clone(), pcpu.clone());
        waiting.push(std::thread::spawn(move || {
            set_affinity(Tid(helper::gettid()), &pcpu).expect("it may be pinned");
            // Some 100 ms of work in one call.
            let mut bytes = vec![1u8; 64 << 20];
            let mut random = fs::File::open("/dev/urandom").expect("it is there");
            tell.send(helper::gettid()).expect("the test waits");
            go.wait();
            random.read_exact(&mut bytes).expect("it never ends");
        }));
        threads.push(myself(Tid(told.recv().expect("it starts"))));
    }
    for thread in &threads {
        // On v2, a thread cannot be in another cgroup than its process.
        controller.move_thread(thread.tid, &group.0).map_err(skip)?;
    }
    bpf.watch(&watch(&threads)).expect("they can be watched");
    bpf.read().expect("a reading");
    go.wait();
    for thread in waiting {
        thread.join().expect("it ends");
    }
    let reading = bpf.read().expect("a reading");
    for vcpu in &reading.vcpus {
        assert_eq!(vcpu.times.sum(), vcpu.wall, "{vcpu:?}");
        let (ran, ready) = (vcpu.times.on_pcpu(), vcpu.times.ready);
        if ran < Nanos::from_millis(60) {
            return Err(Skip(format!("random bytes took {ran} only")));
        }
        // Each waits for the other while that is in the kernel, regardless of the used quota.
        assert!(ready.0 > ran.0 / 2, "{reading:?}");
        let edges = all_waits(&reading, vcpu.index);
        assert!(is_near(edges, ready, 0.05), "{vcpu:?}: {edges} in edges");
    }
    Ok(())
}
