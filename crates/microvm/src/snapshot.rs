//! What a microVM has done so far: cumulative counters, read while it runs.
//!
//! The form is also the line that `tandem vm run --control-stdio` prints, so that a program in
//! another process reads the same thing.

use serde::{Deserialize, Serialize};

use crate::completion::Histogram;

/// Counters of a whole VM since it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When it was taken: CLOCK_MONOTONIC, in nanoseconds.
    pub t_ns: u64,
    /// The TSC's frequency in kHz, which the VM was told: what turns cycles into nanoseconds.
    pub tsc_khz: u64,
    /// Each vCPU, in order.
    pub vcpus: Vec<VcpuSnapshot>,
    /// Critical sections finished, counted without atomics under the workload's lock: no fewer than
    /// the vCPUs' work added up, and no more than one each beyond it, if the lock excludes.
    pub guarded: u64,
    /// Why the VM stopped by itself, if it did.
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
    /// Time runnable but not on a pCPU, in nanoseconds; none where the kernel does not say.
    pub wait_ns: Option<u64>,
    /// Times it went to sleep.
    pub halts: u64,
    /// Interrupts it sent to other vCPUs.
    pub ipis: u64,
    /// Shootdowns it acknowledged.
    pub acks: u64,
    /// Bursts and requests given up because too many were late.
    pub dropped: u64,
    /// How long each burst or request took from when it was due until it was done.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub completions: Histogram,
    /// Broken invariants it saw: other than zero only by a bug, of Tandem or of the host.
    pub violations: u64,
    /// How many random sizes it has drawn.
    pub draws: u64,
    /// A hash of the first 64 of them: equal seeds give equal fingerprints.
    pub fingerprint: u64,
}

impl Snapshot {
    /// Work of all vCPUs.
    pub fn work(&self) -> u64 {
        self.sum(|vcpu| vcpu.work)
    }

    /// Any counter, added up over the vCPUs.
    pub fn sum(&self, counter: impl Fn(&VcpuSnapshot) -> u64) -> u64 {
        self.vcpus.iter().map(counter).sum()
    }

    /// The completion times of all vCPUs since `earlier`.
    pub fn completions_since(&self, earlier: &Snapshot) -> Histogram {
        let mut all = Histogram::default();
        for (now, then) in self.vcpus.iter().zip(&earlier.vcpus) {
            all.add(&now.completions.since(&then.completions));
        }
        all
    }
}
