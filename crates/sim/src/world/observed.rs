//! The recorded figures as an interval: the answer that a source on a live host gives, for the measured time.

use tandem_model::states::edges::{Amount, EdgeKind, Edges, EdgesBuilder, Evidence, Party, TOP};
use tandem_model::states::interval::{
    Column, HostTotals, Interval, Missing, SourceName, VcpuInterval, VmInterval,
};
use tandem_model::{Nanos, PcpuSet, State, VcpuId, VcpuTimes, VmId};

use crate::host::Scheduler;
use crate::results::Observed;
use crate::trace::VcpuState;

use super::simulation::World;
use super::state_recorder::{MAX_VCPUS, StateRecorder};

/// Times of states, exact to the ns.
/// A sum beyond the wall time means that some time was counted twice.
fn times(wall: Nanos, measured: &[(State, Nanos)]) -> VcpuTimes {
    let sum: Nanos = measured.iter().map(|(_, time)| *time).sum();
    assert!(
        sum <= wall,
        "a vCPU's states sum to {sum} of {wall}, a bug of the simulator: {measured:?}"
    );
    match VcpuTimes::from_parts(wall, measured.iter().copied()) {
        Ok(times) => times,
        Err(error) => unreachable!("each state once, and HALT is the rest: {error}"),
    }
}

impl World {
    /// Returns the measured interval, if it was recorded. The caller has settled the accounts.
    pub(crate) fn observed(&mut self) -> Option<Observed> {
        for p in 0..self.pcpus.len() as u32 {
            self.charge_pcpu_waits(p);
        }
        let recorder = &self.waits.as_ref()?.states;
        let vms = 0..self.vms.len();
        let vms: Vec<VmInterval> = vms.map(|vm| self.vm_interval(vm, recorder)).collect();
        let vcpus = vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.ran);
        let host = HostTotals {
            pcpus: self.pcpus.len(),
            idle: Some(self.pcpus.iter().map(|pcpu| pcpu.results.idle).sum()),
            vcpus: vcpus.sum(),
            ..HostTotals::default()
        };
        Some(Observed {
            schema: Observed::SCHEMA,
            interval: Interval {
                source: SourceName::Simulator,
                start: Nanos(self.measured_from),
                length: Nanos(self.now - self.measured_from),
                edges: self.edges(recorder),
                missing: self.missing_columns(recorder),
                vms,
                host,
                programs: None,
            },
        })
    }

    fn vm_interval(&self, number: usize, recorder: &StateRecorder) -> VmInterval {
        let vm = &self.vms[number];
        let has_costop = recorder.siblings[number].is_some();
        // The time before a VM's start is not HALT, so a VM that has not started has no vCPUs.
        let is_there = vm.started <= self.now;
        let wall = self.now.saturating_sub(vm.started.max(self.measured_from));
        let vcpus = (0..if is_there { vm.vcpus } else { 0 }).map(|index| {
            let v = vm.first_vcpu + index;
            let (vcpu, record) = (&self.vcpus[v as usize], &recorder.vcpus[v as usize]);
            let (ran, steal) = (&vcpu.results.ran, vcpu.results.steal);
            let polled = Nanos(vcpu.polled);
            let ready = Nanos(record.ready);
            let limited = steal.saturating_sub(ready);
            let costop = record.costop_spinning + record.costop_halted;
            let off = Nanos(record.costop_spinning);
            let measured = [
                (State::Run, Some(ran.total() - ran.exits - off)),
                (State::Poll, Some(polled)),
                (State::Vmm, Some(ran.exits)),
                (State::Limited, (!self.caps_by_priority()).then_some(limited)),
                (State::Ready, Some(ready)),
                (State::Costop, has_costop.then_some(Nanos(costop))),
            ];
            let measured = measured.into_iter().filter_map(|(state, time)| Some((state, time?)));
            let measured: Vec<(State, Nanos)> = measured.collect();
            VcpuInterval {
                vcpu: VcpuId(index),
                times: times(Nanos(wall), &measured),
                ran: ran.total() + polled,
                waited: steal,
                runs: vcpu.runs_total - record.runs_before,
                wakeups: None,
                runnable: matches!(vcpu.state, VcpuState::Running | VcpuState::Ready),
                allowed: self.allowed.get(v as usize).cloned().unwrap_or_else(PcpuSet::default),
            }
        });
        VmInterval { vm: VmId(number as u64), vcpus: vcpus.collect(), threads: Vec::new() }
    }

    fn edges(&self, recorder: &StateRecorder) -> Edges {
        let mut builder = EdgesBuilder::new();
        for (number, vm) in self.vms.iter().enumerate() {
            let party = |index: u32| Party::Vcpu { vm: VmId(number as u64), vcpu: VcpuId(index) };
            for index in 0..vm.vcpus {
                let victim = builder.party(&party(index));
                let taken = recorder.waited_for(vm.first_vcpu + index);
                for (culprit, time) in taken.into_iter().flatten() {
                    if time > Nanos::ZERO {
                        let (culprit, amount) = (builder.party(culprit), Amount::time(time));
                        let kind = EdgeKind::Pcpu;
                        builder.add(victim, culprit, kind, Evidence::Measured, amount);
                    }
                }
                let Some(siblings) = &recorder.siblings[number] else {
                    continue;
                };
                let row = (index * vm.vcpus) as usize;
                for other in 0..vm.vcpus {
                    let cell = row + other as usize;
                    let culprit = builder.party(&party(other));
                    let times = |count: u64| Amount { time: Nanos::ZERO, count: Some(count) };
                    for (kind, amount) in [
                        (EdgeKind::Sibling, Amount::time(Nanos(siblings.costop[cell]))),
                        (EdgeKind::YieldTaken, times(siblings.taken[cell])),
                        (EdgeKind::YieldUseless, times(siblings.useless[cell])),
                    ] {
                        builder.add(victim, culprit, kind, Evidence::Measured, amount);
                    }
                }
            }
        }
        builder.top(TOP)
    }

    /// Whether the host's scheduler enforces caps by priority, which leaves capped vCPUs in its queues.
    fn caps_by_priority(&self) -> bool {
        self.config.cap && self.host.caps_itself()
    }

    fn missing_columns(&self, recorder: &StateRecorder) -> Vec<Missing> {
        let mut missing = Vec::new();
        if self.caps_by_priority() {
            let want = "Xen credit caps by priority and keeps capped vCPUs in its queues";
            missing.push(Missing::of_all(Column::State(State::Limited), want));
        }
        if !recorder.has_takers() {
            let want = "the host has too many vCPUs and VMs for a matrix of them";
            missing.push(Missing::of_all(Column::Edges(EdgeKind::Pcpu), want));
        }
        let large = recorder.siblings.iter().filter(|vm| vm.is_none()).count();
        if large > 0 {
            for what in [
                Column::State(State::Costop),
                Column::Edges(EdgeKind::Sibling),
                Column::Edges(EdgeKind::YieldTaken),
                Column::Edges(EdgeKind::YieldUseless),
            ] {
                missing.push(Missing {
                    what,
                    vms: large,
                    of: self.vms.len(),
                    want: format!("siblings are distinguished in VMs of up to {MAX_VCPUS} vCPUs"),
                });
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halt_is_the_rest_of_the_wall_time() {
        let times = times(Nanos(10), &[(State::Run, Nanos(4)), (State::Ready, Nanos(5))]);
        assert_eq!(times.get(State::Halted), Some(Nanos(1)));
    }

    #[test]
    #[should_panic(expected = "a bug of the simulator")]
    fn excessive_sum_panics() {
        times(Nanos(10), &[(State::Run, Nanos(6)), (State::Ready, Nanos(5))]);
    }
}
