//! Delayed dequeue (DELAY_DEQUEUE and DELAY_ZERO of Linux 6.12): who sleeps with negative lag stays queued until it would be next.
//!
//! It counts in V and in what is queued, but not as runnable. When it is picked it leaves, with no lag; until then it pays
//! what it is ahead by as the others go on. If it wakes before, it goes on where it is (requeue_delayed_entity): still ahead,
//! with its old deadline; not ahead any more, placed at V with a deadline of its own. That V is as of the last time that the
//! current one's time was counted (update_curr), because nothing counts it on this way: at the last tick, switch or
//! wake-up. V is later by now, and what it was late by is lag for the woken one, which it needs for many wake-ups: of a
//! sleeper beside one that computes this was seen here with a BPF program that reads both on sched_wakeup and sched_switch
//! (`research/docs/kernel-comparison.md`).

use super::{Entity, FairQueue, NIL};

impl Entity {
    /// Whether it sleeps and is still in the queue that it was in last.
    pub fn is_delayed(&self) -> bool {
        self.delayed
    }

    /// The number of the queue that it was in last.
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

    /// The one that would be picked now, if it sleeps.
    pub fn next_sleeper(&self, entities: &[Entity]) -> Option<u32> {
        if self.delayed == 0 || self.first != NIL {
            return None;
        }
        let next = self.pick_eevdf(entities)?;
        entities[next as usize].delayed.then_some(next)
    }

    /// Whether the current one is to give way whoever wakes: its slice is over, or somebody has preempted it.
    pub fn is_to_choose_anew(&self) -> bool {
        self.resched
    }

    /// An entity that goes to sleep stays queued.
    pub(super) fn delay(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &mut entities[id as usize];
        entity.delayed = true;
        self.delayed += 1;
        if self.current == id {
            self.current = NIL;
            self.link(entities, id);
        }
    }

    /// One that sleeps here still is out of the queue for good, with no more lag than none; nothing happens if it does not.
    pub fn forget(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &entities[id as usize];
        if !entity.delayed || entity.home != self.number {
            return;
        }
        let limit = self.most_lag(entity);
        let lag = self.lag(entities, id).clamp(-limit, 0);
        self.unlink(entities, id);
        let entity = &mut entities[id as usize];
        entity.delayed = false;
        entity.lag = lag;
        self.delayed -= 1;
        self.load -= entity.weight;
        self.advance_min(entities);
    }

    /// One that sleeps here still wakes.
    pub(super) fn requeue(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &mut entities[id as usize];
        entity.delayed = false;
        self.delayed -= 1;
        let (vruntime, weight) = (entity.vruntime, i128::from(entity.weight));
        let (mut moment, mut load) = self.sums(entities);
        if self.current != NIL {
            // As it was when its time was counted last.
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

    /// What update_curr does once the current one's time is accounted: the others see its virtual time, and if somebody is queued and its
    /// deadline has passed, it is to be chosen anew; so it is if it is no longer protected and, as of 6.12 (did_preempt_short), not eligible.
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
            !self.protected && (self.is_placed_anew() || !self.is_eligible(entities, self.current))
        };
        if has_passed || gives_way() {
            // So that it is not picked again for being the buddy (clear_buddies in update_curr).
            self.forget_buddies(self.current);
            self.resched = true;
        }
    }
}
