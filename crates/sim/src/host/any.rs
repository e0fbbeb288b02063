//! Static dispatch over the host schedulers, which the world calls at every switch.

use tandem_model::{Nanos, PcpuSet};
use tandem_policy::host::{Knobs, WeightKnob};

use super::credit::CreditHost;
use super::linux::LinuxHost;
use super::{Enqueue, HostScheduler, Move, Scheduler, Shape};

/// A host scheduler.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a world has one")]
pub enum AnyScheduler {
    /// Linux.
    Linux(LinuxHost),
    /// Xen credit.
    Credit(CreditHost),
}

/// Builds the configured scheduler.
pub fn build(scheduler: &HostScheduler, shape: Shape) -> AnyScheduler {
    match *scheduler {
        HostScheduler::Linux(discipline) => AnyScheduler::Linux(LinuxHost::new(discipline, shape)),
        HostScheduler::Credit(config) => AnyScheduler::Credit(CreditHost::new(config, shape)),
    }
}

/// Implements the trait by calls to the scheduler in use.
macro_rules! dispatch {
    ($(fn $name:ident($self:ident: $receiver:ty $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        impl Scheduler for AnyScheduler {
            $(fn $name($self: $receiver $(, $argument: $type)*) $(-> $result)? {
                match $self {
                    AnyScheduler::Linux(scheduler) => scheduler.$name($($argument),*),
                    AnyScheduler::Credit(scheduler) => scheduler.$name($($argument),*),
                }
            })*
        }
    };
}

dispatch! {
    fn enqueue(self: &mut Self, vcpu: u32, pcpu: u32, how: Enqueue, now: u64);
    fn dequeue(self: &mut Self, vcpu: u32, pcpu: u32, sleeps: bool, now: u64);
    fn pick(self: &mut Self, pcpu: u32, now: u64) -> Option<u32>;
    fn pick_of(self: &mut Self, vm: u32, pcpu: u32, now: u64) -> Option<u32>;
    fn put_back(self: &mut Self, vcpu: u32, pcpu: u32, now: u64);
    fn account(self: &mut Self, vcpu: u32, pcpu: u32, ran: u64, now: u64);
    fn tick(self: &mut Self, pcpu: u32, now: u64) -> bool;
    fn preempts(self: &mut Self, woken: u32, pcpu: u32, now: u64) -> bool;
    fn preempts_lazily(self: &Self) -> bool;
    fn looks_again_after(self: &Self, pcpu: u32) -> Option<u64>;
    fn looks_again(self: &mut Self, pcpu: u32) -> bool;
    fn select(self: &mut Self, vcpu: u32, last: u32, waker: Option<u32>, idle: &PcpuSet, now: u64) -> u32;
    fn pull(self: &mut Self, pcpu: u32, now: u64) -> Option<Move>;
    fn balance(self: &mut Self, pcpu: u32, now: u64) -> Option<Move>;
    fn spread(self: &mut Self, pcpu: u32, idle: &PcpuSet, now: u64) -> Option<u32>;
    fn yield_to(self: &mut Self, from: u32, pcpu: u32, to: u32, to_pcpu: u32, now: u64) -> bool;
    fn credit_lag(self: &mut Self, to: u32, pcpu: u32, margin: Nanos, now: u64);
    fn boost(self: &mut Self, vcpu: u32, pcpu: u32, now: u64);
    fn prefer(self: &mut Self, vcpu: u32, pcpu: u32);
    fn exchange(self: &mut Self, left: u32, pcpu: u32, queued: u32, other: u32, now: u64);
    fn set_weight(self: &mut Self, vm: u32, weight: f64, now: u64);
    fn set_idle(self: &mut Self, vm: u32, idle: bool, now: u64);
    fn set_vcpu(self: &mut Self, vcpu: u32, weight: u32, idle: bool, now: u64);
    fn inflates_lag(self: &Self) -> bool;
    fn is_divisible(self: &Self) -> bool;
    fn set_own_group(self: &mut Self, vcpu: u32, weight: Option<f64>, now: u64);
    fn knobs(self: &Self, weight: WeightKnob) -> Knobs;
    fn set_affinity(self: &mut Self, vcpu: u32, allowed: &PcpuSet);
    fn set_slice(self: &mut Self, vcpu: u32, slice: u64);
    fn caps_itself(self: &Self) -> bool;
    fn set_caps(self: &mut Self, caps: &[f64], now: u64);
    fn parked(self: &Self, vcpu: u32) -> bool;
    fn queued(self: &Self, pcpu: u32) -> u32;
}
