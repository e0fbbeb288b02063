//! Host resources of a microVM: threads and their names, descriptors, pins; also seeds and reports.

#[macro_use]
mod common;

use std::collections::HashSet;
use std::fs;

use common::{config, each_has, run_until, start, wait_until};
use rand_core::Rng;
use rand_pcg::Lcg64Xsh32;
use tandem_microvm::{Backend, Calibration, Microvm, Report, Snapshot, Workload};

on_each_backend!(
    threads_are_named_after_vm_and_vcpu,
    vcpus_are_pinned_in_turn,
    sixty_four_vcpus_boot_and_work,
    sixty_four_vcpus_meet_at_a_barrier,
    sleeping_vms_stop_immediately,
    equal_seeds_give_pcg32_sequence,
    counters_never_decrease,
    given_calibration_is_used,
    reports_have_all_settings,
    missing_pcpu_is_refused,
);

fn of_thread(tid: i32, file: &str) -> String {
    fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).unwrap()
}

fn threads_are_named_after_vm_and_vcpu(backend: Backend) {
    let mut config = config(backend, Workload::Bursty, 12, &["period=1G"]);
    config.name = "abcdefgh".parse().unwrap();
    let vm = start(config);
    for (tid, index) in vm.tids().into_iter().zip(0..) {
        assert_eq!(of_thread(tid, "comm").trim_end(), format!("abcdefgh/vcpu{index}"));
    }
}

#[test]
fn kvm_vms_hold_the_descriptors_of_their_vcpus() {
    if !common::runs_here(Backend::Kvm) {
        return;
    }
    let vm = start(config(Backend::Kvm, Workload::Bursty, 3, &["period=1G"]));
    let links: HashSet<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    for index in 0..3 {
        assert!(links.contains(&format!("anon_inode:kvm-vcpu:{index}")), "{links:?}");
    }
    // Since Linux 5.14, statistics of each vCPU have a descriptor. Other tests' VMs are in this process too.
    let is_counted = |index: &u32| links.contains(&format!("anon_inode:kvm-vcpu-stats:{index}"));
    assert!([0, 3].contains(&(0..3).filter(is_counted).count()), "{links:?}");
    drop(vm);
}

fn vcpus_are_pinned_in_turn(backend: Backend) {
    let allowed = common::allowed_pcpus();
    let ends = [allowed[0], allowed[allowed.len() - 1]];
    let mut config = config(backend, Workload::Burn, 4, &[]);
    config.pins = ends.to_vec();
    let vm = start(config);
    for (tid, index) in vm.tids().into_iter().zip(0..) {
        let status = of_thread(tid, "status");
        let pinned = format!("Cpus_allowed_list:\t{}\n", ends[index % 2]);
        assert!(status.contains(&pinned), "vCPU {index}: {pinned} {status}");
    }
}

fn sixty_four_vcpus_boot_and_work(backend: Backend) {
    let last = run_until(config(backend, Workload::Burn, 64, &[]), each_has(1));
    assert_eq!(last.vcpus.len(), 64);
    let tids: HashSet<i32> = last.vcpus.iter().map(|vcpu| vcpu.tid).collect();
    assert_eq!(tids.len(), 64);
}

/// Covers the highest bit of every mask, and wake-ups of all vCPUs by one.
fn sixty_four_vcpus_meet_at_a_barrier(backend: Backend) {
    let settings = ["work=1k", "spin=0"];
    run_until(config(backend, Workload::Barrier, 64, &settings), each_has(3));
}

fn sleeping_vms_stop_immediately(backend: Backend) {
    // The first burst occurs at a random time within seven minutes.
    let vm = start(config(backend, Workload::Bursty, 4, &["period=1000G"]));
    wait_until(&vm, |snapshot| snapshot.vcpus.iter().all(|vcpu| vcpu.halts > 0));
    let last = vm.stop();
    assert!(last.vcpus.iter().all(|vcpu| vcpu.work <= 1), "{last:?}");
}

/// FNV-1a by words over the first 64 numbers of PCG32, from an independent implementation.
fn expected_fingerprint(seed: u64, vcpu: u32) -> u64 {
    let mut random = Lcg64Xsh32::new(seed, vcpu.into());
    (0..64).fold(0xcbf2_9ce4_8422_2325, |hash, _| {
        (hash ^ u64::from(random.next_u32())).wrapping_mul(0x100_0000_01b3)
    })
}

fn equal_seeds_give_pcg32_sequence(backend: Backend) {
    for seed in [1, 42, u64::MAX] {
        let mut config = config(backend, Workload::Burn, 3, &["work=1k", "jitter=50"]);
        config.seed = seed;
        let last = run_until(config, each_has(64));
        for vcpu in &last.vcpus {
            assert_eq!(vcpu.fingerprint, expected_fingerprint(seed, vcpu.index), "{seed}");
        }
    }
}

fn counters_never_decrease(backend: Backend) {
    let vm = start(config(backend, Workload::Mutex, 3, &["spin=0"]));
    let mut before: Option<Snapshot> = None;
    for step in 1..50 {
        wait_until(&vm, each_has(step));
        let now = vm.snapshot();
        if let Some(before) = &before {
            assert!(now.t_ns >= before.t_ns);
            for (old, new) in before.vcpus.iter().zip(&now.vcpus) {
                assert!(new.work >= old.work && new.cpu_ns >= old.cpu_ns);
                assert!(new.halts >= old.halts && new.ipis >= old.ipis);
                assert!(new.wait_ns >= old.wait_ns);
            }
        }
        before = Some(now);
    }
    let (before, last) = (before.unwrap(), vm.stop());
    assert!(last.vcpus[0].cpu_ns >= before.vcpus[0].cpu_ns);
}

fn given_calibration_is_used(backend: Backend) {
    let measured = Calibration::measure();
    let burn = |steps_per_mebicycle| {
        let mut config = config(backend, Workload::Burn, 1, &["work=1M"]);
        config.calibration = Some(Calibration { steps_per_mebicycle, ..measured });
        config
    };
    let steps = measured.steps_per_mebicycle;
    // An eighth of the steps per item gives eight times the items in the same CPU time.
    let ratio = common::work_per_cpu_time(burn(steps / 8), burn(steps));
    assert!((4.0..16.0).contains(&ratio), "{ratio}");
}

fn reports_have_all_settings(backend: Backend) {
    let mut config = config(backend, Workload::Barrier, 2, &["work=30k", "wait=spin"]);
    config.seed = 7;
    let vm = start(config);
    let first = vm.snapshot();
    wait_until(&vm, each_has(10));
    let report = Report::between(&vm, &first, &vm.snapshot());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["backend"], backend.to_string());
    assert_eq!(json["workload"], "barrier");
    assert_eq!(json["seed"], 7);
    assert_eq!(json["parameters"]["work"], "30000");
    assert_eq!(json["parameters"]["wait"], "spin");
    assert_eq!(json["vcpus"].as_array().unwrap().len(), 2);
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    let sum: u64 = report.vcpus.iter().map(|vcpu| vcpu.work).sum();
    assert_eq!(report.work, sum);
    assert!((report.work_per_second * report.seconds - sum as f64).abs() < 1e-3);
    let snapshot = vm.stop();
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
}

fn missing_pcpu_is_refused(backend: Backend) {
    let mut config = config(backend, Workload::Burn, 2, &[]);
    config.pins = vec![common::allowed_pcpus()[0], 8191];
    let error = Microvm::start(config).map(drop).unwrap_err().to_string();
    assert!(error.contains("vCPU 1 to pCPU 8191"), "{error}");
}
