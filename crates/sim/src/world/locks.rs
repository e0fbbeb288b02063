//! Spin locks: test-and-set, ticket, queued, paravirtual; in the guest's kernel or in user space.
//!
//! Ticket and queued locks pass to the longest waiter whether or not its vCPU runs: if it does not,
//! nobody runs under the lock (lock-waiter preemption). A test-and-set lock goes to any waiter that
//! runs, equally likely; if none does it is free for whoever comes first. A paravirtual lock's
//! waiters halt after spinning for a while; the first of the queue is kicked at the release, and a
//! newcomer may take a free lock before it (kernel/locking/qspinlock_paravirt.h).
//!
//! What a hand-over costs: the cache line's way to the waiter, and for a ticket lock more for every
//! other waiter that spins on the same line.

use crate::results::Counts;
use crate::trace::{ExitReason, ThreadState, VcpuState};
use crate::workload::SpinKind;

use super::code::OpOutcome;
use super::simulation::World;
use super::state::{Doing, EXITS, Idle, KERNEL, NONE, ObjectKind, Phase, Waiters, Work};

/// What a waiter does: only in the kernel does the hardware see it.
fn spinning(lock: u32, kernel: bool) -> Doing {
    if kernel { Doing::Spin(lock) } else { Doing::SpinUser(lock) }
}

impl World {
    #[inline]
    pub(crate) fn counts(&mut self, v: u32) -> &mut Counts {
        &mut self.vms[self.vcpus[v as usize].vm as usize].counts
    }

    fn spin_kind(&self, lock: u32) -> (SpinKind, bool) {
        let object = self.objects[lock as usize].kind;
        let kind = match object {
            ObjectKind::Spin { kind, .. } => kind,
            // Only spin locks are spun for; a barrier's waiters have a state of their own.
            _ => SpinKind::Queued,
        };
        (kind, object.is_of_kernel())
    }

    /// Takes a free lock, or begins to spin for it.
    pub(crate) fn spin_lock(&mut self, t: u32, v: u32, lock: u32) -> OpOutcome {
        let (kind, kernel) = self.spin_kind(lock);
        self.counts(v).locks += 1;
        self.owe(v, KERNEL, self.costs.lock_free);
        let thread = &mut self.threads[t as usize];
        thread.object = lock;
        thread.phase = Phase::Done;
        thread.no_preempt += u32::from(kernel);
        let object = &mut self.objects[lock as usize];
        let may_steal = matches!(kind, SpinKind::TestAndSet | SpinKind::Paravirtual);
        if object.owner == NONE && (may_steal || object.waiters.count == 0) {
            object.owner = t;
            self.holder_changed(lock);
            return OpOutcome::Again;
        }
        thread.doing = spinning(lock, kernel);
        thread.remaining = u64::MAX;
        thread.wait_since = self.now;
        self.append(lock, t, false);
        self.wait_begins(t, lock);
        self.counts(v).contended += 1;
        let first = self.vms[self.threads[t as usize].vm as usize].first_object;
        self.thread_state(t, ThreadState::Spinning(Some(lock - first)));
        OpOutcome::Busy
    }

    /// Lets go of a lock, which may pass to a waiter.
    pub(crate) fn spin_unlock(&mut self, t: u32, v: u32, lock: u32) {
        let (kind, kernel) = self.spin_kind(lock);
        debug_assert_eq!(self.objects[lock as usize].owner, t, "not the holder");
        self.objects[lock as usize].owner = NONE;
        let thread = &mut self.threads[t as usize];
        thread.no_preempt -= u32::from(kernel);
        self.owe(v, KERNEL, self.costs.lock_free);
        let waiters = self.objects[lock as usize].waiters;
        if waiters.count == 0 {
            return;
        }
        match kind {
            SpinKind::Ticket | SpinKind::Queued => self.grant(lock, waiters.head),
            SpinKind::TestAndSet => {
                if let Some(lucky) = self.any_running(lock) {
                    self.grant(lock, lucky);
                }
            }
            SpinKind::Paravirtual => {
                let head = waiters.head;
                let on = self.threads[head as usize].vcpu;
                if self.is_spinning(head) {
                    self.grant(lock, head);
                } else if self.vcpus[on as usize].pv_halted {
                    self.exit(v, ExitReason::Hypercall, self.costs.kick_hypercall);
                    self.wake_vcpu(on);
                }
            }
        }
        if self.objects[lock as usize].owner == NONE {
            self.holder_changed(lock);
        }
    }

    /// Whether a waiter really spins now: current on a vCPU that is on a pCPU, in guest mode.
    pub(super) fn is_spinning(&self, t: u32) -> bool {
        let vcpu = &self.vcpus[self.threads[t as usize].vcpu as usize];
        vcpu.thread == t && vcpu.state == VcpuState::Running && vcpu.search == NONE
    }

    /// One of the waiters that spin now, equally likely.
    fn any_running(&mut self, lock: u32) -> Option<u32> {
        let object = &self.objects[lock as usize];
        let vm = object.vm;
        let mut at = object.waiters.head;
        let (mut lucky, mut seen) = (None, 0);
        while at != NONE {
            if self.is_spinning(at) {
                seen += 1;
                // Each of n is kept with probability 1 ÷ n: all are equally likely in the end.
                if self.vms[vm as usize].random.below(seen) == 0 {
                    lucky = Some(at);
                }
            }
            at = self.threads[at as usize].next;
        }
        lucky
    }

    /// The lock passes to a waiter, which goes on as soon as it can.
    fn grant(&mut self, lock: u32, to: u32) {
        let (kind, _) = self.spin_kind(lock);
        let on = self.threads[to as usize].vcpu;
        // What it spun so far is counted before it stops spinning.
        if self.vcpus[on as usize].thread == to {
            self.sync(on);
        }
        self.remove(lock, to, false);
        let object = &mut self.objects[lock as usize];
        object.owner = to;
        let others = u64::from(object.waiters.count);
        let mut cost = self.costs.lock_handoff;
        if kind == SpinKind::Ticket {
            cost += others * self.costs.ticket_per_waiter;
        }
        let thread = &mut self.threads[to as usize];
        thread.doing = Doing::Go;
        let (waited, vm) = (self.now - thread.wait_since, thread.vm);
        self.vms[vm as usize].lock_wait.add(waited);
        self.wait_is_over(to);
        self.holder_changed(lock);
        if self.vcpus[on as usize].thread == to {
            self.owe(on, KERNEL, cost);
        }
        self.work.push(Work::Go(to));
    }

    /// A waiter is back on a pCPU: it may find the lock free. True if it has it now.
    pub(crate) fn retry_spin(&mut self, t: u32, v: u32, lock: u32) -> bool {
        let (kind, _) = self.spin_kind(lock);
        let object = &self.objects[lock as usize];
        let is_first = object.waiters.head == t;
        let may = match kind {
            SpinKind::TestAndSet => true,
            SpinKind::Ticket | SpinKind::Queued | SpinKind::Paravirtual => is_first,
        };
        if object.owner != NONE || !may {
            return false;
        }
        self.grant(lock, t);
        // `grant` has put the thread on the list of work; the caller does that, too.
        self.work.pop();
        debug_assert_eq!(self.threads[t as usize].vcpu, v);
        true
    }

    /// Whether an object is a spin lock (and not a barrier that is spun at).
    pub(crate) fn is_spin_lock(&self, object: u32) -> bool {
        matches!(self.objects[object as usize].kind, ObjectKind::Spin { .. })
    }

    /// When a spinning vCPU exits by itself, if it does.
    pub(crate) fn spin_ends(&mut self, v: u32, lock: u32, free: u64) -> Option<u64> {
        let (kind, kernel) = self.spin_kind(lock);
        let exit = if kernel { self.loop_exits(v).map(|after| free + after) } else { None };
        if kind != SpinKind::Paravirtual || self.native {
            return exit;
        }
        let halt = free + self.costs.cycles(self.costs.pv_spin_cycles);
        Some(exit.map_or(halt, |exit| exit.min(halt)))
    }

    /// A spinning vCPU's slot came: a pause-loop exit, or a paravirtual waiter that halts.
    pub(crate) fn spun(&mut self, v: u32, t: u32, lock: u32) {
        let (kind, kernel) = self.spin_kind(lock);
        let long = self.costs.cycles(self.costs.pv_spin_cycles);
        let waited = self.now - self.threads[t as usize].wait_since;
        if kind == SpinKind::Paravirtual && waited >= long && !self.native {
            self.vcpus[v as usize].pv_halted = true;
            self.vcpus[v as usize].idle = Idle::Halted;
            self.exit(v, ExitReason::Halt, self.costs.halt_exit);
            self.counts(v).halts += 1;
            self.block_vcpu(v);
        } else if kernel {
            self.pause_loop_exit(v);
        } else {
            self.plan(v);
        }
    }

    /// An exit of a vCPU and what it costs. Nothing in native mode.
    pub(crate) fn exit(&mut self, v: u32, reason: ExitReason, cost: u64) {
        if self.native {
            return;
        }
        self.owe(v, EXITS, cost);
        self.trace_exit(v, reason);
    }

    /// Puts a thread at the end of an object's list of waiters.
    pub(crate) fn append(&mut self, object: u32, t: u32, putters: bool) {
        let list = self.list(object, putters);
        let tail = list.tail;
        list.tail = t;
        list.count += 1;
        if tail == NONE {
            list.head = t;
        } else {
            self.threads[tail as usize].next = t;
        }
        let thread = &mut self.threads[t as usize];
        (thread.previous, thread.next) = (tail, NONE);
    }

    /// Puts a thread at the begin of an object's list of waiters.
    pub(crate) fn prepend(&mut self, object: u32, t: u32) {
        let list = self.list(object, false);
        let head = list.head;
        list.head = t;
        list.count += 1;
        if head == NONE {
            list.tail = t;
        } else {
            self.threads[head as usize].previous = t;
        }
        let thread = &mut self.threads[t as usize];
        (thread.previous, thread.next) = (NONE, head);
    }

    /// Takes a thread out of an object's list of waiters.
    pub(crate) fn remove(&mut self, object: u32, t: u32, putters: bool) {
        let (previous, next) = {
            let thread = &mut self.threads[t as usize];
            let neighbours = (thread.previous, thread.next);
            (thread.previous, thread.next) = (NONE, NONE);
            neighbours
        };
        match previous {
            NONE => self.list(object, putters).head = next,
            _ => self.threads[previous as usize].next = next,
        }
        match next {
            NONE => self.list(object, putters).tail = previous,
            _ => self.threads[next as usize].previous = previous,
        }
        self.list(object, putters).count -= 1;
    }

    /// Takes the longest waiter out.
    pub(crate) fn pop_waiter(&mut self, object: u32, putters: bool) -> Option<u32> {
        let head = self.list(object, putters).head;
        if head == NONE {
            return None;
        }
        self.remove(object, head, putters);
        Some(head)
    }

    fn list(&mut self, object: u32, putters: bool) -> &mut Waiters {
        let object = &mut self.objects[object as usize];
        if putters { &mut object.putters } else { &mut object.waiters }
    }
}
