//! Accounts the time of vCPUs on pCPUs, and plans their next events.
//!
//! A running vCPU first burns its owed time: the vCPU switch, the guest kernel's own work, exits and cache refills, in this order.
//! It then runs its thread.
//! `sync` accounts the time since the last call.
//! `plan` schedules the vCPU's own next event: the end of owed time that an operation waits for, the end of a computation,
//! a pause-loop exit, or the end of polling.
//! A vCPU that spins for ever without hardware detection has no event of its own.

use crate::bits::set_bit;
use crate::results::VcpuTime;
use crate::trace::{ThreadState, TraceEvent, VcpuState};

use super::calendar::Event;
use super::simulation::World;
use super::smt::FULL_SPEED;
use super::state::{CACHE, Doing, EXITS, Idle, KERNEL, NONE, Phase, SWITCH, Thread, Vcpu, Work};

impl World {
    /// Adds time that the vCPU burns before its thread continues. The caller plans.
    #[inline]
    pub(crate) fn owe(&mut self, v: u32, what: usize, time: u64) {
        self.vcpus[v as usize].owed[what] += time;
    }

    /// Time until the vCPU has paid what it owes, if it keeps its pCPU and speed.
    #[inline]
    pub(crate) fn owed(&self, v: u32) -> u64 {
        let vcpu = &self.vcpus[v as usize];
        vcpu.lasts(vcpu.owed())
    }

    /// Accounts a running vCPU's time since the last call.
    pub(crate) fn sync(&mut self, v: u32) {
        self.vcpus[v as usize].count(&mut self.threads, self.now);
    }

    /// Schedules the vCPU's own next event.
    pub(crate) fn plan(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.state != VcpuState::Running {
            return;
        }
        debug_assert_eq!(vcpu.synced, self.now, "planned before it was counted");
        if vcpu.cold && self.works(v) {
            self.refill(v);
        }
        self.note_activity(v);
        let free = self.now + self.owed(v);
        let vcpu = &self.vcpus[v as usize];
        if vcpu.search != NONE || !vcpu.answers.is_empty() {
            self.calendar.set(Event::Execution, v, free);
            return;
        }
        let at = match vcpu.thread {
            NONE => match vcpu.idle {
                Idle::Halting => Some(free),
                Idle::Polling if vcpu.poll_until != u64::MAX => Some(vcpu.poll_until.max(free)),
                _ => None,
            },
            t => {
                let Thread { doing, remaining, .. } = self.threads[t as usize];
                match doing {
                    Doing::Compute | Doing::Hold => {
                        Some(self.now + vcpu.lasts(vcpu.owed() + remaining))
                    }
                    Doing::Spin(lock) => self.spin_ends(v, lock, free),
                    // It waits in the hypervisor, so no pause loop can exit.
                    Doing::FlushWait if self.flushes_by_hypercall(v) => None,
                    Doing::FlushWait => self.loop_exits(v).map(|after| free + after),
                    Doing::Go => Some(free),
                    Doing::SpinUser(_) if remaining != u64::MAX => Some(free + remaining),
                    Doing::SpinUser(_) | Doing::Blocked | Doing::Ended => None,
                }
            }
        };
        match at {
            Some(at) => self.calendar.set(Event::Execution, v, at),
            None => self.calendar.cancel(Event::Execution, v),
        }
    }

    /// Handles the vCPU's own event, planned by [`World::plan`].
    #[inline]
    pub(crate) fn executed(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.count(&mut self.threads, self.now);
        if !vcpu.answers.is_empty() {
            if self.owed(v) == 0 {
                self.answer_flushes(v);
            }
            self.plan(v);
            return;
        }
        if vcpu.search != NONE {
            self.search_over(v);
            return;
        }
        let t = vcpu.thread;
        if t == NONE {
            match vcpu.idle {
                Idle::Halting => self.halt(v),
                Idle::Polling => self.begin_halt(v),
                Idle::Busy | Idle::Halted => {}
            }
            return;
        }
        let thread = &mut self.threads[t as usize];
        match thread.doing {
            Doing::Compute if thread.remaining == 0 => self.computed(t, v),
            Doing::Hold if thread.remaining == 0 => {
                thread.doing = Doing::Go;
                thread.phase = Phase::Held;
                self.advance(t);
            }
            Doing::Go => self.advance(t),
            Doing::Spin(lock) => self.spun(v, t, lock),
            Doing::SpinUser(barrier) if thread.remaining == 0 => {
                thread.doing = Doing::Go;
                self.remove(barrier, t, true);
                self.advance(t);
            }
            Doing::FlushWait => self.pause_loop_exit(v),
            _ => self.plan(v),
        }
    }

    /// A vCPU was put on a pCPU: handles pending interrupts, and then continues its thread.
    pub(crate) fn resume(&mut self, v: u32) {
        self.handle_pending(v);
        let vcpu = &self.vcpus[v as usize];
        if vcpu.search != NONE {
            self.plan(v);
            return;
        }
        match vcpu.thread {
            NONE => {
                if self.runnable_threads(v) > 0 || vcpu.need_resched {
                    self.schedule(v);
                } else if vcpu.idle == Idle::Halted
                    && vcpu.answers.is_empty()
                    && !self.is_preferred(v)
                {
                    // Its timer woke a thread on a preferred vCPU.
                    self.begin_halt(v);
                } else {
                    self.plan(v);
                }
            }
            t => {
                if vcpu.need_resched && self.may_preempt(t) {
                    self.schedule(v);
                } else {
                    self.continue_thread(v, t);
                }
            }
        }
    }

    /// Whether the guest may take its vCPU from the current thread.
    pub(crate) fn may_preempt(&self, t: u32) -> bool {
        let thread = &self.threads[t as usize];
        thread.no_preempt == 0
            && match thread.doing {
                Doing::Go | Doing::Compute | Doing::SpinUser(_) => true,
                // A writer that spins for an address space can be preempted.
                Doing::Spin(lock) => self.address_space(lock).is_some(),
                Doing::Hold | Doing::FlushWait => false,
                Doing::Blocked | Doing::Ended => true,
            }
    }

    /// Continues the current thread of a running vCPU.
    pub(crate) fn continue_thread(&mut self, v: u32, t: u32) {
        match self.threads[t as usize].doing {
            // It continues when the switch is paid; until then, another thread may take the lock for which it woke.
            Doing::Go if self.owed(v) == 0 => self.work.push(Work::Go(t)),
            Doing::Spin(mm) if self.address_space(mm).is_some() => {
                if self.retry_mm(t, mm) {
                    self.work.push(Work::Go(t));
                } else {
                    self.plan(v);
                }
            }
            Doing::Spin(lock) | Doing::SpinUser(lock) if self.is_spin_lock(lock) => {
                if self.retry_spin(t, v, lock) {
                    self.work.push(Work::Go(t));
                } else {
                    self.plan(v);
                }
            }
            _ => self.plan(v),
        }
    }

    /// Changes a thread's state, and records the old one in the trace.
    #[inline]
    pub(crate) fn thread_state(&mut self, t: u32, state: ThreadState) {
        let thread = &mut self.threads[t as usize];
        if thread.state == state {
            return;
        }
        if thread.state == ThreadState::Ready {
            self.vms[thread.vm as usize].waited += self.now - thread.since;
        }
        if let Some(trace) = &mut self.trace
            && thread.since < self.now
        {
            trace.add(TraceEvent::Thread {
                thread: t,
                state: thread.state,
                vcpu: thread.vcpu,
                from: thread.since,
                to: self.now,
            });
        }
        thread.state = state;
        thread.since = self.now;
    }

    /// Changes a vCPU's state, and accounts the time in the old one.
    pub(crate) fn vcpu_state(&mut self, v: u32, state: VcpuState) {
        if self.waits.is_some() && self.vcpus[v as usize].state != state {
            self.state_changes(v, state);
        }
        let vcpu = &mut self.vcpus[v as usize];
        let time = self.now - vcpu.since;
        match vcpu.state {
            VcpuState::Running => {}
            VcpuState::Ready => {
                vcpu.results.steal.0 += time;
                vcpu.waited_total += time;
            }
            VcpuState::Halted => vcpu.results.halted.0 += time,
            VcpuState::HaltPolling => {
                vcpu.results.halted.0 += time;
                vcpu.polled += time;
                vcpu.ran_total += time;
            }
        }
        if let Some(trace) = &mut self.trace
            && time > 0
        {
            trace.add(TraceEvent::Vcpu {
                vcpu: v,
                state: vcpu.state,
                from: vcpu.since,
                to: self.now,
            });
            if matches!(vcpu.state, VcpuState::Running) {
                trace.add(TraceEvent::PcpuRan {
                    pcpu: vcpu.pcpu,
                    vcpu: v,
                    from: vcpu.since,
                    to: self.now,
                });
            }
        }
        let was_ready = vcpu.state == VcpuState::Ready;
        let is_ready = state == VcpuState::Ready;
        vcpu.state = state;
        vcpu.since = self.now;
        if was_ready != is_ready {
            let vm = &mut self.vms[vcpu.vm as usize];
            set_bit(&mut vm.ready, v - vm.first_vcpu, is_ready);
        }
    }
}

impl Vcpu {
    /// Accounts a running vCPU's time since the last call.
    #[inline(always)]
    fn count(&mut self, threads: &mut [Thread], now: u64) {
        let vcpu = self;
        let mut left = now - vcpu.synced;
        if left == 0 || vcpu.state != VcpuState::Running {
            return;
        }
        vcpu.synced = now;
        vcpu.ran_total += left;
        if vcpu.speed != FULL_SPEED {
            vcpu.count_slowed(threads, left);
            return;
        }
        let ran = &mut vcpu.results.ran;
        let owed = &mut vcpu.owed;
        let sum: u64 = owed.iter().sum();
        if sum <= left {
            // Common case: everything owed is paid.
            ran.guest_kernel.0 += owed[KERNEL];
            ran.exits.0 += owed[EXITS] + owed[SWITCH];
            ran.cache.0 += owed[CACHE];
            *owed = [0; 4];
            left -= sum;
        } else {
            let mut burn = |what: usize| {
                let burnt = owed[what].min(left);
                owed[what] -= burnt;
                left -= burnt;
                burnt
            };
            ran.exits.0 += burn(SWITCH);
            ran.guest_kernel.0 += burn(KERNEL);
            ran.exits.0 += burn(EXITS);
            ran.cache.0 += burn(CACHE);
        }
        if left == 0 {
            return;
        }
        let t = vcpu.thread;
        if t == NONE {
            // A native CPU without a thread is idle, which is accounted at its begin and end.
            ran.idle_poll.0 += left;
            return;
        }
        threads[t as usize].count(ran, left, left);
    }
}

impl Thread {
    /// Accounts `time` ns in which the current thread does `work` ns of its activity.
    #[inline(always)]
    pub(super) fn count(&mut self, ran: &mut VcpuTime, work: u64, time: u64) {
        let thread = self;
        match thread.doing {
            Doing::Compute => {
                debug_assert!(work <= thread.remaining, "computed too much");
                thread.remaining -= work.min(thread.remaining);
                thread.computed += time;
                ran.useful.0 += time;
            }
            Doing::Hold => {
                thread.remaining -= work.min(thread.remaining);
                ran.guest_kernel.0 += time;
            }
            Doing::Spin(_) => ran.spin_kernel.0 += time,
            Doing::SpinUser(_) => {
                if thread.remaining != u64::MAX {
                    thread.remaining -= time.min(thread.remaining);
                }
                ran.spin_user.0 += time;
            }
            Doing::FlushWait => ran.shootdown_wait.0 += time,
            // In the hypervisor, or about to continue.
            Doing::Go | Doing::Blocked | Doing::Ended => ran.exits.0 += time,
        }
    }
}
