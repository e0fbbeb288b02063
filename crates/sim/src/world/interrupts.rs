//! Interrupts: rescheduling IPIs, requests to flush TLBs, timers and devices.
//!
//! An interrupt for a running vCPU arrives after its flight time, and costs an exit and an EOI exit, or little with APIC virtualization.
//! It wakes a halted vCPU.
//! For a preempted vCPU it stays pending until the vCPU is back on a pCPU; the sender does not know.
//!
//! Each write to the interrupt command register costs an exit.
//! The addressing mode ([`Apic`]) limits the vCPUs that one write of a TLB flush reaches: up to 16 in an x2APIC cluster, or one.

use crate::host::Scheduler;
use crate::random::Dist;
use crate::scenario::Apic;
use crate::trace::{ExitReason, IpiKind, ThreadState, TraceEvent, VcpuState};

use super::calendar::Event;
use super::code::OpOutcome;
use super::simulation::World;
use super::state::{EXITS, Idle, KERNEL, Message, NONE, Phase, Work};

/// Maximum number of recorded wakers of a vCPU, for policies.
const MAX_WAKERS: usize = 8;

/// Minimum interval between boosts of woken vCPUs on a pCPU, ns: about CFS's minimum granularity.
const BETWEEN_BOOSTS: u64 = 1_000_000;

impl World {
    /// Sends a rescheduling IPI to `v` from vCPU `by`, which is running and up to date.
    pub(crate) fn send_reschedule(&mut self, by: u32, v: u32) {
        if self.vcpus[v as usize].resched_sent != u64::MAX {
            // An IPI is already in flight or pending.
            return;
        }
        self.vcpus[v as usize].resched_sent = self.now;
        self.vcpus[v as usize].resched_from = by;
        let woken_by = &mut self.vcpus[v as usize].woken_by;
        if woken_by.len() < MAX_WAKERS && !woken_by.contains(&by) {
            woken_by.push(by);
        }
        self.counts(by).reschedule_ipis += 1;
        self.pay_for_sending(by);
        self.track_ipi(by, v);
        self.send(Message {
            from: by,
            to: v,
            kind: IpiKind::Reschedule,
            sent: self.now,
            thread: NONE,
        });
    }

    /// Charges `by` for one write to the interrupt command register.
    pub(crate) fn pay_for_sending(&mut self, by: u32) {
        if self.native {
            self.owe(by, KERNEL, self.costs.native_ipi_send);
        } else {
            self.exit(by, ExitReason::SendIpi, self.costs.ipi_send_exit);
        }
    }

    /// Sends an interrupt, which leaves when the sender has paid for it.
    pub(crate) fn send(&mut self, message: Message) {
        let at = self.now + self.owed(message.from) + self.costs.ipi_flight;
        let number = match self.free_messages.pop() {
            Some(number) => {
                self.messages[number as usize] = message;
                number
            }
            None => {
                self.messages.push(message);
                self.calendar.add_message();
                self.messages.len() as u32 - 1
            }
        };
        self.calendar.set(Event::Message, number, at);
        self.sent_ipi(message.from);
    }

    /// Handles an arriving interrupt.
    pub(crate) fn message(&mut self, number: u32) {
        let message = self.messages[number as usize];
        self.free_messages.push(number);
        let v = message.to;
        let runs = self.vcpus[v as usize].state == VcpuState::Running;
        match message.kind {
            IpiKind::Reschedule if runs => {
                self.sync(v);
                self.interrupted(v);
                self.reschedule_handled(v);
                self.plan(v);
                self.work.push(Work::Guest(v));
            }
            IpiKind::Shootdown if !runs && self.flushes_by_hypercall(v) => {
                self.flush_came_late(v, message.thread, message.sent);
            }
            IpiKind::Shootdown if runs => {
                self.sync(v);
                if self.flushes_by_hypercall(v) {
                    // The host's own interrupt: an exit, and no handler in the guest.
                    self.exit(v, ExitReason::Interrupt, self.costs.interrupt_exit);
                } else {
                    self.interrupted(v);
                }
                self.begin_flush(v, message.thread, message.sent);
                self.plan(v);
            }
            IpiKind::Reschedule => {
                self.vcpus[v as usize].resched_pending = true;
                self.knock(v, message.from);
                if self.config.fast_reactivation {
                    self.reactivate(v);
                }
            }
            IpiKind::Shootdown => {
                let request = (message.thread, message.sent);
                self.vcpus[v as usize].flushes.push(request);
                self.knock(v, message.from);
            }
        }
    }

    /// An interrupt of vCPU `by` is pending for a vCPU that does not run: wakes a halted one.
    fn knock(&mut self, v: u32, by: u32) {
        if self.vcpus[v as usize].state == VcpuState::Ready {
            self.ipi_for_preempted(v);
        } else {
            self.halt_ends(v, by);
            self.wake_vcpu(v, by);
        }
    }

    /// Makes a vCPU that a rescheduling IPI has woken the next one on its pCPU.
    ///
    /// It runs when the current vCPU ends its slice, blocks, or is preempted by the scheduler's own rules.
    /// An immediate preemption would let the woken threads of a barrier preempt the thread that is still waking the others,
    /// under the futex's lock (canneal on 255 vCPUs: a seventh of the work).
    ///
    /// One vCPU per [`BETWEEN_BOOSTS`] goes first regardless of fairness.
    /// The others go first only if the scheduler finds that fair, as with directed yields.
    /// Otherwise preempted lock holders would starve (dedup on 255 vCPUs: no work at all).
    fn reactivate(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let p = vcpu.pcpu;
        let was_woken = vcpu.idle == Idle::Halted && vcpu.state == VcpuState::Ready;
        if !was_woken || !vcpu.queued || self.host.parked(v) {
            return;
        }
        let pcpu = &mut self.pcpus[p as usize];
        if self.now < pcpu.next_boost {
            self.host.prefer(v, p);
            return;
        }
        pcpu.next_boost = self.now + BETWEEN_BOOSTS;
        let current = pcpu.current;
        if current != NONE {
            self.host_account(current);
        }
        self.host.boost(v, p, self.now);
    }

    /// Charges a running vCPU, up to date, for an interrupt.
    fn interrupted(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm;
        let posted = self.vms[vm as usize].guest.apic == Apic::Posted;
        if self.native {
        } else if self.config.apicv || posted {
            self.owe(v, EXITS, self.costs.posted_interrupt);
        } else {
            self.exit(v, ExitReason::Interrupt, self.costs.interrupt_exit);
            self.exit(v, ExitReason::EndOfInterrupt, self.costs.eoi_exit);
        }
        self.owe(v, KERNEL, self.costs.interrupt_handler);
    }

    fn reschedule_handled(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let sent = std::mem::replace(&mut vcpu.resched_sent, u64::MAX);
        let from = vcpu.resched_from;
        vcpu.need_resched = true;
        self.ipi_ended(from, v);
        self.ipi_done(from, v, IpiKind::Reschedule, sent);
    }

    /// Records the latency of a handled IPI.
    pub(crate) fn ipi_done(&mut self, from: u32, to: u32, kind: IpiKind, sent: u64) {
        let vm = self.vcpus[to as usize].vm;
        self.vms[vm as usize].ipi_latency.add(self.now - sent);
        if let Some(trace) = &mut self.trace {
            trace.add(TraceEvent::Ipi { from, to, kind, sent, handled: self.now });
        }
    }

    /// Handles the interrupts that arrived while the vCPU did not run. It runs now and is up to date.
    pub(crate) fn handle_pending(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if std::mem::take(&mut vcpu.flush_on_entry) {
            self.owe(v, KERNEL, self.costs.tlb_flush);
        }
        if std::mem::take(&mut self.vcpus[v as usize].resched_pending) {
            self.interrupted(v);
            self.reschedule_handled(v);
        }
        while let Some((thread, sent)) = self.vcpus[v as usize].flushes.pop() {
            self.interrupted(v);
            self.begin_flush(v, thread, sent);
        }
        self.handle_due(v);
        let vcpu = &self.vcpus[v as usize];
        if vcpu.thread != NONE && vcpu.tick_due <= self.now {
            self.tick_work(v);
        }
    }

    /// Handles the pending interrupts of timers and devices.
    fn handle_due(&mut self, v: u32) {
        if self.vcpus[v as usize].due.is_empty() {
            return;
        }
        self.interrupted(v);
        if self.wake_delay(v) > 0 {
            self.end_delay(v);
        }
        let mut due = std::mem::take(&mut self.vcpus[v as usize].due);
        for &t in &due {
            self.owe(v, KERNEL, self.costs.timer_work);
            self.wake(t, v, NONE);
            // Latency counts from the due time of the interrupt, even if the vCPU was not there to handle it.
            let thread = &mut self.threads[t as usize];
            thread.woken_at = thread.wait_since;
            thread.ready_at = thread.wait_since;
        }
        due.clear();
        self.vcpus[v as usize].due = due;
    }

    /// A thread's sleep or wait for a device is over.
    pub(crate) fn timer(&mut self, t: u32) {
        let v = self.threads[t as usize].vcpu;
        self.vcpus[v as usize].due.push(t);
        // A sleeping thread waits for no lock, so the field holds its due time.
        self.threads[t as usize].wait_since = self.now;
        if self.wake_delay(v) > 0 && self.hold_back(v) {
            return;
        }
        match self.vcpus[v as usize].state {
            VcpuState::Running => {
                self.sync(v);
                self.handle_due(v);
                self.plan(v);
                self.work.push(Work::Guest(v));
            }
            VcpuState::Ready => {}
            VcpuState::Halted | VcpuState::HaltPolling => {
                let p = self.vcpus[v as usize].pcpu;
                self.wake_vcpu(v, NONE);
                self.timer_interrupts(v, p);
            }
        }
    }

    /// Charges the host's time for the timer interrupt on `p` that wakes `v`.
    /// It delays `v` if that runs at once, and otherwise the vCPU that runs on `p`.
    fn timer_interrupts(&mut self, v: u32, p: u32) {
        // The interrupt is an exit of the vCPU on `p`.
        self.resched_if_lazy(p);
        let target = self.vcpus[v as usize].pcpu;
        // The pCPU has not rescheduled yet.
        let is_idle = self.pcpus[target as usize].current == NONE;
        let random = &mut self.steal_random;
        let steal = self.timer_steals.draw(is_idle, &self.costs, random);
        if steal == 0 {
            return;
        }
        let is_running = |world: &World, p: u32| {
            let current = world.pcpus[p as usize].current;
            let runs = current != NONE && world.vcpus[current as usize].state == VcpuState::Running;
            runs.then_some(current)
        };
        if is_running(self, target).is_none() || self.pcpus[target as usize].resched {
            self.vcpus[v as usize].owed[KERNEL] += steal;
        } else if let Some(current) = is_running(self, p) {
            self.sync(current);
            self.owe(current, KERNEL, steal);
            self.plan(current);
        }
    }

    /// Puts a thread to sleep by a timer, or makes it wait for a device.
    pub(crate) fn sleep(&mut self, t: u32, v: u32, time: Dist, timer: bool) -> OpOutcome {
        if self.threads[t as usize].phase != Phase::Start {
            return OpOutcome::Next;
        }
        self.owe(v, KERNEL, self.costs.syscall + self.costs.timer_work);
        let mut slack = 0;
        if timer {
            self.exit(v, ExitReason::Timer, self.costs.timer_exit);
            slack = self.costs.timer_slack;
        }
        let thread = &mut self.threads[t as usize];
        thread.phase = Phase::Woken;
        let time = time.draw(&mut thread.random);
        let at = self.now + self.owed(v) + time + slack;
        self.sleep_until(t, v, at)
    }

    /// Puts a thread to sleep until its next period begins.
    /// A late thread continues at once and skips the periods that it missed entirely, like a timer's overruns.
    pub(crate) fn every(&mut self, t: u32, v: u32, period: u64) -> OpOutcome {
        let thread = &mut self.threads[t as usize];
        if thread.phase != Phase::Start {
            return OpOutcome::Next;
        }
        let due = match thread.period_began {
            0 => self.now + period,
            began => began + period,
        };
        if due <= self.now {
            thread.period_began = self.now - (self.now - due) % period;
            thread.ready_at = thread.period_began;
            self.owe(v, KERNEL, self.costs.syscall);
            return OpOutcome::Next;
        }
        thread.period_began = due;
        thread.phase = Phase::Woken;
        self.owe(v, KERNEL, self.costs.syscall + self.costs.timer_work);
        self.exit(v, ExitReason::Timer, self.costs.timer_exit);
        let at = due.max(self.now + self.owed(v)) + self.costs.timer_slack;
        self.sleep_until(t, v, at)
    }

    fn sleep_until(&mut self, t: u32, v: u32, at: u64) -> OpOutcome {
        self.calendar.set(Event::Timer, t, at);
        self.block(t, v, ThreadState::Sleeping);
        OpOutcome::Left
    }
}
