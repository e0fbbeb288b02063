//! Live tests of the BPF programs: threads whose times are known from kernel statistics, and KVM vCPUs.
//!
//! It has its own harness instead of libtest, because it also restarts itself as the VM under test.
//! Harness and helper are shared with the live tests of `tandem-linux`.

mod bpf_cases;
mod bpf_refused;
mod bpf_span;
use tandem_testing::{harness, helper};

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_linux::ProcFs;
use tandem_linux::affinity::{affinity, set_affinity};
use tandem_linux::sched_attr::set_nice;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_microvm::{Microvm, MicrovmConfig, Workload};
use tandem_model::states::edges::{EdgeKind, Evidence, Party};
use tandem_model::states::interval::SourceName;
use tandem_model::states::programs::NotCounted;
use tandem_model::{Nanos, Nice, PcpuSet, State, VcpuId, VmId};
use tandem_observe::bpf::{
    Bpf, BpfError, BpfReading, BpfSource, Culprit, Options, VcpuReading, Watch,
};
use tandem_observe::poll::{NoPoll, Polls};
use tandem_observe::{Source, WatchedVcpu, WatchedVm};

use bpf_span::Span;
use harness::{Skip, Test};
use helper::Helper;

/// All tests, in the order of execution.
const ALL: &[(&str, Test)] = &[
    ("stacked_threads_agree_with_schedstat", stacked),
    ("culprits_are_charged_their_run_time", culprits),
    ("sleeper_halts_and_its_wakeups_are_counted", sleeper),
    ("wakeups_between_vcpus_are_counted", wakers),
    ("ended_thread_is_reported_once", ending),
    ("watched_threads_can_change_at_any_time", changing),
    ("waits_beyond_the_list_are_counted", crowd),
    ("quota_is_no_contention", bpf_cases::quota),
    ("halted_kvm_vcpus_poll", polling),
    ("exits_separate_vmm_from_run", exits),
    ("source_names_culprits_and_preserves_sums", source),
    ("described_events_are_not_refused", bpf_cases::nothing_is_refused),
    ("refused_program_costs_only_its_columns", bpf_refused::columns),
    ("threads_end_and_wait_without_refused_programs", bpf_refused::threads),
    ("migrated_vcpu_keeps_waiting", bpf_cases::migrating),
    ("culprit_that_stays_on_its_pcpu_is_named", bpf_cases::staying),
    ("reused_thread_number_is_another_thread", bpf_cases::renumbered),
    ("source_does_not_watch_ended_threads", bpf_cases::dead),
    ("sleep_for_a_waiting_sibling_is_co_stop", bpf_cases::costop),
    ("missed_switches_leave_time_unknown", bpf_cases::not_told),
    ("threads_in_the_kernel_compete_after_their_quota", bpf_cases::throttled_in_the_kernel),
];

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(ALL),
    }
}

/// Opens the programs, or skips if this machine does not support them. Fails if the kernel refuses the compiled programs.
fn open() -> Result<Bpf, Skip> {
    match Bpf::open(Options::default()) {
        Ok(bpf) => Ok(bpf),
        Err(error @ BpfError::Load { .. }) => panic!("{error}"),
        Err(error) => Err(Skip(error.to_string())),
    }
}

fn watch(threads: &[ThreadRef]) -> Vec<Watch> {
    let numbered = (0u32..).zip(threads);
    let watch = numbered.map(|(index, thread)| Watch {
        index,
        thread: *thread,
        vm: VmId(1),
        vcpu: VcpuId(index),
    });
    watch.collect()
}

/// Returns the `nth` pCPU that the first of these threads may use.
fn one_pcpu(threads: &[ThreadRef], nth: usize) -> Option<PcpuSet> {
    let allowed = affinity(threads[0].tid).expect("an affinity");
    allowed.iter().nth(nth).map(|pcpu| [pcpu].into_iter().collect())
}

/// Starts a VM whose first threads spin on one pCPU.
fn spinning(vcpus: usize, spin: usize) -> (Helper, Vec<ThreadRef>) {
    let mut vm = Helper::start("vm", &["bpf", &vcpus.to_string()]);
    let threads = helper::vcpu_threads(vm.pid());
    let first = one_pcpu(&threads, 0).expect("a pCPU");
    for thread in &threads[..spin] {
        set_affinity(thread.tid, &first).expect("it may be pinned");
    }
    let procfs = ProcFs::host();
    for n in 0..spin {
        vm.tell(&format!("spin {n}"));
    }
    helper::wait_until("all spin", || {
        let spins = |thread: &ThreadRef| thread.stat(&procfs).is_ok_and(|s| s.state.is_runnable());
        threads[..spin].iter().all(spins)
    });
    (vm, threads)
}

/// Whether a figure is within a part of the expected value, or within 2 ms, about a tick.
fn is_near(figure: Nanos, expected: Nanos, part: f64) -> bool {
    let off = figure.0.abs_diff(expected.0) as f64;
    off <= (expected.0 as f64 * part).max(2e6)
}

fn waited_for(reading: &BpfReading, victim: u32, culprit: &Culprit) -> Nanos {
    let edges = reading.edges.iter();
    let edges = edges.filter(|edge| edge.victim == victim && edge.culprit == *culprit);
    edges.map(|edge| edge.time).sum()
}

fn all_waits(reading: &BpfReading, victim: u32) -> Nanos {
    let edges = reading.edges.iter().filter(|edge| edge.victim == victim);
    edges.map(|edge| edge.time).sum()
}

fn sums(vcpu: &VcpuReading, lasted: [Duration; 2]) {
    assert_eq!(vcpu.times.sum(), vcpu.wall, "{vcpu:?}");
    let [least, most] = lasted.map(|time| time.as_nanos() as f64);
    // Some kernels miss switches.
    let wall = (vcpu.wall + vcpu.unseen).0 as f64;
    assert!(wall >= least * 0.99 && wall <= most * 1.01, "{vcpu:?} of {lasted:?}");
}

/// About a tick, at which the kernel updates the run time of a thread.
const TICK: Nanos = Nanos::from_millis(5);

/// Two threads spin on one pCPU, and one sleeps.
fn stacked() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (_vm, threads) = spinning(3, 2);
    bpf.watch(&watch(&threads)).expect("they can be watched");
    let span = Span::measure(&mut bpf, &threads, Duration::from_millis(1500));
    let reading = &span.reading;
    // Some kernels miss switches.
    let lost = NotCounted { events: reading.lost.events, ..NotCounted::default() };
    assert_eq!(reading.lost, lost);
    for (n, vcpu) in reading.vcpus.iter().enumerate() {
        sums(vcpu, span.lasted);
        let ran = span.agrees(vcpu.times.on_pcpu(), n, |sample| sample.ran, 0.03, TICK);
        assert!(ran, "{vcpu:?}: {:?}", span.accounts);
        // The kernel counts a wait when it ends: at each end, one of some ms may be pending.
        let ready = vcpu.times.ready;
        let waited = span.agrees(ready, n, |sample| sample.waited, 0.03, Nanos::from_millis(12));
        assert!(waited, "{vcpu:?}: {:?}", span.accounts);
        let edges = all_waits(reading, vcpu.index);
        assert!(is_near(edges, ready, 0.03), "{vcpu:?}: {edges} in edges");
    }
    let sleeps = &reading.vcpus[2];
    assert_eq!((sleeps.times.halted, sleeps.runs), (sleeps.wall, 0));
    Ok(())
}

/// A waits for B and C on one pCPU, C with less weight. D spins on another pCPU, if there is one.
fn culprits() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (mut vm, threads) = spinning(4, 3);
    set_nice(threads[2].tid, Nice(5)).expect("it may be nicer");
    if let Some(second) = one_pcpu(&threads[3..], 1) {
        set_affinity(threads[3].tid, &second).expect("it may be pinned");
        vm.tell("spin 3");
    }
    // C and D are not watched, so they are tasks of the host; B is.
    bpf.watch(&watch(&threads[..2])).expect("they can be watched");
    let span = Span::measure(&mut bpf, &threads, Duration::from_secs(2));
    let reading = &span.reading;
    let is_what_it_ran = |time: Nanos, n: usize| span.agrees(time, n, |s| s.ran, 0.05, TICK);
    let task = |n: usize| -> Culprit {
        let found =
            reading.edges.iter().map(|edge| &edge.culprit).find(
                |culprit| matches!(culprit, Culprit::Task { tid, .. } if *tid == threads[n].tid),
            );
        found.cloned().unwrap_or(Culprit::Idle)
    };
    let of_a = waited_for(reading, 1, &Culprit::Watched(0));
    let of_b = waited_for(reading, 0, &Culprit::Watched(1));
    let of_c = waited_for(reading, 0, &task(2));
    for (time, n) in [(of_a, 0), (of_b, 1), (of_c, 2)] {
        assert!(is_what_it_ran(time, n), "for {n}: {time}; {:?}", span.accounts);
    }
    assert!(of_c.0 * 2 < of_b.0, "C has a third of B's weight: {of_c}, {of_b}");
    assert_eq!(task(3), Culprit::Idle, "D ran elsewhere");
    let Culprit::Task { pid, comm, .. } = task(2) else {
        panic!("C is a task of the host");
    };
    assert_eq!((pid, comm.as_str()), (Some(vm.pid()), "bpf/vcpu2"));
    Ok(())
}

/// A thread that sleeps 5 ms at a time, until the sender is dropped.
fn start_sleeper() -> (Tid, std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let (sender, until) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let body = move || {
        tell.send(helper::gettid()).expect("the test waits");
        while until.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            sleep(Duration::from_millis(5));
        }
    };
    let thread = std::thread::spawn(body);
    (Tid(told.recv().expect("it starts")), sender, thread)
}

fn myself(tid: Tid) -> ThreadRef {
    ThreadRef::read(&ProcFs::host(), Pid(std::process::id()), tid).expect("it lives")
}

fn sleeper() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (tid, sender, thread) = start_sleeper();
    let threads = [myself(tid)];
    bpf.watch(&watch(&threads)).expect("it can be watched");
    let span = Span::measure(&mut bpf, &threads, Duration::from_secs(1));
    let vcpu = &span.reading.vcpus[0];
    sums(vcpu, span.lasted);
    let (on_pcpu, ready) = (vcpu.times.on_pcpu(), vcpu.times.ready);
    assert_eq!(vcpu.times.halted, vcpu.wall - on_pcpu - ready, "{vcpu:?}");
    assert!(on_pcpu.0 < vcpu.wall.0 / 10, "{vcpu:?}");
    let runs = |from: usize, to: usize| span.accounts[to][0].runs - span.accounts[from][0].runs;
    let (least, most) = (runs(1, 2), runs(0, 3));
    assert!(vcpu.runs >= least && vcpu.runs <= most, "{vcpu:?}: {least} to {most} runs");
    assert!(least > 5, "it was woken again and again");
    let woken = vcpu.latency.count();
    assert!(woken > 5 && woken <= vcpu.runs, "{vcpu:?}");
    let median = vcpu.latency.quantile(0.5).expect("it was woken");
    assert!(median < Nanos::from_millis(100), "{vcpu:?}");
    drop(sender);
    thread.join().expect("it ends");
    Ok(())
}

/// Two threads pass a token back and forth.
fn wakers() -> Result<(), Skip> {
    const ROUNDS: u64 = 200;
    let mut bpf = open()?;
    let (to_first, first) = std::sync::mpsc::channel::<()>();
    let (to_second, second) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let tell_second = tell.clone();
    let one = std::thread::spawn(move || {
        tell.send((0, helper::gettid())).expect("the test waits");
        while first.recv().is_ok() {
            // Lets the other thread sleep before it is woken.
            sleep(Duration::from_micros(300));
            if to_second.send(()).is_err() {
                break;
            }
        }
    });
    let back = to_first.clone();
    let two = std::thread::spawn(move || {
        tell_second.send((1, helper::gettid())).expect("the test waits");
        for _ in 0..ROUNDS {
            if second.recv().is_err() {
                break;
            }
            sleep(Duration::from_micros(300));
            if back.send(()).is_err() {
                break;
            }
        }
    });
    let mut tids = [told.recv().expect("it starts"), told.recv().expect("it starts")];
    tids.sort();
    let threads = tids.map(|(_, tid)| myself(Tid(tid)));
    bpf.watch(&watch(&threads)).expect("they can be watched");
    bpf.read().expect("a reading");
    to_first.send(()).expect("it listens");
    drop(to_first);
    two.join().expect("it ends");
    let reading = bpf.read().expect("a reading");
    let wakes = |from: u32, to: u32| {
        let links = reading.links.iter();
        let mut links = links.filter(|link| (link.from, link.to) == (from, to));
        links.next().map_or(0, |link| link.wakes)
    };
    // A busy thread takes the next token without sleeping, so there are at most as many wake-ups as tokens.
    for (from, to) in [(0, 1), (1, 0)] {
        let wakes = wakes(from, to);
        assert!(
            wakes > ROUNDS / 2 && wakes <= ROUNDS + 5,
            "{wakes} of {ROUNDS}: {:?}",
            reading.links
        );
    }
    one.join().expect("it ends");
    Ok(())
}

fn ending() -> Result<(), Skip> {
    let mut bpf = open()?;
    let (tid, sender, thread) = start_sleeper();
    bpf.watch(&watch(&[myself(tid)])).expect("it can be watched");
    bpf.read().expect("a reading");
    drop(sender);
    thread.join().expect("it ends");
    // The kernel ends a thread a moment after it is joined.
    let mut ended = Vec::new();
    helper::wait_until("it is reported as ended", || {
        ended = bpf.read().expect("a reading").vcpus;
        ended.iter().any(|vcpu| vcpu.ended)
    });
    assert_eq!(ended[0].times.sum(), ended[0].wall);
    assert_eq!(bpf.read().expect("a reading").vcpus, []);
    Ok(())
}

/// Indices and slots in the maps move to other threads.
fn changing() -> Result<(), Skip> {
    let options = Options { max_vcpus: 3, ..Options::default() };
    let _ = open()?;
    let mut bpf = Bpf::open(options).expect("it was possible just now");
    let (_vm, threads) = spinning(5, 2);
    bpf.watch(&watch(&threads[..3])).expect("they can be watched");
    let error = bpf.watch(&watch(&threads[..4])).expect_err("there is no room");
    assert!(matches!(error, BpfError::TooMany { given: 4, most: 3 }), "{error}");
    for round in 0..20 {
        let chosen = match round % 2 {
            0 => [threads[3], threads[0], threads[1]],
            _ => [threads[1], threads[4], threads[0]],
        };
        bpf.read().expect("a reading");
        bpf.watch(&watch(&chosen[..2])).expect("room for two");
        bpf.read().expect("a reading");
        bpf.watch(&watch(&chosen)).expect("room for three");
        sleep(Duration::from_millis(20));
    }
    let span = Span::measure(&mut bpf, &threads, Duration::from_millis(300));
    let reading = &span.reading;
    for vcpu in &reading.vcpus {
        sums(vcpu, span.lasted);
        let edges = all_waits(reading, vcpu.index);
        assert!(is_near(edges, vcpu.times.ready, 0.05), "{vcpu:?}: {edges} in edges");
    }
    let tids: Vec<Tid> = reading.vcpus.iter().map(|vcpu| vcpu.tid).collect();
    assert_eq!(tids, [threads[1].tid, threads[4].tid, threads[0].tid]);
    assert_eq!(reading.vcpus[1].times.halted, reading.vcpus[1].wall);
    Ok(())
}

/// More threads wait for one pCPU than its list holds, which is `MAX_WAITING` of `bpf/model.h`.
fn crowd() -> Result<(), Skip> {
    const CROWD: u64 = 40;
    const PLACES: u64 = 32;
    let mut bpf = open()?;
    let (_vm, threads) = spinning(CROWD as usize, CROWD as usize);
    let begin = Instant::now();
    bpf.watch(&watch(&threads)).expect("they can be watched");
    bpf.read().expect("a reading");
    // An unlisted wait is counted in full when it ends, including its part before that reading.
    let carried = Nanos(begin.elapsed().as_nanos() as u64 * (CROWD - PLACES));
    sleep(Duration::from_millis(600));
    let reading = bpf.read().expect("a reading");
    let lost = reading.lost;
    assert!(lost.waits > 0, "{lost:?}");
    for vcpu in &reading.vcpus {
        assert_eq!(vcpu.times.sum(), vcpu.wall);
    }
    // The edges lack the waits without a charge, except pending ones.
    let ready: Nanos = reading.vcpus.iter().map(|vcpu| vcpu.times.ready).sum();
    let charged: Nanos = reading.edges.iter().map(|edge| edge.time).sum();
    assert!(lost.wait_time > Nanos::ZERO, "{lost:?}");
    assert!(
        charged + lost.wait_time <= ready + carried + TICK,
        "{lost:?}: {charged} of {ready}, {carried} of it from before"
    );
    Ok(())
}

/// Skip reason for a VM that hardly halts: its timer expires before it can halt.
const RUNS_ALL_THE_TIME: &str =
    "exits cost so much here that a VM that halts for a third of a millisecond runs all the time";

fn halting_microvm() -> Result<Microvm, Skip> {
    let mut config = MicrovmConfig::new("bpfpoll".parse().expect("a name"), Workload::Bursty);
    config.vcpus = 2;
    for setting in ["period=300k", "work=20k"] {
        config.parameters.set_from(setting).expect("a parameter of the workload");
    }
    Microvm::start(config).map_err(|error| Skip(format!("no KVM microVM: {error}")))
}

fn vcpu_threads(microvm: &Microvm) -> Vec<ThreadRef> {
    let tids = microvm.tids().into_iter();
    tids.map(|tid| myself(Tid(tid as u32))).collect()
}

/// vCPUs halt repeatedly: POLL matches KVM's own statistics.
fn polling() -> Result<(), Skip> {
    let mut bpf = open()?;
    let microvm = halting_microvm()?;
    let threads = vcpu_threads(&microvm);
    let procfs = ProcFs::host();
    let process = ThreadRef::of_process(&procfs, Pid(std::process::id())).expect("it lives");
    bpf.watch(&watch(&threads)).expect("they can be watched");
    sleep(Duration::from_millis(200));
    let mut polls = Polls::new();
    let mut said = || -> Result<Vec<Nanos>, NoPoll> {
        let mut reader = polls.of(&procfs, &process, threads.len())?;
        (0..threads.len()).map(|index| reader.polled(index)).collect()
    };
    let missing = bpf.missing().into_iter().map(|missing| missing.to_string());
    let sees_functions = !missing.into_iter().any(|line| line.contains("kvm_vcpu_halt"));
    let before = said();
    let span = Span::measure(&mut bpf, &threads, Duration::from_secs(2));
    let after = said();
    let reading = &span.reading;
    for vcpu in &reading.vcpus {
        sums(vcpu, span.lasted);
        let Some(halts) = vcpu.halts else {
            return Err(bpf_cases::excuse(&bpf, &["kvm_vcpu_wakeup"]));
        };
        // Exits of emulated pCPUs take so long that few remain.
        if halts <= 10 && vcpu.times.run.0 > vcpu.wall.0 / 2 {
            return Err(Skip(RUNS_ALL_THE_TIME.to_owned()));
        }
        assert!(halts > 10, "{vcpu:?}");
    }
    let (Ok(before), Ok(after)) = (before, after) else {
        return Err(Skip("KVM's own figures cannot be read here".to_owned()));
    };
    // An emulated pCPU can stop between any two instructions while the emulator runs another one, which no two clocks count alike.
    if std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG")) {
        return Err(Skip("emulated pCPUs keep no time to compare".to_owned()));
    }
    for ((vcpu, before), after) in reading.vcpus.iter().zip(before).zip(after) {
        let Some(polled) = vcpu.times.poll else {
            return Err(bpf_cases::excuse(&bpf, &["kvm_vcpu_wakeup"]));
        };
        let said = after - before;
        let on_pcpu = vcpu.times.on_pcpu();
        // KVM also counts the time of other threads that it let run meanwhile.
        let slack = Nanos(said.0 / 10).max(Nanos(on_pcpu.0 / 50));
        // Without KVM's functions, failed polling is not seen, and a halt with a pending interrupt counts as polling.
        let (less, more) = if sees_functions {
            (slack, slack)
        } else {
            let halts = vcpu.halts.unwrap_or_default();
            (said, slack + Nanos(10_000 * halts))
        };
        assert!(
            (said.saturating_sub(less)..=said + more).contains(&polled),
            "{vcpu:?}: KVM says {said}"
        );
        assert!(polled <= on_pcpu, "{vcpu:?}");
    }
    Ok(())
}

fn exits() -> Result<(), Skip> {
    let mut bpf = open()?;
    let microvm = halting_microvm()?;
    let threads = vcpu_threads(&microvm);
    bpf.watch(&watch(&threads)).expect("they can be watched");
    sleep(Duration::from_millis(200));
    bpf.read().expect("a reading");
    sleep(Duration::from_secs(1));
    let reading = bpf.read().expect("a reading");
    for vcpu in &reading.vcpus {
        let (Some(vmm), Some(exits)) = (vcpu.times.vmm, vcpu.exits) else {
            return Err(bpf_cases::excuse(&bpf, &["kvm_entry", "kvm_exit"]));
        };
        let halts = vcpu.halts.expect("a KVM that tells of exits tells of halts");
        assert!(exits >= halts, "each halt is an exit: {vcpu:?}");
        assert!(vmm > Nanos::ZERO && vmm < vcpu.times.on_pcpu(), "{vcpu:?}");
        assert_eq!(vcpu.times.sum(), vcpu.wall);
    }
    Ok(())
}

/// The source with a VM of two vCPUs and another thread, all on one pCPU, together with a host process.
fn source() -> Result<(), Skip> {
    let _ = open()?;
    let (mut vm, mut threads) = spinning(3, 3);
    let io = threads.remove(2);
    let (_neighbour, others) = spinning(1, 1);
    let mut source =
        BpfSource::open(ProcFs::host(), Options::default()).expect("it was possible just now");
    let vcpus =
        (0..).zip(&threads).map(|(n, thread)| WatchedVcpu { vcpu: VcpuId(n), thread: *thread });
    let process = ThreadRef::of_process(&ProcFs::host(), vm.pid()).expect("it lives");
    let vms = [WatchedVm { vm: VmId(7), process, vcpus: vcpus.collect() }];
    source.begin(&vms).expect("it begins");
    sleep(Duration::from_millis(1000));
    let interval = source.interval(&vms).expect("an interval");
    assert_eq!(interval.source, SourceName::Bpf);
    let party = |n: u32| Party::Vcpu { vm: VmId(7), vcpu: VcpuId(n) };
    let name = std::fs::read_to_string(format!("/proc/{}/comm", others[0].pid)).expect("it lives");
    for (vcpu, sibling) in interval.vms[0].vcpus.iter().zip([1, 0]) {
        let ready = vcpu.times.get(State::Ready).expect("it is measured");
        assert!(ready.0 > vcpu.times.wall().0 / 2, "{vcpu:?}");
        let edges: Vec<_> = interval.edges.of(&party(vcpu.vcpu.0), EdgeKind::Pcpu).collect();
        let sum = edges.iter().map(|edge| edge.time()).sum();
        assert!(is_near(sum, ready, 0.03), "{sum} of {ready}: {edges:?}");
        assert!(edges.iter().all(|edge| edge.evidence == Evidence::Measured));
        let waited_for = |is: &dyn Fn(&Party) -> bool| -> Nanos {
            let edges = edges.iter().filter(|edge| is(edge.culprit));
            edges.map(|edge| edge.time()).sum()
        };
        let io_name = |party: &Party| matches!(party, Party::VmThread { vm: VmId(7), name } if name == "bpf/vcpu2");
        let neighbour =
            |p: &Party| matches!(p, Party::Process { name: n, .. } if n == name.trim_end());
        // Three others of equal weight, regardless of other load.
        let three = [
            waited_for(&|culprit| *culprit == party(sibling)),
            waited_for(&io_name),
            waited_for(&neighbour),
        ];
        let (least, most) = (three.iter().min().unwrap(), three.iter().max().unwrap());
        assert!(*least > TICK && most.0 < least.0 * 3 / 2, "{three:?} of {ready}: {edges:?}");
        let unseen = waited_for(&|culprit| *culprit == Party::Unseen);
        assert!(unseen.0 < ready.0 / 20, "{unseen} of {ready}");
    }
    assert!(interval.vms[0].threads[0].name == "bpf/vcpu2", "{io:?}");
    assert!(interval.host.idle.is_some() && interval.host.tasks > Nanos::ZERO);
    // An added vCPU is in the next interval but one, from its begin.
    let mut more = vms.clone();
    more[0].vcpus.push(WatchedVcpu { vcpu: VcpuId(2), thread: io });
    assert_eq!(source.interval(&more).expect("an interval").vms[0].vcpus.len(), 2);
    sleep(Duration::from_millis(100));
    let interval = source.interval(&more).expect("an interval");
    assert_eq!(interval.vms[0].vcpus.len(), 3);
    vm.tell("rest 0");
    Ok(())
}
