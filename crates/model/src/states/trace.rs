//! A few seconds of a host in full detail: the running thread of each pCPU and the states of each vCPU, switch by switch.
//!
//! [`HostTrace::intervals`] sums a trace up to [`Interval`]s of any length, so users of intervals can also use traces.
//! A trace has only the states that switches show: RUN (on a pCPU, in any state), RDY and HALT.
//! Unseen time has no slice and does not count.
//!
//! A waiting vCPU waits for the thread that runs on the pCPU in whose run queue it is.
//! All values are measured.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::edges::{Amount, EdgeKind, EdgesBuilder, Evidence, Party, TOP};
use super::interval::{
    Column, HostColumn, HostTotals, Interval, Missing, ProcessTime, SourceName, VcpuInterval,
    VmInterval,
};
use super::{State, VcpuTimes};
use crate::pcpu_set::PcpuSet;
use crate::units::{Nanos, PcpuId, VcpuId, VmId};

/// Reason for unmeasured parts of an interval from a trace.
const WANT: &str = "a trace of switches does not show it";

/// A vCPU is omitted from an interval if more than one part in this many is unknown.
const UNKNOWN_SHARE: u64 = 10;

/// A time slice of a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Running party, an index into [`HostTrace::parties`].
    pub who: usize,
    /// Start.
    pub from: Nanos,
    /// End.
    pub to: Nanos,
}

/// A pCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcpuTrace {
    /// Its slices in order; gaps are idle or unknown.
    pub ran: Vec<Ran>,
    /// Observed idle time.
    pub idle: Nanos,
}

/// A state of a vCPU for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Did {
    /// RUN, RDY or HALT.
    pub state: State,
    /// pCPU that it ran on, or in whose run queue it waited.
    pub pcpu: Option<PcpuId>,
    /// Start.
    pub from: Nanos,
    /// End.
    pub to: Nanos,
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuTrace {
    /// Its VM.
    pub vm: VmId,
    /// Its number in the VM.
    pub vcpu: VcpuId,
    /// Its affinity.
    pub allowed: PcpuSet,
    /// Its states in order.
    pub did: Vec<Did>,
}

/// A wake-up of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// Waker, an index into [`HostTrace::parties`]; [`Party::Unseen`] for an interrupt.
    /// If the kernel does not identify interrupts, it may be the thread that the interrupt preempted.
    pub by: usize,
    /// Woken vCPU, an index into [`HostTrace::vcpus`].
    pub vcpu: usize,
    /// Time.
    pub at: Nanos,
}

/// Trace of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostTrace {
    /// Start, CLOCK_MONOTONIC.
    pub begin: Nanos,
    /// End.
    pub end: Nanos,
    /// All parties that ran or woke a vCPU.
    pub parties: Vec<Party>,
    /// The pCPUs.
    pub pcpus: BTreeMap<PcpuId, PcpuTrace>,
    /// The observed vCPUs, by VM and number.
    pub vcpus: Vec<VcpuTrace>,
    /// Wake-ups in order of time.
    pub woken: Vec<Woken>,
    /// Number of events lost because a buffer was full.
    pub lost: u64,
}

impl HostTrace {
    /// Returns intervals of this length; the last may be shorter.
    pub fn intervals(&self, length: Nanos) -> Vec<Interval> {
        let length = length.0.max(1);
        let mut intervals = Vec::new();
        let mut from = self.begin;
        while from < self.end {
            let to = Nanos(from.0.saturating_add(length)).min(self.end);
            intervals.push(self.interval(from, to));
            from = to;
        }
        intervals
    }

    fn interval(&self, from: Nanos, to: Nanos) -> Interval {
        let mut vms: Vec<VmInterval> = Vec::new();
        let mut edges = EdgesBuilder::new();
        for vcpu in &self.vcpus {
            let Some(measured) = self.vcpu(vcpu, from, to, &mut edges) else {
                continue;
            };
            match vms.last_mut() {
                Some(vm) if vm.vm == vcpu.vm => vm.vcpus.push(measured),
                _ => {
                    vms.push(VmInterval { vm: vcpu.vm, vcpus: vec![measured], threads: Vec::new() })
                }
            }
        }
        let what = [
            Column::State(State::Poll),
            Column::State(State::Vmm),
            Column::State(State::Limited),
            Column::State(State::Costop),
            Column::Host(HostColumn::Idle),
        ];
        Interval {
            source: SourceName::Bpf,
            start: from,
            length: to.saturating_sub(from),
            vms,
            edges: edges.top(TOP),
            host: self.totals(from, to),
            missing: what.map(|what| Missing::of_all(what, WANT)).to_vec(),
            programs: None,
        }
    }

    /// Returns the interval of a vCPU, whose times sum to its known time.
    /// Returns `None` if too much of the interval is unknown.
    fn vcpu(
        &self,
        vcpu: &VcpuTrace,
        from: Nanos,
        to: Nanos,
        edges: &mut EdgesBuilder,
    ) -> Option<VcpuInterval> {
        let mut sums: BTreeMap<State, Nanos> = BTreeMap::new();
        let mut runs = 0;
        let first = vcpu.did.partition_point(|did| did.to <= from);
        let did = vcpu.did[first..].iter().take_while(|did| did.from < to);
        let itself = edges.party(&Party::Vcpu { vm: vcpu.vm, vcpu: vcpu.vcpu });
        let mut runnable = false;
        for did in did {
            *sums.entry(did.state).or_default() += overlap((did.from, did.to), (from, to));
            runs += u64::from(did.state == State::Run && did.from >= from);
            runnable = did.to >= to && did.state != State::Halted;
            if did.state == State::Ready
                && let Some(pcpu) = did.pcpu.and_then(|pcpu| self.pcpus.get(&pcpu))
            {
                let wait = (did.from.max(from), did.to.min(to));
                for (who, time) in pcpu.between(wait) {
                    let culprit = edges.party(&self.parties[who]);
                    let amount = Amount::time(time);
                    edges.add(itself, culprit, EdgeKind::Pcpu, Evidence::Measured, amount);
                }
            }
        }
        let of = |state| sums.get(&state).copied().unwrap_or_default();
        let known: Nanos = sums.values().copied().sum();
        let unknown = to.saturating_sub(from).saturating_sub(known);
        if unknown.0 > to.saturating_sub(from).0 / UNKNOWN_SHARE {
            return None;
        }
        let (ran, waited) = (of(State::Run), of(State::Ready));
        let times = VcpuTimes::from_parts(known, [(State::Run, ran), (State::Ready, waited)]);
        Some(VcpuInterval {
            vcpu: vcpu.vcpu,
            times: times.ok()?,
            ran,
            waited,
            runs,
            wakeups: None,
            runnable,
            allowed: vcpu.allowed.clone(),
        })
    }

    fn totals(&self, from: Nanos, to: Nanos) -> HostTotals {
        let mut times = vec![Nanos::ZERO; self.parties.len()];
        for pcpu in self.pcpus.values() {
            for (who, time) in pcpu.between((from, to)) {
                times[who] += time;
            }
        }
        let mut totals = HostTotals { pcpus: self.pcpus.len(), ..HostTotals::default() };
        for (party, time) in self.parties.iter().zip(times) {
            match party {
                Party::Vcpu { .. } | Party::Vm(_) => totals.vcpus += time,
                Party::VmThread { .. } => totals.vm_threads += time,
                Party::KernelThread(_) => totals.kernel += time,
                Party::Process { name, cgroup } => {
                    totals.tasks += time;
                    if time > Nanos::ZERO {
                        totals.top_tasks.push(ProcessTime {
                            name: name.clone(),
                            pid: 0,
                            cgroup: cgroup.clone(),
                            time,
                        });
                    }
                }
                Party::Unseen | Party::Others => {}
            }
        }
        totals.top_tasks.sort_by_key(|process| Reverse(process.time));
        totals.top_tasks.truncate(TOP);
        totals
    }
}

impl PcpuTrace {
    /// Iterates over parties that ran in a time range, with their run times.
    fn between(&self, (from, to): (Nanos, Nanos)) -> impl Iterator<Item = (usize, Nanos)> {
        let first = self.ran.partition_point(|ran| ran.to <= from);
        let within = self.ran[first..].iter().take_while(move |ran| ran.from < to);
        within.map(move |ran| (ran.who, overlap((ran.from, ran.to), (from, to))))
    }
}

fn overlap(one: (Nanos, Nanos), two: (Nanos, Nanos)) -> Nanos {
    one.1.min(two.1).saturating_sub(one.0.max(two.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(n: u32) -> Party {
        Party::Vcpu { vm: VmId(1), vcpu: VcpuId(n) }
    }

    /// Two vCPUs of one VM on one pCPU: each runs for 10 ns while the other waits; then the second sleeps.
    fn turns() -> HostTrace {
        let ran = |who, from, to| Ran { who, from: Nanos(from), to: Nanos(to) };
        let did = |state, from, to| Did {
            state,
            pcpu: Some(PcpuId(0)),
            from: Nanos(from),
            to: Nanos(to),
        };
        let vcpu = |vcpu, did: &[Did]| VcpuTrace {
            vm: VmId(1),
            vcpu: VcpuId(vcpu),
            allowed: "0".parse().unwrap(),
            did: did.to_vec(),
        };
        HostTrace {
            begin: Nanos(100),
            end: Nanos(140),
            parties: vec![party(0), party(1), Party::KernelThread("x".to_owned())],
            pcpus: BTreeMap::from([(
                PcpuId(0),
                PcpuTrace {
                    ran: vec![
                        ran(0, 100, 110),
                        ran(1, 110, 120),
                        ran(2, 120, 122),
                        ran(0, 122, 140),
                    ],
                    idle: Nanos(0),
                },
            )]),
            vcpus: vec![
                vcpu(
                    0,
                    &[
                        did(State::Run, 100, 110),
                        did(State::Ready, 110, 122),
                        did(State::Run, 122, 140),
                    ],
                ),
                vcpu(
                    1,
                    &[
                        did(State::Ready, 100, 110),
                        did(State::Run, 110, 120),
                        did(State::Halted, 120, 140),
                    ],
                ),
            ],
            woken: Vec::new(),
            lost: 0,
        }
    }

    #[test]
    fn intervals_of_any_length_sum_slices() {
        let trace = turns();
        let [whole] = &trace.intervals(Nanos(1_000))[..] else { panic!("one is long enough") };
        assert_eq!((whole.start, whole.length), (Nanos(100), Nanos(40)));
        let of =
            |interval: &Interval, vcpu: usize, state| interval.vms[0].vcpus[vcpu].times.get(state);
        assert_eq!(of(whole, 0, State::Run), Some(Nanos(28)));
        assert_eq!(of(whole, 0, State::Ready), Some(Nanos(12)));
        assert_eq!(of(whole, 1, State::Halted), Some(Nanos(20)));
        assert_eq!(of(whole, 1, State::Poll), None);
        let waits: Vec<(String, u64)> = whole
            .edges
            .of(&party(0), EdgeKind::Pcpu)
            .map(|edge| (edge.culprit.to_string(), edge.time().0))
            .collect();
        assert_eq!(waits, [("VM 1 vCPU 1".to_owned(), 10), ("[x]".to_owned(), 2)]);
        assert_eq!((whole.host.vcpus, whole.host.kernel), (Nanos(38), Nanos(2)));
        assert_eq!(whole.vms[0].vcpus[0].runs, 2);
        assert!(whole.vms[0].vcpus[0].runnable && !whole.vms[0].vcpus[1].runnable);
        let parts = trace.intervals(Nanos(7));
        assert_eq!(parts.len(), 6);
        assert_eq!(parts[5].length, Nanos(5));
        let sum = |state| -> u64 {
            let parts = parts.iter().filter_map(|part| of(part, 0, state));
            parts.map(|time| time.0).sum()
        };
        assert_eq!((sum(State::Run), sum(State::Ready)), (28, 12));
        let waited: u64 = parts.iter().map(|part| part.edges.total(EdgeKind::Pcpu).0).sum();
        assert_eq!(waited, whole.edges.total(EdgeKind::Pcpu).0);
    }

    #[test]
    fn mostly_unknown_vcpu_is_omitted() {
        let mut trace = turns();
        trace.vcpus[0].did.remove(1);
        let parts = trace.intervals(Nanos(10));
        let vcpus: Vec<usize> = parts.iter().map(|part| part.vms[0].vcpus.len()).collect();
        assert_eq!(vcpus, [2, 1, 1, 2]);
    }

    #[test]
    fn partly_unknown_vcpu_sums_to_known_time() {
        let mut trace = turns();
        // 4 of 40 ns are unknown, then 5.
        trace.vcpus[0].did[2].from = Nanos(126);
        let whole = &trace.intervals(Nanos(40))[0];
        let vcpu = &whole.vms[0].vcpus[0];
        assert_eq!((vcpu.ran, vcpu.waited), (Nanos(24), Nanos(12)));
        assert_eq!(vcpu.times.wall(), Nanos(36));
        trace.vcpus[0].did[2].from = Nanos(127);
        let whole = &trace.intervals(Nanos(40))[0];
        assert_eq!(whole.vms[0].vcpus.len(), 1);
    }
}
