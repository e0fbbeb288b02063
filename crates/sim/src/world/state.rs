//! The parts of the world: pCPUs, VMs, vCPUs, threads, objects, interrupts in flight.
//!
//! All references are numbers, and [`NONE`] is the null reference.
//! Times are ns since the start of the simulation.

use tandem_kpolicy::{Aple, Hvs};
use tandem_model::Nanos;
use tandem_model::topology::{CacheId, NodeId};

use crate::machine::Cache;
use crate::random::Stream;
use crate::results::{Counts, Histogram, PcpuResults, VcpuResults};
use crate::scenario::{Guest, MmLock};
use crate::trace::{IpiKind, ThreadState, VcpuState};
use crate::workload::{MOST_HELD, MOST_LOOPS, Spin, SpinKind, Wake};

use super::governor::Governor;

/// The null reference.
pub(crate) const NONE: u32 = u32::MAX;

/// Kind of owed time: work of the guest's kernel.
pub(crate) const KERNEL: usize = 0;
/// Kind of owed time: VM exits and the hypervisor's work.
pub(crate) const EXITS: usize = 1;
/// Kind of owed time: cache refills.
pub(crate) const CACHE: usize = 2;
/// Kind of owed time: the switch that put the vCPU on its pCPU.
/// A vCPU that is switched out before it has paid pays for its next switch only.
pub(crate) const SWITCH: usize = 3;

/// The state to which a pCPU's time is accounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PcpuState {
    Idle,
    Busy,
    Polling,
}

#[derive(Clone, Debug)]
pub(crate) struct Pcpu {
    /// The vCPU on it, running or halt-polling.
    pub current: u32,
    /// The vCPU that was on it last.
    pub warm: u32,
    /// Its private cache.
    pub cache: Cache,
    /// Its last-level cache and NUMA node.
    pub llc: CacheId,
    pub node: NodeId,
    /// The vCPU that ran here when a directed yield chose another vCPU of this pCPU.
    pub yielded_over: u32,
    pub state: PcpuState,
    /// Time up to which its state is accounted.
    pub since: u64,
    /// Idle since boot, for policies.
    pub idle_total: u64,
    pub results: PcpuResults,
    /// Marked to reschedule.
    pub resched: bool,
    /// Marked to reschedule at the next VM exit of its vCPU or at the tick (TIF_NEED_RESCHED_LAZY).
    pub resched_lazy: bool,
    /// The current vCPU is protected from preemption until this time (demand-based scheduling).
    pub protected_until: u64,
    /// Earliest time of the next boost of a woken vCPU (fast reactivation).
    pub next_boost: u64,
    /// The next vCPU is boosted because a sibling was scheduled (co-scheduling).
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
    /// vCPUs with more than one thread, a bit each.
    pub overloaded: Vec<u64>,
    /// Threads that have not ended.
    pub alive: u32,
    /// The scenario sets the initial pCPUs of its vCPUs.
    pub is_placed: bool,
    pub started: u64,
    pub finished: Option<u64>,
    /// Starting point of KVM's search for a yield target.
    pub last_boosted: u32,
    /// Pause-loop window of the VM or the host, cycles.
    pub ple_window: u32,
    /// With [`crate::host::PauseLoop::Aple`].
    pub aple: Option<Aple>,
    /// With [`crate::host::Candidate::Ranked`].
    pub hvs: Option<Hvs>,
    /// Changes of APLE's threshold: time and new value.
    pub windows: Vec<(Nanos, u32)>,
    pub counts: Counts,
    pub request_time: Histogram,
    pub wake_latency: Histogram,
    pub ipi_latency: Histogram,
    pub shootdown_latency: Histogram,
    pub lock_wait: Histogram,
    /// Throttled by the cap.
    pub throttled: bool,
    /// Remaining run time in this cap period, ns.
    pub quota: u64,
    /// Its threads use this many of its vCPUs, the first ones.
    pub active: u32,
    /// It has this many of its vCPUs, the first ones; the others are not plugged in.
    pub present: u32,
    /// This many of its vCPUs, the first ones, are preferred (cpu_preferred_mask).
    pub preferred: u32,
    /// The steal governor, if the guest has it.
    pub governor: Option<Governor>,
    /// Planned changes of `present`: time and number of vCPUs.
    pub hotplug: Vec<(Nanos, u32)>,
    /// Gleaner's retention: time for which an idle active vCPU stays awake, ns.
    pub retention: u64,
    /// Time that its threads have waited for a vCPU since boot, for policies, ns.
    pub waited: u64,
    pub random: Stream,
}

/// Idle state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It has a thread.
    Busy,
    /// Polls for ever, or up to the time in `poll_until`.
    Polling,
    /// Executing the exit of HLT.
    Halting,
    /// Halted.
    Halted,
}

/// A virtual CPU.
///
/// Fields that events touch come first, so that they lie in few cache lines; the nearest cache cannot hold thousands of vCPUs.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Vcpu {
    /// Time up to which it is accounted (while it runs).
    pub synced: u64,
    /// Time owed before the thread continues, by kind, ns.
    pub owed: [u64; 4],
    /// The current thread.
    pub thread: u32,
    /// Position at which the hypervisor's search for a yield target began; [`NONE`] outside a search.
    pub search: u32,
    pub state: VcpuState,
    /// The guest must schedule as soon as preemption allows.
    pub need_resched: bool,
    /// In a run queue of the host, waiting or current.
    pub queued: bool,
    /// KVM's marks for directed yields.
    pub in_spin_loop: bool,
    pub dy_eligible: bool,
    /// Whether the guest's scheduler subtracts steal time.
    pub steal_clock: bool,
    pub idle: Idle,
    /// Progress of its work per time, percent; below 100 while its core's other thread is busy.
    pub speed: u8,
    pub vm: u32,
    /// Time on pCPUs since boot, halt-polling included, for policies.
    pub ran_total: u64,
    /// Start of the present state.
    pub since: u64,
    /// Time up to which the host's scheduler has accounted it.
    pub host_accounted: u64,
    /// Time up to which the guest's scheduler has accounted it.
    pub guest_accounted: u64,
    /// TLB flushes in progress, answered when all owed time is paid.
    pub answers: Vec<(u32, u64)>,
    /// The pCPU on which it runs, is queued, or ran last.
    pub pcpu: u32,
    /// The pCPU on which it ran last.
    pub ran_on: u32,
    pub results: VcpuResults,
    /// Slowdown of computation relative to bare metal, percent.
    pub slower_percent: u64,
    /// Work done that has not filled a ns, hundredths of a ns.
    pub begun: u8,
    /// The thread that ran on it last.
    pub warm_thread: u32,
    /// Others may have used its pCPU's cache since its thread last computed.
    pub cold: bool,
    /// The thread whose data is or was fetched since the vCPU or the thread was switched in,
    /// and the cost of fetching it, ns per KiB.
    pub fetches: u32,
    pub fetch_per_kib: u64,
    pub poll_until: u64,
    /// Send time and sender of the rescheduling IPI in flight or pending.
    pub resched_sent: u64,
    pub resched_from: u32,
    /// The IPI arrived while the vCPU did not run.
    pub resched_pending: bool,
    /// Threads whose timer or device interrupt is pending.
    pub due: Vec<u32>,
    /// Pending requests to flush: waiting thread, send time.
    pub flushes: Vec<(u32, u64)>,
    /// Its TLB holds the address space, even if it is idle.
    pub has_tlb: bool,
    /// The TLB is flushed before it runs again (paravirtual flush).
    pub flush_on_entry: bool,
    /// Its own pause-loop window (stock), cycles.
    pub ple_window: u32,
    /// Searches without a yield since it was switched in (APLE).
    pub failed_searches: u32,
    /// Receiver of its last unicast IPI, until that has ended the interrupt ([`NONE`]: none), and the send time.
    pub ipi_receiver: u32,
    pub ipi_at: u64,
    /// A tick found it not preferred: its thread is to be pushed to a preferred vCPU (npc_push_work_pending).
    pub push_pending: bool,
    /// Next guest tick.
    pub tick_due: u64,
    pub ticks: u32,
    /// Start of the halt, and KVM's adaptive polling time.
    pub halted_at: u64,
    pub halt_poll: u64,
    /// haltpoll's adaptive polling time in the guest.
    pub guest_poll: u64,
    /// Retained by Gleaner's yielding thread in this idle period.
    pub retained: bool,
    /// Halted by a paravirtual lock with its thread still spinning.
    pub pv_halted: bool,
    /// Time waiting for a pCPU since boot, for policies.
    pub waited_total: u64,
    /// Times switched in since boot, and the siblings that woke it since the last observation, for policies.
    pub runs_total: u64,
    pub woken_by: Vec<u32>,
    /// Start of the idle period (`u64::MAX`: not idle), total of earlier ones, and their number, for policies.
    pub idle_since: u64,
    pub idle_total: u64,
    pub idle_periods: u64,
    /// Time of halt and wake-up exits since boot, which the guest counts as idle time.
    pub halting_total: u64,
    /// Halt-polling time since the measurement began.
    pub polled: u64,
}

impl Vcpu {
    /// Total time owed before the thread continues, ns at full speed.
    #[inline]
    pub fn owed(&self) -> u64 {
        self.owed.iter().sum()
    }
}

/// A thread's activity, present or at its next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Continues its program at `pc` in `phase`.
    Go,
    /// Computes for `remaining` ns.
    Compute,
    /// Works in the guest's kernel, not preemptible, for `remaining` ns.
    Hold,
    /// Spins for the object in the guest's kernel.
    Spin(u32),
    /// Spins for the object in user space, for `remaining` ns.
    SpinUser(u32),
    /// Waits for answers to TLB flushes.
    FlushWait,
    /// Is not runnable.
    Blocked,
    /// Has ended.
    Ended,
}

/// The role in which a thread waits for the lock of its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmWait {
    Reader,
    Writer,
    /// A writer woken to try again, counted in the lock's `generation`.
    WokenWriter,
}

/// A thread's progress within one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not begun.
    Start,
    /// The operation is done (computed, or took a spin lock), or the thread has spun at a barrier.
    Done,
    /// The bucket's lock is taken.
    Bucket,
    /// The work under the bucket's lock is done.
    Held,
    /// Woken after blocking.
    Woken,
}

/// A thread of a guest. As with vCPUs, fields that events touch come first.
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
    /// The object of the current operation.
    pub object: u32,
    pub held_count: u32,
    pub held: [u32; MOST_HELD],
    pub vm: u32,
    pub role: u32,
    /// Its number within the role.
    pub number: u32,
    pub pin: u32,
    pub working_set: u64,
    /// The pCPU that last fetched its working set.
    pub data_at: u32,
    /// The NUMA node of its memory: where it first fetched its working set.
    pub home: Option<NodeId>,
    /// The mutex to take again after a condition.
    pub relock: u32,
    pub loops: [u32; MOST_LOOPS],
    pub mm_wait: MmWait,
    /// The barrier's generation at its arrival.
    pub generation: u32,
    /// Answers still missing.
    pub answers_left: u32,
    pub wait_since: u64,
    pub woken_at: u64,
    pub woken_by: u32,
    /// End of its last wait; `u64::MAX`: a request has started since.
    pub ready_at: u64,
    /// Arrival of its present request; `u64::MAX`: none.
    pub request: u64,
    /// Start of its last period (`every`); 0: none yet.
    pub period_began: u64,
    /// Neighbours in an object's list of waiters.
    pub next: u32,
    pub previous: u32,
    pub ended: Option<u64>,
}

/// A list of threads, linked by `next` and `previous`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiters {
    pub head: u32,
    pub tail: u32,
    pub count: u32,
}

impl Waiters {
    pub const EMPTY: Waiters = Waiters { head: NONE, tail: NONE, count: 0 };
}

/// Kind of an object, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Spin {
        kind: SpinKind,
        kernel: bool,
    },
    /// A fair mutex is handed over to the longest waiter.
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
    /// The lock of an address space with readers.
    /// `count` readers hold it, and `generation` woken writers have not tried again yet.
    /// Spinning writers are in `putters`.
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
    /// A queue's producers that wait for room; the spinning waiters of other kinds.
    pub putters: Waiters,
    /// Threads at the barrier, units of the semaphore, items of the queue.
    pub count: u32,
    pub generation: u32,
    /// The hash bucket's spin lock.
    pub bucket: u32,
}

/// An interrupt in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub from: u32,
    pub to: u32,
    pub kind: IpiKind,
    pub sent: u64,
    /// The thread that waits for the answer, or [`NONE`].
    pub thread: u32,
}

/// Work to do before the next event, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// The thread's program may go on.
    Go(u32),
    /// The vCPU's guest should schedule if it may.
    Guest(u32),
    /// The pCPU should choose again.
    Pcpu(u32),
    /// The pCPU's speed changes.
    Speed(u32),
}
