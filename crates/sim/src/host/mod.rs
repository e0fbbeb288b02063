//! The host: its schedulers, seen by the rest of the simulator through one interface.
//!
//! A host scheduler decides which vCPU is next on each pCPU and where a woken vCPU goes. It knows
//! vCPUs by number, VMs by number, weights, affinities and CPU time: what the kernel's scheduler
//! knows of threads. It does not know what runs inside. The caller (the world) keeps who is where,
//! burns the costs of switching, and tells the scheduler what ran.
//!
//! All methods take the time in ns; none allocates in the steady state.

use serde::Serialize;
use tandem_kpolicy::{ApleConfig, Order};
use tandem_model::{Nanos, PcpuSet};
use tandem_policy::host::{Knobs, WeightKnob};

use crate::sched::fair::Discipline;

mod any;
pub mod credit;
pub mod linux;
pub mod starts;
#[cfg(test)]
mod tests;

pub use any::{AnyScheduler, build};

/// Why a vCPU becomes runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It starts.
    New,
    /// It was halted and is woken.
    Wakeup,
    /// It comes from another pCPU.
    Migrated,
}

/// Which scheduler the host runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostScheduler {
    /// Linux's fair class, CFS as of 3.19 or EEVDF as of 6.12, with a group for each VM.
    Linux(Discipline),
    /// Xen's credit scheduler.
    Credit(CreditConfig),
}

/// As of when Xen credit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CreditAge {
    /// Up to 4.0 (2010, 2011): a weight is a VM's, and a vCPU that has saved too much loses all of it.
    #[serde(rename = "4.0")]
    Xen40,
    /// 4.2 and later: a weight is that of each of the VM's vCPUs, and half of the savings are kept.
    #[serde(rename = "4.2")]
    Xen42,
}

/// Where vCPUs begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Starts {
    /// Spread over the pCPUs where they may be.
    Spread,
    /// Where Xen 4.0 puts them when it makes a VM and sets its pins ([`starts`]).
    Picked,
}

impl Starts {
    fn is_spread(&self) -> bool {
        *self == Starts::Spread
    }
}

/// Settings of Xen credit (xen/common/sched/credit.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CreditConfig {
    /// As of which release.
    pub age: CreditAge,
    /// Where vCPUs begin.
    #[serde(skip_serializing_if = "Starts::is_spread")]
    pub starts: Starts,
    /// Credits are burnt at each tick: 10 ms.
    pub tick: Nanos,
    /// Credits are given out and priorities set anew: 30 ms.
    pub timeslice: Nanos,
    /// A vCPU that woke runs at least this long before another may preempt it: 1 ms, 0 up to Xen 4.0.
    pub ratelimit: Nanos,
}

/// Where vCPUs may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The scheduler's own load balancing (LB).
    LoadBalancing,
    /// vCPU v of each VM stays on pCPU v modulo the number of pCPUs (PIN).
    Pin,
    /// Balance scheduling: never two vCPUs of a VM on one pCPU's queue.
    NoStacking,
}

/// Whether vCPUs of a VM are brought to run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoScheduling {
    /// Not.
    No,
    /// Co-scheduling: when a vCPU is scheduled, its siblings are put first on their pCPUs.
    Gang,
    /// Demand-based: senders of IPIs are not preempted, receivers are boosted.
    Demand,
}

/// How pause-loop exits are handled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PauseLoop {
    /// No pause-loop exiting.
    Off,
    /// One window for the host, in cycles.
    Fixed(u32),
    /// One window per VM, set at run time; this is the first.
    PerVm(u32),
    /// KVM's window per vCPU.
    Stock {
        /// The base, 4096 cycles.
        base: u32,
        /// Multiplied by this at each exit: 2. Below 1: never grows.
        grow: u32,
        /// Divided by this whenever the vCPU is put on a pCPU again; 0: back to the base.
        shrink: u32,
        /// At most this.
        most: u32,
    },
    /// A window per VM, which APLE sets: the kernel's own code, through `tandem_kpolicy`.
    Aple(AplePolicy),
}

/// Whom a spinning vCPU yields to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// Nobody: it only gives up its slice.
    None,
    /// KVM's circle from the last boosted vCPU.
    Stock,
    /// HVS or one of its variants, as the kernel does it, through `tandem_kpolicy`.
    Ranked(Ranking),
}

/// In which order preempted vCPUs are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ranking {
    /// Resource-waiters, latest first; then lock-waiters, earliest first; then yielded ones.
    Hvs,
    /// Resource-waiters earliest first.
    CpthR,
    /// Lock-waiters latest first.
    CpthL,
    /// Lock-waiters before resource-waiters.
    Cch,
}

/// APLE's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AplePolicy {
    /// The first threshold, cycles.
    pub initial: u32,
    /// The lowest, cycles.
    pub lower: u32,
    /// The highest, cycles.
    pub upper: u32,
    /// How far up and down is tried, cycles.
    pub step: u32,
    /// Pause-loop exits of the VM in an epoch.
    pub epoch_exits: u32,
}

impl From<Ranking> for Order {
    fn from(ranking: Ranking) -> Order {
        match ranking {
            Ranking::Hvs => Order::Hvs,
            Ranking::CpthR => Order::CpthR,
            Ranking::CpthL => Order::CpthL,
            Ranking::Cch => Order::Cch,
        }
    }
}

impl From<AplePolicy> for ApleConfig {
    fn from(policy: AplePolicy) -> ApleConfig {
        ApleConfig {
            initial: policy.initial,
            lower: policy.lower,
            upper: policy.upper,
            step: policy.step,
            epoch_exits: policy.epoch_exits,
        }
    }
}

impl Default for AplePolicy {
    fn default() -> AplePolicy {
        let ApleConfig { initial, lower, upper, step, epoch_exits } = ApleConfig::default();
        AplePolicy { initial, lower, upper, step, epoch_exits }
    }
}

/// busy_factor of kernel/sched/topology.c since Linux 5.10; before it was 32.
pub const BUSY_FACTOR: u32 = 16;

fn is_default_busy_factor(factor: &u32) -> bool {
    *factor == BUSY_FACTOR
}

/// Everything about the host that can be set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostConfig {
    /// The scheduler.
    pub scheduler: HostScheduler,
    /// The clock tick: 4 ms at HZ=250.
    pub tick: Nanos,
    /// How the ticks of pCPUs lie to each other.
    #[serde(skip_serializing_if = "Ticks::is_spread")]
    pub ticks: Ticks,
    /// Placement.
    pub placement: Placement,
    /// Between two comparisons of loads by a busy pCPU: so many ms for each pCPU of the domain.
    #[serde(skip_serializing_if = "is_default_busy_factor")]
    pub busy_factor: u32,
    /// Co-scheduling.
    pub together: CoScheduling,
    /// A VM is stopped for the rest of each `cap_period` once it has used its fair share.
    pub cap: bool,
    /// The period of the cap: 30 ms.
    pub cap_period: Nanos,
    /// Pause-loop exiting.
    pub pause_loop: PauseLoop,
    /// Whether the hardware counts PAUSEs (AMD) instead of cycles (Intel).
    pub pause_filter: bool,
    /// Candidate selection.
    pub candidate: Candidate,
    /// Halt polling: at most this long (`halt_poll_ns`, 200 µs); zero: none.
    pub halt_poll: Nanos,
    /// APIC virtualization: interrupts arrive and end without exits.
    pub apicv: bool,
    /// Whether a vCPU that a rescheduling IPI wakes runs next on its pCPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fast_reactivation: bool,
}

/// How the clock ticks of a host's pCPUs lie to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ticks {
    /// Evenly over the tick's period, so that pCPUs are as much in step as if nobody knew how their ticks lie.
    #[default]
    Spread,
    /// All at once, as Linux has them unless it is booted with `skew_tick=1` (tick_setup_sched_timer, kernel/time/tick-sched.c).
    InStep,
}

impl Ticks {
    /// Whether they are spread.
    fn is_spread(&self) -> bool {
        *self == Ticks::Spread
    }
}

/// A vCPU to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which vCPU.
    pub vcpu: u32,
    /// From this pCPU.
    pub from: u32,
    /// To that.
    pub to: u32,
}

/// A host scheduler.
///
/// Life of a vCPU: [`enqueue`](Scheduler::enqueue) on a pCPU → picked → [`account`](Scheduler::account)
/// while it runs → [`put_back`](Scheduler::put_back) when it is switched out still runnable, or
/// [`dequeue`](Scheduler::dequeue) when it halts or is moved. The vCPU that was picked stays the
/// pCPU's current one until one of these two.
pub trait Scheduler {
    /// The vCPU becomes runnable on `pcpu`.
    fn enqueue(&mut self, vcpu: u32, pcpu: u32, arrival: Arrival, now: u64);

    /// The vCPU, queued or current on `pcpu`, is no longer runnable there: it halts (`sleeps`) or
    /// is moved away. What the current one ran was accounted before.
    fn dequeue(&mut self, vcpu: u32, pcpu: u32, sleeps: bool, now: u64);

    /// Chooses the next vCPU for a pCPU that has no current one, and makes it current.
    fn pick(&mut self, pcpu: u32, now: u64) -> Option<u32>;

    /// The current vCPU goes back to the queue, runnable.
    fn put_back(&mut self, vcpu: u32, pcpu: u32, now: u64);

    /// The current vCPU ran for `ran` ns.
    fn account(&mut self, vcpu: u32, pcpu: u32, ran: u64, now: u64);

    /// The clock tick on a pCPU with a current vCPU; true if that should be switched out.
    fn tick(&mut self, pcpu: u32, now: u64) -> bool;

    /// Whether a vCPU that was just enqueued takes the pCPU from the current one.
    fn preempts(&mut self, woken: u32, pcpu: u32, now: u64) -> bool;

    /// The vCPU that was just enqueued waits: so many ns later the scheduler's own timer has it look again, if it has one.
    fn looks_again_after(&self, _pcpu: u32) -> Option<u64> {
        None
    }

    /// That timer fires; true if the current vCPU should be switched out.
    fn looks_again(&mut self, _pcpu: u32) -> bool {
        false
    }

    /// Where a vCPU that wakes (or starts) should go. `idle` tells which pCPUs have no vCPU,
    /// `last` is where it ran last.
    fn select(&mut self, vcpu: u32, last: u32, idle: &PcpuSet, now: u64) -> u32;

    /// A pCPU has nothing to run: a vCPU that it may take from another's queue (not a current one).
    fn pull(&mut self, pcpu: u32, now: u64) -> Option<Move>;

    /// Periodic balancing as seen from `pcpu`: a vCPU to bring there, or none. Called at every tick;
    /// the scheduler keeps its own intervals.
    fn balance(&mut self, pcpu: u32, now: u64) -> Option<Move>;

    /// Directed yield: the current vCPU of `pcpu` would like the queued vCPU `to` (on `to_pcpu`,
    /// maybe another one) to run instead. True if the scheduler follows; then the caller switches
    /// out the current vCPU of `to_pcpu` (and `from` gives way if it is there).
    fn yield_to(&mut self, from: u32, pcpu: u32, to: u32, to_pcpu: u32, now: u64) -> bool;

    /// Puts a queued vCPU first on its pCPU, as co-scheduling asks; the caller switches.
    fn boost(&mut self, vcpu: u32, pcpu: u32, now: u64);

    /// A queued vCPU is to be the next on its pCPU as far as the scheduler finds that fair; nobody is switched
    /// out for it. A scheduler without such a wish leaves it in its place.
    fn prefer(&mut self, _vcpu: u32, _pcpu: u32) {}

    /// Two siblings exchange their places: `left`, which just left `pcpu` and is in no queue, takes that
    /// of `queued` in the queue of `other`; `queued` is queued first on `pcpu`.
    fn exchange(&mut self, left: u32, pcpu: u32, queued: u32, other: u32, now: u64) {
        self.dequeue(queued, other, false, now);
        self.enqueue(left, other, Arrival::Migrated, now);
        self.enqueue(queued, pcpu, Arrival::Migrated, now);
        self.boost(queued, pcpu, now);
    }

    /// A VM's weight (1024 is the usual one).
    fn set_weight(&mut self, vm: u32, weight: f64, now: u64);

    /// Whether a VM is in the idle class: its vCPUs run only where no other wants to. Out of it, the VM has its weight.
    fn set_idle(&mut self, _vm: u32, _idle: bool, _now: u64) {}

    /// A vCPU's weight within its VM (1024 is the usual one), and whether it is in the idle class there.
    fn set_vcpu(&mut self, _vcpu: u32, _weight: u32, _idle: bool, _now: u64) {}

    /// Whether vCPUs can have groups of their own beside the VMs'.
    fn is_divisible(&self) -> bool {
        false
    }

    /// Whether a group that is reweighted while queued has its lag inflated, for which putting vCPUs apart is the cure.
    fn inflates_lag(&self) -> bool {
        false
    }

    /// The vCPU has a group of its own beside the VMs' from now on, of this weight; `None`: it is in its VM's. One that runs goes on.
    fn set_own_group(&mut self, _vcpu: u32, _weight: Option<f64>, _now: u64) {}

    /// What policies can change, with this knob for weights.
    fn knobs(&self, weight: WeightKnob) -> Knobs;

    /// A vCPU may run on these pCPUs only. If it is elsewhere, the caller moves it.
    fn set_affinity(&mut self, vcpu: u32, allowed: &PcpuSet);

    /// A vCPU's custom slice in ns (EEVDF; others ignore it).
    fn set_slice(&mut self, vcpu: u32, slice: u64);

    /// Whether the scheduler sees to caps by itself.
    fn caps_itself(&self) -> bool {
        false
    }

    /// A cap period begins: each VM may use so many pCPUs. A scheduler that [caps by
    /// itself](Scheduler::caps_itself) may [park](Scheduler::parked) and release vCPUs here and at ticks.
    fn set_caps(&mut self, _caps: &[f64], _now: u64) {}

    /// Whether the vCPU, queued or current, may not run because of its VM's cap.
    fn parked(&self, _vcpu: u32) -> bool {
        false
    }

    /// How many vCPUs are runnable on a pCPU, the current one included.
    fn queued(&self, pcpu: u32) -> u32;
}

/// What every host scheduler is told at the start.
#[derive(Clone, Debug)]
pub struct Shape {
    /// pCPUs.
    pub pcpus: u32,
    /// pCPUs per last-level cache.
    pub pcpus_per_llc: u32,
    /// For each vCPU: its VM.
    pub vm_of: Vec<u32>,
    /// For each VM: its weight.
    pub weights: Vec<f64>,
    /// For each vCPU: its weight within its VM; 1024 is the usual one.
    pub vcpu_weights: Vec<u32>,
    /// For each vCPU: where it may run.
    pub allowed: Vec<PcpuSet>,
    /// Where vCPUs may be queued.
    pub placement: Placement,
    /// [`HostConfig::busy_factor`].
    pub busy_factor: u32,
}
