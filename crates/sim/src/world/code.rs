//! Threads' programs as the world runs them: operations with their objects resolved.
//!
//! A workload names objects by reference, relative to its VM.
//! `compile` turns these references into object numbers once, before the world runs.
//! `program` and the files of the primitives implement the operations.

use crate::random::Dist;
use crate::scenario::MmLock;
use crate::workload::{Object as WorkloadObject, ObjectRef, Op, Pick, Repeat, Workload};

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
    TakeMm { mm: u32, write: bool },
    LeaveMm { mm: u32, write: bool },
    Sleep(Dist),
    Every(u64),
    Io(Dist),
    Yield,
    Request,
    Work,
    Loop { turns: Turns, end: u32, depth: u8 },
    Again { begin: u32 },
    Exit,
}

/// Number of iterations of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    Endless,
    Each(u32),
    /// Iterations shared by all `threads` of the role.
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

    /// Whether thread `number` of the role has done all of its iterations.
    #[inline]
    pub fn are_over(self, done: u32, number: u32) -> bool {
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

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpOutcome {
    /// Done: continue with the next operation.
    Next,
    /// Run the same operation again, in its next phase.
    Again,
    /// It takes time: the caller must plan the vCPU.
    Busy,
    /// The thread left its vCPU, which must schedule another one.
    Left,
}

/// Resolves the program of a role with `threads` threads, in a VM whose objects begin at `base`.
/// The code is placed at position `at`, to which jump targets refer.
pub(crate) fn compile(
    workload: &Workload,
    ops: &[Op],
    threads: u32,
    base: u32,
    (mm, lock, readers): (u32, MmLock, bool),
    at: u32,
    code: &mut Vec<Instr>,
) {
    // A change of the address space becomes three or four operations, so jump targets move.
    let mut moved = Vec::with_capacity(ops.len() + 1);
    let mut next = at;
    for op in ops {
        moved.push(next);
        next += match op {
            Op::Unmap(_) | Op::Discard(_) => 4,
            Op::Fault(_) | Op::Protect(_) => 3,
            _ => 1,
        };
    }
    moved.push(next);
    let target = |op: u32| moved[(op as usize).min(ops.len())];
    let family = |reference: ObjectRef| {
        let count = reference.count.max(1);
        let (count, pick) = match reference.pick {
            // Only the first `threads` objects belong to a thread.
            Pick::Peer => (count.min(threads.max(1)), Pick::Random),
            pick => (count, pick),
        };
        Family { first: base + reference.first, count, pick }
    };
    let object = |reference: ObjectRef| workload.objects[reference.first as usize];
    let whole = Family { first: mm, count: 1, pick: Pick::Fixed(0) };
    let around = |write: bool| match lock {
        _ if readers => (Instr::TakeMm { mm, write }, Instr::LeaveMm { mm, write }),
        MmLock::Spinning => (Instr::SpinLock(whole), Instr::SpinUnlock(whole)),
        MmLock::Stealing | MmLock::HandedOver => {
            (Instr::MutexLock(whole), Instr::MutexUnlock(whole))
        }
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
            Op::Wait { condition, mutex } => {
                Instr::Wait { condition: family(condition), mutex: family(mutex) }
            }
            Op::Signal(condition) => Instr::Signal(family(condition)),
            Op::Broadcast(condition) => Instr::Broadcast(family(condition)),
            Op::Barrier(barrier) => Instr::Barrier(family(barrier)),
            Op::Acquire(semaphore) => Instr::Acquire(family(semaphore)),
            Op::Release(semaphore) => Instr::Release(family(semaphore)),
            Op::Put(queue) => Instr::Put(family(queue)),
            Op::Get(queue) => Instr::Get(family(queue)),
            Op::Unmap(time) | Op::Discard(time) => {
                let (take, leave) = around(matches!(op, Op::Unmap(_)));
                code.extend([take, Instr::Compute { time }, Instr::Flush]);
                leave
            }
            Op::Fault(time) | Op::Protect(time) => {
                let (take, leave) = around(matches!(op, Op::Protect(_)));
                code.extend([take, Instr::Compute { time }]);
                leave
            }
            Op::Sleep(time) => Instr::Sleep(time),
            Op::Every(period) => Instr::Every(period),
            Op::Io(time) => Instr::Io(time),
            Op::Yield => Instr::Yield,
            Op::Request => Instr::Request,
            Op::Work => Instr::Work,
            Op::Loop { repeat, end, depth } => {
                Instr::Loop { turns: Turns::new(repeat, threads.max(1)), end: target(end), depth }
            }
            // A loop without a count skips its header.
            Op::Again { begin } => Instr::Again {
                begin: match ops[begin as usize] {
                    Op::Loop { repeat: Repeat::Forever, .. } => target(begin + 1),
                    _ => target(begin),
                },
            },
            Op::Exit => Instr::Exit,
        };
        code.push(instr);
    }
    code.push(Instr::Exit);
}
