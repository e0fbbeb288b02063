//! The CPUs of the comparison: threads are bound to them, and how fast they compute is measured.

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

/// Why a thread is not where it should be.
#[derive(Debug, Error)]
pub enum CpuError {
    /// The kernel refused.
    #[error("cannot bind a thread to CPUs 0 and 1: {0}")]
    Bind(#[source] io::Error),
    /// It ended before it was done.
    #[error("a thread panicked")]
    Panicked,
}

/// How fast the computing loop is, in turns per ns.
#[derive(Clone, Copy, Debug)]
pub struct Speed(f64);

impl Speed {
    /// Measures it with as many CPUs busy as the workload can keep busy: CPUs that share a core, or
    /// a virtual machine's host, slow each other, which is no matter of scheduling. The median of
    /// short pieces on each CPU.
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

    /// Turns per ns on one CPU.
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

    /// Computes for as long as `ns` are on a CPU of its own.
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
