//! The data of a reading.
//!
//! A reading covers the time since the previous one, or since the thread is watched if that is later.

use std::collections::BTreeMap;
use std::fmt;

use tandem_linux::thread::{Pid, Tid};
use tandem_model::states::latency::Latency;
use tandem_model::states::programs::{NotCounted, NotSeen};
use tandem_model::{Nanos, VcpuId, VmId};

/// Changes since the previous reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BpfReading {
    /// Time of the reading, by CLOCK_MONOTONIC.
    pub at: Nanos,
    /// The watched threads, by index.
    pub vcpus: Vec<VcpuReading>,
    /// Time that victims waited for culprits, by victim and culprit.
    pub edges: Vec<EdgeReading>,
    /// Effects of vCPUs on other vCPUs.
    pub links: Vec<LinkReading>,
    /// Events that were not counted, because maps were full or programs could not run.
    pub lost: NotCounted,
}

impl BpfReading {
    /// Returns the wake-up latency of each VM's vCPUs.
    pub fn latency_by_vm(&self) -> BTreeMap<VmId, Latency> {
        let mut vms: BTreeMap<VmId, Latency> = BTreeMap::new();
        for vcpu in &self.vcpus {
            *vms.entry(vcpu.vm).or_default() += vcpu.latency;
        }
        vms
    }
}

/// Times in states; they sum to the wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateTimes {
    /// Guest code on a pCPU, including the states that [`super::MissingEvent`] attributes to RUN.
    pub run: Nanos,
    /// Host code for the guest, on a pCPU; `None` if indistinguishable from RUN, which then includes it.
    pub vmm: Option<Nanos>,
    /// Halt polling, on a pCPU; `None` if indistinguishable, and VMM or RUN includes it.
    pub poll: Option<Nanos>,
    /// Waits for a pCPU.
    pub ready: Nanos,
    /// Throttled by a quota; `None` if the kernel has no quotas.
    pub limited: Option<Nanos>,
    /// Co-stop: the part of a sleep during which the sibling that ended it waited for a pCPU; a lower-bound estimate.
    /// `None` if wakers are unknown; HALT then includes it.
    pub costop: Option<Nanos>,
    /// Sleeps.
    pub halted: Nanos,
}

impl StateTimes {
    /// Returns the sum of all states.
    pub fn sum(&self) -> Nanos {
        let measured = [self.vmm, self.poll, self.limited, self.costop].into_iter().flatten();
        self.run + self.ready + self.halted + measured.sum()
    }

    /// Returns the time on a pCPU.
    pub fn on_pcpu(&self) -> Nanos {
        self.run + [self.vmm, self.poll].into_iter().flatten().sum()
    }
}

/// Figures of a watched thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuReading {
    /// The caller's number.
    pub index: u32,
    /// The thread.
    pub tid: Tid,
    /// Its VM.
    pub vm: VmId,
    /// Its number in the VM.
    pub vcpu: VcpuId,
    /// Time it was watched, without `unseen`. Threads are read one after the other, so values differ by some µs.
    pub wall: Nanos,
    /// Time in unknown states, because the kernel missed switches.
    pub unseen: Nanos,
    /// Time per state.
    pub times: StateTimes,
    /// Number of times it was switched in.
    pub runs: u64,
    /// Number of guest exits. `None` here and below: not measured.
    pub exits: Option<u64>,
    /// Number of returns from KVM to the VMM.
    pub user_exits: Option<u64>,
    /// Number of halts that ended.
    pub halts: Option<u64>,
    /// Number of IPIs sent that KVM handled.
    pub ipis: Option<u64>,
    /// Number of exits because of spinning (pause exits).
    pub spins: Option<u64>,
    /// Wake-up latency.
    pub latency: Latency,
    /// The thread exited; later readings omit it.
    pub ended: bool,
}

/// The thread that a vCPU waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Culprit {
    /// Another watched thread, by index.
    Watched(u32),
    /// A thread of the host.
    Task {
        /// The thread.
        tid: Tid,
        /// Its process; `None` if it exited too early.
        pid: Option<Pid>,
        /// Its name; empty if it exited too early.
        comm: String,
        /// The number of its cgroup of the cpu controller, which is the inode of the folder; `None` if there is none.
        cgroup: Option<u64>,
    },
    /// A kernel thread.
    Kernel {
        /// The thread.
        tid: Tid,
        /// Its name.
        comm: String,
    },
    /// The idle task: the pCPU was about to wake up or to switch.
    Idle,
}

/// A victim and its culprit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeReading {
    /// The index of the thread that waited.
    pub victim: u32,
    /// The thread that ran on the pCPU meanwhile.
    pub culprit: Culprit,
    /// The waiting time. If several threads wait for the same culprit, each has its own edge.
    pub time: Nanos,
}

/// Effects of a vCPU on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReading {
    /// The index of the acting vCPU.
    pub from: u32,
    /// The index of the other vCPU.
    pub to: u32,
    /// Number of wake-ups.
    pub wakes: u64,
    /// Number of interrupts sent that KVM handled.
    pub ipis: u64,
    /// Number of directed yields.
    pub yields: u64,
    /// Number of these yields that succeeded.
    pub yields_made: u64,
    /// Number of halts of the other vCPU that a wait of this one for a pCPU prolonged.
    pub costops: u64,
    /// Total prolongation, which the other vCPU has as [`StateTimes::costop`].
    pub costop_time: Nanos,
}

/// Cost of a program while the kernel counted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfCost {
    /// The program.
    pub program: String,
    /// Number of runs.
    pub runs: u64,
    /// Total run time.
    pub time: Nanos,
}

/// The reason why an event is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Absence {
    /// BTF of the kernel does not describe the event.
    NotThere,
    /// The options exclude it.
    NotAsked,
    /// This process may not attach to it, or this kernel forbids events of that kind.
    NotAllowed,
    /// The kernel refused to load or attach the program.
    Refused,
    /// The event exists but never fires.
    NeverComes,
}

/// A missing event and its consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingEvent {
    /// The tracepoint or function.
    pub event: String,
    /// The figures that are unavailable without it.
    pub lacks: &'static str,
    /// The reason.
    pub absence: Absence,
    /// The reason as text.
    pub because: String,
}

impl From<&MissingEvent> for NotSeen {
    fn from(missing: &MissingEvent) -> NotSeen {
        NotSeen {
            event: missing.event.clone(),
            lacks: missing.lacks.to_owned(),
            because: missing.because.clone(),
        }
    }
}

impl fmt::Display for MissingEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {}: {} ({})", self.event, self.lacks, self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_latency_sums_over_vcpus() {
        let vcpu = |index: u32, vm: u64, count: u64| VcpuReading {
            index,
            tid: Tid(index),
            vm: VmId(vm),
            vcpu: VcpuId(index),
            wall: Nanos::ZERO,
            unseen: Nanos::ZERO,
            times: StateTimes::default(),
            runs: 0,
            exits: None,
            user_exits: None,
            halts: None,
            ipis: None,
            spins: None,
            latency: {
                let mut latency = Latency::default();
                latency.counts[3] = count;
                latency
            },
            ended: false,
        };
        let reading = BpfReading {
            vcpus: vec![vcpu(0, 1, 2), vcpu(1, 1, 3), vcpu(2, 7, 4)],
            ..BpfReading::default()
        };
        let counts: Vec<_> = reading
            .latency_by_vm()
            .into_iter()
            .map(|(vm, latency)| (vm, latency.counts[3]))
            .collect();
        assert_eq!(counts, [(VmId(1), 5), (VmId(7), 4)]);
    }
}
