//! Tandem's policies on the simulated host, through the same types as on a live one.
//!
//! Once per period every VM is observed as the daemon observes it: what each vCPU ran and waited
//! (a wait counts when it is over, as in the kernel's schedstat), whether it is runnable now, where
//! it may run, and each pCPU's idle time. Decisions set weights and affinities.

use tandem_policy::Decision;
use tandem_policy::FlexW;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::PcpuSet;
use tandem_policy::VcpuObservation;
use tandem_policy::VmId;
use tandem_policy::VmObservation;
use tandem_policy::Weight;

use crate::host::Arrival;
use crate::host::Scheduler;
use crate::queue::Slot;
use crate::trace::VcpuState;

use super::Idle;
use super::World;
use super::state::NONE;

/// The policies and what they saw last.
pub(crate) struct Controller {
    pub flexw: FlexW,
    pub period: Nanos,
    /// For each vCPU: ran and waited at the last period's end.
    pub seen: Vec<(u64, u64)>,
    pub idle_seen: Vec<u64>,
    /// Weights as configured.
    pub configured: Vec<f64>,
}

impl World {
    /// A period of the policies is over.
    pub(crate) fn policies(&mut self) {
        let Some(mut controller) = self.controller.take() else {
            return;
        };
        let period = controller.period;
        self.queue
            .set(Slot(self.slots.policies), self.now + period.0);
        let observed = self.observe(&mut controller);
        let idle = self.idle_since(&mut controller);
        let round = controller.flexw.decide(period, &observed, &idle);
        for decision in &round.decisions {
            match decision {
                Decision::SetWeight { vm, weight, .. } => {
                    self.set_weight(vm.0 as u32, *weight);
                }
                Decision::SetAffinity {
                    vm, vcpu, pcpus, ..
                } => {
                    let v = self.vms[vm.0 as usize].first_vcpu + *vcpu as u32;
                    self.set_affinity(v, pcpus);
                }
            }
        }
        self.controller = Some(controller);
    }

    fn observe(&mut self, controller: &mut Controller) -> Vec<VmObservation> {
        let mut observed = Vec::with_capacity(self.vms.len());
        for vm in 0..self.vms.len() {
            let state = &self.vms[vm];
            if state.started > self.now || state.alive == 0 {
                continue;
            }
            let (first, size) = (state.first_vcpu, state.vcpus);
            let mut vcpus = Vec::with_capacity(size as usize);
            for v in first..first + size {
                self.sync(v);
                let vcpu = &self.vcpus[v as usize];
                let seen = &mut controller.seen[v as usize];
                vcpus.push(VcpuObservation {
                    allowed: self.allowed[v as usize].clone(),
                    ran: Nanos(vcpu.ran_total - seen.0),
                    waited: Nanos(vcpu.waited_total - seen.1),
                    runnable: matches!(vcpu.state, VcpuState::Running | VcpuState::Ready),
                });
                *seen = (vcpu.ran_total, vcpu.waited_total);
            }
            observed.push(VmObservation {
                vm: VmId(vm as u64),
                weight: Weight(controller.configured[vm]),
                vcpus,
            });
        }
        observed
    }

    fn idle_since(&self, controller: &mut Controller) -> Idle {
        let now = self.now;
        let pcpus = self.pcpus.iter().zip(&mut controller.idle_seen);
        pcpus
            .enumerate()
            .map(|(number, (pcpu, seen))| {
                let mut idle = pcpu.idle_total;
                if pcpu.state == super::state::PcpuState::Idle {
                    idle += now - pcpu.since;
                }
                let since = idle - std::mem::replace(seen, idle);
                (PcpuId(number as u32), Nanos(since))
            })
            .collect()
    }

    /// A VM's weight, from now on.
    pub(crate) fn set_weight(&mut self, vm: u32, weight: Weight) {
        for p in 0..self.pcpus.len() {
            let current = self.pcpus[p].current;
            if current != NONE {
                self.host_account(current);
            }
        }
        self.weights[vm as usize] = weight.0;
        self.host.set_weight(vm, weight.0, self.now);
    }

    /// Where a vCPU may run, from now on.
    pub(crate) fn set_affinity(&mut self, v: u32, allowed: &PcpuSet) {
        self.allowed[v as usize] = allowed.clone();
        self.host.set_affinity(v, allowed);
        let (from, state, queued) = {
            let vcpu = &self.vcpus[v as usize];
            (vcpu.pcpu, vcpu.state, vcpu.queued)
        };
        if allowed.contains(PcpuId(from)) || !queued {
            return;
        }
        if state == VcpuState::Running {
            self.switch_out(v, from, true);
            self.leave_host(v, from, false);
            self.work.push(super::state::Work::Pcpu(from));
        } else if state == VcpuState::Ready {
            self.host.dequeue(v, from, false, self.now);
            self.vcpus[v as usize].queued = false;
        } else {
            return;
        }
        let to = self.host.select(v, from, &self.idle_pcpus, self.now);
        self.vcpus[v as usize].pcpu = to;
        self.vcpus[v as usize].queued = true;
        self.host.enqueue(v, to, Arrival::Migrated, self.now);
        if self.pcpus[to as usize].current == NONE {
            self.work.push(super::state::Work::Pcpu(to));
        }
    }
}
