//! Stopped VMs leave no resources behind.
//! The test is alone in its binary, so that it can count the process's resources exactly.

mod common;

use std::fs;

use common::{config, each_has, start, wait_until};
use tandem_microvm::{Backend, Workload};

/// Number of starts and stops.
const ROUNDS: u32 = 100;

/// Returns the numbers of descriptors, threads, and KVM mappings of this process.
fn resources() -> (usize, usize, usize) {
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let kvm = maps.lines().filter(|line| line.contains("kvm")).count();
    (count("/proc/self/fd"), count("/proc/self/task"), kvm)
}

#[test]
fn stopped_vms_leave_no_resources() {
    for backend in [Backend::Threads, Backend::Kvm] {
        if !common::runs_here(backend) {
            continue;
        }
        // The first VM of a process installs its signal handlers.
        start(config(backend, Workload::Burn, 1, &[])).stop();
        let before = resources();
        for round in 0..ROUNDS {
            let vm = start(config(backend, Workload::Mutex, 1 + round % 4, &["spin=0"]));
            if round % 10 == 0 {
                wait_until(&vm, each_has(1));
                assert_ne!(resources(), before, "a running VM holds something");
            }
            vm.stop();
        }
        // A joined thread leaves the list slightly after the kernel wakes the joiner.
        let settled = (0..100_000).any(|_| {
            std::thread::yield_now();
            resources() == before
        });
        assert!(settled, "{backend}: {before:?} before, {:?} after", resources());
    }
}
