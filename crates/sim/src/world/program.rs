//! Threads' programs: operations with their objects resolved, and the interpreter.
//!
//! `go_on` runs a thread that is current on a running vCPU until it needs time, blocks or spins.
//! Operations that take a few ns (an atomic on a free lock) cost their time by being owed by the
//! vCPU, not by an event of their own.

use crate::random::Dist;
use crate::scenario::MmLock;
use crate::trace::ThreadState;
use crate::trace::VcpuState;
use crate::workload::Object as WorkloadObject;
use crate::workload::ObjectRef;
use crate::workload::Op;
use crate::workload::Pick;
use crate::workload::Repeat;
use crate::workload::Workload;

use super::World;
use super::state::Doing;
use super::state::KERNEL;
use super::state::NONE;
use super::state::Phase;
use super::state::Thread;

/// A family of objects of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub first: u32,
    pub count: u32,
    pub pick: Pick,
}

/// An operation on objects of the world.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instr {
    Compute { time: Dist },
    SpinLock(Family),
    SpinUnlock(Family),
    MutexLock(Family),
    MutexUnlock(Family),
    Wait { condition: Family, mutex: Family },
    Signal(Family),
    Broadcast(Family),
    Barrier(Family),
    Acquire(Family),
    Release(Family),
    Put(Family),
    Get(Family),
    Flush,
    Sleep(Dist),
    Io(Dist),
    Yield,
    Work,
    Loop { turns: Turns, end: u32, depth: u8 },
    Again { begin: u32 },
    Exit,
}

/// How often a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    Endless,
    Each(u32),
    /// By all `threads` of the role together.
    Shared {
        all: u32,
        threads: u32,
    },
}

impl Turns {
    fn new(repeat: Repeat, threads: u32) -> Turns {
        match repeat {
            Repeat::Forever => Turns::Endless,
            Repeat::Times(turns) => Turns::Each(turns),
            Repeat::Shared(all) => Turns::Shared { all, threads },
        }
    }

    /// Whether the role's thread of this number has done them all.
    #[inline]
    fn are_over(self, done: u32, number: u32) -> bool {
        match self {
            Turns::Endless => false,
            Turns::Each(turns) => done >= turns,
            Turns::Shared { all, threads } => {
                let one_more = u32::from(number < all % threads);
                done >= all / threads + one_more
            }
        }
    }
}

/// How an operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Done: the next one.
    Next,
    /// The same again, in another phase.
    Again,
    /// It takes time: the vCPU's plan is to be made.
    Busy,
    /// The thread left its vCPU, which needs another one.
    Left,
}

/// After so many operations without any time passing a thread computes for a nanosecond, so that
/// no program can stop the clock.
const MOST_AT_ONCE: u32 = 4096;

/// Resolves the program of a role for a VM that has `threads` of it and whose objects begin at `base`;
/// jumps are relative to where the code is put, `at`.
pub(crate) fn compile(
    workload: &Workload,
    ops: &[Op],
    threads: u32,
    base: u32,
    (mm, lock): (u32, MmLock),
    at: u32,
    code: &mut Vec<Instr>,
) {
    // Unmap becomes four operations, so jump targets move.
    let mut moved = Vec::with_capacity(ops.len() + 1);
    let mut next = at;
    for op in ops {
        moved.push(next);
        next += if matches!(op, Op::Unmap(_)) { 4 } else { 1 };
    }
    moved.push(next);
    let target = |op: u32| moved[(op as usize).min(ops.len())];
    let family = |reference: ObjectRef| {
        let count = reference.count.max(1);
        let (count, pick) = match reference.pick {
            // Only the first ones are some thread's own.
            Pick::Peer => (count.min(threads.max(1)), Pick::Random),
            pick => (count, pick),
        };
        Family {
            first: base + reference.first,
            count,
            pick,
        }
    };
    let object = |reference: ObjectRef| workload.objects[reference.first as usize];
    let mm = Family {
        first: mm,
        count: 1,
        pick: Pick::Fixed(0),
    };
    for op in ops {
        let instr = match *op {
            Op::Compute(time) | Op::ComputeKernel(time) => Instr::Compute { time },
            Op::Lock(lock) => match object(lock) {
                WorkloadObject::Spin { .. } => Instr::SpinLock(family(lock)),
                _ => Instr::MutexLock(family(lock)),
            },
            Op::Unlock(lock) => match object(lock) {
                WorkloadObject::Spin { .. } => Instr::SpinUnlock(family(lock)),
                _ => Instr::MutexUnlock(family(lock)),
            },
            Op::Wait { condition, mutex } => Instr::Wait {
                condition: family(condition),
                mutex: family(mutex),
            },
            Op::Signal(condition) => Instr::Signal(family(condition)),
            Op::Broadcast(condition) => Instr::Broadcast(family(condition)),
            Op::Barrier(barrier) => Instr::Barrier(family(barrier)),
            Op::Acquire(semaphore) => Instr::Acquire(family(semaphore)),
            Op::Release(semaphore) => Instr::Release(family(semaphore)),
            Op::Put(queue) => Instr::Put(family(queue)),
            Op::Get(queue) => Instr::Get(family(queue)),
            Op::Unmap(time) => {
                let (take, leave) = match lock {
                    MmLock::Spinning => (Instr::SpinLock(mm), Instr::SpinUnlock(mm)),
                    MmLock::Stealing | MmLock::HandedOver => {
                        (Instr::MutexLock(mm), Instr::MutexUnlock(mm))
                    }
                };
                code.extend([take, Instr::Compute { time }, Instr::Flush]);
                leave
            }
            Op::Sleep(time) => Instr::Sleep(time),
            Op::Io(time) => Instr::Io(time),
            Op::Yield => Instr::Yield,
            Op::Work => Instr::Work,
            Op::Loop { repeat, end, depth } => Instr::Loop {
                turns: Turns::new(repeat, threads.max(1)),
                end: target(end),
                depth,
            },
            // A loop without a count has nothing to do where it begins.
            Op::Again { begin } => Instr::Again {
                begin: match ops[begin as usize] {
                    Op::Loop {
                        repeat: Repeat::Forever,
                        ..
                    } => target(begin + 1),
                    _ => target(begin),
                },
            },
            Op::Exit => Instr::Exit,
        };
        code.push(instr);
    }
    code.push(Instr::Exit);
}

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
                Flow::Next => {
                    if !self.next(t, v) {
                        return;
                    }
                }
                Flow::Again => {}
                Flow::Busy => {
                    self.plan(v);
                    return;
                }
                Flow::Left => {
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
    fn operate(&mut self, t: u32, v: u32) -> Flow {
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
                        return Flow::Next;
                    }
                    thread.phase = Phase::Done;
                    thread.doing = Doing::Compute;
                    Flow::Busy
                }
                _ if self.threads[t as usize].remaining > 0 => {
                    // Preempted before the end, or the guard of `advance`.
                    self.threads[t as usize].doing = Doing::Compute;
                    Flow::Busy
                }
                _ => Flow::Next,
            },
            Instr::SpinLock(family) => match phase {
                Phase::Start => {
                    let lock = self.pick(t, family);
                    self.threads[t as usize].object = lock;
                    match self.spin_lock(t, v, lock) {
                        Flow::Again => {
                            self.hold(t, lock);
                            Flow::Next
                        }
                        flow => flow,
                    }
                }
                _ => {
                    let lock = self.threads[t as usize].object;
                    self.hold(t, lock);
                    Flow::Next
                }
            },
            Instr::SpinUnlock(family) => {
                if let Some(lock) = self.unhold(t, family) {
                    self.spin_unlock(t, v, lock);
                }
                Flow::Next
            }
            Instr::Loop { turns, end, depth } => {
                let thread = &mut self.threads[t as usize];
                if turns != Turns::Endless {
                    let done = &mut thread.loops[depth as usize];
                    if turns.are_over(*done, thread.number) {
                        *done = 0;
                        thread.pc = end;
                        return Flow::Again;
                    }
                    *done += 1;
                }
                Flow::Next
            }
            Instr::Again { begin } => {
                self.threads[t as usize].pc = begin;
                Flow::Again
            }
            Instr::Work => {
                self.threads[t as usize].work += 1;
                Flow::Next
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
            Instr::Sleep(time) => self.sleep(t, v, time, true),
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
                    Flow::Left
                }
                _ => Flow::Next,
            },
            Instr::Exit => {
                self.end_thread(t, v);
                Flow::Left
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
