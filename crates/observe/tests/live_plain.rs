//! Live tests of the plain source: threads that spin and sleep, and KVM vCPUs that poll.
//!
//! It has its own harness instead of libtest, because it also restarts itself as the VM under test.
//! Harness and helper are shared with the live tests of `tandem-linux`.

use tandem_testing::{harness, helper};

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tandem_linux::ProcFs;
use tandem_linux::affinity::{affinity, set_affinity};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_microvm::{Microvm, MicrovmConfig, Workload};
use tandem_model::states::edges::Party;
use tandem_model::states::interval::Column;
use tandem_model::{Nanos, State, VcpuId, VcpuTimes, VmId};
use tandem_observe::{Interval, Plain, Source, WatchedVcpu, WatchedVm};

use harness::{Skip, Test};
use helper::Helper;

/// All tests, in the order of execution.
const ALL: &[(&str, Test)] = &[
    ("stacked_threads_wait_for_each_other", stacked),
    ("times_match_kernel_statistics", accounts),
    ("sleeping_vm_halts", sleeping),
    ("halted_kvm_vcpus_poll", polling),
];

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(ALL),
    }
}

fn watched(process: ThreadRef, threads: &[ThreadRef]) -> WatchedVm {
    let vcpus =
        threads.iter().zip(0..).map(|(thread, n)| WatchedVcpu { vcpu: VcpuId(n), thread: *thread });
    WatchedVm { vm: VmId(1), process, vcpus: vcpus.collect() }
}

const LOOK: Duration = Duration::from_millis(300);

/// Returns one interval.
fn look(vms: &[WatchedVm]) -> Interval {
    let mut source = Plain::new(ProcFs::host());
    source.begin(vms).expect("it begins");
    std::thread::sleep(LOOK);
    source.interval(vms).expect("an interval")
}

/// Reads the run and wait times of a thread in ns, independently of the source.
fn schedstat(thread: &ThreadRef) -> [u64; 2] {
    let path = format!("/proc/{}/task/{}/schedstat", thread.pid, thread.tid);
    let text = std::fs::read_to_string(path).expect("the thread lives");
    let mut numbers = text.split_whitespace();
    [(); 2].map(|()| {
        let number = numbers.next().expect("three numbers");
        number.parse().expect("a number")
    })
}

fn all_accounts(threads: &[ThreadRef]) -> (Instant, Vec<[u64; 2]>) {
    (Instant::now(), threads.iter().map(schedstat).collect())
}

/// The times of a source are between the differences of readings within its interval and around it.
fn accounts() -> Result<(), Skip> {
    let mut vm = Helper::start("vm", &["accounts", "3"]);
    let threads = helper::vcpu_threads(vm.pid());
    for n in 0..2 {
        vm.tell(&format!("spin {n}"));
    }
    let procfs = ProcFs::host();
    let process = ThreadRef::of_process(&procfs, vm.pid()).expect("it lives");
    let vms = [watched(process, &threads)];
    let mut source = Plain::new(ProcFs::host());
    for _ in 0..5 {
        let outer = all_accounts(&threads);
        source.begin(&vms).expect("it begins");
        let inner = all_accounts(&threads);
        std::thread::sleep(Duration::from_millis(200));
        let inner_end = all_accounts(&threads);
        let interval = source.interval(&vms).expect("an interval");
        let outer_end = all_accounts(&threads);
        let within = inner_end.0 - inner.0;
        let around = outer_end.0 - outer.0;
        for (n, vcpu) in interval.vms[0].vcpus.iter().enumerate() {
            let least = |what: usize| inner_end.1[n][what] - inner.1[n][what];
            let most = |what: usize| outer_end.1[n][what] - outer.1[n][what];
            let sum = |states: &[State]| -> u64 {
                let times = states.iter().filter_map(|state| vcpu.times.get(*state));
                times.map(|time| time.0).sum()
            };
            let wall = u128::from(vcpu.times.wall().0);
            let is_within = (within.as_nanos()..=around.as_nanos()).contains(&wall);
            assert!(is_within, "{wall} ns of {within:?} … {around:?}");
            let ran = sum(&[State::Run, State::Poll, State::Vmm]);
            // The kernel updates a running thread's time at ticks, so it may be counted at one end of an interval and not at the other.
            let least_ran = least(0).min(vcpu.times.wall().0);
            assert!((least_ran..=most(0)).contains(&ran), "ran {ran} of {least_ran} … {}", most(0));
            // A wait that began before the interval is truncated; one that fills it is not yet counted by the kernel.
            let waited = sum(&[State::Ready, State::Limited]);
            let room = vcpu.times.wall().0 - ran;
            assert!(waited >= least(1).min(room), "waited {waited} of {} at least", least(1));
            // If a thread migrates while it waits, the wait begins and ends by different CPU clocks, and the counted time may even shrink.
            let clocks_apart = 2_000_000;
            assert!(
                waited <= most(1) + clocks_apart || vcpu.runs == 0,
                "waited {waited} of {} at most",
                most(1)
            );
        }
    }
    Ok(())
}

/// Sleeping threads, whose files are not read after the first interval.
fn sleeping() -> Result<(), Skip> {
    let vm = Helper::start("vm", &["sleep", "2"]);
    let threads = helper::vcpu_threads(vm.pid());
    let process = ThreadRef::of_process(&ProcFs::host(), vm.pid()).expect("it lives");
    let vms = [watched(process, &threads)];
    let mut source = Plain::new(ProcFs::host());
    source.begin(&vms).expect("it begins");
    helper::wait_until("it slept through an interval", || {
        std::thread::sleep(Duration::from_millis(50));
        let interval = source.interval(&vms).expect("an interval");
        assert_eq!(interval.vms[0].vcpus.len(), 2);
        interval.vms[0].vcpus.iter().all(|vcpu| {
            assert!(vcpu.times.wall() >= Nanos::from_millis(50));
            vcpu.times.get(State::Halted) == Some(vcpu.times.wall())
        })
    });
    Ok(())
}

/// Two threads spin on one pCPU, and one sleeps.
fn stacked() -> Result<(), Skip> {
    let mut vm = Helper::start("vm", &["stack", "3"]);
    let threads = helper::vcpu_threads(vm.pid());
    let allowed = affinity(threads[0].tid).expect("an affinity");
    let first = allowed.iter().take(1).collect();
    for thread in &threads[..2] {
        set_affinity(thread.tid, &first).expect("it may be pinned");
    }
    vm.tell("spin 0");
    vm.tell("spin 1");
    let procfs = ProcFs::host();
    helper::wait_until("both spin", || {
        let spins = |thread: &ThreadRef| thread.stat(&procfs).is_ok_and(|s| s.state.is_runnable());
        threads[..2].iter().all(spins)
    });
    let process = ThreadRef::of_process(&procfs, vm.pid()).expect("it lives");
    let vms = [watched(process, &threads)];
    // Other threads may take the pCPU for a while, but not all the time.
    helper::wait_until("both wait, for each other above all", || {
        let interval = look(&vms);
        let vcpus = &interval.vms[0].vcpus;
        let share = |n: usize, state| vcpus[n].times.share(state).unwrap_or(0.0);
        assert_eq!(share(2, State::Run), 0.0, "it sleeps");
        let sibling = Party::Vcpu { vm: VmId(1), vcpu: VcpuId(1) };
        let waits_for_it =
            interval.edges.iter().any(|edge| *edge.culprit == sibling && edge.time() > Nanos::ZERO);
        waits_for_it && (0..2).all(|n| share(n, State::Run) > 0.05 && share(n, State::Ready) > 0.2)
    });
    Ok(())
}

/// A vCPU halts repeatedly: KVM polls, unless polling is disabled.
fn polling() -> Result<(), Skip> {
    let mut config = MicrovmConfig::new("poll".parse().expect("a name"), Workload::Bursty);
    config.vcpus = 2;
    for setting in ["period=300k", "work=20k"] {
        config.parameters.set_from(setting).expect("a parameter of the workload");
    }
    let microvm =
        Microvm::start(config).map_err(|error| Skip(format!("no KVM microVM: {error}")))?;
    let procfs = ProcFs::host();
    let me = Pid(std::process::id());
    let process = ThreadRef::of_process(&procfs, me).expect("this process lives");
    let threads: Vec<ThreadRef> = microvm
        .tids()
        .into_iter()
        .map(|tid| ThreadRef::read(&procfs, me, Tid(tid as u32)).expect("its thread lives"))
        .collect();
    let interval = look(&[watched(process, &threads)]);
    let missing =
        interval.missing.iter().find(|missing| missing.what == Column::State(State::Poll));
    if let Some(missing) = missing {
        return Err(Skip(missing.to_string()));
    }
    for vcpu in &interval.vms[0].vcpus {
        let polled = vcpu.times.get(State::Poll).expect("it is measured");
        assert!(polled <= vcpu.ran, "polling is on a pCPU");
    }
    let own = std::fs::read_dir("/proc/self/fd").expect("own files");
    let links = own.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let held = links.filter(|link| link.to_string_lossy().contains("kvm-vcpu-stats"));
    assert_eq!(held.count(), 2, "the VM's own two; the source closed its duplicates");
    let path = "/sys/module/kvm/parameters/halt_poll_ns";
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() != "0" => {}
        other => return Err(Skip(format!("this KVM does not poll: {path}: {other:?}"))),
    }
    let vms = [watched(process, &threads)];
    let mut polls = false;
    let mut runs_all_the_time = false;
    helper::wait_until("KVM polls", || {
        let interval = look(&vms);
        let vcpus = &interval.vms[0].vcpus;
        runs_all_the_time = vcpus.iter().all(|vcpu| vcpu.ran.0 > LOOK.as_nanos() as u64 / 20 * 19);
        let all = vcpus.iter().map(|vcpu| &vcpu.times);
        let sum = VcpuTimes::sum(all).expect("two vCPUs");
        polls = sum.get(State::Poll) > Some(Nanos::ZERO);
        polls || runs_all_the_time
    });
    if !polls {
        return Err(Skip(
            "exits cost so much here that a VM that halts for a third of a millisecond runs all the time".to_owned(),
        ));
    }
    Ok(())
}
