//! Nothing is left of VMs that have stopped. Alone in its test binary, so that what the process holds
//! can be counted exactly.

mod common;

use std::fs;

use common::{config, each_has, start, wait_until};
use tandem_microvm::{Backend, Workload};

/// How many starts and stops.
const ROUNDS: u32 = 100;

/// Descriptors, threads, and mappings of KVM, of this process.
fn held() -> (usize, usize, usize) {
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let kvm = maps.lines().filter(|line| line.contains("kvm")).count();
    (count("/proc/self/fd"), count("/proc/self/task"), kvm)
}

#[test]
fn nothing_is_left_of_stopped_vms() {
    for backend in [Backend::Threads, Backend::Kvm] {
        if !common::runs_here(backend) {
            continue;
        }
        // The first VM of a process installs its signal handlers.
        start(config(backend, Workload::Burn, 1, &[])).stop();
        let before = held();
        for round in 0..ROUNDS {
            let vm = start(config(backend, Workload::Mutex, 1 + round % 4, &["spin=0"]));
            if round % 10 == 0 {
                wait_until(&vm, each_has(1));
                assert_ne!(held(), before, "a running VM holds something");
            }
            vm.stop();
        }
        // A joined thread goes from the list a moment after its joiner has been woken.
        let settled = (0..100_000).any(|_| {
            std::thread::yield_now();
            held() == before
        });
        assert!(settled, "{backend}: {before:?} before, {:?} after", held());
    }
}
