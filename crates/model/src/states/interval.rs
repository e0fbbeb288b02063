//! Observation of one interval: times of each vCPU by state, waits between parties, use of the host's pCPUs, and unmeasured parts.
//!
//! Live hosts, recordings and simulated hosts return the same type, so its users need not know the source.
//! All times are within the interval, in ns.
//! The accounts of vCPUs may be read at slightly different times.
//! Each vCPU therefore has its own wall time ([`VcpuTimes::wall`]), close to the interval's length, to which its times sum.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::VcpuTimes;
use super::edges::Edges;
use super::programs::Programs;
use crate::pcpu_set::PcpuSet;
use crate::units::{Nanos, VcpuId, VmId};

pub use super::column::{Column, HostColumn};

/// Source of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceName {
    /// Accounts of any kernel.
    Plain,
    /// BPF programs, in addition to such accounts.
    Bpf,
    /// A simulated host.
    Simulator,
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SourceName::Plain => "plain",
            SourceName::Bpf => "bpf",
            SourceName::Simulator => "simulator",
        })
    }
}

/// A part that a source does not measure for some VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The unmeasured part.
    pub what: Column,
    /// Number of VMs without it.
    pub vms: usize,
    /// Number of observed VMs; 0 if VMs are not known yet, or the part is not of a VM.
    pub of: usize,
    /// Missing requirement, and how to meet it.
    pub want: String,
}

impl Missing {
    /// Returns a part that is missing for the host or for all VMs.
    pub fn of_all(what: Column, want: impl Into<String>) -> Missing {
        Missing { what, vms: 0, of: 0, want: want.into() }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} not measured", self.what)?;
        if self.vms < self.of {
            write!(f, " for {} of {} VMs", self.vms, self.of)?;
        }
        write!(f, ": {}", self.want)
    }
}

/// One vCPU over the interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuInterval {
    /// Its number in its VM.
    pub vcpu: VcpuId,
    /// Times by state.
    pub times: VcpuTimes,
    /// Time on a pCPU, in any state.
    pub ran: Nanos,
    /// Time runnable without a pCPU, throttled or not.
    pub waited: Nanos,
    /// Number of times that it was scheduled on a pCPU.
    pub runs: u64,
    /// Number of voluntary sleeps, which equals the number of wake-ups; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<u64>,
    /// Whether it was runnable at the end of the interval.
    pub runnable: bool,
    /// Its affinity.
    pub allowed: PcpuSet,
}

/// CPU time of a thread, or of all threads with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// The thread's name.
    pub name: String,
    /// CPU time.
    pub time: Nanos,
}

/// One VM over the interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmInterval {
    /// The VM.
    pub vm: VmId,
    /// Its vCPUs that were readable at both ends of the interval, in the given order.
    pub vcpus: Vec<VcpuInterval>,
    /// Its other threads that ran: emulator, I/O threads, vhost; longest CPU time first.
    pub threads: Vec<ThreadTime>,
}

impl VmInterval {
    /// Returns the sum of its vCPUs' times; `None` without vCPUs.
    pub fn times(&self) -> Option<VcpuTimes> {
        VcpuTimes::sum(self.vcpus.iter().map(|vcpu| &vcpu.times))
    }
}

/// A process of the host other than a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTime {
    /// Its name.
    pub name: String,
    /// Its PID.
    pub pid: u32,
    /// Its cgroup of the cpu controller, if known.
    pub cgroup: Option<String>,
    /// CPU time of all its threads.
    pub time: Nanos,
}

/// Use of the host's pCPUs, summed over them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTotals {
    /// Number of online pCPUs.
    pub pcpus: usize,
    /// Idle time. `None`: not measured.
    pub idle: Option<Nanos>,
    /// CPU time of vCPUs.
    pub vcpus: Nanos,
    /// CPU time of the VMs' other threads.
    pub vm_threads: Nanos,
    /// CPU time of other processes.
    pub tasks: Nanos,
    /// Those with the most CPU time, in descending order.
    pub top_tasks: Vec<ProcessTime>,
    /// CPU time of kernel threads, except vhost.
    pub kernel: Nanos,
}

impl HostTotals {
    /// Returns the remaining pCPU time of an interval of this length: tasks that exited unseen, interrupts, steal by an outer hypervisor.
    /// Returns `None` if idle time is not measured.
    pub fn unseen(&self, length: Nanos) -> Option<Nanos> {
        let seen = self.vcpus + self.vm_threads + self.tasks + self.kernel + self.idle?;
        Some(Nanos(length.0.saturating_mul(self.pcpus as u64)).saturating_sub(seen))
    }
}

/// Observation of one interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Its source.
    pub source: SourceName,
    /// Its start: CLOCK_MONOTONIC on a live host, the simulator's clock on a simulated one.
    pub start: Nanos,
    /// Its length.
    pub length: Nanos,
    /// The VMs, in the given order.
    pub vms: Vec<VmInterval>,
    /// Waits between parties.
    pub edges: Edges,
    /// Totals of the host.
    pub host: HostTotals,
    /// Unmeasured parts, with their missing requirements.
    pub missing: Vec<Missing>,
    /// Additional information of BPF programs, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Programs>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::State;
    use crate::states::edges::{Amount, EdgeKind, EdgesBuilder, Evidence, Party};
    use crate::states::latency::Latency;

    #[test]
    fn missing_part_names_affected_vms() {
        let mut missing = Missing {
            what: Column::State(State::Poll),
            vms: 2,
            of: 3,
            want: "run as root".to_owned(),
        };
        assert_eq!(missing.to_string(), "POLL not measured for 2 of 3 VMs: run as root");
        missing.vms = 3;
        assert_eq!(missing.to_string(), "POLL not measured: run as root");
        let edges = Missing::of_all(Column::Edges(EdgeKind::Sibling), "kvm_apic_ipi");
        assert_eq!(edges.to_string(), "which sibling is waited for not measured: kvm_apic_ipi");
    }

    #[test]
    fn columns_round_trip_through_json() {
        let mut columns: Vec<Column> = State::ALL.into_iter().map(Column::State).collect();
        columns.extend(EdgeKind::ALL.map(Column::Edges));
        columns.extend(
            [HostColumn::Idle, HostColumn::VmThreads, HostColumn::Processes].map(Column::Host),
        );
        let text = serde_json::to_string(&columns).unwrap();
        // Names are unique.
        let names: Vec<String> = serde_json::from_str(&text).unwrap();
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(names.len(), unique.len(), "{text}");
        let read: Vec<Column> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, columns, "{text}");
    }

    #[test]
    fn interval_round_trips_through_json() {
        let times =
            VcpuTimes::from_parts(Nanos(90), [(State::Run, Nanos(40)), (State::Poll, Nanos(2))])
                .unwrap();
        let mut edges = EdgesBuilder::new();
        let victim = edges.party(&Party::Vcpu { vm: VmId(7), vcpu: VcpuId(0) });
        let unseen = edges.party(&Party::Unseen);
        let amount = Amount { time: Nanos(5), count: Some(2) };
        edges.add(victim, unseen, EdgeKind::Pcpu, Evidence::Measured, amount);
        let interval = Interval {
            source: SourceName::Bpf,
            start: Nanos(1),
            length: Nanos(100),
            vms: vec![VmInterval {
                vm: VmId(7),
                vcpus: vec![VcpuInterval {
                    vcpu: VcpuId(0),
                    times,
                    ran: Nanos(42),
                    waited: Nanos(5),
                    runs: 1,
                    wakeups: None,
                    runnable: true,
                    allowed: "0-3".parse().unwrap(),
                }],
                threads: Vec::new(),
            }],
            edges: edges.all(),
            host: HostTotals {
                pcpus: 2,
                idle: Some(Nanos(100)),
                vcpus: Nanos(42),
                ..HostTotals::default()
            },
            missing: vec![Missing::of_all(Column::State(State::Vmm), "kvm_exit")],
            programs: Some(Programs {
                latency: [(VmId(7), Latency::default())].into(),
                ..Programs::default()
            }),
        };
        let text = serde_json::to_string(&interval).unwrap();
        let read: Interval = serde_json::from_str(&text).unwrap();
        assert_eq!(read, interval, "{text}");
        assert_eq!(interval.host.unseen(interval.length), Some(Nanos(58)));
        // Intervals of earlier versions lack this field.
        let without = Interval { programs: None, ..interval.clone() };
        let text = serde_json::to_string(&without).unwrap();
        assert!(!text.contains("programs"), "{text}");
        let read: Interval = serde_json::from_str(&text).unwrap();
        assert_eq!(read, without);
        for (was, is, error) in [
            (r#""run":40"#, r#""run":41"#, "sum to 91 ns of 90 ns"),
            (r#""culprit":1"#, r#""culprit":9"#, "party 9 of 2"),
        ] {
            let wrong = text.replace(was, is);
            assert_ne!(wrong, text, "{was}");
            let said = serde_json::from_str::<Interval>(&wrong).unwrap_err();
            assert!(said.to_string().contains(error), "{said}");
        }
    }
}
