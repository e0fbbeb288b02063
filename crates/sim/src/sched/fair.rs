//! One CPU's fair run queue: CFS as of Linux 3.15 … 6.1 (see [`CfsAge`]) or EEVDF as of 6.12.
//! The host uses it for VMs and vCPUs, the guest for threads.
//!
//! Source: kernel/sched/fair.c of those versions.
//! Virtual time is ns of run time scaled by 1024 ÷ weight; an [`Entity`] is anything with a weight that is queued.
//! The queue holds the runnable entities; the current one is out of their order, as in the kernel.
//!
//! CFS picks the entity with the least virtual time.
//! The entity runs until its part of the latency (or the minimum granularity) is over, or a woken entity is behind by the wake-up granularity.
//! Sleepers return at most half a latency behind (GENTLE_FAIR_SLEEPERS), new entities start a slice ahead (START_DEBIT).
//! Within the wake-up granularity, CFS prefers the next buddy (yield_to, wake-up preemption, a group that a vCPU has left to sleep) and the
//! last buddy (an entity preempted among eight or more, LAST_BUDDY), and avoids the skip buddy (sched_yield).
//! Buddies keep their role until they are picked or dequeued.
//!
//! EEVDF: V is the weighted average virtual time; an entity not ahead of V is eligible.
//! EEVDF picks the eligible entity with the earliest virtual deadline.
//! Lag is kept over sleeps and moves (PLACE_LAG, with the inflation by (W + w) ÷ W).
//! Deadlines keep their distance over moves (PLACE_REL_DEADLINE); new entities get half a slice (PLACE_DEADLINE_INITIAL).
//! The current entity keeps the CPU until its slice is used up (RUN_TO_PARITY), unless the woken one's slice is shorter (PREEMPT_SHORT).
//! An eligible next buddy is picked first (PICK_BUDDY, in the stable series of 6.12).
//!
//! A sleeper with negative lag stays queued until V has caught up with it (see `delayed`).

mod above;
mod buddies;
mod delayed;
mod discipline;
mod reweight;
mod slices;

use super::entity::{Entity, FINE, NIL};
use super::order::Order;
pub use above::Above;
pub use discipline::{CfsAge, Discipline, Reweight};

/// TICK_NSEC at 250 Hz.
const TICK: u64 = 4_000_000;

/// How an entity comes into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueue {
    /// For the first time.
    New,
    /// After sleeping.
    Wakeup,
    /// Runnable, from another queue.
    Migrated,
}

/// A run queue.
#[derive(Clone, Debug)]
pub struct FairQueue {
    discipline: Discipline,
    /// Identifies the queue.
    number: u32,
    order: Order,
    current: u32,
    /// Sum of the weights of all entities that are queued, the current one and those that sleep included.
    load: u64,
    /// Number of delayed sleepers among them.
    delayed: u32,
    /// Sum of weight × virtual time of the queued entities, the current one not included.
    moment: i128,
    queued_load: u64,
    /// Monotonic.
    min_vruntime: i64,
    next: u32,
    skip: u32,
    last: u32,
    /// The entity to pick next, regardless of fairness (co-scheduling).
    first: u32,
    /// The entity whose wake-up preempted the current one, until the next pick (EEVDF).
    woken: u32,
    /// Run time of the current entity since it was picked, ns.
    ran: u64,
    /// The current entity keeps the CPU until its slice is over (RUN_TO_PARITY).
    protected: bool,
    /// The entity last returned to the queue; in the kernel it stays current until another is picked.
    kept: u32,
    /// The current entity's virtual time as of the last update_curr (EEVDF).
    seen: i64,
    /// Its deadline has passed since (EEVDF).
    passed: bool,
    /// need_resched: the current entity is to be preempted, regardless of later wake-ups.
    resched: bool,
    /// Entities are groups of a host.
    of_groups: bool,
}

impl FairQueue {
    /// An empty queue; `number` identifies it among the queues that share its entities.
    pub fn new(discipline: Discipline, number: u32) -> FairQueue {
        FairQueue {
            discipline,
            number,
            order: Order::EMPTY,
            current: NIL,
            load: 0,
            delayed: 0,
            moment: 0,
            queued_load: 0,
            min_vruntime: 0,
            next: NIL,
            skip: NIL,
            last: NIL,
            first: NIL,
            woken: NIL,
            ran: 0,
            protected: false,
            kept: NIL,
            seen: 0,
            passed: false,
            resched: false,
            of_groups: false,
        }
    }

    /// Marks the entities as groups, which have no last buddy of their own.
    pub fn of_groups(self) -> FairQueue {
        FairQueue { of_groups: true, ..self }
    }

    /// Number of runnable entities, the current one included.
    #[inline]
    pub fn len(&self) -> u32 {
        self.order.len() - self.delayed + u32::from(self.current != NIL)
    }

    /// Whether nothing is runnable.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum of the weights of all queued entities, the current one and sleepers included, in parts of 1 ÷ [`FINE`].
    pub fn load(&self) -> u64 {
        self.load
    }

    /// Whether only the current entity is queued, without sleepers.
    pub fn is_alone(&self) -> bool {
        self.current != NIL && self.order.len() == 0
    }

    /// Whether any entity is queued or current, asleep or not.
    pub fn has_queued(&self) -> bool {
        self.order.len() > 0 || self.current != NIL
    }

    /// The current entity.
    pub fn current(&self) -> Option<u32> {
        (self.current != NIL).then_some(self.current)
    }

    /// Number of queued sleepers.
    pub fn sleepers(&self) -> u32 {
        self.delayed
    }

    /// All queued entities, the current one and sleepers included.
    pub fn members<'a>(&'a self, entities: &'a [Entity]) -> impl Iterator<Item = u32> + 'a {
        self.order.iter(entities).chain(self.current())
    }

    /// The queued entities in order, without the current one and sleepers.
    pub fn queued<'a>(&'a self, entities: &'a [Entity]) -> impl Iterator<Item = u32> + 'a {
        let queued = self.order.iter(entities);
        queued.filter(|&id| !entities[id as usize].delayed)
    }

    fn is_eevdf(&self) -> bool {
        matches!(self.discipline, Discipline::Eevdf { .. })
    }

    /// EEVDF as of 6.13 … 6.18.
    fn places_on_reweight(&self) -> bool {
        matches!(self.discipline, Discipline::Eevdf { reweight: Reweight::Placed, .. })
    }

    /// Weighted sum of virtual times and of weights, the current one included.
    fn sums(&self, entities: &[Entity]) -> (i128, i128) {
        let (mut moment, mut load) = (self.moment, i128::from(self.queued_load));
        if self.current != NIL {
            let current = &entities[self.current as usize];
            moment += i128::from(current.weight) * i128::from(current.vruntime);
            load += i128::from(current.weight);
        }
        (moment, load)
    }

    /// V, the average virtual time; the least virtual time seen if nothing is runnable.
    fn average(&self, entities: &[Entity]) -> i64 {
        match self.sums(entities) {
            (_, 0) => self.min_vruntime,
            (moment, load) => moment.div_euclid(load) as i64,
        }
    }

    /// Lag of an entity of this queue, V − v: the service that it is owed, scaled by its weight.
    pub fn lag(&self, entities: &[Entity], id: u32) -> i64 {
        self.average(entities) - entities[id as usize].vruntime
    }

    fn link(&mut self, entities: &mut [Entity], id: u32) {
        let entity = &entities[id as usize];
        self.moment += i128::from(entity.weight) * i128::from(entity.vruntime);
        self.queued_load += entity.weight;
        self.order.insert(entities, id);
    }

    fn unlink(&mut self, entities: &mut [Entity], id: u32) {
        self.order.remove(entities, id);
        let entity = &entities[id as usize];
        self.moment -= i128::from(entity.weight) * i128::from(entity.vruntime);
        self.queued_load -= entity.weight;
    }

    /// EEVDF uses the minimum only for an empty queue, where any value will do.
    fn advance_min(&mut self, entities: &[Entity]) {
        if self.is_eevdf() {
            return;
        }
        let first = self.order.first(entities).map(|id| entities[id as usize].vruntime);
        let current = self.current().map(|id| entities[id as usize].vruntime);
        let least = match (first, current) {
            (Some(first), Some(current)) => first.min(current),
            (Some(time), None) | (None, Some(time)) => time,
            (None, None) => return,
        };
        self.min_vruntime = self.min_vruntime.max(least);
    }

    /// Enqueues an entity in the CPU's own queue.
    pub fn enqueue(&mut self, entities: &mut [Entity], id: u32, how: Enqueue) {
        self.enqueue_within(entities, id, how, Above::none(self.len()));
    }

    /// Enqueues an entity in a group's queue: CFS places a new one by its slice in the group.
    pub fn enqueue_within(&mut self, entities: &mut [Entity], id: u32, how: Enqueue, above: Above) {
        let entity = &entities[id as usize];
        if entity.delayed {
            debug_assert_eq!(entity.home, self.number, "sleeps in another queue");
            return self.requeue(entities, id);
        }
        self.update(entities);
        match self.discipline {
            Discipline::Cfs { latency, .. } => {
                let entity = &mut entities[id as usize];
                self.place_cfs(entity, how, latency.0, above)
            }
            Discipline::Eevdf { .. } => self.place_eevdf(entities, id, how),
        }
        let entity = &mut entities[id as usize];
        entity.home = self.number;
        self.load += entity.weight;
        self.link(entities, id);
        self.advance_min(entities);
    }

    /// place_entity of 3.19.
    fn place_cfs(&self, entity: &mut Entity, how: Enqueue, latency: u64, above: Above) {
        let mut place = self.min_vruntime;
        match how {
            Enqueue::New => {
                let slice = self.cfs_slice(entity, false, above);
                entity.vruntime = place + entity.scaled(slice);
            }
            Enqueue::Wakeup => {
                // A group that was never queued has no virtual time to keep.
                if entity.home != self.number && entity.home != NIL {
                    entity.vruntime = self.min_vruntime + entity.offset;
                }
                place -= (latency / 2) as i64;
                entity.vruntime = entity.vruntime.max(place);
            }
            Enqueue::Migrated => entity.vruntime = self.min_vruntime + entity.offset,
        }
    }

    /// place_entity of 6.12.
    fn place_eevdf(&mut self, entities: &mut [Entity], id: u32, how: Enqueue) {
        let average = self.average(entities);
        let entity = &entities[id as usize];
        let mut lag = match how {
            Enqueue::New => 0,
            Enqueue::Wakeup | Enqueue::Migrated => entity.lag,
        };
        if self.load > 0 {
            let (load, weight) = (i128::from(self.load), i128::from(entity.weight));
            lag = (i128::from(lag) * (load + weight) / load) as i64;
        } else {
            lag = 0;
        }
        let mut slice = entity.scaled(self.slice_of(entity));
        if how == Enqueue::New {
            slice /= 2;
        }
        let entity = &mut entities[id as usize];
        entity.vruntime = average - lag;
        let distance = match how {
            Enqueue::Migrated => entity.distance,
            _ => slice,
        };
        entity.deadline = entity.vruntime + distance;
    }

    /// Maximum absolute lag that an entity keeps, scaled by its weight (update_entity_lag).
    /// It is two slices or a tick in 6.12, and a slice plus a tick in 6.18.44 (measured there with BPF: 5.4 ms on two CPUs).
    fn max_lag(&self, entity: &Entity) -> i64 {
        let slice = self.slice_of(entity);
        entity.scaled(if self.places_on_reweight() { slice + TICK } else { (2 * slice).max(TICK) })
    }

    /// Dequeues an entity, queued or current, that sleeps or migrates; with EEVDF a sleeper may stay queued.
    pub fn dequeue(&mut self, entities: &mut [Entity], id: u32, sleeps: bool) {
        self.update(entities);
        for buddy in [
            &mut self.next,
            &mut self.skip,
            &mut self.last,
            &mut self.first,
            &mut self.woken,
            &mut self.kept,
        ] {
            if *buddy == id {
                *buddy = NIL;
            }
        }
        // CFS keeps no lag, a lone entity has none, and computing it takes two long divisions.
        let has_lag = self.is_eevdf() && !(self.current == id && self.is_alone());
        if sleeps && has_lag && !self.is_eligible(entities, id) {
            return self.delay(entities, id);
        }
        let lag = has_lag.then(|| {
            let limit = self.max_lag(&entities[id as usize]);
            self.lag(entities, id).clamp(-limit, limit)
        });
        if self.current == id {
            self.current = NIL;
        } else {
            self.unlink(entities, id);
        }
        let entity = &mut entities[id as usize];
        self.load -= entity.weight;
        entity.lag = lag.unwrap_or(0);
        entity.offset = entity.vruntime - self.min_vruntime;
        entity.distance = entity.deadline - entity.vruntime;
        self.advance_min(entities);
    }

    /// Picks the next entity and makes it current; there must be no current entity.
    pub fn pick(&mut self, entities: &mut [Entity]) -> Option<u32> {
        let id = self.choose(entities)?;
        self.take(entities, id);
        Some(id)
    }

    /// Chooses the next entity, and dequeues sleepers found first; there must be no current entity.
    pub fn choose(&mut self, entities: &mut [Entity]) -> Option<u32> {
        debug_assert_eq!(self.current, NIL, "there is a current entity");
        loop {
            let id = match self.discipline {
                _ if self.first != NIL => Some(self.first),
                Discipline::Cfs { .. } => self.pick_cfs(entities),
                Discipline::Eevdf { .. } => self.pick_eevdf(entities),
            }?;
            if !entities[id as usize].delayed {
                return Some(id);
            }
            self.forget(entities, id);
        }
    }

    /// Makes a queued entity current (set_next_entity).
    pub fn take(&mut self, entities: &mut [Entity], id: u32) {
        self.unlink(entities, id);
        self.current = id;
        // A buddy that is not picked keeps its role (clear_buddies).
        if self.kept != id || !self.discipline.keeps_buddies() {
            self.forget_buddies(id);
        }
        (self.first, self.woken) = (NIL, NIL);
        // An entity picked again keeps its slice and its protection state (pick_next_task_fair since 3.15).
        if self.kept != id {
            (self.ran, self.protected) = (0, true);
        }
        self.kept = NIL;
        self.seen = entities[id as usize].vruntime;
        (self.passed, self.resched) = (false, false);
    }

    fn pick_cfs(&self, entities: &[Entity]) -> Option<u32> {
        let first = self.order.first(entities)?;
        let mut chosen = first;
        if first == self.skip
            && let Some(second) = self.order.after(entities, first)
            && !self.is_behind(entities, first, second)
        {
            chosen = second;
        }
        for buddy in [self.last, self.next] {
            if buddy != NIL && !self.is_behind(entities, first, buddy) {
                chosen = buddy;
            }
        }
        Some(chosen)
    }

    /// Whether `one` is behind `other` by more than the wake-up granularity
    /// (wakeup_preempt_entity(other, one) = 1).
    fn is_behind(&self, entities: &[Entity], one: u32, other: u32) -> bool {
        let Discipline::Cfs { wakeup_granularity, own_granularity, .. } = self.discipline else {
            return false;
        };
        let (one, other) = (&entities[one as usize], &entities[other as usize]);
        let granularity =
            if own_granularity && one.slice > 0 { one.slice } else { wakeup_granularity.0 };
        other.vruntime - one.vruntime > one.scaled(granularity)
    }

    fn pick_eevdf(&self, entities: &[Entity]) -> Option<u32> {
        if self.order.len() == 1 {
            // The only entity is picked, eligible or not.
            return self.order.first(entities);
        }
        let (moment, load) = self.sums(entities);
        let is_eligible = |vruntime: i64| i128::from(vruntime) * load <= moment;
        if self.next != NIL && is_eligible(entities[self.next as usize].vruntime) {
            return Some(self.next);
        }
        if self.kept != NIL && self.protected && is_eligible(entities[self.kept as usize].vruntime)
        {
            return Some(self.kept);
        }
        let earliest = self.order.earliest(entities, is_eligible);
        let best = earliest.or_else(|| self.order.first(entities))?;
        if self.woken != NIL {
            let (best, woken) = (&entities[best as usize], &entities[self.woken as usize]);
            if woken.deadline == best.deadline && is_eligible(woken.vruntime) {
                return Some(self.woken);
            }
        }
        Some(best)
    }

    /// Returns the current entity to the queue, runnable.
    pub fn put_back(&mut self, entities: &mut [Entity]) {
        if self.current != NIL {
            let id = self.current;
            self.update(entities);
            self.current = NIL;
            self.link(entities, id);
            self.kept = id;
        }
    }

    /// The entity last returned to the queue, which keeps its slice if it is picked next.
    pub fn kept(&self) -> Option<u32> {
        (self.kept != NIL).then_some(self.kept)
    }

    /// Ends the slice of the entity last returned to the queue, because another group got the CPU.
    pub fn forget_kept(&mut self) {
        self.kept = NIL;
    }

    /// Accounts `ran` ns of run time to the current entity.
    #[inline]
    pub fn account(&mut self, entities: &mut [Entity], ran: u64) {
        if self.current == NIL {
            return;
        }
        self.ran += ran;
        let slice = match self.discipline {
            Discipline::Eevdf { .. } => self.slice_of(&entities[self.current as usize]),
            Discipline::Cfs { .. } => 0,
        };
        let entity = &mut entities[self.current as usize];
        entity.vruntime += entity.scaled(ran);
        if slice > 0 && entity.vruntime >= entity.deadline {
            entity.deadline = entity.vruntime + entity.scaled(slice);
            self.protected = false;
            self.passed = true;
        }
        self.advance_min(entities);
    }

    /// Whether a clock tick preempts the current entity, in the CPU's own queue.
    pub fn tick_preempts(&mut self, entities: &[Entity]) -> bool {
        self.tick_preempts_within(entities, Above::none(self.len()))
    }

    /// Whether a clock tick preempts the current entity, in a group's queue: CFS scales the slice by the group's share.
    pub fn tick_preempts_within(&mut self, entities: &[Entity], above: Above) -> bool {
        self.update(entities);
        if self.order.len() == 0 || self.current == NIL {
            return false;
        }
        let Discipline::Cfs { min_granularity, .. } = self.discipline else {
            return self.resched;
        };
        let current = &entities[self.current as usize];
        let ideal = self.cfs_slice(current, true, above);
        if self.ran > ideal {
            // Otherwise its buddy role would pick it again (check_preempt_tick).
            self.forget_buddies(self.current);
            self.resched = true;
        } else if self.ran >= min_granularity.0
            && let Some(first) = self.order.first(entities)
        {
            self.resched |= current.vruntime - entities[first as usize].vruntime > ideal as i64;
        }
        self.resched
    }

    /// Whether an entity that was just enqueued preempts the current one.
    pub fn wakeup_preempts(&mut self, entities: &[Entity], woken: u32) -> bool {
        if self.current == NIL {
            return true;
        }
        if self.resched {
            return true;
        }
        let of_current = entities[self.current as usize].is_idle();
        if of_current != entities[woken as usize].is_idle() {
            self.resched |= of_current;
            return of_current;
        }
        if self.is_eevdf() {
            self.update(entities);
            if self.resched {
                return true;
            }
        }
        if !self.is_eevdf() {
            self.resched = self.is_behind(entities, woken, self.current);
            if self.resched {
                self.nominate(entities, woken);
            }
            return self.resched;
        }
        let (moment, load) = self.sums(entities);
        let is_eligible = |vruntime: i64| i128::from(vruntime) * load <= moment;
        let (pse, se) = (&entities[woken as usize], &entities[self.current as usize]);
        let is_short = self.slice_of(pse) < self.slice_of(se)
            && is_eligible(pse.vruntime)
            && (pse.deadline < se.deadline || !is_eligible(se.vruntime));
        if is_short {
            self.protected = false;
        }
        let current_stays = is_eligible(se.vruntime);
        if self.protected && current_stays {
            return false;
        }
        match self.order.earliest(entities, is_eligible) {
            // On equal deadlines the woken entity wins (entity_before in pick_eevdf).
            Some(best) if best == woken && (!current_stays || pse.deadline <= se.deadline) => {
                self.woken = woken;
                true
            }
            _ => false,
        }
    }

    /// Yields the CPU (sched_yield).
    pub fn yield_current(&mut self, entities: &mut [Entity]) {
        if self.current == NIL {
            return;
        }
        self.forget_buddies(self.current);
        self.update(entities);
        if self.is_eevdf() {
            let slice = self.slice_of(&entities[self.current as usize]);
            let entity = &mut entities[self.current as usize];
            entity.deadline += entity.scaled(slice);
            self.protected = false;
        } else {
            self.skip = self.current;
        }
    }

    /// Sets need_resched, if there is a current entity.
    pub fn set_resched(&mut self) {
        self.resched = self.current != NIL;
    }

    /// Clears the entity set by [`FairQueue::set_first`].
    pub fn forget_first(&mut self) {
        self.first = NIL;
    }

    /// Makes a queued entity the next, regardless of fairness; its run time counts as usual.
    pub fn set_first(&mut self, id: u32) {
        self.first = id;
    }
}

#[cfg(test)]
mod tests;
