//! The interpreter of threads' programs.
//!
//! `go_on` runs a thread that is current on a running vCPU until it needs time, blocks or spins.
//! `go_alone` runs operations that involve no other thread or vCPU, one after the other.
//! Operations that take a few ns (an atomic on a free lock) add their cost to the vCPU's owed time, without an event of their own.

use crate::sched::ids::QueueId;
use crate::trace::{ThreadState, VcpuState};

use super::alone::RowEnd;
use super::code::{Instr, OpOutcome};
use super::simulation::World;
use super::state::{Doing, KERNEL, NONE, Phase, Thread};

/// Maximum number of operations at one instant.
/// The thread then computes for a nanosecond, so that no program can stop the clock.
const MAX_AT_ONCE: u32 = 4096;

impl World {
    /// Continues a thread if it is still current on a running vCPU.
    pub(crate) fn go_on(&mut self, t: u32) {
        let v = self.threads[t as usize].vcpu;
        let vcpu = &self.vcpus[v as usize];
        if vcpu.state == VcpuState::Running
            && vcpu.thread == t
            && vcpu.search == NONE
            && self.threads[t as usize].doing == Doing::Go
        {
            self.sync(v);
            self.advance(t);
        }
    }

    /// Runs the program of the current thread of a running vCPU whose account is up to date.
    #[inline]
    pub(crate) fn advance(&mut self, t: u32) {
        self.advance_by(t, self.threads[t as usize].vcpu, MAX_AT_ONCE);
    }

    /// Like [`World::advance`], with a maximum number of operations at this instant.
    fn advance_by(&mut self, t: u32, v: u32, mut operations: u32) {
        // Usually the thread already runs.
        if !matches!(self.threads[t as usize].state, ThreadState::Running) {
            self.thread_state(t, ThreadState::Running);
        }
        loop {
            let outcome = match self.go_alone(t, v, &mut operations) {
                RowEnd::Planned => return,
                RowEnd::Busy => OpOutcome::Busy,
                RowEnd::Preempted => OpOutcome::Left,
                RowEnd::Enough => break,
                RowEnd::Takes(lock) => match self.spin_lock(t, v, lock) {
                    OpOutcome::Again => {
                        self.threads[t as usize].hold(lock);
                        OpOutcome::Next
                    }
                    outcome => outcome,
                },
                RowEnd::Releases(lock) => {
                    self.spin_unlock(t, v, lock);
                    OpOutcome::Next
                }
                RowEnd::Concerns => self.operate(t, v),
            };
            match outcome {
                OpOutcome::Next => {
                    if !self.next(t, v) {
                        return;
                    }
                }
                OpOutcome::Again => {}
                OpOutcome::Busy => {
                    self.plan(v);
                    return;
                }
                OpOutcome::Left => {
                    self.schedule(v);
                    return;
                }
            }
            operations -= 1;
        }
        let thread = &mut self.threads[t as usize];
        thread.doing = Doing::Compute;
        thread.remaining = 1;
        self.plan(v);
    }

    /// Ends a computation of the current thread.
    #[inline]
    pub(crate) fn computed(&mut self, t: u32, v: u32) {
        let thread = &mut self.threads[t as usize];
        thread.doing = Doing::Go;
        let is_done = thread.phase == Phase::Done
            && matches!(self.code[thread.pc as usize], Instr::Compute { .. });
        // The computation itself does not count as an operation of this instant.
        self.advance_by(t, v, MAX_AT_ONCE + u32::from(is_done));
    }

    /// Advances to the next operation; returns false if the guest preempts the thread instead.
    #[inline]
    fn next(&mut self, t: u32, v: u32) -> bool {
        let thread = &mut self.threads[t as usize];
        thread.pc += 1;
        thread.phase = Phase::Start;
        if self.vcpus[v as usize].need_resched && thread.no_preempt == 0 {
            thread.doing = Doing::Go;
            self.schedule(v);
            return false;
        }
        true
    }

    /// Runs an operation that involves other threads or vCPUs.
    #[inline(never)]
    fn operate(&mut self, t: u32, v: u32) -> OpOutcome {
        let Thread { pc, phase, .. } = self.threads[t as usize];
        match self.code[pc as usize] {
            // `go_alone` runs these.
            Instr::Compute { .. }
            | Instr::SpinLock(_)
            | Instr::SpinUnlock(_)
            | Instr::Loop { .. }
            | Instr::Again { .. }
            | Instr::Request
            | Instr::Work => OpOutcome::Again,
            Instr::MutexLock(family) => self.mutex_lock(t, v, family),
            Instr::MutexUnlock(family) => self.mutex_unlock(t, v, family),
            Instr::Wait { condition, mutex } => self.wait(t, v, condition, mutex),
            Instr::Signal(family) => self.signal(t, v, family, false),
            Instr::Broadcast(family) => self.signal(t, v, family, true),
            Instr::Barrier(family) => self.barrier(t, v, family),
            Instr::Acquire(family) => self.acquire(t, v, family),
            Instr::Release(family) => self.release(t, v, family),
            Instr::Put(family) => self.queue_operation(t, v, family, true),
            Instr::Get(family) => self.queue_operation(t, v, family, false),
            Instr::Flush => self.flush(t, v),
            Instr::TakeMm { mm, write } => self.take_mm(t, v, mm, write),
            Instr::LeaveMm { mm, write } => self.leave_mm(t, v, mm, write),
            Instr::Sleep(time) => self.sleep(t, v, time, true),
            Instr::Every(period) => self.every(t, v, period),
            Instr::Io(time) => self.sleep(t, v, time, false),
            Instr::Yield => match phase {
                Phase::Start => {
                    self.owe(v, KERNEL, self.costs.syscall);
                    self.threads[t as usize].phase = Phase::Done;
                    self.threads[t as usize].doing = Doing::Go;
                    self.guest_account(v);
                    self.fair.yield_task(QueueId(v));
                    self.vms[self.threads[t as usize].vm as usize].counts.voluntary_switches += 1;
                    OpOutcome::Left
                }
                _ => OpOutcome::Next,
            },
            Instr::Exit => {
                self.end_thread(t, v);
                OpOutcome::Left
            }
        }
    }

    fn end_thread(&mut self, t: u32, v: u32) {
        self.thread_state(t, ThreadState::Ended);
        self.guest_account(v);
        self.threads[t as usize].doing = Doing::Ended;
        self.threads[t as usize].ended = Some(self.now);
        // Not a sleep: no delayed entity stays queued (DEQUEUE_SPECIAL).
        self.leave_queue(t, v, false);
        let vm = &mut self.vms[self.threads[t as usize].vm as usize];
        vm.alive -= 1;
        if vm.alive == 0 {
            vm.finished = Some(self.now);
        }
        self.alive -= 1;
        if self.alive == 0 {
            self.finished = true;
        }
    }
}
