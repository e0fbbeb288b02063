//! A vCPU without a thread: HLT, polling, or polling for a while and then HLT.
//!
//! HLT costs an exit.
//! The host may then poll on the pCPU for a while before it gives the pCPU up (virt/kvm/kvm_main.c, kvm_vcpu_halt).
//! The polling time starts at 10 µs, doubles while halts are short, and returns to zero after long ones.
//! Polling stops when another vCPU wants the pCPU.
//! The haltpoll governor does the same inside the guest (drivers/cpuidle/governors/haltpoll.c): from 50 µs, doubling up to its limit, zero after long halts.
//!
//! Native mode has no HLT exit: an idle CPU stays in place, and an interrupt wakes it.

use tandem_model::PcpuId;

use crate::scenario::IdleLoop;
use crate::trace::{ExitReason, VcpuState};

use super::calendar::Event;
use super::simulation::World;
use super::smt::Activity;
use super::state::{EXITS, Idle, KERNEL, NONE, PcpuState, Work};

/// First step of the host's halt polling, ns (halt_poll_ns_grow_start).
const HALT_POLL_START: u64 = 10_000;

/// First step of the guest's, ns (guest_halt_poll_grow_start).
const GUEST_POLL_START: u64 = 50_000;

impl World {
    /// Starts the guest's idle loop.
    pub(crate) fn begin_idle(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm;
        let idle = self.vms[vm as usize].guest.idle;
        self.note_idle(v, true);
        self.calendar.cancel(Event::GuestTick, v);
        let vm = &self.vms[vm as usize];
        let retention = if v - vm.first_vcpu < vm.active { vm.retention } else { 0 };
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.halted_at = self.now;
        // After a spurious wake-up, the idle time continues.
        vcpu.idle_since = vcpu.idle_since.min(self.now);
        vcpu.idle_periods += 1;
        vcpu.retained = retention > 0 && idle == IdleLoop::Halt;
        if vcpu.retained {
            vcpu.idle = Idle::Polling;
            vcpu.poll_until = self.now + retention;
            self.owe(v, KERNEL, self.costs.thread_switch + self.costs.nested_switch);
            self.plan(v);
            return;
        }
        match idle {
            IdleLoop::Poll => {
                vcpu.idle = Idle::Polling;
                vcpu.poll_until = u64::MAX;
                self.plan(v);
            }
            IdleLoop::HaltPoll(_) if vcpu.guest_poll > 0 => {
                vcpu.idle = Idle::Polling;
                vcpu.poll_until = self.now + vcpu.guest_poll;
                self.plan(v);
            }
            IdleLoop::Halt | IdleLoop::HaltPoll(_) => self.begin_halt(v),
        }
    }

    /// Whether Gleaner's yielding thread retains the idle vCPU.
    pub(crate) fn is_retained(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        vcpu.retained && vcpu.idle == Idle::Polling
    }

    /// Executes HLT: an exit, or the idle state in native mode.
    pub(crate) fn begin_halt(&mut self, v: u32) {
        self.vcpus[v as usize].idle = Idle::Halting;
        self.counts(v).halts += 1;
        self.vcpus[v as usize].halting_total += self.costs.halt_exit;
        self.exit(v, ExitReason::Halt, self.costs.halt_exit);
        if self.owed(v) == 0 {
            self.halt(v);
        } else {
            self.plan(v);
        }
    }

    /// The exit of HLT is done: the vCPU leaves its pCPU unless work has arrived.
    pub(crate) fn halt(&mut self, v: u32) {
        let is_runnable = self.runnable_threads(v) > 0;
        let vcpu = &mut self.vcpus[v as usize];
        if is_runnable || vcpu.need_resched || vcpu.resched_pending || !vcpu.due.is_empty() {
            // It stays idle until a thread arrives, which ends the idle time and starts the tick.
            self.owe(v, EXITS, self.costs.vm_exit);
            self.handle_pending(v);
            self.schedule(v);
            return;
        }
        vcpu.idle = Idle::Halted;
        self.block_vcpu(v);
    }

    /// Halts a running vCPU, or polls for it on its pCPU first.
    pub(crate) fn block_vcpu(&mut self, v: u32) {
        self.sync(v);
        let p = self.vcpus[v as usize].pcpu;
        self.calendar.cancel(Event::Execution, v);
        self.vcpus[v as usize].halted_at = self.now;
        if self.native {
            self.vcpu_state(v, VcpuState::Halted);
            self.pcpu_state(p, PcpuState::Idle);
            return;
        }
        let poll = self.vcpus[v as usize].halt_poll;
        if poll > 0 && self.host_queued(p) == 1 {
            self.vcpu_state(v, VcpuState::HaltPolling);
            self.pcpu_state(p, PcpuState::Polling);
            self.calendar.set(Event::PollEnd, p, self.now + poll);
            return;
        }
        self.vcpu_state(v, VcpuState::Halted);
        self.off_pcpu(v, p);
    }

    /// The host's halt polling timed out.
    pub(crate) fn halt_poll_over(&mut self, p: u32) {
        let v = self.pcpus[p as usize].current;
        self.vcpu_state(v, VcpuState::Halted);
        self.off_pcpu(v, p);
    }

    /// Takes a halted vCPU off its pCPU.
    fn off_pcpu(&mut self, v: u32, p: u32) {
        self.leave_host(v, p, true);
        self.work.push(Work::Pcpu(p));
    }

    /// Wakes a halted vCPU; does nothing in other states. vCPU `by`, if any, is the waker.
    pub(crate) fn wake_vcpu(&mut self, v: u32, by: u32) {
        let state = self.vcpus[v as usize].state;
        if !matches!(state, VcpuState::Halted | VcpuState::HaltPolling) {
            return;
        }
        let p = self.vcpus[v as usize].pcpu;
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.pv_halted {
            vcpu.pv_halted = false;
            vcpu.idle = Idle::Busy;
        }
        if self.native {
            self.owe(v, KERNEL, self.costs.native_idle_wake);
            self.back_on_pcpu(v, p);
            return;
        }
        self.adapt_halt_poll(v);
        if state == VcpuState::HaltPolling {
            self.counts(v).halt_polls_hit += 1;
            self.calendar.cancel(Event::PollEnd, p);
            self.owe(v, EXITS, self.costs.halt_poll_wake);
            self.vcpus[v as usize].halting_total += self.costs.halt_poll_wake;
            self.back_on_pcpu(v, p);
            return;
        }
        let mut cost = self.costs.halt_wake;
        if self.pcpus[p as usize].current == NONE {
            cost += self.costs.idle_pcpu_wake;
        }
        self.owe(v, EXITS, cost);
        self.vcpus[v as usize].halting_total += cost;
        self.vcpu_state(v, VcpuState::Ready);
        self.enter_host(v, by);
    }

    /// Resumes a vCPU that never left its pCPU.
    fn back_on_pcpu(&mut self, v: u32, p: u32) {
        self.vcpu_state(v, VcpuState::Running);
        self.pcpu_state(p, PcpuState::Busy);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.synced = self.now;
        vcpu.guest_accounted = self.now;
        self.resume(v);
    }

    /// Adapts the polling time (grow_halt_poll_ns and shrink_halt_poll_ns).
    fn adapt_halt_poll(&mut self, v: u32) {
        let most = self.config.halt_poll.0;
        let vcpu = &mut self.vcpus[v as usize];
        let halted = self.now - vcpu.halted_at;
        if most == 0 || halted <= vcpu.halt_poll {
            return;
        }
        if halted > most {
            vcpu.halt_poll = 0;
        } else {
            vcpu.halt_poll = (vcpu.halt_poll * 2).max(HALT_POLL_START).min(most);
        }
    }

    /// Ends the idle loop, as a thread has arrived.
    pub(crate) fn end_idle(&mut self, v: u32) {
        self.note_idle(v, false);
        if self.is_retained(v) {
            self.owe(v, KERNEL, self.costs.thread_switch + self.costs.nested_switch);
        }
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.idle = Idle::Busy;
        vcpu.retained = false;
        let since = std::mem::replace(&mut vcpu.idle_since, u64::MAX);
        vcpu.idle_total += self.now - since.min(self.now);
        let vm = &self.vms[vcpu.vm as usize];
        if let IdleLoop::HaltPoll(most) = vm.guest.idle {
            let idle = self.now - vcpu.halted_at;
            if idle > most.0 {
                vcpu.guest_poll = 0;
            } else if idle > vcpu.guest_poll {
                vcpu.guest_poll = (vcpu.guest_poll * 2).max(GUEST_POLL_START).min(most.0);
            }
        }
        let tick = vm.guest.tick.0;
        vcpu.tick_due = self.now + tick;
        self.calendar.set(Event::GuestTick, v, self.now + tick);
    }

    /// Changes a pCPU's state, and accounts the time in the old one.
    pub(crate) fn pcpu_state(&mut self, p: u32, state: PcpuState) {
        let pcpu = &mut self.pcpus[p as usize];
        let time = self.now - pcpu.since;
        match pcpu.state {
            PcpuState::Idle => {
                pcpu.results.idle.0 += time;
                pcpu.idle_total += time;
            }
            PcpuState::Busy => pcpu.results.busy.0 += time,
            PcpuState::Polling => pcpu.results.polling.0 += time,
        }
        (pcpu.state, pcpu.since) = (state, self.now);
        match state {
            PcpuState::Idle => self.idle_pcpus.insert(PcpuId(p)),
            PcpuState::Busy | PcpuState::Polling => self.idle_pcpus.remove(PcpuId(p)),
        }
        match state {
            PcpuState::Idle => self.set_activity(p, Activity::Idle),
            PcpuState::Polling => self.set_activity(p, Activity::Pausing),
            // The vCPU's plan sets it.
            PcpuState::Busy => {}
        }
    }
}
