//! Buddies: entities to pick next, or to skip, within the limits of fairness.

use super::{Discipline, Entity, FairQueue, NIL};

impl FairQueue {
    /// Makes a queued entity the next buddy (set_next_buddy); an entity of the idle class is ignored.
    pub fn set_next(&mut self, entities: &[Entity], id: u32) {
        if !entities[id as usize].is_idle() {
            self.next = id;
        }
    }

    /// Whether an entity is the next buddy.
    pub fn is_next(&self, id: u32) -> bool {
        self.next == id
    }

    /// Makes the current entity the last buddy, which resumes first if its preempter leaves soon (set_last_buddy).
    /// An entity of the idle class is ignored.
    pub fn set_last(&mut self, entities: &[Entity]) {
        if self.current != NIL && !entities[self.current as usize].is_idle() {
            self.last = self.current;
        }
    }

    /// The next, skip and last buddy, and the entity set by [`FairQueue::set_first`].
    pub fn buddies(&self) -> [u32; 4] {
        [self.next, self.skip, self.last, self.first]
    }

    /// Makes the current entity the skip buddy; its other roles stay (set_skip_buddy).
    pub fn skip_current(&mut self) {
        self.skip = self.current;
    }

    /// Clears one buddy role of an entity, by its index in [`FairQueue::buddies`].
    pub fn forget_buddy(&mut self, id: u32, which: usize) {
        let buddies = [&mut self.next, &mut self.skip, &mut self.last, &mut self.first];
        if *buddies[which] == id {
            *buddies[which] = NIL;
        }
    }

    /// Clears all buddy roles of an entity (clear_buddies).
    pub(super) fn forget_buddies(&mut self, id: u32) {
        for which in 0..3 {
            self.forget_buddy(id, which);
        }
    }

    /// Sets the buddies of a wake-up preemption under CFS (check_preempt_wakeup).
    /// The woken entity becomes the next buddy; with at least sched_nr_latency runnable entities, the current one becomes the last buddy.
    pub(super) fn nominate(&mut self, entities: &[Entity], woken: u32) {
        let Discipline::Cfs { latency, min_granularity, .. } = self.discipline else {
            return;
        };
        self.set_next(entities, woken);
        let many = Discipline::many(latency, min_granularity);
        if u64::from(self.len()) >= many && !self.of_groups {
            self.set_last(entities);
        }
    }
}
