//! FlexS on the simulated host: its ticks and its swaps.
//!
//! At each tick of a pCPU, FlexS accounts the vCPU that runs there, from modelled branch counters (`swapper`).
//! The policy is the one that runs on live hosts ([`tandem_policy::flexs`]).
//!
//! The order in a queue, as FlexS sees it, is that of the VM's vCPUs: siblings rarely share a queue.

use tandem_model::{Nanos, PcpuId, VcpuId, VmId};
use tandem_policy::flexs::{SwapAction, VcpuKey};

use crate::host::Scheduler;
use crate::trace::VcpuState;

use super::calendar::Event;
use super::simulation::World;
use super::state::{EXITS, NONE, Work};

impl World {
    /// FlexS' tick on a pCPU.
    pub(crate) fn flexs_tick(&mut self, p: u32) {
        let Some(mut swapper) = self.flexs.take() else {
            return;
        };
        let v = self.pcpus[p as usize].current;
        let mut next = self.now + swapper.tick;
        let mut swap = None;
        if v != NONE && self.vcpus[v as usize].state == VcpuState::Running {
            self.sync(v);
            self.owe(v, EXITS, self.costs.branch_counters);
            let vm = self.vcpus[v as usize].vm;
            let (first, size) = (self.vms[vm as usize].first_vcpu, self.vms[vm as usize].vcpus);
            let queues = &mut swapper.queues;
            queues.queued.iter_mut().for_each(Vec::clear);
            queues.first_vcpu = first;
            let name = |v: u32| VcpuKey { vm: VmId(u64::from(vm)), vcpu: VcpuId(v - first) };
            for sibling in first..first + size {
                let vcpu = &self.vcpus[sibling as usize];
                if vcpu.state == VcpuState::Ready && vcpu.queued {
                    queues.queued[vcpu.pcpu as usize].push(name(sibling));
                }
            }
            let counts = swapper.counters[v as usize].sample(
                &self.vcpus[v as usize].results.ran,
                self.costs.cycles_per_us,
                self.costs.pause_cycles,
            );
            std::mem::swap(&mut swapper.queues.allowed, &mut self.allowed);
            let outcome =
                swapper.policy.tick(Nanos(self.now), name(v), PcpuId(p), &counts, &swapper.queues);
            std::mem::swap(&mut swapper.queues.allowed, &mut self.allowed);
            next = outcome.next_tick.0;
            if let SwapAction::Swap { with, on, .. } = outcome.action {
                swap = Some((first + with.0, on.0));
            }
            self.plan(v);
        }
        self.flexs = Some(swapper);
        self.calendar.set(Event::FlexS, p, next.max(self.now + 1));
        if let Some((sibling, q)) = swap {
            self.exchange(v, p, sibling, q);
        }
    }

    /// Exchanges a vCPU that runs on `p` with a sibling that is queued on `q`.
    fn exchange(&mut self, v: u32, p: u32, sibling: u32, q: u32) {
        let other = self.pcpus[q as usize].current;
        if other != NONE {
            self.host_account(other);
        }
        self.switch_out(v, p, true);
        self.leave_host(v, p, false);
        self.host.exchange(v, p, sibling, q, self.now);
        self.end_pcpu_wait(sibling);
        for (vcpu, pcpu) in [(v, q), (sibling, p)] {
            self.vcpus[vcpu as usize].pcpu = pcpu;
            self.vcpus[vcpu as usize].queued = true;
            self.begin_pcpu_wait(vcpu, pcpu);
        }
        self.counts(v).swaps += 1;
        self.work.push(Work::Pcpu(p));
        if self.pcpus[q as usize].current == NONE {
            self.work.push(Work::Pcpu(q));
        }
    }
}
