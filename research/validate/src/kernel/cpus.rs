//! The CPUs of the comparison: binding of threads, and measurement of the computing speed.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::io;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use tandem_model::averages;
use tandem_sim::workload::Workload;
use thiserror::Error;

/// CPUs of the comparison.
pub const CPUS: u32 = 2;

/// Error of a thread on the CPUs of the comparison.
#[derive(Debug, Error)]
pub enum CpuError {
    /// The kernel rejected the affinity.
    #[error("cannot bind a thread to CPUs 0 and 1: {0}")]
    Bind(#[source] io::Error),
    /// The thread panicked.
    #[error("a thread panicked")]
    Panicked,
}

/// Speed of the computing loop, turns per ns.
#[derive(Clone, Copy, Debug)]
pub struct Speed(f64);

impl Speed {
    /// Measures the speed with as many busy CPUs as the workload can use.
    ///
    /// CPUs that share a core or a VM's host slow each other down, which is not an effect of scheduling.
    /// The speed is the mean over the CPUs of the median of short pieces.
    pub fn measure(workload: &Workload) -> Result<Speed, CpuError> {
        let pinned = workload.roles.iter().flat_map(|role| &role.pins);
        let free = workload.roles.iter().any(|role| role.pins.is_empty());
        let threads: u32 = workload.roles.iter().map(|r| r.threads.count(CPUS)).sum();
        let cpus: BTreeSet<u32> =
            if free { (0..CPUS.min(threads)).collect() } else { pinned.copied().collect() };
        std::thread::scope(|scope| {
            let measured = cpus.iter().map(|&cpu| scope.spawn(move || Speed::on(cpu)));
            let measured: Vec<_> = measured.collect();
            let mut sum = 0.0;
            for thread in measured {
                sum += thread.join().map_err(|_| CpuError::Panicked)??;
            }
            Ok(Speed(sum / cpus.len() as f64))
        })
    }

    /// Measures the speed on one CPU, turns per ns.
    fn on(cpu: u32) -> Result<f64, CpuError> {
        const TURNS: u64 = 500_000;
        bind([cpu])?;
        let pieces = (0..41).map(|_| {
            let begin = Instant::now();
            turn(TURNS);
            TURNS as f64 / begin.elapsed().as_nanos().max(1) as f64
        });
        Ok(averages::median(pieces).unwrap_or(0.0))
    }

    /// Computes the amount of work that takes `ns` on an uncontended CPU.
    pub fn compute(self, ns: u64) {
        turn((ns as f64 * self.0) as u64);
    }
}

/// The computing loop: a chain of dependent operations without memory.
fn turn(turns: u64) {
    let mut x = black_box(1u64);
    for _ in 0..turns {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    black_box(x);
}

/// Binds the calling thread to CPUs.
pub fn bind(cpus: impl IntoIterator<Item = u32>) -> Result<(), CpuError> {
    let mut set = CpuSet::new();
    cpus.into_iter().for_each(|cpu| set.set(cpu as usize));
    sched_setaffinity(None, &set).map_err(|error| CpuError::Bind(error.into()))
}
