//! Some seconds in full: who ran on each pCPU, and what each vCPU did, switch by switch.
//!
//! Where an [`Interval`] has sums, a [`HostTrace`] has what they are sums of; [`HostTrace::intervals`] makes intervals of it, of any length, so that whoever
//! shows or judges intervals can do so with a trace. Only what switches tell is there: RUN (on a pCPU, whatever for), RDY and HALT. What was not
//! seen has no slice, and such time counts nowhere.
//!
//! Who waits, waits for whoever runs on the pCPU in whose queue it is. Nothing here is estimated.

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

/// What an interval lacks that was made from switches alone.
const WANT: &str = "a trace of switches does not tell";

/// A vCPU of which more than one part in so many of an interval is not known is left out of it.
const MOST_UNKNOWN: u64 = 10;

/// Somebody ran on a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Who: a place in [`HostTrace::parties`].
    pub who: usize,
    /// From when on.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
}

/// A pCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcpuTrace {
    /// Who ran on it, one after the other. Between them it idled, or it is not known.
    pub ran: Vec<Ran>,
    /// How long it idled, as far as that was seen.
    pub idle: Nanos,
}

/// What a vCPU did for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Did {
    /// RUN, RDY or HALT.
    pub state: State,
    /// Where it ran, or in whose queue it waited.
    pub pcpu: Option<PcpuId>,
    /// From when on.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuTrace {
    /// Its VM.
    pub vm: VmId,
    /// Which of the VM's.
    pub vcpu: VcpuId,
    /// Where it may run.
    pub allowed: PcpuSet,
    /// What it did, one after the other.
    pub did: Vec<Did>,
}

/// Somebody woke a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// Who did: a place in [`HostTrace::parties`]; [`Party::Unseen`] if it was an interrupt. Where the kernel does not tell interrupts, it may have
    /// been interrupted by what really did.
    pub by: usize,
    /// Whom: a place in [`HostTrace::vcpus`].
    pub vcpu: usize,
    /// When.
    pub at: Nanos,
}

/// A host, switch by switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostTrace {
    /// When it begins, by CLOCK_MONOTONIC.
    pub begin: Nanos,
    /// When it ends.
    pub end: Nanos,
    /// Everybody who ran or woke.
    pub parties: Vec<Party>,
    /// The pCPUs.
    pub pcpus: BTreeMap<PcpuId, PcpuTrace>,
    /// The vCPUs that were watched, by VM and number.
    pub vcpus: Vec<VcpuTrace>,
    /// Who woke whom, in order of time.
    pub woken: Vec<Woken>,
    /// Events that were lost for want of room.
    pub lost: u64,
}

impl HostTrace {
    /// Its intervals of this length; the last may be shorter.
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

    /// A vCPU of which nearly all is known from one time to another; `None` else. Its times sum to what is known.
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
        if unknown.0 > to.saturating_sub(from).0 / MOST_UNKNOWN {
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
    /// Who ran within some time, and for how long.
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

    /// Two vCPUs of one VM on one pCPU: each runs 10 ns while the other waits; then the second sleeps.
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
    fn intervals_are_the_sums_of_slices_however_long_they_are() {
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
    fn a_vcpu_of_which_a_part_is_not_known_is_not_in_that_interval() {
        let mut trace = turns();
        trace.vcpus[0].did.remove(1);
        let parts = trace.intervals(Nanos(10));
        let vcpus: Vec<usize> = parts.iter().map(|part| part.vms[0].vcpus.len()).collect();
        assert_eq!(vcpus, [2, 1, 1, 2]);
    }

    #[test]
    fn a_vcpu_of_which_little_is_not_known_has_times_that_sum_to_what_is() {
        let mut trace = turns();
        // Of 40 ns 4, then 5 are not known.
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
