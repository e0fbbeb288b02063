//! The plain source against this machine: threads that spin and sleep, and KVM vCPUs that poll.
//!
//! A program of its own instead of libtest's, because it is also the VM that it looks at: it starts itself again as
//! one. Harness and helper are those of the live tests of `tandem-linux`.

#[path = "../../linux/tests/live/harness.rs"]
mod harness;
#[allow(dead_code, reason = "other live tests use the rest of it")]
#[path = "../../linux/tests/live/helper.rs"]
mod helper;

use std::process::ExitCode;
use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::affinity::affinity;
use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_microvm::Microvm;
use tandem_microvm::MicrovmConfig;
use tandem_microvm::Workload;
use tandem_observe::Interval;
use tandem_observe::Plain;
use tandem_observe::Source;
use tandem_observe::WatchedVcpu;
use tandem_observe::WatchedVm;
use tandem_policy::Nanos;
use tandem_policy::State;
use tandem_policy::VcpuId;
use tandem_policy::VcpuTimes;
use tandem_policy::VmId;
use tandem_policy::states::edges::Party;
use tandem_policy::states::interval::Column;

use harness::Skip;
use harness::Test;
use helper::Helper;

/// All tests, in the order in which they run.
const ALL: &[(&str, Test)] = &[
    ("stacked_threads_wait_for_each_other", stacked),
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
    let vcpus = threads.iter().zip(0..).map(|(thread, n)| WatchedVcpu {
        vcpu: VcpuId(n),
        thread: *thread,
    });
    WatchedVm {
        vm: VmId(1),
        process,
        vcpus: vcpus.collect(),
    }
}

/// What one interval of 300 ms shows.
fn look(vms: &[WatchedVm]) -> Interval {
    let mut source = Plain::new(ProcFs::host());
    source.begin(vms).expect("it begins");
    std::thread::sleep(Duration::from_millis(300));
    source.interval(vms).expect("an interval")
}

fn measured(times: &VcpuTimes) -> Nanos {
    let states = State::ALL.iter();
    states.filter_map(|state| times.get(*state)).sum()
}

/// Two threads that spin on one pCPU, and one that sleeps.
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
    // Others may take the pCPU for a while; nobody takes it all the time.
    helper::wait_until("both wait, for each other above all", || {
        let interval = look(&vms);
        let vcpus = &interval.vms[0].vcpus;
        for vcpu in vcpus {
            assert_eq!(measured(&vcpu.times), interval.length);
            assert_eq!(vcpu.times.get(State::Costop), None);
        }
        let share = |n: usize, state| vcpus[n].times.share(state).unwrap_or(0.0);
        assert_eq!(share(2, State::Run), 0.0, "it sleeps");
        let sibling = Party::Vcpu {
            vm: VmId(1),
            vcpu: VcpuId(1),
        };
        let waits_for_it = interval
            .edges
            .iter()
            .any(|edge| *edge.culprit == sibling && edge.time() > Nanos::ZERO);
        waits_for_it && (0..2).all(|n| share(n, State::Run) > 0.2 && share(n, State::Ready) > 0.2)
    });
    Ok(())
}

/// A vCPU that halts again and again: KVM polls, unless it is told not to.
fn polling() -> Result<(), Skip> {
    let mut config = MicrovmConfig::new("poll".parse().expect("a name"), Workload::Bursty);
    config.vcpus = 2;
    for setting in ["period=300k", "work=20k"] {
        config
            .parameters
            .set_from(setting)
            .expect("a parameter of the workload");
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
    let missing = interval
        .missing
        .iter()
        .find(|missing| missing.what == Column::State(State::Poll));
    if let Some(missing) = missing {
        return Err(Skip(missing.to_string()));
    }
    for vcpu in &interval.vms[0].vcpus {
        let polled = vcpu.times.get(State::Poll).expect("it is measured");
        assert!(polled <= vcpu.ran, "polling is on a pCPU");
        assert_eq!(measured(&vcpu.times), interval.length);
    }
    let path = "/sys/module/kvm/parameters/halt_poll_ns";
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() != "0" => {}
        other => return Err(Skip(format!("this KVM does not poll: {path}: {other:?}"))),
    }
    let vms = [watched(process, &threads)];
    helper::wait_until("KVM polls", || {
        let interval = look(&vms);
        let all = interval.vms[0].vcpus.iter().map(|vcpu| &vcpu.times);
        let sum = VcpuTimes::sum(all).expect("two vCPUs");
        sum.get(State::Poll) > Some(Nanos::ZERO)
    });
    Ok(())
}
