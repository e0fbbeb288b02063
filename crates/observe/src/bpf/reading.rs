//! What a reading says, and what it does not.
//!
//! All of it happened since the last reading, or since the thread is watched, if that is later.

use std::collections::BTreeMap;
use std::fmt;

use tandem_linux::thread::{Pid, Tid};
use tandem_model::states::latency::Latency;
use tandem_model::states::programs::{NotCounted, NotSeen};
use tandem_model::{Nanos, VcpuId, VmId};

/// What happened since the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BpfReading {
    /// When it was read, by CLOCK_MONOTONIC.
    pub at: Nanos,
    /// The watched threads, by index.
    pub vcpus: Vec<VcpuReading>,
    /// Who waited for whom, by victim and culprit.
    pub edges: Vec<EdgeReading>,
    /// What vCPUs did to others.
    pub links: Vec<LinkReading>,
    /// What there was no room for, or no chance to count.
    pub lost: NotCounted,
}

impl BpfReading {
    /// How long each VM's vCPUs waited from when they were woken until they ran.
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
    /// Guest code on a pCPU, and what [`super::MissingEvent`] says that it holds.
    pub run: Nanos,
    /// The host for the guest, on a pCPU; `None` where nothing tells it from RUN, which then holds it.
    pub vmm: Option<Nanos>,
    /// The host polls after a halt, on a pCPU; `None` where nothing tells, and VMM or RUN holds it.
    pub poll: Option<Nanos>,
    /// Waits for a pCPU.
    pub ready: Nanos,
    /// Kept off by a quota; `None` where the kernel has no quotas.
    pub limited: Option<Nanos>,
    /// Slept longer, because a sibling that ended the sleep had waited for a pCPU meanwhile: an estimate, from below. `None` where who
    /// wakes whom is not known; HALT holds it.
    pub costop: Option<Nanos>,
    /// Sleeps.
    pub halted: Nanos,
}

impl StateTimes {
    /// Their sum.
    pub fn sum(&self) -> Nanos {
        let measured = [self.vmm, self.poll, self.limited, self.costop].into_iter().flatten();
        self.run + self.ready + self.halted + measured.sum()
    }

    /// The time on a pCPU.
    pub fn on_pcpu(&self) -> Nanos {
        self.run + [self.vmm, self.poll].into_iter().flatten().sum()
    }
}

/// A watched thread.
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
    /// How long it was watched, without what is `unseen`. Threads are read one after the other, so this differs by some µs from one to the
    /// other.
    pub wall: Nanos,
    /// For how long it is not known what it did: the kernel did not tell that it went or came.
    pub unseen: Nanos,
    /// Where that went.
    pub times: StateTimes,
    /// How often it was put on a pCPU.
    pub runs: u64,
    /// How often the guest was left. Of these and the next, `None` is not measured.
    pub exits: Option<u64>,
    /// How often KVM returned to the VMM.
    pub user_exits: Option<u64>,
    /// How often the guest halted and went on.
    pub halts: Option<u64>,
    /// IPIs that it sent, as far as KVM has a part in it.
    pub ipis: Option<u64>,
    /// Exits because it spun.
    pub spins: Option<u64>,
    /// From when it was woken until it ran.
    pub latency: Latency,
    /// The thread is gone; it is in no further reading.
    pub ended: bool,
}

/// Whom a vCPU waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Culprit {
    /// Another watched thread, by index.
    Watched(u32),
    /// A thread of the host.
    Task {
        /// The thread.
        tid: Tid,
        /// Its process; `None` if it ended before that was known.
        pid: Option<Pid>,
        /// Its name; empty if it ended before that was known.
        comm: String,
        /// The number of its cgroup of the cpu controller, which is the inode of that folder; `None` if there is none.
        cgroup: Option<u64>,
    },
    /// A thread of the kernel.
    Kernel {
        /// The thread.
        tid: Tid,
        /// Its name.
        comm: String,
    },
    /// Nobody: the pCPU was about to wake, or to switch.
    Idle,
}

/// A victim and its culprit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeReading {
    /// Who waited: its index.
    pub victim: u32,
    /// Who ran there meanwhile.
    pub culprit: Culprit,
    /// For how long. Several that wait for the same at once have each their own wait.
    pub time: Nanos,
}

/// What a vCPU did to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReading {
    /// Its index.
    pub from: u32,
    /// The other's.
    pub to: u32,
    /// Woke it.
    pub wakes: u64,
    /// Sent it an interrupt, as far as KVM has a part in it.
    pub ipis: u64,
    /// Yielded to it.
    pub yields: u64,
    /// Of these, how often the other was made to run.
    pub yields_made: u64,
    /// How often a wait of its for a pCPU made a sleep of the other's longer.
    pub costops: u64,
    /// By how much, in all: what the other has as [`StateTimes::costop`].
    pub costop_time: Nanos,
}

/// What a program cost, while the kernel counted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfCost {
    /// Which program.
    pub program: String,
    /// How often it ran.
    pub runs: u64,
    /// For how long.
    pub time: Nanos,
}

/// What keeps programs from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Absence {
    /// The kernel does not describe such an event.
    NotThere,
    /// It was not asked for.
    NotAsked,
    /// This process may not look at it, or this kernel lets nobody look at events of that kind.
    NotAllowed,
    /// The kernel refused the program, or to attach it.
    Refused,
    /// It is there and never comes.
    NeverComes,
}

/// Something that the kernel does not tell, and what is not known for want of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingEvent {
    /// The tracepoint or function.
    pub event: String,
    /// What is not known.
    pub lacks: &'static str,
    /// Why it is missing.
    pub absence: Absence,
    /// The same in words.
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
    fn a_vm_has_the_wake_ups_of_its_vcpus() {
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
