//! The host's schedulers, behind one interface for the rest of the simulator.
//!
//! A host scheduler picks the next vCPU of each pCPU and the pCPU of a woken vCPU.
//! It knows the same as the kernel's scheduler knows of threads: numbers of VMs and vCPUs, weights, affinities and CPU time.
//! It has no view inside the VMs.
//! The caller (the world) tracks the vCPUs' states, charges the costs of switching, and reports run time to the scheduler.
//!
//! All methods take the time in ns; none allocates in the steady state.

use serde::{Deserialize, Serialize};
use tandem_kpolicy::{ApleConfig, Order};
use tandem_model::{Nanos, PcpuSet, Topology};
use tandem_policy::host::{Knobs, WeightKnob};
use tandem_policy::settings::settings;

use crate::sched::fair::{Discipline, Enqueue};

mod any;
pub mod credit;
pub mod linux;
pub mod starts;
#[cfg(test)]
mod tests;

pub use any::{AnyScheduler, build};

/// Which scheduler the host runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostScheduler {
    /// Linux's fair class, CFS as of 3.19 or EEVDF as of 6.12, with a group for each VM.
    Linux(Discipline),
    /// Xen's credit scheduler.
    Credit(CreditConfig),
}

/// The release of Xen that the credit scheduler models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum CreditAge {
    /// Up to 4.0 (2010, 2011): a weight belongs to a VM; a vCPU above the credit limit loses all its credits.
    #[serde(rename = "4.0")]
    Xen40,
    /// 4.2 and later: each vCPU of a VM has the VM's weight; a vCPU above the credit limit keeps half its credits.
    #[serde(rename = "4.2")]
    Xen42,
}

/// Initial placement of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Starts {
    /// Spread over the allowed pCPUs.
    Spread,
    /// As Xen 4.0 places them when it creates a VM and sets its pins ([`starts`]).
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
    /// The modelled release.
    pub age: CreditAge,
    /// Initial placement of vCPUs.
    #[serde(skip_serializing_if = "Starts::is_spread")]
    pub starts: Starts,
    /// Period of the tick that ends a boost: 10 ms.
    pub tick: Nanos,
    /// Time slice, and period in which credits and classes are updated: 30 ms.
    pub timeslice: Nanos,
    /// Minimum run time of a vCPU before a woken one preempts it: 1 ms, 0 up to Xen 4.0.
    pub ratelimit: Nanos,
}

/// Placement of vCPUs on run queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The scheduler's own load balancing (LB).
    LoadBalancing,
    /// vCPU v of each VM stays on pCPU v modulo the number of pCPUs (PIN).
    Pin,
    /// Balance scheduling: at most one vCPU of a VM on each pCPU's queue.
    NoStacking,
}

/// Co-scheduling of a VM's vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoScheduling {
    /// No co-scheduling.
    No,
    /// Gang: when a vCPU is scheduled, its siblings run next on their pCPUs.
    Gang,
    /// Demand-based: IPI senders are not preempted, receivers are boosted.
    Demand,
}

/// Core scheduling (`prctl(PR_SCHED_CORE)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cookies {
    /// No cookies: any vCPUs share a core.
    #[default]
    No,
    /// A cookie per VM: a core runs vCPUs of one VM at a time.
    Vm,
}

impl Cookies {
    fn is_none(&self) -> bool {
        *self == Cookies::No
    }
}

/// Handling of pause-loop exits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PauseLoop {
    /// No pause-loop exiting.
    Off,
    /// One window for the host, in cycles.
    Fixed(u32),
    /// One window per VM, set at run time; this is the initial window in cycles.
    PerVm(u32),
    /// KVM's window per vCPU.
    Stock {
        /// Initial window in cycles: 4096.
        base: u32,
        /// Factor by which an exit grows the window: 2; 0: it never grows.
        grow: u32,
        /// Divisor that shrinks the window when the vCPU is scheduled in; 0: reset to `base`.
        shrink: u32,
        /// Maximum window in cycles.
        most: u32,
    },
    /// One window per VM, set by APLE: the kernel's own code, through `tandem_kpolicy`.
    Aple(AplePolicy),
}

/// Selection of the vCPU to which a spinning vCPU yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// No candidate: the vCPU only yields.
    None,
    /// KVM's round robin from the last boosted vCPU.
    Stock,
    /// The same, without vCPUs that were preempted in user mode, as since Linux 4.14.
    InKernel,
    /// The same, which prefers receivers of recent IPIs.
    IpiAware,
    /// HVS or one of its variants: the kernel's own code, through `tandem_kpolicy`.
    Ranked(Ranking),
}

/// Order of preference among preempted vCPUs.
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

settings! {
    /// APLE's settings; thresholds are in cycles.
    #[derive(Copy, Eq)]
    pub struct AplePolicy as its {
        /// Initial threshold.
        pub initial: u32 = ApleConfig::default().initial, (its.lower, its.upper);
        /// Minimum threshold.
        pub lower: u32 = ApleConfig::default().lower, (1, u32::MAX);
        /// Maximum threshold.
        pub upper: u32 = ApleConfig::default().upper, (1, u32::MAX);
        /// Distance of trials up and down.
        pub step: u32 = ApleConfig::default().step, (1, u32::MAX);
        /// Pause-loop exits of the VM per epoch.
        pub epoch_exits: u32 = ApleConfig::default().epoch_exits, (1, u32::MAX);
    }
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

/// busy_factor of kernel/sched/topology.c since Linux 5.10; before it was 32.
pub const BUSY_FACTOR: u32 = 16;

fn is_default_busy_factor(factor: &u32) -> bool {
    *factor == BUSY_FACTOR
}

/// Settings of the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostConfig {
    /// The scheduler.
    pub scheduler: HostScheduler,
    /// The clock tick: 4 ms at HZ=250.
    pub tick: Nanos,
    /// Phases of the pCPUs' ticks.
    #[serde(skip_serializing_if = "Ticks::is_spread")]
    pub ticks: Ticks,
    /// Placement.
    pub placement: Placement,
    /// Interval between two comparisons of loads by a busy pCPU, in ms per pCPU of the domain.
    #[serde(skip_serializing_if = "is_default_busy_factor")]
    pub busy_factor: u32,
    /// Co-scheduling.
    pub together: CoScheduling,
    /// Core scheduling.
    #[serde(skip_serializing_if = "Cookies::is_none")]
    pub core_scheduling: Cookies,
    /// Whether a VM is throttled for the rest of a `cap_period` after it has used its fair share.
    pub cap: bool,
    /// The period of the cap: 30 ms.
    pub cap_period: Nanos,
    /// Pause-loop exiting.
    pub pause_loop: PauseLoop,
    /// Whether the hardware counts PAUSEs (AMD) instead of cycles (Intel).
    pub pause_filter: bool,
    /// Candidate selection.
    pub candidate: Candidate,
    /// Lag that a directed yield credits to its target for each queued entity (EEVDF); `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_credit: Option<Nanos>,
    /// Maximum time of halt polling (`halt_poll_ns`, 200 µs); zero: none.
    pub halt_poll: Nanos,
    /// APIC virtualization: interrupts arrive and end without exits.
    pub apicv: bool,
    /// Whether a vCPU that a rescheduling IPI wakes runs next on its pCPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fast_reactivation: bool,
}

/// Phases of the clock ticks of a host's pCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ticks {
    /// Spread evenly over the period, so that pCPUs are no more in step than with random phases.
    #[default]
    Spread,
    /// All at once, the default of Linux without `skew_tick=1` (tick_setup_sched_timer, kernel/time/tick-sched.c).
    InStep,
}

impl Ticks {
    /// Whether they are spread.
    fn is_spread(&self) -> bool {
        *self == Ticks::Spread
    }
}

/// Migration of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The vCPU.
    pub vcpu: u32,
    /// Source pCPU.
    pub from: u32,
    /// Target pCPU.
    pub to: u32,
}

/// A host scheduler.
///
/// Life of a vCPU: [`enqueue`](Scheduler::enqueue) on a pCPU → picked → [`account`](Scheduler::account)
/// while it runs → [`put_back`](Scheduler::put_back) when it is switched out still runnable, or
/// [`dequeue`](Scheduler::dequeue) when it halts or migrates.
/// Until then, the picked vCPU is the pCPU's current one.
pub trait Scheduler {
    /// The vCPU becomes runnable on `pcpu`.
    fn enqueue(&mut self, vcpu: u32, pcpu: u32, how: Enqueue, now: u64);

    /// The vCPU, queued or current on `pcpu`, halts (`sleeps`) or migrates.
    /// The caller has accounted the run time of a current vCPU before.
    fn dequeue(&mut self, vcpu: u32, pcpu: u32, sleeps: bool, now: u64);

    /// Picks the next vCPU for a pCPU without a current one, and makes it current.
    fn pick(&mut self, pcpu: u32, now: u64) -> Option<u32>;

    /// Picks a queued vCPU of a VM for a pCPU without a current one, and makes it current.
    /// A scheduler without core scheduling finds none.
    fn pick_of(&mut self, _vm: u32, _pcpu: u32, _now: u64) -> Option<u32> {
        None
    }

    /// The current vCPU returns to the queue, runnable.
    fn put_back(&mut self, vcpu: u32, pcpu: u32, now: u64);

    /// The current vCPU ran for `ran` ns.
    fn account(&mut self, vcpu: u32, pcpu: u32, ran: u64, now: u64);

    /// The clock tick on a pCPU with a current vCPU; true if that should be preempted.
    fn tick(&mut self, pcpu: u32, now: u64) -> bool;

    /// Whether a vCPU that was just enqueued preempts the current one.
    fn preempts(&mut self, woken: u32, pcpu: u32, now: u64) -> bool;

    /// Whether a wake-up only marks the current vCPU, which gives way at its next VM exit or tick (PREEMPT_LAZY).
    fn preempts_lazily(&self) -> bool {
        false
    }

    /// Delay of the scheduler's own timer in ns after a vCPU was enqueued and did not preempt; `None`: no timer.
    fn looks_again_after(&self, _pcpu: u32) -> Option<u64> {
        None
    }

    /// That timer fires; true if the current vCPU should be preempted.
    fn looks_again(&mut self, _pcpu: u32) -> bool {
        false
    }

    /// Selects the pCPU of a vCPU that wakes or starts.
    /// `idle` holds the pCPUs without a vCPU; the vCPU last ran on `last`, and a vCPU on `waker` wakes it.
    fn select(&mut self, vcpu: u32, last: u32, waker: Option<u32>, idle: &PcpuSet, now: u64)
    -> u32;

    /// Idle balancing: a queued vCPU that an idle pCPU may take from another.
    fn pull(&mut self, pcpu: u32, now: u64) -> Option<Move>;

    /// Periodic balancing of `pcpu`: a vCPU to migrate there, or none.
    /// Called at every tick; the scheduler keeps its own intervals.
    fn balance(&mut self, pcpu: u32, now: u64) -> Option<Move>;

    /// Active balancing at a tick of `pcpu`: the idle pCPU to which its running vCPU moves, or none.
    fn spread(&mut self, _pcpu: u32, _idle: &PcpuSet, _now: u64) -> Option<u32> {
        None
    }

    /// Directed yield: `from`, current on `pcpu`, yields to `to`, queued on the same or another pCPU `to_pcpu`.
    /// If the scheduler accepts it, the caller switches out the current vCPU of `to_pcpu`, which may be `from`.
    fn yield_to(&mut self, from: u32, pcpu: u32, to: u32, to_pcpu: u32, now: u64) -> bool;

    /// Credits lag to `to`, to which the current vCPU of the same pCPU has just yielded; others than EEVDF ignore it.
    /// `margin` is the lag for each queued entity.
    fn credit_lag(&mut self, _to: u32, _pcpu: u32, _margin: Nanos, _now: u64) {}

    /// Makes a queued vCPU the next on its pCPU, for co-scheduling; the caller switches.
    fn boost(&mut self, vcpu: u32, pcpu: u32, now: u64);

    /// Makes a queued vCPU the next on its pCPU within the limits of fairness, without preempting the current one.
    /// A scheduler without such a preference ignores it.
    fn prefer(&mut self, _vcpu: u32, _pcpu: u32) {}

    /// Exchanges two siblings.
    /// `left`, which has just left `pcpu` and is in no queue, takes the place of `queued` in the queue of `other`.
    /// `queued` becomes the next on `pcpu`.
    fn exchange(&mut self, left: u32, pcpu: u32, queued: u32, other: u32, now: u64) {
        self.dequeue(queued, other, false, now);
        self.enqueue(left, other, Enqueue::Migrated, now);
        self.enqueue(queued, pcpu, Enqueue::Migrated, now);
        self.boost(queued, pcpu, now);
    }

    /// Sets a VM's weight; the default is 1024.
    fn set_weight(&mut self, vm: u32, weight: f64, now: u64);

    /// Moves a VM into the idle class, in which its vCPUs use mostly otherwise idle pCPUs, or out of it.
    fn set_idle(&mut self, _vm: u32, _idle: bool, _now: u64) {}

    /// Sets a vCPU's weight within its VM (default 1024), and its membership of the idle class there.
    fn set_vcpu(&mut self, _vcpu: u32, _weight: u32, _idle: bool, _now: u64) {}

    /// Whether vCPUs can have their own groups alongside the VMs' groups.
    fn is_divisible(&self) -> bool {
        false
    }

    /// Whether reweighting a queued group inflates its lag, for which the remedy is to put vCPUs apart.
    fn inflates_lag(&self) -> bool {
        false
    }

    /// Moves a vCPU to its own group of this weight, alongside the VMs' groups; `None`: back to its VM's group.
    /// A running vCPU keeps running.
    fn set_own_group(&mut self, _vcpu: u32, _weight: Option<f64>, _now: u64) {}

    /// The knobs that policies can use, with this knob for weights.
    fn knobs(&self, weight: WeightKnob) -> Knobs;

    /// Sets a vCPU's affinity; the caller moves the vCPU if it is on another pCPU.
    fn set_affinity(&mut self, vcpu: u32, allowed: &PcpuSet);

    /// Sets a vCPU's custom slice in ns; schedulers without custom slices ignore it.
    fn set_slice(&mut self, vcpu: u32, slice: u64);

    /// Whether the scheduler enforces caps.
    fn caps_itself(&self) -> bool {
        false
    }

    /// A cap period begins; `caps` holds the pCPUs that each VM may use.
    /// A scheduler that [enforces caps](Scheduler::caps_itself) may [park](Scheduler::parked) and release vCPUs here and at ticks.
    fn set_caps(&mut self, _caps: &[f64], _now: u64) {}

    /// Whether its VM's cap keeps the vCPU, queued or current, from running.
    fn parked(&self, _vcpu: u32) -> bool {
        false
    }

    /// Number of runnable vCPUs on a pCPU, the current one included.
    fn queued(&self, pcpu: u32) -> u32;
}

/// Topology and VMs of a host, as a host scheduler gets them at the start.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of pCPUs.
    pub pcpus: u32,
    /// Places of the pCPUs.
    pub topology: Topology,
    /// Whether the Linux scheduler follows all levels of the topology, instead of the last-level caches alone.
    pub follows_topology: bool,
    /// Per vCPU: its VM.
    pub vm_of: Vec<u32>,
    /// Per VM: its weight.
    pub weights: Vec<f64>,
    /// Per vCPU: its weight within its VM; the default is 1024.
    pub vcpu_weights: Vec<u32>,
    /// Per vCPU: its affinity.
    pub allowed: Vec<PcpuSet>,
    /// Placement of vCPUs on run queues.
    pub placement: Placement,
    /// [`HostConfig::busy_factor`].
    pub busy_factor: u32,
}
