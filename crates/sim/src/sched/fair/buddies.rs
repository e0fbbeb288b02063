//! Buddies: who is to be next, or not, as far as that is fair.

use super::{Discipline, Entity, FairQueue, NIL};

impl FairQueue {
    /// A queued entity is to be the next one, as far as that is fair (set_next_buddy), unless it is of the idle class.
    pub fn set_next(&mut self, entities: &[Entity], id: u32) {
        if !entities[id as usize].is_idle() {
            self.next = id;
        }
    }

    /// Whether it is.
    pub fn is_next(&self, id: u32) -> bool {
        self.next == id
    }

    /// The current one is to come back before others do, if whoever preempted it leaves soon (set_last_buddy), unless it is of the idle class.
    pub fn set_last(&mut self, entities: &[Entity]) {
        if self.current != NIL && !entities[self.current as usize].is_idle() {
            self.last = self.current;
        }
    }

    /// Who is the next buddy, who the skip buddy, who the last one, and who is next whether or not that is fair.
    pub fn buddies(&self) -> [u32; 4] {
        [self.next, self.skip, self.last, self.first]
    }

    /// The current one is to be passed over, as far as that is fair, and stays what else it is (set_skip_buddy).
    pub fn skip_current(&mut self) {
        self.skip = self.current;
    }

    /// An entity is no buddy of this kind any more, by its place among [`FairQueue::buddies`].
    pub fn forget_buddy(&mut self, id: u32, which: usize) {
        let buddies = [&mut self.next, &mut self.skip, &mut self.last, &mut self.first];
        if *buddies[which] == id {
            *buddies[which] = NIL;
        }
    }

    /// It is no buddy at all (clear_buddies).
    pub(super) fn forget_buddies(&mut self, id: u32) {
        for which in 0..3 {
            self.forget_buddy(id, which);
        }
    }

    /// One that has woken preempts the current one under CFS: it is the next buddy and, among many that run, the other one the last
    /// (check_preempt_wakeup; many are as many as have the least granularity each in the latency, sched_nr_latency).
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
