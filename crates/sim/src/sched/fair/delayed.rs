//! Delayed dequeue (DELAY_DEQUEUE and DELAY_ZERO of Linux 6.12): a sleeper with negative lag stays queued until it would be picked.
//!
//! It counts in V and in the load, but not as runnable.
//! While queued, it works off its negative lag as the others run; when it is picked, it is dequeued with lag 0.
//! If it wakes before, it is requeued in place (requeue_delayed_entity).
//! If it is still ahead, it keeps its deadline; otherwise it is placed at V with a new deadline.
//!
//! That V is as of the last update_curr (the last tick, switch or wake-up), because this path does not call it.
//! V has advanced since, and the difference is positive lag for the woken entity, which decides many wake-ups.
//! A BPF program on sched_wakeup and sched_switch showed this for a sleeper next to a CPU-bound thread
//! (`research/docs/kernel-comparison.md`).

use super::{Entity, FairQueue, NIL};

impl Entity {
    /// Whether it sleeps and is still queued.
    pub fn is_delayed(&self) -> bool {
        self.delayed
    }

    /// The number of the queue in which it was last.
    pub fn home(&self) -> Option<u32> {
        (self.home != NIL).then_some(self.home)
    }
}

impl FairQueue {
    /// Whether an entity here, current or queued, is not ahead of V.
    pub(super) fn is_eligible(&self, entities: &[Entity], id: u32) -> bool {
        let (moment, load) = self.sums(entities);
        i128::from(entities[id as usize].vruntime) * load <= moment
    }

    /// The entity that would be picked now, if it sleeps.
    pub fn next_sleeper(&self, entities: &[Entity]) -> Option<u32> {
        if self.delayed == 0 || self.first != NIL {
            return None;
        }
        let next = self.pick_eevdf(entities)?;
        entities[next as usize].delayed.then_some(next)
    }

    /// Whether need_resched is set: the current entity's slice is over, or a wake-up has preempted it.
    pub fn need_resched(&self) -> bool {
        self.resched
    }

    /// Keeps an entity queued that goes to sleep.
    pub(super) fn delay(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &mut entities[id as usize];
        entity.delayed = true;
        self.delayed += 1;
        if self.current == id {
            self.current = NIL;
            self.link(entities, id);
        }
    }

    /// Dequeues an entity that is delayed here, with its lag limited to at most 0; others are ignored.
    pub fn forget(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &entities[id as usize];
        if !entity.delayed || entity.home != self.number {
            return;
        }
        let limit = self.max_lag(entity);
        let lag = self.lag(entities, id).clamp(-limit, 0);
        self.unlink(entities, id);
        let entity = &mut entities[id as usize];
        entity.delayed = false;
        entity.lag = lag;
        self.delayed -= 1;
        self.load -= entity.weight;
        self.advance_min(entities);
    }

    /// Wakes an entity that is delayed here (requeue_delayed_entity).
    pub(super) fn requeue(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &mut entities[id as usize];
        entity.delayed = false;
        self.delayed -= 1;
        let (vruntime, weight) = (entity.vruntime, i128::from(entity.weight));
        let (mut moment, mut load) = self.sums(entities);
        if self.current != NIL {
            // As of the last update_curr.
            let current = &entities[self.current as usize];
            let since = current.vruntime - self.seen;
            moment -= i128::from(current.weight) * i128::from(since);
        }
        if i128::from(vruntime) * load >= moment {
            return;
        }
        moment -= weight * i128::from(vruntime);
        load -= weight;
        self.unlink(entities, id);
        let place = match load {
            0 => self.min_vruntime,
            _ => moment.div_euclid(load) as i64,
        };
        let entity = &mut entities[id as usize];
        entity.vruntime = place;
        let slice = self.slice_of(entity);
        let entity = &mut entities[id as usize];
        entity.deadline = place + entity.scaled(slice);
        self.link(entities, id);
    }

    /// update_curr after the accounting of the current entity's run time: publishes its virtual time.
    /// If others are queued, it sets need_resched when the deadline has passed.
    /// It also does so when the current entity is no longer protected and, as of 6.12 (did_preempt_short), not eligible.
    pub(super) fn update(&mut self, entities: &[Entity]) {
        if self.current == NIL {
            return;
        }
        self.seen = entities[self.current as usize].vruntime;
        let has_passed = std::mem::take(&mut self.passed);
        if self.order.len() == 0 || !self.is_eevdf() {
            return;
        }
        let gives_way = || {
            !self.protected
                && (self.places_on_reweight() || !self.is_eligible(entities, self.current))
        };
        if has_passed || gives_way() {
            // Otherwise its buddy role would pick it again (clear_buddies in update_curr).
            self.forget_buddies(self.current);
            self.resched = true;
        }
    }
}
