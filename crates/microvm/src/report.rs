//! Report of a microVM between two snapshots: rates and counts, with all settings needed to repeat the run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::calibrate::Calibration;
use crate::completion::{Completion, Histogram};
use crate::config::Backend;
use crate::ring::Ring;
use crate::snapshot::{Snapshot, VcpuSnapshot};
use crate::vm::Microvm;
use crate::workload::Workload;

/// Report of a VM over a time span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// Backend of the vCPUs.
    pub backend: Backend,
    /// Privilege level of the workload.
    #[serde(default)]
    pub ring: Ring,
    /// The workload.
    pub workload: Workload,
    /// Its parameters, as written on a command line.
    pub parameters: BTreeMap<String, String>,
    /// Seed of the random sizes.
    pub seed: u64,
    /// pCPUs that its vCPUs were pinned to, round-robin; empty: not pinned.
    pub pins: Vec<u32>,
    /// Calibration that determined the sizes.
    pub calibration: Calibration,
    /// The span, in seconds.
    pub seconds: f64,
    /// Finished items of work of all vCPUs.
    pub work: u64,
    /// The same per second.
    pub work_per_second: f64,
    /// Completion times of bursts or requests of all vCPUs; absent for workloads without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Completion>,
    /// Broken invariants: nonzero only by a bug.
    pub violations: u64,
    /// Each vCPU.
    pub vcpus: Vec<VcpuReport>,
    /// Failure that stopped the VM, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Report of a vCPU over a time span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuReport {
    /// Its number in the VM.
    pub index: u32,
    /// Its host thread.
    pub tid: i32,
    /// Finished items of work.
    pub work: u64,
    /// The same per second.
    pub work_per_second: f64,
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
    /// Completion times of bursts or requests; absent for workloads without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Completion>,
}

impl Report {
    /// Returns the report of `vm` from the snapshot `first` to the snapshot `last`.
    pub fn between(vm: &Microvm, first: &Snapshot, last: &Snapshot) -> Report {
        let config = vm.config();
        let seconds = last.t_ns.saturating_sub(first.t_ns) as f64 / 1e9;
        let completion = |times: &Histogram| {
            let timed = config.workload().is_timed();
            timed.then(|| Completion::of(times, last.tsc_khz))
        };
        let vcpus: Vec<VcpuReport> = first
            .vcpus
            .iter()
            .zip(&last.vcpus)
            .map(|(first, last)| {
                let times = last.completions.since(&first.completions);
                VcpuReport { completion: completion(&times), ..vcpu_between(first, last, seconds) }
            })
            .collect();
        let work = vcpus.iter().map(|vcpu| vcpu.work).sum();
        Report {
            name: config.name.to_string(),
            backend: config.backend,
            ring: config.ring,
            workload: config.workload(),
            parameters: config
                .parameters
                .iter()
                .map(|(parameter, value)| (parameter.name.to_owned(), parameter.show(value)))
                .collect(),
            seed: config.seed,
            pins: config.pins.clone(),
            calibration: vm.calibration(),
            seconds,
            work,
            work_per_second: rate(work, seconds),
            completion: completion(&last.completions_since(first)),
            violations: last.sum(|vcpu| vcpu.violations),
            vcpus,
            failure: last.failure.clone(),
        }
    }
}

fn vcpu_between(first: &VcpuSnapshot, last: &VcpuSnapshot, seconds: f64) -> VcpuReport {
    // Saturating, as a thread that exited meanwhile without times reads as zero.
    let grown = |counter: fn(&VcpuSnapshot) -> u64| counter(last).saturating_sub(counter(first));
    let work = grown(|vcpu| vcpu.work);
    VcpuReport {
        index: last.index,
        tid: last.tid,
        work,
        work_per_second: rate(work, seconds),
        cpu_ns: grown(|vcpu| vcpu.cpu_ns),
        wait_ns: last.wait_ns.zip(first.wait_ns).map(|(last, first)| last.saturating_sub(first)),
        halts: grown(|vcpu| vcpu.halts),
        ipis: grown(|vcpu| vcpu.ipis),
        acks: grown(|vcpu| vcpu.acks),
        dropped: grown(|vcpu| vcpu.dropped),
        completion: None,
    }
}

fn rate(items: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { items as f64 / seconds } else { 0.0 }
}
