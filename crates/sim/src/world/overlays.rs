//! Overlays on the host's scheduler: the cap, co-scheduling, demand-based scheduling.
//!
//! - Cap, a baseline: at each cap period, every VM gets its fair share of the pCPUs as its quota, by FlexW's water-filling.
//!   The VM is stopped once the quota is used up, so the cap is not work conserving.
//!   Xen credit enforces caps itself: it receives the shares, and parks vCPUs that owe too much (see `host::credit`).
//! - Co-scheduling: when a vCPU is scheduled, its waiting siblings are put first on their pCPUs.
//! - Demand-based: a vCPU that has sent an IPI keeps its pCPU for [`PROTECTION`] ns, and the preempted target of an IPI is put first
//!   (Kim et al., "Demand-based coordinated scheduling for SMP VMs", ASPLOS 2013).

use tandem_model::{Nanos, PcpuSet};
use tandem_policy::fair_share::{Claim, fair_shares};

use crate::host::{CoScheduling, Scheduler};
use crate::trace::VcpuState;

use super::calendar::Event;
use super::pause_loop::Happened;
use super::simulation::World;
use super::state::{NONE, Work};

/// Time for which the sender of an IPI keeps its pCPU, ns.
const PROTECTION: u64 = 500_000;

/// Minimum time between two checks of a VM's quota, ns.
const CAP_STEP: u64 = 20_000;

impl World {
    /// A vCPU was put on a pCPU: checks its VM's cap, and co-schedules its siblings.
    pub(crate) fn scheduled(&mut self, v: u32, p: u32) {
        let ganged = std::mem::take(&mut self.pcpus[p as usize].ganged);
        self.pcpus[p as usize].protected_until = 0;
        let vm = self.vcpus[v as usize].vm;
        if self.config.cap && !self.host.caps_itself() {
            self.watch_cap(vm);
        }
        if self.config.together != CoScheduling::Gang || ganged {
            return;
        }
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        for sibling in first..first + size {
            let vcpu = &self.vcpus[sibling as usize];
            let q = vcpu.pcpu;
            if vcpu.state != VcpuState::Ready || !vcpu.queued || q == p || self.host.parked(sibling)
            {
                continue;
            }
            let current = self.pcpus[q as usize].current;
            if current != NONE && self.vcpus[current as usize].vm == vm {
                continue;
            }
            if current != NONE {
                self.host_account(current);
            }
            self.host.boost(sibling, q, self.now);
            self.pcpus[q as usize].ganged = true;
            self.reschedule(q);
        }
    }

    /// A vCPU has sent an IPI: protects it under demand-based scheduling.
    pub(crate) fn sent_ipi(&mut self, from: u32) {
        if self.config.together == CoScheduling::Demand {
            let p = self.vcpus[from as usize].pcpu;
            self.pcpus[p as usize].protected_until = self.now + PROTECTION;
        }
    }

    /// An IPI is pending for a preempted vCPU: boosts it under demand-based scheduling.
    pub(crate) fn ipi_for_preempted(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        if self.config.together != CoScheduling::Demand || !vcpu.queued || self.host.parked(v) {
            return;
        }
        let p = vcpu.pcpu;
        let current = self.pcpus[p as usize].current;
        if current != NONE {
            self.host_account(current);
        }
        self.host.boost(v, p, self.now);
        if self.now >= self.pcpus[p as usize].protected_until {
            self.reschedule(p);
        }
    }

    /// Starts a cap period: refills the quotas and resumes throttled VMs.
    pub(crate) fn cap_period(&mut self) {
        let period = self.config.cap_period;
        self.calendar.set(Event::CapPeriod, 0, self.now + period.0);
        for p in 0..self.pcpus.len() {
            let current = self.pcpus[p].current;
            if current != NONE {
                self.host_account(current);
            }
        }
        let active: Vec<usize> = (0..self.vms.len())
            .filter(|&vm| self.vms[vm].alive > 0 && self.vms[vm].started <= self.now)
            .collect();
        // Leave out pCPUs that no VM may use.
        let mut used = PcpuSet::default();
        let mut claims = Vec::with_capacity(active.len());
        for &vm in &active {
            let state = &self.vms[vm];
            let (first, size) = (state.first_vcpu as usize, state.vcpus as usize);
            let mut own = PcpuSet::default();
            for allowed in &self.allowed[first..first + size] {
                own.extend(allowed);
            }
            let peak = u64::from(state.vcpus).min(own.len() as u64) * period.0;
            let weight = self.policies.cpu[vm].weight();
            claims.push(Claim::always_runnable(weight, Nanos(peak), period));
            used.extend(&own);
        }
        let pcpus = used.len() as u64;
        let shares = fair_shares(Nanos(pcpus * period.0), period, &claims);
        if self.host.caps_itself() {
            self.set_scheduler_caps(&active, &shares, period);
            return;
        }
        for (&vm, share) in active.iter().zip(shares) {
            self.vms[vm].quota = share.0;
            self.vms[vm].throttled = false;
        }
        for vm in active {
            let (first, size) = (self.vms[vm].first_vcpu, self.vms[vm].vcpus);
            for v in first..first + size {
                let vcpu = &self.vcpus[v as usize];
                if vcpu.state == VcpuState::Ready && !vcpu.queued {
                    self.enter_host(v, NONE);
                }
            }
            self.watch_cap(vm as u32);
        }
    }

    /// Passes each VM's share, in pCPUs, to a host scheduler that enforces caps itself.
    fn set_scheduler_caps(&mut self, active: &[usize], shares: &[Nanos], period: Nanos) {
        let mut caps = vec![0.0; self.vms.len()];
        for (&vm, share) in active.iter().zip(shares) {
            caps[vm] = share.0 as f64 / period.0 as f64;
        }
        self.host.set_caps(&caps, self.now);
        for p in 0..self.pcpus.len() as u32 {
            match self.pcpus[p as usize].current {
                NONE => self.work.push(Work::Pcpu(p)),
                v if self.host.parked(v) => self.reschedule(p),
                _ => {}
            }
        }
    }

    /// Plans the next check for the earliest time at which the VM may have used up its quota.
    fn watch_cap(&mut self, vm: u32) {
        let state = &self.vms[vm as usize];
        let running = (state.first_vcpu..state.first_vcpu + state.vcpus)
            .filter(|&v| self.is_on_pcpu(v))
            .map(|v| self.now - self.vcpus[v as usize].host_accounted);
        let left = state.quota.saturating_sub(running.sum());
        let most = u64::from(state.vcpus).min(self.pcpus.len() as u64).max(1);
        let at = self.now + (left / most).max(CAP_STEP);
        self.calendar.set(Event::Quota, vm, at);
    }

    /// The VM may have used up its quota: throttles it if so.
    pub(crate) fn cap_used_up(&mut self, vm: u32) {
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        for v in first..first + size {
            if self.is_on_pcpu(v) {
                self.host_account(v);
            }
        }
        if self.vms[vm as usize].quota > 0 {
            self.watch_cap(vm);
            return;
        }
        self.vms[vm as usize].throttled = true;
        for v in first..first + size {
            let p = self.vcpus[v as usize].pcpu;
            match self.vcpus[v as usize].state {
                VcpuState::Running => {
                    self.stop_running(v, p);
                }
                VcpuState::Ready if self.vcpus[v as usize].queued => {
                    self.host.dequeue(v, p, false, self.now);
                    self.vcpus[v as usize].queued = false;
                    self.end_pcpu_wait(v);
                }
                VcpuState::HaltPolling => {
                    self.calendar.cancel(Event::PollEnd, p);
                    self.vcpu_state(v, VcpuState::Halted);
                    self.leave_host(v, p, false);
                    self.work.push(Work::Pcpu(p));
                }
                VcpuState::Ready | VcpuState::Halted => {}
            }
            self.note_for_hvs(v, Happened::Blocked);
        }
    }

    /// Whether the vCPU is on a pCPU, running or halt-polling.
    pub(crate) fn is_on_pcpu(&self, v: u32) -> bool {
        matches!(self.vcpus[v as usize].state, VcpuState::Running | VcpuState::HaltPolling)
    }
}
