//! Live tests of traces: threads that alternate on a pCPU, one that sleeps, and a buffer that is too small.
//!
//! It has its own harness instead of libtest, because it is also the VM under test.
//! Harness and helper are shared with the live tests of `tandem-linux`.

use tandem_testing::{harness, helper};

use std::process::ExitCode;
use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::affinity::{affinity, set_affinity};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::states::edges::{EdgeKind, Party};
use tandem_model::{Nanos, PcpuSet, State, VcpuId, VmId};
use tandem_observe::bpf::{Bpf, BpfError, Options};
use tandem_observe::trace::{TraceOptions, Tracer};
use tandem_observe::{WatchedVcpu, WatchedVm};

use harness::{Skip, Test};
use helper::Helper;

/// All tests, in the order of execution.
const ALL: &[(&str, Test)] = &[
    ("alternating_threads_run_and_wait", turns),
    ("lost_events_are_counted", no_room),
    ("interrupted_thread_is_not_the_waker", timers),
];

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(ALL),
    }
}

/// Opens the tracer, or skips if this machine does not support it. Fails if the kernel refuses the compiled programs.
fn open(options: TraceOptions) -> Result<Tracer, Skip> {
    match Tracer::open(ProcFs::host(), options) {
        Ok(tracer) => Ok(tracer),
        Err(error @ BpfError::Load { .. }) => panic!("{error}"),
        Err(error) => Err(Skip(error.to_string())),
    }
}

/// Starts a VM of three threads, two of which spin on one pCPU.
fn vm() -> (Helper, WatchedVm) {
    let mut vm = Helper::start("vm", &["trace", "3"]);
    let procfs = ProcFs::host();
    let threads = helper::vcpu_threads(vm.pid());
    let allowed = affinity(threads[0].tid).expect("an affinity");
    let first: PcpuSet = allowed.iter().take(1).collect();
    for (n, thread) in threads.iter().take(2).enumerate() {
        set_affinity(thread.tid, &first).expect("it may be pinned");
        vm.tell(&format!("spin {n}"));
    }
    helper::wait_until("both spin", || {
        let spins = |thread: &ThreadRef| thread.stat(&procfs).is_ok_and(|s| s.state.is_runnable());
        threads[..2].iter().all(spins)
    });
    let vcpus =
        (0..).zip(&threads).map(|(n, thread)| WatchedVcpu { vcpu: VcpuId(n), thread: *thread });
    let watched = WatchedVm {
        vm: VmId(3),
        process: ThreadRef::of_process(&procfs, vm.pid()).expect("it lives"),
        vcpus: vcpus.collect(),
    };
    (vm, watched)
}

fn turns() -> Result<(), Skip> {
    let (_vm, watched) = vm();
    let watched = [watched];
    let length = Duration::from_millis(1_000);
    let trace = open(TraceOptions::default())?.trace(&watched, length, || false);
    let trace = trace.expect("a trace");
    assert_eq!(trace.lost, 0);
    let length = trace.end.saturating_sub(trace.begin);
    assert!(length >= Nanos::from_millis(1_000), "{length}");
    for (number, pcpu) in &trace.pcpus {
        for two in pcpu.ran.windows(2) {
            assert!(two[0].to <= two[1].from, "pCPU {number}: {two:?}");
        }
        let ran: Nanos = pcpu.ran.iter().map(|ran| ran.to.saturating_sub(ran.from)).sum();
        assert!(ran + pcpu.idle <= length, "{ran} and {} of {length}", pcpu.idle);
    }
    let [interval] = &trace.intervals(length)[..] else { panic!("one is as long as the trace") };
    let vcpus = &interval.vms[0].vcpus;
    assert_eq!(vcpus.len(), 3, "{vcpus:#?}");
    let party = |vcpu| Party::Vcpu { vm: VmId(3), vcpu: VcpuId(vcpu) };
    // Some kernels miss the switch out of some threads: the next thread on the pCPU is then unknown for a moment.
    let walls = vcpus[..2].iter().map(|vcpu| vcpu.times.wall());
    let unknown: Nanos = walls.map(|wall| length.saturating_sub(wall)).sum();
    for (vcpu, sibling) in [(0, 1), (1, 0)] {
        let of = &vcpus[vcpu as usize];
        assert!(of.runs > 2 && of.ran > Nanos::ZERO, "{of:?}");
        // It never sleeps: it runs or waits.
        assert_eq!(of.ran + of.waited, of.times.wall(), "{of:?}");
        let edges: Vec<_> = interval.edges.of(&party(vcpu), EdgeKind::Pcpu).collect();
        let waited_for = |culprit: &Party| -> Nanos {
            let edges = edges.iter().filter(|edge| edge.culprit == culprit);
            edges.map(|edge| edge.time()).sum()
        };
        // The sibling ran only there, so the waiting time equals its run time, except for the time of switches.
        let ran = vcpus[sibling as usize].ran;
        let waited = waited_for(&party(sibling));
        let most = ran.0 / 50 + unknown.0;
        assert!(waited.0.abs_diff(ran.0) < most, "{waited} of {ran}");
        let all: Nanos = edges.iter().map(|edge| edge.time()).sum();
        assert!(
            all.0.abs_diff(of.waited.0) < of.waited.0 / 20 + unknown.0,
            "{all} of {}",
            of.waited
        );
    }
    assert_eq!(vcpus[2].times.get(State::Halted), Some(vcpus[2].times.wall()));
    Ok(())
}

/// A sleeper is woken by its timer, whose interrupt hits a vCPU that spins on the same pCPU.
fn timers() -> Result<(), Skip> {
    let tracer = open(TraceOptions::default())?;
    let programs = Bpf::open(Options::default()).map_err(|error| Skip(error.to_string()))?;
    if let Some(missing) =
        programs.missing().iter().find(|missing| missing.event.ends_with("__preempt_count"))
    {
        return Err(Skip(missing.to_string()));
    }
    drop(programs);
    let (_vm, spinning) = vm();
    let place = affinity(spinning.vcpus[0].thread.tid).expect("it lives");
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let sleeper = std::thread::spawn(move || {
        set_affinity(Tid(helper::gettid()), &place).expect("it may be pinned");
        tell.send(helper::gettid()).expect("the test waits");
        while ends.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let tid = Tid(told.recv().expect("it starts"));
    let (procfs, own) = (ProcFs::host(), Pid(std::process::id()));
    let sleeping = WatchedVm {
        vm: VmId(4),
        process: ThreadRef::of_process(&procfs, own).expect("it lives"),
        vcpus: vec![WatchedVcpu {
            vcpu: VcpuId(0),
            thread: ThreadRef::read(&procfs, own, tid).expect("it lives"),
        }],
    };
    let trace = tracer
        .trace(&[spinning, sleeping], Duration::from_millis(1_000), || false)
        .expect("a trace");
    drop(end);
    sleeper.join().expect("it ends");
    let of_sleeper = trace.vcpus.iter().position(|vcpu| vcpu.vm == VmId(4));
    let woken = trace.woken.iter();
    let woken: Vec<&Party> = woken
        .filter(|woken| Some(woken.vcpu) == of_sleeper)
        .map(|woken| &trace.parties[woken.by])
        .collect();
    assert!(woken.len() > 20, "{woken:?}");
    let of_vm = woken.iter().filter(|by| by.vm() == Some(VmId(3))).count();
    assert_eq!(of_vm, 0, "a spinning vCPU is never the waker: {woken:?}");
    Ok(())
}

fn no_room() -> Result<(), Skip> {
    let (_vm, watched) = vm();
    let few = TraceOptions { most_events: 20, ..TraceOptions::default() };
    let trace = open(few)?.trace(&[watched], Duration::from_secs(5), || false).expect("a trace");
    assert!(trace.lost > 0, "{} events", trace.woken.len());
    let length = trace.end.saturating_sub(trace.begin);
    assert!(length < Nanos::from_secs(5), "it ends where there is no room: {length}");
    for vcpu in &trace.vcpus {
        for did in &vcpu.did {
            assert!(did.from >= trace.begin && did.to <= trace.end, "{did:?}");
        }
    }
    Ok(())
}
