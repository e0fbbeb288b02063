//! What a source of observation answers about an interval: where the time of each vCPU went, who waited for whom, where the
//! host's pCPUs were, and what is not measured.
//!
//! A live host, a recording and a simulated host answer alike, so whoever shows or judges an interval need not know which it
//! came from. All times are within the interval, in ns. A vCPU's accounts may be read a little before or after another's, so each has a
//! wall time of its own ([`VcpuTimes::wall`]), close to the interval's length; its times sum to that.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::VcpuTimes;
use super::edges::Edges;
use super::programs::Programs;
use crate::pcpu_set::PcpuSet;
use crate::units::{Nanos, VcpuId, VmId};

pub use super::column::{Column, HostColumn};

/// What an interval came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceName {
    /// Accounts that every kernel keeps.
    Plain,
    /// Programs in the kernel, beside such accounts.
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

/// Something that a source does not measure, for some VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What.
    pub what: Column,
    /// Of how many VMs.
    pub vms: usize,
    /// Of how many that were looked at. 0 where VMs are not known yet, or what is missing is no VM's.
    pub of: usize,
    /// For want of what, and how to get it.
    pub want: String,
}

impl Missing {
    /// Of no VM, or of all that there may be.
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
    /// Where its time went.
    pub times: VcpuTimes,
    /// Time on a pCPU, whatever for.
    pub ran: Nanos,
    /// Time runnable without a pCPU, throttled or not.
    pub waited: Nanos,
    /// How often it was put on a pCPU.
    pub runs: u64,
    /// How often it went to sleep of its own accord, as often as it was woken; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<u64>,
    /// Whether it was runnable when the interval ended.
    pub runnable: bool,
    /// Where it may run.
    pub allowed: PcpuSet,
}

/// CPU time of a thread, or of all of one name.
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
    /// Which VM.
    pub vm: VmId,
    /// Its vCPUs that could be read at both ends, in the order given.
    pub vcpus: Vec<VcpuInterval>,
    /// The threads that work for it beside its vCPUs and that ran: emulator, I/O threads, vhost. The longest first.
    pub threads: Vec<ThreadTime>,
}

impl VmInterval {
    /// Where the time of its vCPUs went, all together; `None` without any.
    pub fn times(&self) -> Option<VcpuTimes> {
        VcpuTimes::sum(self.vcpus.iter().map(|vcpu| &vcpu.times))
    }
}

/// A process of the host that is no VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTime {
    /// Its name.
    pub name: String,
    /// Its number.
    pub pid: u32,
    /// Its path in the hierarchy of the cpu controller, where that is known.
    pub cgroup: Option<String>,
    /// CPU time of all its threads.
    pub time: Nanos,
}

/// Where the host's pCPUs were, summed over them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTotals {
    /// pCPUs that are online.
    pub pcpus: usize,
    /// Idle time. `None`: not measured.
    pub idle: Option<Nanos>,
    /// CPU time of vCPUs.
    pub vcpus: Nanos,
    /// CPU time of the VMs' other threads.
    pub vm_threads: Nanos,
    /// CPU time of processes that are no VMs.
    pub tasks: Nanos,
    /// Those of them that used most, the most first.
    pub top_tasks: Vec<ProcessTime>,
    /// CPU time of threads of the kernel, without vhost.
    pub kernel: Nanos,
}

impl HostTotals {
    /// What none of the others is, in an interval of that length: tasks that ended unseen, interrupts, what a hypervisor below took.
    /// `None` where idle time is not measured.
    pub fn unseen(&self, length: Nanos) -> Option<Nanos> {
        let seen = self.vcpus + self.vm_threads + self.tasks + self.kernel + self.idle?;
        Some(Nanos(length.0.saturating_mul(self.pcpus as u64)).saturating_sub(seen))
    }
}

/// What a source answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// What it came from.
    pub source: SourceName,
    /// When it began: on a live host by CLOCK_MONOTONIC, in a simulated one by its own clock.
    pub start: Nanos,
    /// How long it was.
    pub length: Nanos,
    /// The VMs, in the order given.
    pub vms: Vec<VmInterval>,
    /// Who waited for whom.
    pub edges: Edges,
    /// The rest of the host.
    pub host: HostTotals,
    /// What is not measured, and for want of what.
    pub missing: Vec<Missing>,
    /// What programs in the kernel say beside; `None` where there are none.
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
    fn what_is_missing_says_of_whom() {
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
    fn columns_keep_their_names_when_written_and_read() {
        let mut columns: Vec<Column> = State::ALL.into_iter().map(Column::State).collect();
        columns.extend(EdgeKind::ALL.map(Column::Edges));
        columns.extend(
            [HostColumn::Idle, HostColumn::VmThreads, HostColumn::Processes].map(Column::Host),
        );
        let text = serde_json::to_string(&columns).unwrap();
        // No name stands for two columns.
        let names: Vec<String> = serde_json::from_str(&text).unwrap();
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(names.len(), unique.len(), "{text}");
        let read: Vec<Column> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, columns, "{text}");
    }

    #[test]
    fn an_interval_can_be_written_and_read() {
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
        // As intervals were written before there was such a field.
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
