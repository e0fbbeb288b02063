//! Static dispatch over the host schedulers, which the world calls at every switch.

use tandem_model::PcpuSet;
use tandem_policy::host::{Knobs, WeightKnob};

use super::credit::CreditHost;
use super::linux::LinuxHost;
use super::{Arrival, HostScheduler, Move, Scheduler, Shape};

/// A host scheduler.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a world has one, and calls it at every switch: a box would add an indirection"
)]
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

macro_rules! dispatch {
    ($self:ident, $scheduler:ident => $call:expr) => {
        match $self {
            AnyScheduler::Linux($scheduler) => $call,
            AnyScheduler::Credit($scheduler) => $call,
        }
    };
}

impl Scheduler for AnyScheduler {
    fn enqueue(&mut self, vcpu: u32, pcpu: u32, arrival: Arrival, now: u64) {
        dispatch!(self, s => s.enqueue(vcpu, pcpu, arrival, now))
    }

    fn dequeue(&mut self, vcpu: u32, pcpu: u32, sleeps: bool, now: u64) {
        dispatch!(self, s => s.dequeue(vcpu, pcpu, sleeps, now))
    }

    fn pick(&mut self, pcpu: u32, now: u64) -> Option<u32> {
        dispatch!(self, s => s.pick(pcpu, now))
    }

    fn put_back(&mut self, vcpu: u32, pcpu: u32, now: u64) {
        dispatch!(self, s => s.put_back(vcpu, pcpu, now))
    }

    fn account(&mut self, vcpu: u32, pcpu: u32, ran: u64, now: u64) {
        dispatch!(self, s => s.account(vcpu, pcpu, ran, now))
    }

    fn tick(&mut self, pcpu: u32, now: u64) -> bool {
        dispatch!(self, s => s.tick(pcpu, now))
    }

    fn preempts(&mut self, woken: u32, pcpu: u32, now: u64) -> bool {
        dispatch!(self, s => s.preempts(woken, pcpu, now))
    }

    fn looks_again_after(&self, pcpu: u32) -> Option<u64> {
        dispatch!(self, s => s.looks_again_after(pcpu))
    }

    fn looks_again(&mut self, pcpu: u32) -> bool {
        dispatch!(self, s => s.looks_again(pcpu))
    }

    fn select(&mut self, vcpu: u32, last: u32, idle: &PcpuSet, now: u64) -> u32 {
        dispatch!(self, s => s.select(vcpu, last, idle, now))
    }

    fn pull(&mut self, pcpu: u32, now: u64) -> Option<Move> {
        dispatch!(self, s => s.pull(pcpu, now))
    }

    fn balance(&mut self, pcpu: u32, now: u64) -> Option<Move> {
        dispatch!(self, s => s.balance(pcpu, now))
    }

    fn yield_to(&mut self, from: u32, pcpu: u32, to: u32, to_pcpu: u32, now: u64) -> bool {
        dispatch!(self, s => s.yield_to(from, pcpu, to, to_pcpu, now))
    }

    fn boost(&mut self, vcpu: u32, pcpu: u32, now: u64) {
        dispatch!(self, s => s.boost(vcpu, pcpu, now))
    }

    fn prefer(&mut self, vcpu: u32, pcpu: u32) {
        dispatch!(self, s => s.prefer(vcpu, pcpu))
    }

    fn exchange(&mut self, left: u32, pcpu: u32, queued: u32, other: u32, now: u64) {
        dispatch!(self, s => s.exchange(left, pcpu, queued, other, now))
    }

    fn set_weight(&mut self, vm: u32, weight: f64, now: u64) {
        dispatch!(self, s => s.set_weight(vm, weight, now))
    }

    fn set_idle(&mut self, vm: u32, idle: bool, now: u64) {
        dispatch!(self, s => s.set_idle(vm, idle, now))
    }

    fn set_vcpu(&mut self, vcpu: u32, weight: u32, idle: bool, now: u64) {
        dispatch!(self, s => s.set_vcpu(vcpu, weight, idle, now))
    }

    fn inflates_lag(&self) -> bool {
        dispatch!(self, s => s.inflates_lag())
    }

    fn is_divisible(&self) -> bool {
        dispatch!(self, s => s.is_divisible())
    }

    fn set_own_group(&mut self, vcpu: u32, weight: Option<f64>, now: u64) {
        dispatch!(self, s => s.set_own_group(vcpu, weight, now))
    }

    fn knobs(&self, weight: WeightKnob) -> Knobs {
        dispatch!(self, s => s.knobs(weight))
    }

    fn set_affinity(&mut self, vcpu: u32, allowed: &PcpuSet) {
        dispatch!(self, s => s.set_affinity(vcpu, allowed))
    }

    fn set_slice(&mut self, vcpu: u32, slice: u64) {
        dispatch!(self, s => s.set_slice(vcpu, slice))
    }

    fn caps_itself(&self) -> bool {
        dispatch!(self, s => s.caps_itself())
    }

    fn set_caps(&mut self, caps: &[f64], now: u64) {
        dispatch!(self, s => s.set_caps(caps, now))
    }

    fn parked(&self, vcpu: u32) -> bool {
        dispatch!(self, s => s.parked(vcpu))
    }

    fn queued(&self, pcpu: u32) -> u32 {
        dispatch!(self, s => s.queued(pcpu))
    }
}
