//! Workload of a VM: roles of threads, each a small program over shared objects.
//!
//! [`parse`] reads a workload from TOML into the flat form that the simulator executes.
//! A role's program is a list of [`Op`]s with jumps for loops, and objects are numbers.
//! Every object of a workload exists once per VM that runs it.

use serde::{Deserialize, Serialize};
use tandem_policy::settings::settings;

use crate::random::Dist;

pub mod library;
pub mod parse;

/// Reference of an operation to a member of a family of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectRef {
    /// The first object of the family, as an index into [`Workload::objects`].
    pub first: u32,
    /// Size of the family.
    pub count: u32,
    /// Selection of the member.
    pub pick: Pick,
}

/// Selection of a member of a family, at each execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    /// This member, counted from the first.
    Fixed(u32),
    /// A random member, all equally likely.
    Random,
    /// The thread's own: its number within its role, modulo the count.
    Own,
    /// The next thread's: its number within its role plus one, modulo the count.
    Next,
    /// The member of a random thread of its role, itself included.
    Peer,
}

/// Iterations of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repeat {
    /// A fixed number.
    Times(u32),
    /// A number shared by all threads of the role; if it does not divide evenly, the first threads have one more.
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
    /// Release the newest lock taken from this family.
    Unlock(ObjectRef),
    /// Release the mutex, wait for the condition, take the mutex again.
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
    /// Wait until all parties have arrived.
    Barrier(ObjectRef),
    /// Take one of a semaphore's units, or wait for one.
    Acquire(ObjectRef),
    /// Return one unit.
    Release(ObjectRef),
    /// Put an item into a bounded queue, or wait for room.
    Put(ObjectRef),
    /// Take an item out of a queue, or wait for one.
    Get(ObjectRef),
    /// Change the address space, shared by all threads of the VM's process.
    /// The thread takes its lock, works under it, then flushes the TLBs of all vCPUs that use it and waits for them.
    Unmap(Dist),
    /// Discard memory (madvise with MADV_DONTNEED): as [`Op::Unmap`], but takes the lock for reading if it has readers.
    Discard(Dist),
    /// Page faults: work under the address-space lock, taken for reading if it has readers, without a TLB flush.
    Fault(Dist),
    /// Make untouched memory usable (mprotect of a growing heap): work under the address-space lock, taken for writing, without a TLB flush.
    Protect(Dist),
    /// Sleep by a timer.
    Sleep(Dist),
    /// Sleep until the start of the thread's next period, this many ns after the previous one; a late thread continues at once.
    Every(u64),
    /// Wait for a device for this time; the completion arrives as an interrupt.
    Io(Dist),
    /// sched_yield().
    Yield,
    /// Start of a request, at the end of the preceding wait; the next unit of work ends it.
    Request,
    /// Completion of one unit of useful work.
    Work,
    /// Start of a loop: jump to `end` after the last iteration.
    Loop {
        /// Iterations.
        repeat: Repeat,
        /// The operation after the loop's [`Op::Again`].
        end: u32,
        /// Index of the thread's loop counter.
        depth: u8,
    },
    /// End of a loop's body: jump back to the [`Op::Loop`] at `begin`.
    Again {
        /// The operation at the start of the loop.
        begin: u32,
    },
    /// End of the thread.
    Exit,
}

/// Maximum nesting depth of loops.
pub const MOST_LOOPS: usize = 4;

/// Maximum number of locks that a thread holds at a time.
pub const MOST_HELD: usize = 4;

/// Kind of a spin lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpinKind {
    /// Test-and-set: the first waiter to try after the release gets the lock.
    TestAndSet,
    /// Ticket: first come, first served.
    Ticket,
    /// Queued (MCS-like): first come, first served, each waiter on its own cache line.
    Queued,
    /// Queued with paravirtual kick: the first waiter halts its vCPU after a while, and the release kicks it.
    /// A new waiter may steal a free lock.
    Paravirtual,
}

/// Mode in which a thread spins; pause-loop exiting on Intel detects only kernel mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// In the guest kernel, with preemption disabled while held or waited for.
    Kernel,
    /// In user space: not detected on Intel, and the guest may preempt holder and waiters.
    User,
}

/// Spin time of a waiter in user space before it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spin {
    /// It blocks at once.
    Never,
    /// It blocks after this CPU time in ns.
    For(u64),
    /// It never blocks.
    Forever,
}

/// Wake-up of the waiters that blocked at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wake {
    /// The last thread to arrive wakes all.
    All,
    /// The last thread to arrive wakes one, and each woken thread wakes the next.
    OneByOne,
}

/// A shared object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Object {
    /// A spin lock.
    Spin {
        /// Its kind.
        kind: SpinKind,
        /// Mode in which it is taken.
        space: Space,
    },
    /// A futex mutex: a fast path in user space, and a wait queue under the kernel's hash-bucket
    /// spin lock.
    Mutex,
    /// A condition variable.
    Condition,
    /// A barrier.
    Barrier {
        /// Number of threads that must arrive; `None`: all threads of the workload that use it.
        parties: Option<u32>,
        /// Spin time of waiters in user space before they block.
        spin: Spin,
        /// Wake-up of blocked waiters.
        wake: Wake,
    },
    /// A counting semaphore.
    Semaphore {
        /// Initial units.
        units: u32,
        /// Whether waiters spin in user space, as at a flag, instead of blocking.
        spin: bool,
    },
    /// A bounded queue.
    Queue {
        /// Maximum number of items.
        capacity: u32,
    },
}

/// Number of threads of a role.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// A fixed number.
    Count(u32),
    /// A number per vCPU of the VM; the product is rounded, at least one.
    PerVcpu(f64),
}

impl Threads {
    /// Number of threads in a VM with `vcpus` vCPUs.
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
    /// Number of threads.
    pub threads: Threads,
    /// Scheduling weight of each within the guest; 1024 is nice 0.
    pub weight: u32,
    /// Working set of each thread in KiB, which others evict from the cache.
    pub working_set_kib: u32,
    /// vCPU of the role's n-th thread: element n modulo the length; empty: the guest places it.
    pub pins: Vec<u32>,
    /// The program; the last operation is [`Op::Exit`].
    pub program: Vec<Op>,
}

/// A workload, ready to be executed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Name of a unit of work for reports, such as "requests".
    pub unit: String,
    /// The objects that the roles share.
    pub objects: Vec<Object>,
    /// Names of the objects, as written; a family's members share one.
    pub object_names: Vec<String>,
    /// The roles.
    pub roles: Vec<Role>,
    /// Branch counters of its computing.
    pub branches: BranchProfile,
}

settings! {
    /// Branch-counter profile of a program.
    /// Integer programs branch about every sixth instruction and mispredict a few percent of the branches
    /// (Hennessy and Patterson, "Computer Architecture", chapter 3).
    #[derive(Copy)]
    pub struct BranchProfile {
        /// Branches per instruction.
        pub per_instruction: f64 = 0.16, (0.01, 0.5);
        /// Mispredictions per branch.
        pub mispredicted: f64 = 0.03, (0.0, 0.5);
        /// Relative standard deviation of both between samples.
        pub noise: f64 = 0.1, (0.0, 1.0);
        /// Fraction of samples in a tight loop that looks like spinning.
        pub tight: f64 = 0.01, (0.0, 0.9);
    }
}
