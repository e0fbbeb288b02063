//! Cumulative counters of a microVM, read while it runs.
//!
//! `tandem vm run --control-stdio` prints the same form as a line, for programs in other processes.

use serde::{Deserialize, Serialize};

use crate::completion::Histogram;

/// Counters of a whole VM since it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the snapshot: CLOCK_MONOTONIC, in nanoseconds.
    pub t_ns: u64,
    /// Calibrated frequency of the TSC in kHz, which converts cycles to nanoseconds.
    pub tsc_khz: u64,
    /// Each vCPU, in order.
    pub vcpus: Vec<VcpuSnapshot>,
    /// Finished critical sections, counted without atomics under the workload's lock.
    /// With mutual exclusion, it is at least the sum of the vCPUs' work, and exceeds it by at most one per vCPU.
    pub guarded: u64,
    /// Failure that stopped the VM, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Counters of one vCPU since it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuSnapshot {
    /// Its number in the VM.
    pub index: u32,
    /// Its host thread.
    pub tid: i32,
    /// Finished items of the workload.
    pub work: u64,
    /// Time on a pCPU, in nanoseconds.
    pub cpu_ns: u64,
    /// Time runnable but not on a pCPU, in nanoseconds; `None` if the kernel does not report it.
    pub wait_ns: Option<u64>,
    /// Times it went to sleep.
    pub halts: u64,
    /// Interrupts it sent to other vCPUs.
    pub ipis: u64,
    /// Shootdowns it acknowledged.
    pub acks: u64,
    /// Bursts and requests dropped because too many were late.
    pub dropped: u64,
    /// Completion times of bursts and requests.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub completions: Histogram,
    /// Broken invariants: nonzero only by a bug of Tandem or of the host.
    pub violations: u64,
    /// Number of random sizes drawn.
    pub draws: u64,
    /// Hash of the first 64 of them: equal seeds give equal fingerprints.
    pub fingerprint: u64,
}

impl Snapshot {
    /// Returns the work of all vCPUs.
    pub fn work(&self) -> u64 {
        self.sum(|vcpu| vcpu.work)
    }

    /// Returns the sum of a counter over the vCPUs.
    pub fn sum(&self, counter: impl Fn(&VcpuSnapshot) -> u64) -> u64 {
        self.vcpus.iter().map(counter).sum()
    }

    /// Returns the completion times of all vCPUs since `earlier`.
    pub fn completions_since(&self, earlier: &Snapshot) -> Histogram {
        let mut all = Histogram::default();
        for (now, then) in self.vcpus.iter().zip(&earlier.vcpus) {
            all.add(&now.completions.since(&then.completions));
        }
        all
    }
}
