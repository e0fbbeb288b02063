//! Every workload on every backend: each vCPU finishes work, and the invariants of locks, phases, queues and interrupts hold.
//! Both the VMM, from outside, and the guest check them.

#[macro_use]
mod common;

use std::time::Instant;

use common::{config, each_has, run_until, start, wait_until};
use tandem_microvm::vcpu::VcpuError;
use tandem_microvm::{Backend, Histogram, Microvm, Report, Ring, Snapshot, Workload};

on_each_backend!(
    burn_computes_on_every_vcpu,
    burn_excludes_preempted_time,
    spinlock_excludes_and_never_halts,
    mutex_excludes_halts_and_wakes,
    mutex_excludes_under_contention,
    blocking_barrier_keeps_phases_together,
    barrier_loses_no_wake_up,
    spinning_barrier_never_halts,
    forkjoin_keeps_rounds_together,
    forkjoin_rotation_keeps_rounds_together,
    pipeline_neither_loses_nor_duplicates_items,
    pipeline_of_one_stage_runs,
    shootdown_is_acknowledged_by_all_others,
    bursty_sleeps_and_follows_the_clock,
    overloaded_bursty_drops_backlog,
    bursts_are_timed_from_scheduled_start,
    completion_time_includes_earlier_bursts,
    server_times_only_requests,
    server_drops_missed_rounds,
    workloads_without_bursts_have_no_completion_times,
);

fn sums(snapshot: &Snapshot) -> (u64, u64) {
    (snapshot.sum(|vcpu| vcpu.halts), snapshot.sum(|vcpu| vcpu.ipis))
}

fn work(snapshot: &Snapshot) -> Vec<u64> {
    snapshot.vcpus.iter().map(|vcpu| vcpu.work).collect()
}

fn spread(snapshot: &Snapshot) -> u64 {
    let work = work(snapshot);
    work.iter().max().unwrap() - work.iter().min().unwrap()
}

fn burn_computes_on_every_vcpu(backend: Backend) {
    let last = run_until(config(backend, Workload::Burn, 3, &[]), each_has(20));
    assert_eq!(sums(&last), (0, 0));
    assert!(last.vcpus.iter().all(|vcpu| vcpu.cpu_ns > 0));
    assert_eq!(last.guarded, 0);
}

/// Six vCPUs that share a pCPU with another VM's are preempted most of the time.
/// If that counted as work, their work per CPU time would differ by several times.
fn burn_excludes_preempted_time(backend: Backend) {
    let burn = |vcpus| config(backend, Workload::Burn, vcpus, &["work=1M"]);
    let ratio = common::work_per_cpu_time(burn(6), burn(1));
    assert!((0.5..2.0).contains(&ratio), "{ratio}");
}

fn excludes(last: &Snapshot) {
    // The guarded counter is not atomic: two vCPUs inside at once would lose counts. A vCPU that was
    // stopped between incrementing it and its own work leaves it one higher.
    let beyond = last.guarded - last.work();
    assert!(beyond <= last.vcpus.len() as u64, "{last:?}");
}

fn spinlock_excludes_and_never_halts(backend: Backend) {
    let settings = ["outside=2k", "inside=500"];
    let last = run_until(config(backend, Workload::Spinlock, 4, &settings), each_has(100));
    excludes(&last);
    assert_eq!(sums(&last), (0, 0));
}

fn mutex_excludes_halts_and_wakes(backend: Backend) {
    let settings = ["outside=2k", "inside=10k", "spin=0"];
    let last = run_until(config(backend, Workload::Mutex, 4, &settings), |snapshot| {
        let (halts, ipis) = sums(snapshot);
        each_has(100)(snapshot) && halts > 0 && ipis > 0
    });
    excludes(&last);
}

/// Covers attempts that collide in the few cycles between checking the lock and taking it.
fn mutex_excludes_under_contention(backend: Backend) {
    let settings = ["outside=200", "inside=200"];
    let last = run_until(config(backend, Workload::Mutex, 3, &settings), each_has(300_000));
    excludes(&last);
}

/// Covers wake-ups in the few instructions between the check and the sleep.
fn barrier_loses_no_wake_up(backend: Backend) {
    let settings = ["work=10k", "spin=0", "jitter=100"];
    run_until(config(backend, Workload::Barrier, 2, &settings), each_has(10_000));
}

fn blocking_barrier_keeps_phases_together(backend: Backend) {
    let settings = ["work=20k", "spin=0"];
    let last = run_until(config(backend, Workload::Barrier, 4, &settings), |snapshot| {
        let (halts, ipis) = sums(snapshot);
        each_has(100)(snapshot) && halts > 0 && ipis > 0
    });
    assert!(spread(&last) <= 1, "{last:?}");
}

fn spinning_barrier_never_halts(backend: Backend) {
    let settings = ["work=20k", "wait=spin"];
    let last = run_until(config(backend, Workload::Barrier, 3, &settings), each_has(20));
    assert!(spread(&last) <= 1, "{last:?}");
    assert_eq!(sums(&last), (0, 0));
}

fn forkjoin_keeps_rounds_together(backend: Backend) {
    let settings = ["serial=100k", "parallel=20k", "spin=0"];
    let last = run_until(config(backend, Workload::Forkjoin, 4, &settings), |snapshot| {
        let (halts, ipis) = sums(snapshot);
        each_has(50)(snapshot) && halts > 0 && ipis > 0
    });
    assert!(spread(&last) <= 1, "{last:?}");
    // Each serial part is an additional draw of the vCPU that computes it.
    let draws = |index: usize| last.vcpus[index].draws;
    assert!(draws(0) >= 2 * last.vcpus[0].work, "{last:?}");
    assert!(draws(1) <= last.vcpus[1].work + 1, "{last:?}");
}

fn forkjoin_rotation_keeps_rounds_together(backend: Backend) {
    let settings = ["serial=20k", "parallel=20k", "rotate=yes"];
    let last = run_until(config(backend, Workload::Forkjoin, 4, &settings), each_has(50));
    assert!(spread(&last) <= 1, "{last:?}");
    for vcpu in &last.vcpus {
        let serial = vcpu.draws - vcpu.work;
        assert!((vcpu.work / 4..=vcpu.work / 4 + 3).contains(&serial), "{last:?}");
    }
}

fn pipeline_neither_loses_nor_duplicates_items(backend: Backend) {
    let settings = ["work=5k", "capacity=4", "spin=0"];
    let last = run_until(config(backend, Workload::Pipeline, 4, &settings), |snapshot| {
        let (halts, ipis) = sums(snapshot);
        each_has(100)(snapshot) && halts > 0 && ipis > 0
    });
    for stages in work(&last).windows(2) {
        // At most a full queue and the later stage's item are in between; the earlier stage counts an
        // item only after it has put it, so it may be one behind.
        let between = stages[0] as i64 - stages[1] as i64;
        assert!((-1..=5).contains(&between), "{last:?}");
    }
}

fn pipeline_of_one_stage_runs(backend: Backend) {
    let last = run_until(config(backend, Workload::Pipeline, 1, &[]), each_has(20));
    assert_eq!(sums(&last), (0, 0));
}

fn shootdown_is_acknowledged_by_all_others(backend: Backend) {
    let settings = ["gap=10k", "work=10k"];
    let last = run_until(config(backend, Workload::Shootdown, 4, &settings), each_has(20));
    let requests = last.vcpus[0].work;
    assert_eq!(last.vcpus[0].acks, 0);
    for vcpu in &last.vcpus[1..] {
        // The last request may have been in flight.
        assert!((requests..=requests + 1).contains(&vcpu.acks), "{last:?}");
        assert_eq!(vcpu.ipis, 0);
    }
    let sent = last.vcpus[0].ipis;
    assert!((requests * 3..=requests * 3 + 3).contains(&sent), "{last:?}");
}

fn bursty_sleeps_and_follows_the_clock(backend: Backend) {
    const PERIOD: u64 = 5_000_000;
    let settings = ["work=50k", &format!("period={PERIOD}"), "backlog=1M"];
    let before = Instant::now();
    let vm = start(config(backend, Workload::Bursty, 3, &settings));
    wait_until(&vm, |snapshot| {
        each_has(20)(snapshot) && snapshot.vcpus.iter().all(|vcpu| vcpu.halts > 0)
    });
    let snapshot = vm.snapshot();
    let cycles = (before.elapsed().as_secs_f64() * 1e3 * vm.calibration().tsc_khz as f64) as u64;
    for vcpu in &snapshot.vcpus {
        // Never ahead of the clock; one percent is for the error of its calibration.
        assert!(vcpu.work <= cycles / PERIOD * 101 / 100 + 1, "{snapshot:?}");
        assert_eq!(vcpu.dropped, 0);
        assert_eq!(vcpu.ipis, 0);
    }
    assert_eq!(vm.stop().sum(|vcpu| vcpu.violations), 0);
}

fn overloaded_bursty_drops_backlog(backend: Backend) {
    let settings = ["work=2M", "period=100k", "backlog=2"];
    let last = run_until(config(backend, Workload::Bursty, 2, &settings), |snapshot| {
        snapshot.vcpus.iter().all(|vcpu| vcpu.dropped > 10)
    });
    // Each burst takes twenty periods, so it can have slept only at the start.
    for vcpu in &last.vcpus {
        assert!(vcpu.halts <= 3, "{last:?}");
    }
}

/// Returns the completion times of all vCPUs since the VM's start.
fn completions(snapshot: &Snapshot) -> Histogram {
    let mut all = Histogram::default();
    for vcpu in &snapshot.vcpus {
        all.add(&vcpu.completions);
    }
    all
}

fn bursts_are_timed_from_scheduled_start(backend: Backend) {
    const WORK: f64 = 1e6;
    let settings = ["work=1M", "period=20M"];
    let vm = start(config(backend, Workload::Bursty, 2, &settings));
    wait_until(&vm, each_has(10));
    let first = vm.snapshot();
    let most = *work(&first).iter().max().unwrap();
    wait_until(&vm, each_has(most + 20));
    let report = Report::between(&vm, &first, &vm.snapshot());
    let last = vm.stop();
    // Each completed burst is timed, after it is counted as work.
    assert!(last.work() - completions(&last).count() <= 2, "{last:?}");
    for vcpu in &last.vcpus {
        // A quarter, as the pCPU may be faster now than during calibration.
        let least = vcpu.completions.quantile(0.0).unwrap();
        assert!(least >= WORK / 4.0, "{last:?}");
        assert!(vcpu.completions.mean().unwrap() >= WORK / 4.0, "{last:?}");
    }
    let whole = report.completion.unwrap();
    let of_vcpus = report.vcpus.iter().map(|vcpu| vcpu.completion.unwrap().count);
    assert_eq!(whole.count, of_vcpus.sum::<u64>());
    assert!(whole.count > 0, "{report:?}");
    assert!(whole.p50_ns <= whole.p99_ns, "{report:?}");
    let text = serde_json::to_string(&report).unwrap();
    let read: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(read.completion, report.completion);
    assert_eq!(read.vcpus[1].completion, report.vcpus[1].completion);
    let text = serde_json::to_string(&last).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), last);
}

/// A vCPU takes twenty periods per burst and may be ten bursts late, so from the second burst on, each starts at least ten periods late.
fn completion_time_includes_earlier_bursts(backend: Backend) {
    let settings = ["work=2M", "period=100k", "backlog=10"];
    let last = run_until(config(backend, Workload::Bursty, 1, &settings), each_has(20));
    let times = completions(&last);
    assert!(times.quantile(0.5).unwrap() > 1e6, "{last:?}");
    assert!(times.quantile(0.99).unwrap() >= times.quantile(0.5).unwrap());
}

fn server_times_only_requests(backend: Backend) {
    let settings = ["busy=20k", "serve=20k", "every=2k", "request=100", "jitter=0"];
    let vm = start(config(backend, Workload::Server, 2, &settings));
    // At least three rounds of ten requests each.
    wait_until(&vm, |snapshot| {
        snapshot.vcpus.iter().all(|vcpu| vcpu.completions.count() >= 30 && vcpu.halts > 0)
    });
    let cycles = vm.calibration().tsc_khz as f64 / 1e3 * 100.0;
    let last = vm.stop();
    assert_eq!(last.sum(|vcpu| vcpu.violations), 0, "{last:?}");
    for vcpu in &last.vcpus {
        let times = &vcpu.completions;
        // Busy phases also count as work.
        assert!(vcpu.work > times.count(), "{last:?}");
        assert!(times.quantile(0.0).unwrap() >= cycles / 4.0, "{last:?}");
    }
}

/// A round takes half a millisecond and its only request ten, so each request misses twenty rounds.
fn server_drops_missed_rounds(backend: Backend) {
    let settings = ["busy=0", "serve=500", "every=500", "request=10k"];
    let last = run_until(config(backend, Workload::Server, 1, &settings), |snapshot| {
        snapshot.vcpus.iter().all(|vcpu| vcpu.dropped > 10)
    });
    assert!(completions(&last).count() <= last.work(), "{last:?}");
}

fn workloads_without_bursts_have_no_completion_times(backend: Backend) {
    let vm = start(config(backend, Workload::Burn, 1, &[]));
    let first = vm.snapshot();
    wait_until(&vm, each_has(3));
    let report = Report::between(&vm, &first, &vm.snapshot());
    assert_eq!(report.completion, None);
    let text = serde_json::to_string(&vm.stop()).unwrap();
    assert!(!text.contains("completions"), "{text}");
}

/// At ring 0 the gates and interrupts use the workload's own stack; it must still halt, wake and keep its invariants.
/// A hypervisor that interprets ring 0 may lack an instruction.
#[test]
fn workloads_run_at_ring_0() {
    if !common::runs_here(Backend::Kvm) {
        return;
    }
    // Small, for hosts that interpret ring 0 at a microsecond per instruction.
    for (workload, settings) in [
        (Workload::Spinlock, ["outside=200", "inside=100"]),
        (Workload::Barrier, ["work=200", "spin=0"]),
    ] {
        let mut config = config(Backend::Kvm, workload, 2, &settings);
        config.ring = Ring::Kernel;
        let vm = start(config);
        let failed = |vm: &Microvm| vm.failure().filter(|e| matches!(e, VcpuError::Exit { .. }));
        let begin = Instant::now();
        while failed(&vm).is_none() && !each_has(20)(&vm.snapshot()) {
            assert!(begin.elapsed() < common::TIMEOUT, "stuck: {:?}", vm.snapshot());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        if let Some(error) = failed(&vm) {
            println!("skipped: {error}");
            return;
        }
        let last = vm.stop();
        assert_eq!(last.failure, None);
        assert_eq!(last.sum(|vcpu| vcpu.violations), 0, "{last:?}");
        if workload == Workload::Barrier {
            assert!(sums(&last).0 > 0 && sums(&last).1 > 0, "{last:?}");
        }
    }
}
