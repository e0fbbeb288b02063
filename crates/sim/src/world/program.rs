//! The interpreter of threads' programs.
//!
//! `go_on` runs a thread that is current on a running vCPU until it needs time, blocks or spins.
//! Operations that take a few ns (an atomic on a free lock) cost their time by being owed by the
//! vCPU, not by an event of their own.

use crate::trace::ThreadState;
use crate::trace::VcpuState;
use crate::workload::Pick;

use super::code::Family;
use super::code::Instr;
use super::code::OpOutcome;
use super::code::Turns;
use super::simulation::World;
use super::state::Doing;
use super::state::KERNEL;
use super::state::NONE;
use super::state::Phase;
use super::state::Thread;

/// After so many operations without any time passing a thread computes for a nanosecond, so that
/// no program can stop the clock.
const MOST_AT_ONCE: u32 = 4096;

impl World {
    /// The thread may go on, if it still is where it can.
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
    pub(crate) fn advance(&mut self, t: u32) {
        let v = self.threads[t as usize].vcpu;
        self.thread_state(t, ThreadState::Running);
        for _ in 0..MOST_AT_ONCE {
            match self.operate(t, v) {
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
        }
        let thread = &mut self.threads[t as usize];
        thread.doing = Doing::Compute;
        thread.remaining = 1;
        self.plan(v);
    }

    /// The current thread has computed for as long as it was to.
    #[inline]
    pub(crate) fn computed(&mut self, t: u32, v: u32) {
        let thread = &mut self.threads[t as usize];
        thread.doing = Doing::Go;
        let is_done = thread.phase == Phase::Done
            && matches!(self.code[thread.pc as usize], Instr::Compute { .. });
        if !is_done || self.next(t, v) {
            self.advance(t);
        }
    }

    /// On to the next operation; false if the vCPU is taken from the thread instead.
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

    #[inline]
    fn operate(&mut self, t: u32, v: u32) -> OpOutcome {
        let Thread { pc, phase, .. } = self.threads[t as usize];
        match self.code[pc as usize] {
            Instr::Compute { time } => match phase {
                Phase::Start => {
                    let percent = 100 + self.vcpus[v as usize].slower_percent;
                    let thread = &mut self.threads[t as usize];
                    thread.remaining = time.draw(&mut thread.random);
                    if percent > 100 {
                        thread.remaining = thread.remaining.saturating_mul(percent) / 100;
                    }
                    if thread.remaining == 0 {
                        return OpOutcome::Next;
                    }
                    thread.phase = Phase::Done;
                    thread.doing = Doing::Compute;
                    OpOutcome::Busy
                }
                _ if self.threads[t as usize].remaining > 0 => {
                    // Preempted before the end, or the guard of `advance`.
                    self.threads[t as usize].doing = Doing::Compute;
                    OpOutcome::Busy
                }
                _ => OpOutcome::Next,
            },
            Instr::SpinLock(family) => match phase {
                Phase::Start => {
                    let lock = self.pick(t, family);
                    self.threads[t as usize].object = lock;
                    match self.spin_lock(t, v, lock) {
                        OpOutcome::Again => {
                            self.hold(t, lock);
                            OpOutcome::Next
                        }
                        flow => flow,
                    }
                }
                _ => {
                    let lock = self.threads[t as usize].object;
                    self.hold(t, lock);
                    OpOutcome::Next
                }
            },
            Instr::SpinUnlock(family) => {
                if let Some(lock) = self.unhold(t, family) {
                    self.spin_unlock(t, v, lock);
                }
                OpOutcome::Next
            }
            Instr::Loop { turns, end, depth } => {
                let thread = &mut self.threads[t as usize];
                if turns != Turns::Endless {
                    let done = &mut thread.loops[depth as usize];
                    if turns.are_over(*done, thread.number) {
                        *done = 0;
                        thread.pc = end;
                        return OpOutcome::Again;
                    }
                    *done += 1;
                }
                OpOutcome::Next
            }
            Instr::Again { begin } => {
                self.threads[t as usize].pc = begin;
                OpOutcome::Again
            }
            Instr::Work => {
                self.threads[t as usize].work += 1;
                OpOutcome::Next
            }
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
                    self.vcpus[v as usize]
                        .queue
                        .yield_current(&mut self.entities);
                    self.vms[self.threads[t as usize].vm as usize]
                        .counts
                        .voluntary_switches += 1;
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

    /// Which object of a family is meant this time.
    pub(crate) fn pick(&mut self, t: u32, family: Family) -> u32 {
        let thread = &mut self.threads[t as usize];
        family.first
            + match family.pick {
                Pick::Fixed(which) => which.min(family.count - 1),
                Pick::Random | Pick::Peer => thread.random.below(family.count),
                Pick::Own => thread.number % family.count,
                Pick::Next => (thread.number + 1) % family.count,
            }
    }

    /// Remembers a lock taken.
    pub(crate) fn hold(&mut self, t: u32, lock: u32) {
        let thread = &mut self.threads[t as usize];
        if let Some(place) = thread.held.get_mut(thread.held_count as usize) {
            *place = lock;
            thread.held_count += 1;
        }
    }

    /// The newest lock held of a family; it is no longer remembered.
    pub(crate) fn unhold(&mut self, t: u32, family: Family) -> Option<u32> {
        let thread = &mut self.threads[t as usize];
        let held = &mut thread.held[..thread.held_count as usize];
        let at = held
            .iter()
            .rposition(|&lock| (family.first..family.first + family.count).contains(&lock))?;
        let lock = held[at];
        // Mostly it is the newest of all.
        if at + 1 < held.len() {
            held.copy_within(at + 1.., at);
        }
        thread.held_count -= 1;
        Some(lock)
    }

    fn end_thread(&mut self, t: u32, v: u32) {
        self.thread_state(t, ThreadState::Ended);
        self.guest_account(v);
        self.threads[t as usize].doing = Doing::Ended;
        self.threads[t as usize].ended = Some(self.now);
        self.leave_queue(t, v, true);
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
