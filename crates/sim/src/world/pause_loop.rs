//! KVM's handling of pause-loop exits: the window, and the target of the directed yield.
//!
//! Source: arch/x86/kvm/vmx/vmx.c (grow_ple_window, shrink_ple_window) and virt/kvm/kvm_main.c
//! (kvm_vcpu_on_spin, kvm_vcpu_eligible_for_directed_yield).
//! The search begins with the exit and acts when the exit's cost is paid.
//! Exits in between begin at the same position of the circle, because `last_boosted_vcpu` is not locked.
//! The set of ready vCPUs is read at the end.
//!
//! Under APLE, a vCPU whose search found no candidate spins twice as long before its next exit, until it is switched in again (decision 008).
//!
//! APLE and HVS are the C code that runs in the kernel (`tandem_kpolicy`); this module only reports events to it.
//! A vCPU preempted while it spins, after its own pause-loop exit, is a lock-waiter.
//! A vCPU that lost its pCPU to the target of another vCPU's yield is displaced.
//! A vCPU preempted for any other reason is a resource-waiter.

use tandem_kpolicy::Cause;
use tandem_model::Nanos;

use crate::bits::next_bit;
use crate::host::{Candidate, PauseLoop, Scheduler};
use crate::machine::pause_loop::Detector;
use crate::trace::{ExitReason, TraceEvent, VcpuState};

use super::simulation::World;
use super::state::NONE;

/// Number of failed yields that end the search.
const TRIES: u32 = 3;

/// Maximum number of recorded changes of a VM's window.
pub(crate) const MAX_WINDOWS: usize = 4096;

/// A vCPU's event that HVS tracks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happened {
    Preempted(Cause),
    Running,
    Blocked,
}

impl World {
    /// Time in ns until a loop of PAUSEs that a vCPU begins now exits, if it does.
    pub(crate) fn loop_exits(&mut self, v: u32) -> Option<u64> {
        if self.native {
            return None;
        }
        let vcpu = &self.vcpus[v as usize];
        let window = match self.config.pause_loop {
            PauseLoop::Off => return None,
            PauseLoop::Fixed(window) => window,
            PauseLoop::PerVm(_) => self.vms[vcpu.vm as usize].ple_window,
            PauseLoop::Aple(_) => self.aple_window(v),
            PauseLoop::Stock { .. } => vcpu.ple_window,
        };
        if self.window_cache.0 == window {
            return self.window_cache.1;
        }
        let costs = &self.costs;
        let detector = if self.config.pause_filter {
            Detector::Count { threshold: costs.ple_gap, count: costs.pause_filter_count }
        } else {
            Detector::Cycles { gap: costs.ple_gap, window: u64::from(window) }
        };
        let exits =
            detector.exits_after(costs.pause_cycles).map(|cycles| costs.cycles(cycles).max(1));
        self.window_cache = (window, exits);
        exits
    }

    /// APLE's window of the VM, doubled for each failed search of this vCPU since it was switched in.
    /// While no sibling waits for a pCPU, exits are useless.
    fn aple_window(&self, v: u32) -> u32 {
        let vcpu = &self.vcpus[v as usize];
        let doubled = 1_u32.checked_shl(vcpu.failed_searches).unwrap_or(u32::MAX);
        self.vms[vcpu.vm as usize].ple_window.saturating_mul(doubled)
    }

    /// Returns a random cost around `cost`.
    /// With constant costs, vCPUs that spin and exit stay in lockstep for ever: each yields just before its wait would end.
    pub(crate) fn jitter(&mut self, v: u32, cost: u64) -> u64 {
        let most = cost * self.costs.jitter_percent / 100;
        let vm = self.vcpus[v as usize].vm as usize;
        match u32::try_from(2 * most + 1) {
            Ok(bound) => cost - most + u64::from(self.vms[vm].random.below(bound)),
            Err(_) => cost,
        }
    }

    /// A running vCPU, up to date, exits from a pause loop and begins the search for a candidate.
    pub(crate) fn pause_loop_exit(&mut self, v: u32) {
        let window = match self.config.pause_loop {
            PauseLoop::Stock { .. } => self.vcpus[v as usize].ple_window,
            PauseLoop::Aple(_) => self.aple_window(v),
            _ => self.vms[self.vcpus[v as usize].vm as usize].ple_window,
        };
        let counts = self.counts(v);
        counts.ple_exits += 1;
        counts.ple_window_cycles += u64::from(window);
        let cost = self.jitter(v, self.costs.ple_exit);
        self.exit(v, ExitReason::PauseLoop, cost);
        let start = self.vms[self.vcpus[v as usize].vm as usize].last_boosted;
        let vcpu = &mut self.vcpus[v as usize];
        if let PauseLoop::Stock { grow, most, .. } = self.config.pause_loop
            && grow >= 1
        {
            vcpu.ple_window = vcpu.ple_window.saturating_mul(grow).min(most);
        }
        vcpu.in_spin_loop = true;
        vcpu.search = start;
        self.plan(v);
    }

    /// The exit is paid for: the vCPU yields to a candidate, or spins on.
    pub(crate) fn search_over(&mut self, v: u32) {
        let start = self.vcpus[v as usize].search;
        self.vcpus[v as usize].search = NONE;
        let p = self.vcpus[v as usize].pcpu;
        let mut tries = TRIES;
        let yielded = match self.config.candidate {
            Candidate::None => {
                self.reschedule(p);
                true
            }
            Candidate::Stock => self.circle(v, p, start, &mut tries, |_, _| true),
            Candidate::InKernel => self.circle(v, p, start, &mut tries, World::is_kvm_candidate),
            Candidate::IpiAware => {
                self.circle(v, p, start, &mut tries, |world, c| world.is_good_candidate(v, c))
                    || self.circle(v, p, start, &mut tries, World::was_preempted)
            }
            Candidate::Ranked(_) => self.ranked_candidate(v, p),
        };
        self.handled(v, yielded);
        if !yielded {
            self.counts(v).useless_searches += 1;
            let vcpu = &mut self.vcpus[v as usize];
            (vcpu.in_spin_loop, vcpu.dy_eligible) = (false, false);
            vcpu.failed_searches = vcpu.failed_searches.saturating_add(1);
        }
        let t = self.vcpus[v as usize].thread;
        if t != NONE {
            self.continue_thread(v, t);
            self.plan(v);
        } else {
            self.plan(v);
        }
        if self.vcpus[v as usize].need_resched {
            self.work.push(super::state::Work::Guest(v));
        }
    }

    /// KVM's circle, from the vCPU after the last one boosted, with the remaining number of failed yields.
    fn circle(
        &mut self,
        v: u32,
        p: u32,
        start: u32,
        tries: &mut u32,
        accepts: impl Fn(&World, u32) -> bool,
    ) -> bool {
        let vm = self.vcpus[v as usize].vm;
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        let mut last = 0;
        while let Some(index) = {
            let ready = &self.vms[vm as usize].ready;
            let next = next_bit(ready, (start + last + 1) % size, size);
            // Distance around the circle: past its start, all vCPUs have been seen.
            let step = |index: u32| (index + size - start % size + size - 1) % size + 1;
            next.filter(|&index| last < size && step(index) > last)
                .inspect(|&index| last = step(index))
        } {
            let c = first + index;
            let candidate = &self.vcpus[c as usize];
            if c == v || candidate.state != VcpuState::Ready || !candidate.queued {
                continue;
            }
            if !accepts(self, c) {
                continue;
            }
            let candidate = &mut self.vcpus[c as usize];
            let is_eligible = !candidate.in_spin_loop || candidate.dy_eligible;
            if candidate.in_spin_loop {
                candidate.dy_eligible = !candidate.dy_eligible;
            }
            if !is_eligible {
                continue;
            }
            if self.yield_to(v, p, c) {
                self.vms[vm as usize].last_boosted = index;
                return true;
            }
            *tries -= 1;
            if *tries == 0 {
                break;
            }
        }
        false
    }

    /// Yields to the candidate of HVS.
    fn ranked_candidate(&mut self, v: u32, p: u32) -> bool {
        let vm = &mut self.vms[self.vcpus[v as usize].vm as usize];
        let Some(hvs) = &mut vm.hvs else {
            return false;
        };
        match hvs.candidate((v - vm.first_vcpu) as usize) {
            Some(index) => {
                let candidate = vm.first_vcpu + index as u32;
                self.yield_to(v, p, candidate)
            }
            None => false,
        }
    }

    /// Reports a vCPU's event to HVS, if the host uses it.
    #[inline]
    pub(crate) fn note_for_hvs(&mut self, v: u32, what: Happened) {
        let now = self.now;
        let vm = &mut self.vms[self.vcpus[v as usize].vm as usize];
        let index = (v - vm.first_vcpu) as usize;
        if let Some(hvs) = &mut vm.hvs {
            match what {
                Happened::Preempted(cause) => hvs.preempted(index, cause, now),
                Happened::Running => hvs.running(index),
                Happened::Blocked => hvs.blocked(index),
            }
        }
    }

    /// Counts the cost of a handled exit; APLE may change the window.
    fn handled(&mut self, v: u32, yielded: bool) {
        let switch = if yielded { self.costs.vcpu_switch } else { 0 };
        let handling = self.costs.ple_exit + switch;
        self.counts(v).ple_handling_ns += handling;
        let vm = self.vcpus[v as usize].vm as usize;
        let cycles = self.costs.in_cycles(handling);
        let Some(aple) = &mut self.vms[vm].aple else {
            return;
        };
        if !aple.exit(cycles) {
            return;
        }
        let (first, size) = (self.vms[vm].first_vcpu, self.vms[vm].vcpus);
        let mut consumed = 0;
        for sibling in first..first + size {
            self.sync(sibling);
            consumed += self.vcpus[sibling as usize].ran_total;
        }
        let consumed = self.costs.in_cycles(consumed);
        let vm = &mut self.vms[vm];
        if let Some(aple) = &mut vm.aple {
            vm.ple_window = aple.epoch(consumed);
            let base = aple.base();
            if vm.windows.last().is_none_or(|&(_, last)| last != base)
                && vm.windows.len() < MAX_WINDOWS
            {
                vm.windows.push((Nanos(self.now), base));
            }
        }
    }

    /// Asks the host's scheduler to run `c` instead; returns whether it agrees.
    fn yield_to(&mut self, v: u32, p: u32, c: u32) -> bool {
        let q = self.vcpus[c as usize].pcpu;
        for pcpu in [p, q] {
            let current = self.pcpus[pcpu as usize].current;
            if current != NONE {
                self.host_account(current);
            }
        }
        let taken = self.host.yield_to(v, p, c, q, self.now);
        self.yielded(v, c, taken);
        if !taken {
            return false;
        }
        if let Some(margin) = self.config.lag_credit
            && q == p
        {
            self.host.credit_lag(c, p, margin, self.now);
        }
        self.counts(v).yields += 1;
        if let Some(trace) = &mut self.trace {
            trace.add(TraceEvent::Yield { from: v, to: c, at: self.now });
        }
        if q != p {
            self.pcpus[q as usize].yielded_over = self.pcpus[q as usize].current;
            self.send_host_resched(q);
        }
        self.reschedule(p);
        true
    }
}
