//! Shared parts of the microVM tests: a builder of configurations, and runs that last until a condition holds.
//! A loaded machine therefore only makes them slower.
//! Speeds are compared between two concurrent VMs on the same pCPU.

#![allow(dead_code, unused_macros, reason = "each test binary uses a part of it")]

use std::time::{Duration, Instant};
use std::{fs, thread};

use tandem_microvm::{Backend, Microvm, MicrovmConfig, Snapshot, Workload};

/// Timeout of a test, for the slowest machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns true if `backend` runs here; otherwise prints a line that counts the test as skipped.
pub fn runs_here(backend: Backend) -> bool {
    if backend == Backend::Threads {
        return true;
    }
    match tandem_microvm::kvm::available() {
        Ok(()) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

/// Returns a configuration with `vcpus` vCPUs and these settings.
pub fn config(
    backend: Backend,
    workload: Workload,
    vcpus: u32,
    settings: &[&str],
) -> MicrovmConfig {
    let mut config = MicrovmConfig::new("test".parse().unwrap(), workload);
    config.backend = backend;
    config.vcpus = vcpus;
    for setting in settings {
        config.parameters.set_from(setting).unwrap();
    }
    config
}

/// Starts the VM, and panics with the reason on failure.
pub fn start(config: MicrovmConfig) -> Microvm {
    Microvm::start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the VM until `seen` and returns its final counters; checks that no invariant was broken.
pub fn run_until(config: MicrovmConfig, seen: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let vm = start(config);
    wait_until(&vm, seen);
    let last = vm.stop();
    assert_eq!(last.sum(|vcpu| vcpu.violations), 0, "{last:?}");
    last
}

/// Waits until `seen`.
pub fn wait_until(vm: &Microvm, seen: impl Fn(&Snapshot) -> bool) {
    let start = Instant::now();
    loop {
        let snapshot = vm.snapshot();
        assert_eq!(snapshot.failure, None);
        if seen(&snapshot) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "stuck: {snapshot:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the pCPUs that this process may use.
pub fn allowed_pcpus() -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().unwrap()..=last.parse().unwrap()
    });
    ranges.flatten().collect()
}

/// Returns the work per CPU time of VM `a` relative to a concurrent VM `b` on the same pCPU.
pub fn work_per_cpu_time(mut a: MicrovmConfig, mut b: MicrovmConfig) -> f64 {
    let pcpu = allowed_pcpus()[0];
    (a.pins, b.pins) = (vec![pcpu], vec![pcpu]);
    let (a, b) = (start(a), start(b));
    // Exclude the boot time.
    wait_until(&a, each_has(20));
    wait_until(&b, each_has(20));
    let before = [a.snapshot(), b.snapshot()];
    wait_until(&a, each_has(before[0].work() + 100));
    wait_until(&b, each_has(before[1].work() + 100));
    let efficiency = |vm: Microvm, before: &Snapshot| {
        let last = vm.stop();
        let cpu = |at: &Snapshot| at.sum(|vcpu| vcpu.cpu_ns);
        (last.work() - before.work()) as f64 / (cpu(&last) - cpu(before)) as f64
    };
    efficiency(a, &before[0]) / efficiency(b, &before[1])
}

/// Returns true if every vCPU has finished at least `work` items.
pub fn each_has(work: u64) -> impl Fn(&Snapshot) -> bool {
    move |snapshot| snapshot.vcpus.iter().all(|vcpu| vcpu.work >= work)
}

/// Defines each test for both backends: `kvm::NAME` and `threads::NAME`.
macro_rules! on_each_backend {
    ($($name:ident),* $(,)?) => {
        on_each_backend!(@ kvm, Kvm, $($name),*);
        on_each_backend!(@ threads, Threads, $($name),*);
    };
    (@ $module:ident, $backend:ident, $($name:ident),*) => {
        mod $module {
            $(#[test]
            fn $name() {
                let backend = tandem_microvm::Backend::$backend;
                if crate::common::runs_here(backend) {
                    super::$name(backend);
                }
            })*
        }
    };
}
