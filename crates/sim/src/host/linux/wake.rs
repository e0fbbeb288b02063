//! The pCPU of a woken vCPU on a host with a described topology (select_task_rq_fair, kernel/sched/fair.c, 6.12).
//!
//! 1. wake_affine chooses the target: the vCPU's last pCPU or the waker's.
//!    The waker's counts unless wake_wide finds that the waker wakes many.
//! 2. select_idle_sibling prefers the target if idle, the last pCPU if idle and beneath the same cache, an idle core of the cache,
//!    and then any idle pCPU of the cache; else the target.
//!
//! Other caches are not searched: their idle pCPUs take waiting vCPUs by balancing.
//! Simplifications: loads are numbers of runnable vCPUs, the search has no limit (SIS_UTIL), and no recent_used_cpu;
//! synchronous wake-ups do not occur in KVM.

use tandem_model::{Level, PcpuId, PcpuSet};

use super::LinuxHost;
use super::Scheduler;
use crate::sched::ids::QueueId;

/// Time after which a task's number of wakee switches is halved (record_wakee): a second, ns.
const DECAY: u64 = 1_000_000_000;

/// A busy pCPU's load counts 108 % on the last pCPU (wake_affine_weight: half of imbalance_pct − 100, which is 17 in a cache).
const PREV_PERCENT: u32 = 108;

/// The tasks that each vCPU wakes (`wakee_flips`, `last_wakee`).
#[derive(Clone, Debug)]
pub(super) struct Wakees {
    /// Per vCPU: the last vCPU that it woke, the number of changes, and the time of the last decay.
    flips: Vec<(u32, u32, u64)>,
}

impl Wakees {
    pub fn new(vcpus: usize) -> Wakees {
        Wakees { flips: vec![(u32::MAX, 0, 0); vcpus] }
    }

    /// Records that `waker` wakes `v` (record_wakee).
    pub(super) fn record(&mut self, waker: u32, v: u32, now: u64) {
        let (last, flips, decayed) = &mut self.flips[waker as usize];
        if now > *decayed + DECAY {
            *flips /= 2;
            *decayed = now;
        }
        if *last != v {
            (*last, *flips) = (v, *flips + 1);
        }
    }

    /// Whether `waker` and `v` switch wakees more often than a cache of `size` pCPUs can hold (wake_wide).
    pub(super) fn is_wide(&self, waker: u32, v: u32, size: u32) -> bool {
        let (of_waker, of_v) = (self.flips[waker as usize].1, self.flips[v as usize].1);
        let (slave, master) = (of_waker.min(of_v), of_waker.max(of_v));
        slave >= size && master >= slave * size
    }
}

impl LinuxHost {
    /// The other thread of a pCPU's core.
    pub(super) fn sibling(&self, p: u32) -> Option<u32> {
        self.siblings[p as usize]
    }

    /// Whether all threads of an idle pCPU's core are idle (is_core_idle).
    pub(super) fn is_idle_core(&self, p: u32, idle: &PcpuSet) -> bool {
        idle.contains(PcpuId(p))
            && self.sibling(p).is_none_or(|sibling| idle.contains(PcpuId(sibling)))
    }

    /// The pCPU of a woken vCPU; `None` if it may use none beneath the target's cache.
    pub(super) fn select_in_cache(
        &mut self,
        v: u32,
        last: u32,
        waker: Option<u32>,
        idle: &PcpuSet,
        now: u64,
    ) -> Option<u32> {
        let target = waker.map_or(last, |this| self.wake_affine(v, last, this, idle, now));
        let is_usable = |p: u32| idle.contains(PcpuId(p)) && self.may_be_on(v, p);
        if is_usable(target) {
            return Some(target);
        }
        if self.meet(last, target, Level::Cache) && is_usable(last) {
            return Some(last);
        }
        let near = |p: &u32| self.meet(*p, target, Level::Cache) && self.may_be_on(v, *p);
        let idle_near = || idle.iter().map(|p| p.0).filter(near);
        let idle_core = idle_near().find(|&p| self.is_idle_core(p, idle));
        let found = idle_core.or_else(|| idle_near().next());
        found.or_else(|| self.may_be_on(v, target).then_some(target))
    }

    /// The target: the last pCPU or the waker's, `this`.
    fn wake_affine(&mut self, v: u32, last: u32, this: u32, idle: &PcpuSet, now: u64) -> u32 {
        if let Some(waker) = self.fair.current(QueueId(this)) {
            self.wakees.record(waker.0, v, now);
            if self.wakees.is_wide(waker.0, v, self.cache_size) {
                return last;
            }
        }
        if this == last || !self.may_be_on(v, this) {
            return last;
        }
        let is_idle = |p: u32| idle.contains(PcpuId(p));
        // wake_affine_idle
        if is_idle(last) {
            return last;
        }
        if is_idle(this) && self.meet(this, last, Level::Cache) {
            return this;
        }
        // wake_affine_weight
        if (self.queued(this) + 1) * 100 < self.queued(last) * PREV_PERCENT { this } else { last }
    }
}
