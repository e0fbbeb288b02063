//! What the threads of a VM do: roles of threads, each a small program over shared objects.
//!
//! A workload is read from TOML (see [`parse`]) into the flat form that the simulator executes: a
//! role's program is a list of [`Op`]s with jumps for loops, and objects are numbers. Every object
//! named in a workload exists once per VM that runs it.

use serde::Serialize;

use crate::random::Dist;

pub mod library;
pub mod parse;

/// Which of a family of objects an operation means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectRef {
    /// The first object of the family, as an index into [`Workload::objects`].
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// Which one is meant.
    pub pick: Pick,
}

/// How one of a family of objects is picked each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    /// Always this one, counted from the first.
    Fixed(u32),
    /// Any, equally likely.
    Random,
    /// The thread's own: its number within its role, modulo the count.
    Own,
    /// The next thread's: its number within its role plus one, modulo the count.
    Next,
    /// That of any thread of its role, itself included, equally likely.
    Peer,
}

/// How often a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repeat {
    /// So many times.
    Times(u32),
    /// So many times by all threads of the role together: each has its share, the first ones have one
    /// more where they do not divide evenly.
    Shared(u32),
    /// Until the simulation ends.
    Forever,
}

/// One step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Run in user space.
    Compute(Dist),
    /// Run in the guest kernel, with preemption of the thread enabled.
    ComputeKernel(Dist),
    /// Take a spin lock or mutex.
    Lock(ObjectRef),
    /// Let go of the newest lock taken from this family.
    Unlock(ObjectRef),
    /// Let go of the mutex, wait for the condition, take the mutex again.
    Wait {
        /// The condition variable.
        condition: ObjectRef,
        /// The mutex, which the thread holds.
        mutex: ObjectRef,
    },
    /// Wake one thread that waits for the condition.
    Signal(ObjectRef),
    /// Wake all threads that wait for the condition.
    Broadcast(ObjectRef),
    /// Wait until all parties have come.
    Barrier(ObjectRef),
    /// Take one of a semaphore's units, or wait for one.
    Acquire(ObjectRef),
    /// Give one unit back.
    Release(ObjectRef),
    /// Put an item into a bounded queue, or wait for room.
    Put(ObjectRef),
    /// Take an item out of a queue, or wait for one.
    Get(ObjectRef),
    /// Change the address space, shared by all threads of the VM's process: take its lock, work
    /// under it, then flush the TLBs of all vCPUs that use it and wait for them.
    Unmap(Dist),
    /// Give memory back (madvise with MADV_DONTNEED): as [`Op::Unmap`], but with the lock taken for reading where it has
    /// readers, so that others can do the same meanwhile.
    Discard(Dist),
    /// Page faults: work with the lock of the address space taken for reading where it has readers; nothing is flushed.
    Fault(Dist),
    /// Let memory be used that nobody has touched yet (mprotect where a heap grows): work with the lock of the address space
    /// taken alone; nothing is flushed.
    Protect(Dist),
    /// Sleep by a timer.
    Sleep(Dist),
    /// Sleep until the thread's next period begins, so many ns after the one before; one that is late goes on at once.
    Every(u64),
    /// Wait for a device for this long; the completion arrives as an interrupt.
    Io(Dist),
    /// sched_yield().
    Yield,
    /// A request has come, when the wait before was over; the next unit of work ends it.
    Request,
    /// One unit of useful work is done.
    Work,
    /// Begin of a loop: if it is over, go on at `end`.
    Loop {
        /// How often.
        repeat: Repeat,
        /// The operation after the loop's [`Op::Again`].
        end: u32,
        /// Which of the thread's loop counters.
        depth: u8,
    },
    /// End of a loop's body: back to the [`Op::Loop`] at `begin`.
    Again {
        /// Where the loop begins.
        begin: u32,
    },
    /// The thread ends.
    Exit,
}

/// Loops may be nested so deep.
pub const MOST_LOOPS: usize = 4;

/// Locks of one workload that a thread may hold at a time.
pub const MOST_HELD: usize = 4;

/// How a spin lock is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpinKind {
    /// Test-and-set: whoever is first after the release.
    TestAndSet,
    /// Ticket: first come, first served.
    Ticket,
    /// Queued (MCS-like): first come, first served, each waiter on a cache line of its own.
    Queued,
    /// Queued with paravirtual kick: the first waiter halts its vCPU after a while and is kicked at
    /// the release; a newcomer may steal a free lock.
    Paravirtual,
}

/// Where a spinning thread spins, which decides whether pause-loop exiting can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// In the guest kernel, with preemption disabled while held or waited for.
    Kernel,
    /// In user space: not caught on Intel, and the guest may preempt holder and waiters.
    User,
}

/// How long a waiter spins in user space before it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spin {
    /// It blocks at once.
    Never,
    /// For so many ns of CPU time.
    For(u64),
    /// It never blocks.
    Forever,
}

/// How the waiters that blocked at a barrier are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wake {
    /// All by who came last.
    All,
    /// One by who came last, and the next by whoever was woken.
    OneByOne,
}

/// A shared object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Object {
    /// A spin lock.
    Spin {
        /// How it is built.
        kind: SpinKind,
        /// Where it is taken.
        space: Space,
    },
    /// A futex mutex: a fast path in user space, and a wait queue under the kernel's hash-bucket
    /// spin lock.
    Mutex,
    /// A condition variable.
    Condition,
    /// A barrier.
    Barrier {
        /// How many threads must come; `None`: all threads of the workload that use it.
        parties: Option<u32>,
        /// How long waiters spin in user space before they block.
        spin: Spin,
        /// How those that blocked are woken.
        wake: Wake,
    },
    /// A counting semaphore.
    Semaphore {
        /// Units at the beginning.
        units: u32,
        /// Whether waiters spin in user space, as at a flag, instead of blocking.
        spin: bool,
    },
    /// A bounded queue.
    Queue {
        /// Items it holds.
        capacity: u32,
    },
}

/// How many threads a role has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// So many.
    Count(u32),
    /// So many for each vCPU of the VM, rounded, at least one.
    PerVcpu(f64),
}

impl Threads {
    /// How many threads that is in a VM.
    pub fn count(&self, vcpus: u32) -> u32 {
        match *self {
            Threads::Count(count) => count,
            Threads::PerVcpu(ratio) => ((f64::from(vcpus) * ratio + 0.5) as u32).max(1),
        }
    }
}

/// Threads that run the same program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// How many threads.
    pub threads: Threads,
    /// Scheduling weight of each within the guest; 1024 is nice 0.
    pub weight: u32,
    /// Data that each thread works on, in KiB: what it loses when another has used the cache.
    pub working_set_kib: u32,
    /// vCPU of the role's n-th thread: element n modulo the length. Empty: the guest places it.
    pub pins: Vec<u32>,
    /// The program; the last operation is [`Op::Exit`].
    pub program: Vec<Op>,
}

/// A workload, ready to be executed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// What a unit of work is, for reports, such as "requests".
    pub unit: String,
    /// The objects that the roles share.
    pub objects: Vec<Object>,
    /// Names of the objects, as written; a family's members share one.
    pub object_names: Vec<String>,
    /// The roles.
    pub roles: Vec<Role>,
    /// What the branch counters of a processor see of its computing.
    pub branches: BranchProfile,
}

/// How a program computes, as branch counters see it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BranchProfile {
    /// Branches per instruction, 0.01 … 0.5.
    pub per_instruction: f64,
    /// Mispredicted ones per branch, 0 … 0.5.
    pub mispredicted: f64,
    /// Standard deviation of both from sample to sample, as a part of them, 0 … 1.
    pub noise: f64,
    /// Part of its samples in which it runs in a loop so tight that it looks like spinning, 0 … 0.9.
    pub tight: f64,
}

impl Default for BranchProfile {
    /// Integer programs branch about every sixth instruction and mispredict a few in a hundred (Hennessy
    /// and Patterson, "Computer Architecture", chapter 3).
    fn default() -> BranchProfile {
        BranchProfile { per_instruction: 0.16, mispredicted: 0.03, noise: 0.1, tight: 0.01 }
    }
}
