//! What the world consists of: pCPUs, VMs, vCPUs, threads, objects, interrupts on their way.
//!
//! Everything refers to everything else by number. [`NONE`] stands for nobody. Time is ns since the
//! simulation's begin.

use tandem_kpolicy::{Aple, Hvs};
use tandem_model::Nanos;

use crate::machine::Cache;
use crate::random::Stream;
use crate::results::{Counts, Histogram, PcpuResults, VcpuResults};
use crate::scenario::{Guest, MmLock};
use crate::sched::fair::FairQueue;
use crate::trace::{IpiKind, ThreadState, VcpuState};
use crate::workload::{MOST_HELD, MOST_LOOPS, Spin, SpinKind, Wake};

/// Nobody, nothing, nowhere.
pub(crate) const NONE: u32 = u32::MAX;

/// What a vCPU owes before its thread goes on: work of the guest's kernel.
pub(crate) const KERNEL: usize = 0;
/// VM exits and what the hypervisor does.
pub(crate) const EXITS: usize = 1;
/// Refilling caches.
pub(crate) const CACHE: usize = 2;
/// The switch that put it on its pCPU. One that is taken off before it has paid for that, pays for the
/// next switch only.
pub(crate) const SWITCH: usize = 3;

/// What a pCPU's time is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PcpuState {
    Idle,
    Busy,
    Polling,
}

#[derive(Clone, Debug)]
pub(crate) struct Pcpu {
    /// The vCPU on it, running or being polled for.
    pub current: u32,
    /// The vCPU that was on it last.
    pub warm: u32,
    /// Its private cache.
    pub cache: Cache,
    /// Ran here when somebody yielded to another vCPU of this pCPU.
    pub yielded_over: u32,
    pub state: PcpuState,
    /// Counted up to here.
    pub since: u64,
    /// Idle since boot, for policies.
    pub idle_total: u64,
    pub results: PcpuResults,
    /// A decision to reschedule is under way.
    pub resched: bool,
    /// The current vCPU is not to be preempted before this (demand-based scheduling).
    pub protected_until: u64,
    /// No woken vCPU is put first before this (fast reactivation).
    pub next_boost: u64,
    /// The next vCPU comes because a sibling was scheduled (co-scheduling).
    pub ganged: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct SimulatedVm {
    pub guest: Guest,
    pub first_vcpu: u32,
    pub vcpus: u32,
    pub first_thread: u32,
    pub threads: u32,
    pub first_object: u32,
    /// Guest-idle vCPUs, a bit each.
    pub idle: Vec<u64>,
    /// vCPUs that wait for a pCPU, a bit each.
    pub ready: Vec<u64>,
    /// vCPUs with threads to spare, a bit each.
    pub overloaded: Vec<u64>,
    /// Threads that have not ended.
    pub alive: u32,
    /// Its vCPUs begin where the scenario says.
    pub is_placed: bool,
    pub started: u64,
    pub finished: Option<u64>,
    /// Start of KVM's circle.
    pub last_boosted: u32,
    /// The window of the VM, where it has one, or the host, cycles.
    pub ple_window: u32,
    /// With [`crate::host::PauseLoop::Aple`].
    pub aple: Option<Aple>,
    /// With [`crate::host::Candidate::Ranked`].
    pub hvs: Option<Hvs>,
    /// When APLE's threshold became what.
    pub windows: Vec<(Nanos, u32)>,
    pub counts: Counts,
    pub request_time: Histogram,
    pub wake_latency: Histogram,
    pub ipi_latency: Histogram,
    pub shootdown_latency: Histogram,
    pub lock_wait: Histogram,
    /// Stopped by the cap.
    pub throttled: bool,
    /// What it may still run in this cap period, ns.
    pub quota: u64,
    /// Its threads use this many of its vCPUs, the first ones.
    pub active: u32,
    /// It has this many of its vCPUs, the first ones; the others are not plugged in.
    pub present: u32,
    /// When that changes, and to how many.
    pub hotplug: Vec<(Nanos, u32)>,
    /// Retention: an idle vCPU among them is kept awake for so long, ns.
    pub retention: u64,
    /// For how long its threads have waited for a vCPU since boot, for policies, ns.
    pub waited: u64,
    pub random: Stream,
}

/// What a vCPU without a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It has a thread.
    Busy,
    /// Polls for ever, or up to the time in `poll_until`.
    Polling,
    /// On its way out of the pCPU by HLT.
    Halting,
    /// Halted.
    Halted,
}

/// A virtual CPU.
///
/// What an event touches comes first, so that it lies in few lines of the cache; thousands of vCPUs do not all
/// stay in the nearest one.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Vcpu {
    /// What it did is counted up to here (while it runs).
    pub synced: u64,
    /// What is owed before the thread goes on, by kind.
    pub owed: [u64; 4],
    /// The current thread.
    pub thread: u32,
    /// In the hypervisor's search for somebody to yield to, from this position.
    pub search: u32,
    pub state: VcpuState,
    /// The guest wants to schedule as soon as it may.
    pub need_resched: bool,
    /// Whether the host's scheduler has it, queued or current.
    pub queued: bool,
    /// KVM's marks.
    pub in_spin_loop: bool,
    pub dy_eligible: bool,
    /// Whether the guest leaves stolen time out.
    pub steal_clock: bool,
    pub idle: Idle,
    pub vm: u32,
    /// Time on pCPUs and time waiting for one since boot, for policies.
    pub ran_total: u64,
    /// In its state since.
    pub since: u64,
    /// The host's scheduler was told up to here.
    pub host_told: u64,
    /// The guest's scheduler was told up to here.
    pub guest_told: u64,
    /// TLB flushes being done: answered when nothing is owed any more.
    pub answers: Vec<(u32, u64)>,
    /// Where it runs, is queued, or ran last.
    pub pcpu: u32,
    /// The pCPU it ran on last.
    pub ran_on: u32,
    pub results: VcpuResults,
    /// By so much it computes slower than the machine itself.
    pub slower_percent: u64,
    /// The thread that ran on it last.
    pub warm_thread: u32,
    /// Another may have used its pCPU's cache since its thread last computed.
    pub cold: bool,
    /// The thread whose data is being fetched or was, since the vCPU came or its thread did; and whether
    /// that is from another last-level cache.
    pub fetches: u32,
    pub fetches_far: bool,
    pub queue: FairQueue,
    pub poll_until: u64,
    /// A rescheduling IPI is on its way or waits to be handled; sent then and by whom.
    pub resched_sent: u64,
    pub resched_from: u32,
    /// The IPI has arrived while the vCPU did not run.
    pub resched_pending: bool,
    /// Threads whose timer or device interrupt waits to be handled.
    pub due: Vec<u32>,
    /// TLB flushes asked for and not yet handled: thread that waits, time sent.
    pub flushes: Vec<(u32, u64)>,
    /// Its TLB holds the address space, though it may be idle.
    pub has_tlb: bool,
    /// The TLB is flushed before it runs again (paravirtual flush).
    pub flush_on_entry: bool,
    /// Its own window in cycles (stock).
    pub ple_window: u32,
    /// Searches that found nobody since it was put on its pCPU (APLE).
    pub ple_in_vain: u32,
    /// Next guest tick.
    pub tick_due: u64,
    pub ticks: u32,
    /// Halted since, and KVM's adaptive polling time.
    pub halted_at: u64,
    pub halt_poll: u64,
    /// haltpoll's adaptive polling time in the guest.
    pub guest_poll: u64,
    /// Retained by Gleaner's yielding thread in this idle period.
    pub retained: bool,
    /// Halted by a paravirtual lock with its thread still spinning.
    pub pv_halted: bool,
    pub waited_total: u64,
    /// How often it was put on a pCPU since boot, and the siblings that woke it since it was last observed, for policies.
    pub runs_total: u64,
    pub woken_by: Vec<u32>,
    /// Without a thread since (`u64::MAX`: it has one), for how long before, and how often, for policies.
    pub idle_since: u64,
    pub idle_total: u64,
    pub idle_periods: u64,
    /// Exits for halting and being woken since boot, which the guest takes for idle time.
    pub halting_total: u64,
    /// The host polled on its pCPU since the measuring began.
    pub polled: u64,
}

impl Vcpu {
    /// What is owed before the thread goes on, of all kinds.
    #[inline]
    pub fn owed(&self) -> u64 {
        self.owed.iter().sum()
    }
}

/// What a thread does or will do when it next gets to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Its program goes on at `pc` in `phase`.
    Go,
    /// Computes; what is left is in `remaining`.
    Compute,
    /// Works in the guest's kernel without being preemptible; what is left is in `remaining`.
    Hold,
    /// Spins for the object.
    Spin(u32),
    /// Spins in user space for the object, for as long as is left in `remaining`.
    SpinUser(u32),
    /// Waits for TLBs to be flushed.
    FlushWait,
    /// Is not runnable.
    Blocked,
    /// Has ended.
    Ended,
}

/// As what a thread waits for the lock of its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmWait {
    Reader,
    Writer,
    /// A writer that was woken to try, and counts in the lock's `generation`.
    WokenWriter,
}

/// How far a thread is within one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not begun.
    Start,
    /// Computed, or the spin lock was taken: the operation is done; or spun at a barrier.
    Done,
    /// The bucket's lock is taken.
    Bucket,
    /// The work under the bucket's lock is done.
    Held,
    /// Woken after blocking.
    Woken,
}

/// A thread of a guest. As with vCPUs, what an event touches comes first.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Thread {
    pub doing: Doing,
    pub remaining: u64,
    pub computed: u64,
    pub random: Stream,
    pub phase: Phase,
    pub pc: u32,
    /// The vCPU it is on.
    pub vcpu: u32,
    /// Kernel spin locks held or spun for.
    pub no_preempt: u32,
    pub state: ThreadState,
    pub since: u64,
    pub work: u64,
    /// The object the current operation is about.
    pub object: u32,
    pub held_count: u32,
    pub held: [u32; MOST_HELD],
    pub vm: u32,
    pub role: u32,
    /// Its number within the role.
    pub number: u32,
    pub pin: u32,
    pub working_set: u64,
    /// The pCPU that its working set was brought to last.
    pub data_at: u32,
    /// The mutex to take again after a condition.
    pub relock: u32,
    pub loops: [u32; MOST_LOOPS],
    pub mm_wait: MmWait,
    /// The barrier's generation when it arrived.
    pub generation: u32,
    /// Answers still missing.
    pub answers_left: u32,
    pub wait_since: u64,
    pub woken_at: u64,
    pub woken_by: u32,
    /// When its last wait was over; `u64::MAX`: a request has begun since then.
    pub ready_at: u64,
    /// When the request came that it is at; `u64::MAX`: it is at none.
    pub request: u64,
    /// When its last period began (`every`); 0: it had none yet.
    pub period_began: u64,
    /// Neighbours in an object's list of waiters.
    pub next: u32,
    pub previous: u32,
    pub ended: Option<u64>,
}

/// A list of threads, by their `next` and `previous`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiters {
    pub head: u32,
    pub tail: u32,
    pub count: u32,
}

impl Waiters {
    pub const EMPTY: Waiters = Waiters { head: NONE, tail: NONE, count: 0 };
}

/// What an object is, with its own settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Spin {
        kind: SpinKind,
        kernel: bool,
    },
    /// A fair one is handed over to the longest waiter.
    Mutex {
        fair: bool,
    },
    Condition,
    Barrier {
        parties: u32,
        spin: Spin,
        wake: Wake,
    },
    Semaphore {
        spin: bool,
    },
    Queue {
        capacity: u32,
    },
    /// The lock of an address space that has readers: `count` of them have it, and `generation` writers were woken and have not tried
    /// yet. Writers that spin are in `putters`.
    AddressSpace(MmLock),
}

impl ObjectKind {
    /// Whether its spinners spin in the guest's kernel.
    #[inline]
    pub fn is_of_kernel(self) -> bool {
        match self {
            ObjectKind::Spin { kernel, .. } => kernel,
            ObjectKind::AddressSpace(_) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub kind: ObjectKind,
    pub vm: u32,
    pub owner: u32,
    pub waiters: Waiters,
    /// A queue's producers that wait for room; a barrier's or semaphore's waiters that
    /// spin.
    pub putters: Waiters,
    /// Threads at the barrier, units of the semaphore, items of the queue.
    pub count: u32,
    pub generation: u32,
    /// The hash bucket's spin lock.
    pub bucket: u32,
}

/// An interrupt on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub from: u32,
    pub to: u32,
    pub kind: IpiKind,
    pub sent: u64,
    /// Who waits for the answer.
    pub thread: u32,
}

/// What is to be done before the next event, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// The thread's program may go on.
    Go(u32),
    /// The vCPU's guest should schedule if it may.
    Guest(u32),
    /// The pCPU should choose again.
    Pcpu(u32),
}
