//! The guest's scheduler: thread switches, placement of woken threads, load balancing.
//!
//! A woken thread goes to its last vCPU if that is idle, otherwise to an idle sibling, otherwise to its last vCPU
//! (select_idle_sibling of kernel/sched/fair.c; the guest's vCPUs share one cache domain).
//! A vCPU that polls in its idle loop notices the thread without an IPI.
//! A halted vCPU gets a rescheduling IPI, and so does a busy one whose current thread is to be preempted.
//!
//! Load balancing:
//! - A vCPU that would become idle takes a thread from one that has more than one (new-idle).
//! - At every eighth tick, a vCPU with one thread takes one from another that has at least two more.
//!   In a guest with a steal governor, a vCPU with several threads does so, too.
//! - A vCPU with waiting threads wakes an idle one at its tick (the kernel's "nohz kick").

use crate::bits::{has_bit, next_bit, set_bit};
use crate::sched::fair::Enqueue;
use crate::sched::ids::{EntityId, QueueId};
use crate::trace::{ThreadState, TraceEvent, VcpuState};

use super::calendar::Event;
use super::simulation::World;
use super::state::{Doing, Idle, KERNEL, NONE, Work};

/// Number of ticks between two attempts of a busy vCPU to take load.
const BALANCE_TICKS: u32 = 8;

impl World {
    /// Accounts the time of the current thread of `v` with the guest's scheduler.
    #[inline]
    pub(crate) fn guest_account(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let ran = self.now - vcpu.guest_accounted;
        vcpu.guest_accounted = self.now;
        // A guest without a steal clock charges steal time to its thread.
        let counts = vcpu.state == VcpuState::Running || !vcpu.steal_clock;
        if ran > 0 && vcpu.thread != NONE && counts {
            self.fair.account(QueueId(v), ran);
        }
    }

    /// Number of runnable threads of a vCPU, the current one included.
    #[inline]
    pub(crate) fn runnable_threads(&self, v: u32) -> u32 {
        self.fair.nr_running(QueueId(v))
    }

    /// The waiting threads of a vCPU in order.
    pub(crate) fn queued_threads(&self, v: u32) -> impl Iterator<Item = u32> {
        self.fair.queued(QueueId(v)).map(|EntityId(t)| t)
    }

    /// Updates the VM's set of preferred vCPUs with more than one thread.
    #[inline]
    pub(crate) fn note_load(&mut self, v: u32) {
        let running = self.runnable_threads(v);
        let vm = &mut self.vms[self.vcpus[v as usize].vm as usize];
        let index = v - vm.first_vcpu;
        set_bit(&mut vm.overloaded, index, running > 1 && index < vm.preferred);
    }

    pub(crate) fn note_idle(&mut self, v: u32, idle: bool) {
        let vm = &mut self.vms[self.vcpus[v as usize].vm as usize];
        let index = v - vm.first_vcpu;
        set_bit(&mut vm.idle, index, idle && index < vm.active);
    }

    /// Puts a runnable thread into its vCPU's queue.
    pub(crate) fn enter_queue(&mut self, t: u32, how: Enqueue) {
        let v = self.threads[t as usize].vcpu;
        self.guest_account(v);
        self.fair.enqueue_task(EntityId(t), QueueId(v), how, self.now);
        self.thread_state(t, ThreadState::Ready);
        self.note_load(v);
    }

    /// Takes a thread, current or queued, out of its vCPU's queue.
    pub(crate) fn leave_queue(&mut self, t: u32, v: u32, sleeps: bool) {
        self.guest_account(v);
        self.fair.dequeue_task(EntityId(t), sleeps, self.now);
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.thread == t {
            vcpu.thread = NONE;
        }
        self.note_load(v);
    }

    /// The current thread of a running vCPU blocks; the caller schedules.
    pub(crate) fn block(&mut self, t: u32, v: u32, state: ThreadState) {
        self.thread_state(t, state);
        self.threads[t as usize].doing = Doing::Blocked;
        self.counts(v).voluntary_switches += 1;
        self.leave_queue(t, v, true);
    }

    /// Wakes a blocked thread from vCPU `by` (whose account is up to date), on behalf of thread
    /// `waker` (`NONE`: an interrupt).
    pub(crate) fn wake(&mut self, t: u32, by: u32, waker: u32) {
        debug_assert_eq!(self.threads[t as usize].doing, Doing::Blocked);
        self.owe(by, KERNEL, self.costs.wakeup);
        let thread = &mut self.threads[t as usize];
        thread.doing = Doing::Go;
        (thread.woken_at, thread.woken_by) = (self.now, waker);
        thread.ready_at = self.now;
        let before = thread.vcpu;
        let target = if self.is_queued_still(t) { before } else { self.choose_vcpu(t, before, by) };
        if target != before {
            self.counts(by).thread_migrations += 1;
            self.threads[t as usize].vcpu = target;
        }
        self.enter_queue(t, Enqueue::Wakeup);
        self.arrived(t, target, by);
    }

    /// Whether a sleeping thread is still queued on its vCPU, and wakes there (ttwu_runnable).
    /// A thread that may not stay on its vCPU is dequeued first.
    fn is_queued_still(&mut self, t: u32) -> bool {
        if !self.fair.entity(EntityId(t)).sched_delayed {
            return false;
        }
        let thread = &self.threads[t as usize];
        let (v, vm) = (thread.vcpu, &self.vms[thread.vm as usize]);
        let may_stay = v - vm.first_vcpu < vm.active && (thread.pin == NONE || thread.pin == v);
        if !may_stay {
            self.fair.dequeue_delayed(EntityId(t), self.now);
        }
        may_stay
    }

    /// Chooses the vCPU of a woken thread.
    fn choose_vcpu(&self, t: u32, before: u32, by: u32) -> u32 {
        let thread = &self.threads[t as usize];
        if thread.pin != NONE {
            return thread.pin;
        }
        let vm = &self.vms[thread.vm as usize];
        let first = vm.first_vcpu;
        // Map an inactive vCPU to an active one.
        let before =
            if before - first < vm.active { before } else { first + (before - first) % vm.active };
        if has_bit(&vm.idle, before - first) {
            return self.fallback(before);
        }
        let chosen = match next_bit(&vm.idle, before - first, vm.vcpus) {
            Some(idle) => first + idle,
            // No vCPU is idle: the waker's vCPU if that has fewer threads (wake_affine).
            None if by - first < vm.active
                && self.runnable_threads(by) < self.runnable_threads(before) =>
            {
                by
            }
            None => before,
        };
        self.fallback(chosen)
    }

    /// A thread has been queued on `v` by vCPU `by`: makes `v` reschedule if necessary.
    pub(crate) fn arrived(&mut self, t: u32, v: u32, by: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.thread == NONE {
            vcpu.need_resched = true;
            match (vcpu.idle, vcpu.state) {
                _ if v == by => self.work.push(Work::Guest(v)),
                // Gleaner's yielding thread must be preempted.
                (Idle::Polling, VcpuState::Running) if self.is_retained(v) => {
                    self.send_reschedule(by, v);
                }
                (Idle::Polling, VcpuState::Running) => self.work.push(Work::Guest(v)),
                // It polls as soon as it is back on a pCPU, and notices the thread then.
                (Idle::Polling, _) => {}
                (Idle::Busy, _) => self.work.push(Work::Guest(v)),
                (Idle::Halting | Idle::Halted, _) => self.send_reschedule(by, v),
            }
            return;
        }
        // With need_resched set, the kernel sets no buddy and sends no interrupt (test_tsk_need_resched).
        if !vcpu.need_resched && self.fair.check_preempt(QueueId(v), EntityId(t)) {
            vcpu.need_resched = true;
            if v == by { self.work.push(Work::Guest(v)) } else { self.send_reschedule(by, v) }
        }
    }

    /// Reschedules in the guest if need_resched is set, the vCPU runs, and its thread is preemptible.
    pub(crate) fn guest_may_schedule(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.state != VcpuState::Running
            || !vcpu.need_resched
            || vcpu.search != NONE
            || (vcpu.thread == NONE && vcpu.idle == Idle::Halting)
            || (vcpu.thread != NONE && !self.may_preempt(vcpu.thread))
        {
            return;
        }
        self.sync(v);
        self.schedule(v);
    }

    /// Chooses the next thread of a running vCPU whose account is up to date.
    pub(crate) fn schedule(&mut self, v: u32) {
        self.guest_account(v);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.need_resched = false;
        let pushes = std::mem::take(&mut vcpu.push_pending);
        let before = vcpu.thread;
        self.guest_switches(v, before);
        let vcpu = &mut self.vcpus[v as usize];
        if before != NONE {
            self.fair.put_prev_task(QueueId(v));
            vcpu.thread = NONE;
            if let Some(to) = self.instead_of(v) {
                self.thread_state(before, ThreadState::Ready);
                self.leave_inactive(v, to);
            }
            if pushes {
                self.push(before, v);
            }
        }
        let mut next = self.fair.pick_next_task(QueueId(v), self.now);
        if next.is_none() && self.take_thread(v, 2) {
            next = self.fair.pick_next_task(QueueId(v), self.now);
        }
        match next {
            Some(EntityId(t)) => self.switch_to(v, t, before),
            None => self.begin_idle(v),
        }
    }

    fn switch_to(&mut self, v: u32, t: u32, before: u32) {
        self.thread_comes(v, t, before);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.thread = t;
        vcpu.has_tlb = true;
        if vcpu.idle != Idle::Busy {
            self.end_idle(v);
        }
        if before != t {
            if before != NONE {
                self.thread_state(before, ThreadState::Ready);
            }
            let warm = self.vcpus[v as usize].warm_thread;
            if warm != t {
                self.counts(v).thread_switches += 1;
                let cost = self.costs.thread_switch + self.costs.nested_switch;
                self.owe(v, KERNEL, cost);
                self.vcpus[v as usize].cold = true;
                self.vcpus[v as usize].warm_thread = t;
            }
            self.note_load(v);
        }
        let thread = &mut self.threads[t as usize];
        if thread.woken_at != u64::MAX {
            let woken = std::mem::replace(&mut thread.woken_at, u64::MAX);
            let (vm, waker) = (thread.vm, thread.woken_by);
            self.vms[vm as usize].wake_latency.add(self.now - woken);
            let owed = self.owed(v);
            if let Some(trace) = &mut self.trace {
                trace.add(TraceEvent::Wakeup {
                    from: (waker != NONE).then_some(waker),
                    to: t,
                    woken,
                    ran: self.now,
                    owed,
                });
            }
        }
        let state = match self.threads[t as usize].doing {
            Doing::Spin(object) | Doing::SpinUser(object) => {
                let first = self.vms[self.threads[t as usize].vm as usize].first_object;
                ThreadState::Spinning(Some(object - first))
            }
            _ => ThreadState::Running,
        };
        self.thread_state(t, state);
        self.continue_thread(v, t);
        // The next event is at the latest the payment of the owed time, when the thread continues.
        self.plan(v);
    }

    /// Takes a thread from another vCPU of the VM that has at least `least` more than `v`; returns whether it found one.
    fn take_thread(&mut self, v: u32, least: u32) -> bool {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        if !vm.guest.balance || v - vm.first_vcpu >= vm.active.min(vm.preferred) {
            return false;
        }
        let (first, size) = (vm.first_vcpu, vm.vcpus);
        let own = self.runnable_threads(v);
        let mut from = v - first;
        // A few tries: an overloaded vCPU may hold only pinned threads.
        for _ in 0..4 {
            let vm = &self.vms[self.vcpus[v as usize].vm as usize];
            let Some(other) = next_bit(&vm.overloaded, (from + 1) % size, size) else {
                return false;
            };
            from = other;
            let source = first + other;
            if source == v {
                return false;
            }
            if self.runnable_threads(source) < own + least {
                continue;
            }
            let movable = self
                .queued_threads(source)
                .find(|&t| self.threads[t as usize].pin == NONE && !self.is_stuck(t));
            if let Some(t) = movable {
                self.move_thread(t, source, v);
                return true;
            }
        }
        false
    }

    /// Whether a thread holds or spins for a kernel lock, and must not migrate.
    /// A thread that spins in user space may migrate.
    pub(crate) fn is_stuck(&self, t: u32) -> bool {
        self.threads[t as usize].no_preempt > 0
    }

    pub(crate) fn move_thread(&mut self, t: u32, from: u32, to: u32) {
        self.leave_queue(t, from, false);
        self.threads[t as usize].vcpu = to;
        self.enter_queue(t, Enqueue::Migrated);
        self.counts(to).thread_migrations += 1;
    }

    /// The guest's clock tick on a vCPU.
    pub(crate) fn guest_tick(&mut self, v: u32) {
        if self.vcpus[v as usize].state != VcpuState::Running {
            return;
        }
        self.sync(v);
        self.tick_work(v);
        self.plan(v);
        if self.vcpus[v as usize].need_resched {
            self.work.push(Work::Guest(v));
        }
    }

    /// Does the work of a tick on a running vCPU; the caller plans and schedules.
    pub(crate) fn tick_work(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm;
        let guest = &self.vms[vm as usize].guest;
        let (tick, balances) = (guest.tick.0, guest.balance);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.tick_due = self.now + tick;
        vcpu.ticks = vcpu.ticks.wrapping_add(1);
        let ticks = vcpu.ticks;
        self.calendar.set(Event::GuestTick, v, self.now + tick);
        self.exit(v, crate::trace::ExitReason::Timer, self.costs.timer_exit);
        self.owe(v, KERNEL, self.costs.tick_work);
        self.guest_account(v);
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.thread == NONE {
            return;
        }
        self.begin_push(v);
        let vcpu = &mut self.vcpus[v as usize];
        if self.fair.task_tick(QueueId(v), self.now) {
            vcpu.need_resched = true;
        }
        if !balances {
            return;
        }
        if self.fair.nr_running(QueueId(v)) > 1 {
            let vm = &self.vms[vm as usize];
            // The preferred vCPUs are the first ones, so an idle one is found from here on or from the first one on.
            let idle =
                |from| next_bit(&vm.idle, from, vm.vcpus).filter(|&idle| idle < vm.preferred);
            let index = v - vm.first_vcpu;
            // Pushes leave the first vCPU with many threads, and the others with several.
            let balances_busy = vm.governor.is_some();
            if index < vm.preferred
                && let Some(idle) = idle(index).or_else(|| idle(0))
            {
                let target = vm.first_vcpu + idle;
                self.kick_idle(v, target);
            }
            if !balances_busy {
                return;
            }
        }
        if ticks.is_multiple_of(BALANCE_TICKS) && self.take_thread(v, 2) {
            self.note_load(v);
        }
    }

    /// Makes an idle vCPU look for threads to take.
    fn kick_idle(&mut self, by: u32, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.need_resched = true;
        match (vcpu.idle, vcpu.state) {
            (Idle::Polling, VcpuState::Running) => self.work.push(Work::Guest(v)),
            (Idle::Polling | Idle::Busy, _) => {}
            (Idle::Halting | Idle::Halted, _) => self.send_reschedule(by, v),
        }
    }
}
