//! Spin locks: test-and-set, ticket, queued, paravirtual; in the guest's kernel or in user space.
//!
//! Ticket and queued locks pass to the longest waiter even if its vCPU is off its pCPU.
//! No thread then makes progress under the lock (lock-waiter preemption).
//! A test-and-set lock passes to any running waiter, with equal probability; without one, it is free for the next thread that tries.
//! A paravirtual lock's waiters halt after spinning for a while.
//! The release kicks the first of the queue, and a newcomer may take a free lock before it (kernel/locking/qspinlock_paravirt.h).
//!
//! A hand-over costs the transfer of the cache line to the waiter.
//! A ticket lock adds a cost for every other waiter that spins on the same line.

use crate::results::Counts;
use crate::trace::{ExitReason, ThreadState, VcpuState};
use crate::workload::SpinKind;

use super::code::OpOutcome;
use super::simulation::World;
use super::state::{Doing, EXITS, Idle, KERNEL, NONE, ObjectKind, Phase, Waiters, Work};

/// The state of a waiter: the hardware detects only spinning in the kernel.
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
            // Address spaces are also spun for; their spinners behave like those of a queued lock.
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

    /// Releases a lock, which may pass to a waiter.
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
                    self.wake_vcpu(on, v);
                }
            }
        }
        if self.objects[lock as usize].owner == NONE {
            self.holder_changed(lock);
        }
    }

    /// Whether a waiter spins now: current on a vCPU that is on a pCPU, in guest mode.
    pub(super) fn is_spinning(&self, t: u32) -> bool {
        let vcpu = &self.vcpus[self.threads[t as usize].vcpu as usize];
        vcpu.thread == t && vcpu.state == VcpuState::Running && vcpu.search == NONE
    }

    /// Picks one of the waiters that spin now, with equal probability.
    fn any_running(&mut self, lock: u32) -> Option<u32> {
        let object = &self.objects[lock as usize];
        let vm = object.vm;
        let mut at = object.waiters.head;
        let (mut lucky, mut seen) = (None, 0);
        while at != NONE {
            if self.is_spinning(at) {
                seen += 1;
                // Reservoir sampling: the n-th replaces the choice with probability 1 ÷ n.
                if self.vms[vm as usize].random.below(seen) == 0 {
                    lucky = Some(at);
                }
            }
            at = self.threads[at as usize].next;
        }
        lucky
    }

    /// Passes the lock to a waiter, which continues as soon as it runs.
    fn grant(&mut self, lock: u32, to: u32) {
        let (kind, _) = self.spin_kind(lock);
        let on = self.threads[to as usize].vcpu;
        // Account its spinning before it stops.
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

    /// A waiter is back on a pCPU and takes the lock if that is free; returns whether it did.
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
        // `grant` has queued the thread as work, and so does the caller.
        self.work.pop();
        debug_assert_eq!(self.threads[t as usize].vcpu, v);
        true
    }

    /// Whether an object is a spin lock, unlike a barrier at which threads spin.
    pub(crate) fn is_spin_lock(&self, object: u32) -> bool {
        matches!(self.objects[object as usize].kind, ObjectKind::Spin { .. })
    }

    /// Time of a spinning vCPU's next exit or paravirtual halt, if any.
    pub(crate) fn spin_ends(&mut self, v: u32, lock: u32, free: u64) -> Option<u64> {
        let (kind, kernel) = self.spin_kind(lock);
        let exit = if kernel { self.loop_exits(v).map(|after| free + after) } else { None };
        if kind != SpinKind::Paravirtual || self.native {
            return exit;
        }
        let halt = free + self.costs.cycles(self.costs.pv_spin_cycles);
        Some(exit.map_or(halt, |exit| exit.min(halt)))
    }

    /// Handles a spinning vCPU's own event: a pause-loop exit, or the halt of a paravirtual waiter.
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

    /// Records an exit of a vCPU and charges its cost; does nothing in native mode.
    pub(crate) fn exit(&mut self, v: u32, reason: ExitReason, cost: u64) {
        if self.native {
            return;
        }
        self.owe(v, EXITS, cost);
        self.trace_exit(v, reason);
        self.resched_if_lazy(self.vcpus[v as usize].pcpu);
    }

    /// Appends a thread to an object's list of waiters.
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

    /// Prepends a thread to an object's list of waiters.
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

    /// Removes a thread from an object's list of waiters.
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

    /// Removes and returns the longest waiter.
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
