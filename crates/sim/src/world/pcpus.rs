//! The host: puts vCPUs on pCPUs and takes them off, as its scheduler decides.
//!
//! `choose` is the one place where a pCPU's vCPU changes.
//! Every cause (a wake-up, a tick, a yield, a balancing move) marks the pCPU and puts it on the list of work.
//!
//! With lazy preemption (Linux 7.3), a wake-up marks the pCPU, which reschedules at the next exit of its vCPU or at the tick.
//! KVM's loop reschedules before it enters the guest again (XFER_TO_GUEST_MODE_WORK contains _TIF_NEED_RESCHED_LAZY since 6.13).
//! The mark sends no interrupt to a remote pCPU (__resched_curr).
//! The cost of that exit is paid when the vCPU runs again, and posted interrupts are no exits.
//!
//! A vCPU that comes onto a pCPU pays for the switch if another vCPU ran there since, and for its data lost from the cache (see `caches`).

use tandem_kpolicy::Cause;
use tandem_model::PcpuId;

use crate::host::{Move, PauseLoop, Scheduler, Ticks};
use crate::sched::fair::Enqueue;
use crate::trace::VcpuState;

use super::calendar::Event;
use super::pause_loop::Happened;
use super::simulation::World;
use super::state::{Doing, EXITS, NONE, PcpuState, SWITCH, Work};

impl World {
    /// Starts a VM: queues its threads and wakes their vCPUs.
    pub(crate) fn start_vm(&mut self, vm: u32) {
        self.vms[vm as usize].started = self.now;
        let (first, count) = {
            let vm = &self.vms[vm as usize];
            (vm.first_thread, vm.threads)
        };
        for t in first..first + count {
            self.enter_queue(t, Enqueue::New);
        }
        let (first, count) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        for v in first..first + count {
            if self.runnable_threads(v) > 0 {
                self.vcpus[v as usize].need_resched = true;
                self.wake_vcpu(v, NONE);
            }
        }
    }

    pub(crate) fn host_queued(&self, p: u32) -> u32 {
        self.host.queued(p)
    }

    /// Accounts the time of the vCPU on a pCPU with the host's scheduler.
    pub(crate) fn host_account(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let ran = self.now - vcpu.host_accounted;
        vcpu.host_accounted = self.now;
        if ran == 0 {
            return;
        }
        let (p, vm) = (vcpu.pcpu, vcpu.vm);
        self.host.account(v, p, ran, self.now);
        if self.config.cap {
            let vm = &mut self.vms[vm as usize];
            vm.quota = vm.quota.saturating_sub(ran);
        }
    }

    /// Queues a runnable vCPU on the host, unless its VM is throttled; vCPU `by`, if any, wakes it.
    pub(crate) fn enter_host(&mut self, v: u32, by: u32) {
        let vcpu = &self.vcpus[v as usize];
        if self.vms[vcpu.vm as usize].throttled {
            return;
        }
        let last = vcpu.pcpu;
        let vm = &self.vms[vcpu.vm as usize];
        let p = if vm.is_placed && vm.started == self.now && vcpu.ran_on == NONE {
            last
        } else {
            let runs = by != NONE && self.vcpus[by as usize].state == VcpuState::Running;
            let waker = runs.then(|| self.vcpus[by as usize].pcpu);
            self.host.select(v, last, waker, &self.idle_pcpus, self.now)
        };
        self.vcpus[v as usize].pcpu = p;
        self.vcpus[v as usize].queued = true;
        self.begin_pcpu_wait(v, p);
        let current = self.pcpus[p as usize].current;
        if current != NONE {
            self.host_account(current);
        }
        self.host.enqueue(v, p, Enqueue::Wakeup, self.now);
        self.newcomer(v, p);
    }

    /// A vCPU has been queued on a pCPU: reschedules the pCPU if the vCPU preempts the current one.
    fn newcomer(&mut self, v: u32, p: u32) {
        let current = self.pcpus[p as usize].current;
        if current == NONE || self.vcpus[current as usize].state == VcpuState::HaltPolling {
            self.work.push(Work::Pcpu(p));
        } else if self.now >= self.pcpus[p as usize].protected_until {
            if self.host.preempts(v, p, self.now) {
                if self.host.preempts_lazily() && self.is_in_guest(current) {
                    self.pcpus[p as usize].resched_lazy = true;
                } else {
                    self.reschedule(p);
                }
            } else if let Some(rest) = self.host.looks_again_after(p) {
                self.calendar.set(Event::SecondLook, p, self.now + rest);
            }
        }
    }

    /// The scheduler's own timer for a waiting, woken vCPU fires: reschedules if the current vCPU has run long enough.
    pub(crate) fn second_look(&mut self, p: u32) {
        let current = self.pcpus[p as usize].current;
        if current == NONE {
            return;
        }
        self.host_account(current);
        if self.host.looks_again(p) {
            self.reschedule(p);
        }
    }

    /// Makes the pCPU reschedule before the clock moves.
    pub(crate) fn reschedule(&mut self, p: u32) {
        self.pcpus[p as usize].resched = true;
        self.work.push(Work::Pcpu(p));
    }

    /// Whether a running vCPU is between a VM entry and an exit: it has paid for its last switch and its last exit.
    fn is_in_guest(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let in_host = vcpu.owed[SWITCH] + vcpu.owed[EXITS];
        in_host == 0 || self.owed(v) <= self.now - vcpu.synced
    }

    /// A running vCPU exits or its pCPU's tick fires: reschedules if the pCPU is marked lazily.
    #[inline]
    pub(crate) fn resched_if_lazy(&mut self, p: u32) {
        if self.pcpus[p as usize].resched_lazy {
            self.reschedule(p);
        }
    }

    /// Sends an interrupt that makes another pCPU reschedule.
    /// It arrives after a switch in progress, during which that pCPU holds its run queue's lock.
    pub(crate) fn send_host_resched(&mut self, q: u32) {
        let current = self.pcpus[q as usize].current;
        if current == NONE || self.costs.ipi_flight == 0 {
            self.reschedule(q);
        } else if !self.calendar.is_set(Event::Reschedule, q) {
            let vcpu = &self.vcpus[current as usize];
            let paid = self.now - vcpu.synced;
            let switching = vcpu.lasts(vcpu.owed[SWITCH]).saturating_sub(paid);
            let at = self.now + switching + self.costs.ipi_flight;
            self.calendar.set(Event::Reschedule, q, at);
        }
    }

    /// Handles the interrupt of [`World::send_host_resched`].
    pub(crate) fn host_resched_arrived(&mut self, q: u32) {
        if self.pcpus[q as usize].current != NONE {
            self.reschedule(q);
        }
    }

    /// Chooses the pCPU's next vCPU if it is idle, halt-polling or marked to reschedule.
    pub(crate) fn choose(&mut self, p: u32) {
        let mut current = self.pcpus[p as usize].current;
        if current != NONE {
            if self.vcpus[current as usize].state == VcpuState::HaltPolling {
                self.calendar.cancel(Event::PollEnd, p);
                self.vcpu_state(current, VcpuState::Halted);
                self.leave_host(current, p, true);
                current = NONE;
            } else if !self.pcpus[p as usize].resched {
                return;
            } else {
                self.host_account(current);
                self.host.put_back(current, p, self.now);
            }
        }
        let pcpu = &mut self.pcpus[p as usize];
        (pcpu.resched, pcpu.resched_lazy) = (false, false);
        let mut next = self.host.pick(p, self.now);
        if next.is_none()
            && let Some(pulled) = self.host.pull(p, self.now)
            && self.carry_out(pulled)
        {
            next = self.host.pick(p, self.now);
        }
        next = self.match_core(p, next);
        if current != NONE {
            if next == Some(current) {
                self.pcpus[p as usize].yielded_over = NONE;
                // It returns to the guest, so the exit's handling is over.
                let vcpu = &mut self.vcpus[current as usize];
                if vcpu.search == NONE {
                    (vcpu.in_spin_loop, vcpu.dy_eligible) = (false, false);
                }
                return;
            }
            self.switch_out(current, p, true);
        }
        match next {
            Some(v) => self.switch_in(v, p),
            None => {
                self.pcpu_state(p, PcpuState::Idle);
                if self.is_forced_idle(p) {
                    self.idle_pcpus.remove(PcpuId(p));
                }
                self.calendar.cancel(Event::HostTick, p);
            }
        }
        self.wake_forced_idle(p);
    }

    /// Moves a queued vCPU between pCPUs; returns false if it is no longer queued there.
    pub(crate) fn carry_out(&mut self, moved: Move) -> bool {
        let vcpu = &self.vcpus[moved.vcpu as usize];
        if vcpu.state != VcpuState::Ready || !vcpu.queued || vcpu.pcpu != moved.from {
            return false;
        }
        for p in [moved.from, moved.to] {
            let current = self.pcpus[p as usize].current;
            if current != NONE {
                self.host_account(current);
            }
        }
        self.host.dequeue(moved.vcpu, moved.from, false, self.now);
        self.host.enqueue(moved.vcpu, moved.to, Enqueue::Migrated, self.now);
        self.end_pcpu_wait(moved.vcpu);
        self.vcpus[moved.vcpu as usize].pcpu = moved.to;
        self.begin_pcpu_wait(moved.vcpu, moved.to);
        true
    }

    /// Removes the vCPU on a pCPU, up to date, from the host's scheduler.
    pub(crate) fn leave_host(&mut self, v: u32, p: u32, sleeps: bool) {
        self.host_account(v);
        self.host.dequeue(v, p, sleeps, self.now);
        self.vcpus[v as usize].queued = false;
        self.end_pcpu_wait(v);
        self.charge_pcpu_waits(p);
        self.pcpus[p as usize].current = NONE;
    }

    /// Takes a running vCPU off its pCPU and out of the host's queues, to migrate or throttle it.
    pub(crate) fn stop_running(&mut self, v: u32, p: u32) {
        self.switch_out(v, p, true);
        // Not a sleep: no delayed entity stays queued (DEQUEUE_THROTTLE).
        self.leave_host(v, p, false);
        self.work.push(Work::Pcpu(p));
    }

    /// Queues a runnable vCPU, which is in no queue, on another pCPU.
    pub(crate) fn migrate(&mut self, v: u32, to: u32) {
        self.vcpus[v as usize].pcpu = to;
        self.vcpus[v as usize].queued = true;
        self.begin_pcpu_wait(v, to);
        self.host.enqueue(v, to, Enqueue::Migrated, self.now);
        if self.pcpus[to as usize].current == NONE {
            self.work.push(Work::Pcpu(to));
        }
    }

    /// Takes a running vCPU off its pCPU, still runnable.
    pub(crate) fn switch_out(&mut self, v: u32, p: u32, preempted: bool) {
        self.sync(v);
        self.guest_account(v);
        self.calendar.cancel(Event::Execution, v);
        self.calendar.cancel(Event::GuestTick, v);
        self.vcpu_state(v, VcpuState::Ready);
        self.begin_pcpu_wait(v, p);
        self.pcpus[p as usize].current = NONE;
        let vcpu = &mut self.vcpus[v as usize];
        // A pause loop ends with every exit.
        let yielding = vcpu.in_spin_loop && vcpu.search == NONE;
        let yielded_over = std::mem::replace(&mut self.pcpus[p as usize].yielded_over, NONE);
        if preempted {
            let cause = if yielding {
                Cause::Spinning
            } else if yielded_over == v {
                Cause::Displaced
            } else {
                Cause::Slice
            };
            self.note_for_hvs(v, Happened::Preempted(cause));
        }
        if !preempted || yielding {
            return;
        }
        let t = self.vcpus[v as usize].thread;
        if t == NONE {
            return;
        }
        let thread = &self.threads[t as usize];
        match thread.doing {
            Doing::Spin(_) | Doing::SpinUser(_) => self.counts(v).waiter_preemptions += 1,
            _ if thread.no_preempt > 0 || thread.held_count > 0 => {
                self.counts(v).holder_preemptions += 1;
            }
            _ => {}
        }
    }

    /// Puts a queued vCPU, which the host's scheduler picked, on a pCPU.
    fn switch_in(&mut self, v: u32, p: u32) {
        let warm = std::mem::replace(&mut self.pcpus[p as usize].warm, v);
        if warm != NONE && warm != v && self.vcpus[warm as usize].ran_on == p {
            self.settle_cache(warm);
        }
        if self.vcpus[v as usize].ran_on != p {
            self.settle_cache(v);
        }
        self.end_pcpu_wait(v);
        self.charge_pcpu_waits(p);
        self.pcpus[p as usize].current = v;
        self.pcpus[p as usize].yielded_over = NONE;
        self.pcpu_state(p, PcpuState::Busy);
        self.vcpu_state(v, VcpuState::Running);
        let ran_on = std::mem::replace(&mut self.vcpus[v as usize].ran_on, p);
        if let Some(smt) = &self.smt {
            self.vcpus[v as usize].speed = smt.speed(p);
        }
        self.skip_stolen_time(v);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.pcpu = p;
        vcpu.runs_total += 1;
        vcpu.synced = self.now;
        vcpu.host_accounted = self.now;
        if vcpu.search == NONE {
            (vcpu.in_spin_loop, vcpu.dy_eligible) = (false, false);
        }
        vcpu.failed_searches = 0;
        if let PauseLoop::Stock { base, shrink, .. } = self.config.pause_loop {
            // vmx_vcpu_load: after every switch, whatever its cause.
            vcpu.ple_window = match shrink {
                0 => base,
                divisor => (vcpu.ple_window / divisor).max(base),
            };
        }
        let (t, tick_due) = (vcpu.thread, vcpu.tick_due);
        if warm != v || ran_on != p {
            self.counts(v).vcpu_switches += 1;
            let cost = self.jitter(v, self.costs.vcpu_switch);
            let owed = &mut self.vcpus[v as usize].owed;
            owed[SWITCH] = cost;
            if ran_on != NONE && ran_on != p {
                self.counts(v).vcpu_migrations += 1;
            }
            self.refill_host(v);
        }
        if !self.calendar.is_set(Event::HostTick, p) {
            let tick = self.config.tick.0;
            let phase = match self.config.ticks {
                Ticks::Spread => tick * u64::from(p) / self.pcpus.len() as u64,
                Ticks::InStep => 0,
            };
            let next = (self.now + tick - phase) / tick * tick + phase;
            self.calendar.set(Event::HostTick, p, next.max(self.now + 1));
        }
        if t != NONE && tick_due > self.now {
            self.calendar.set(Event::GuestTick, v, tick_due);
        }
        self.note_for_hvs(v, Happened::Running);
        self.scheduled(v, p);
        self.resume(v);
    }

    /// Leaves the steal time that ends now out of the guest scheduler's accounts, if the guest has a steal clock.
    fn skip_stolen_time(&mut self, v: u32) {
        if self.vcpus[v as usize].steal_clock {
            self.vcpus[v as usize].guest_accounted = self.now;
        }
    }

    /// The host's clock tick on a busy pCPU.
    pub(crate) fn host_tick(&mut self, p: u32) {
        let v = self.pcpus[p as usize].current;
        if v == NONE {
            return;
        }
        self.calendar.set(Event::HostTick, p, self.now + self.config.tick.0);
        self.wake_forced_idle(p);
        self.host_account(v);
        let is_over = self.host.tick(p, self.now);
        if is_over && self.now >= self.pcpus[p as usize].protected_until {
            self.reschedule(p);
        }
        self.resched_if_lazy(p);
        if let Some(moved) = self.host.balance(p, self.now)
            && self.carry_out(moved)
        {
            self.newcomer(moved.vcpu, moved.to);
        }
        if self.host.queued(p) > 1
            && let Some(idle) = self.idle_pcpus.iter().next()
        {
            self.work.push(Work::Pcpu(idle.0));
        } else if self.smt.is_some()
            && self.vcpus[v as usize].state == VcpuState::Running
            && let Some(to) = self.host.spread(p, &self.idle_pcpus, self.now)
        {
            self.stop_running(v, p);
            self.migrate(v, to);
        }
    }
}
