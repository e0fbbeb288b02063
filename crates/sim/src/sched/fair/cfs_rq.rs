//! A run queue (cfs_rq): one CPU's own, or the members of a group on one CPU.
//!
//! The functions here concern a single level; `fair` walks the hierarchy.
//! The queue holds the runnable entities; the current one is out of their order, as in the kernel.

mod lag_credit;

use super::cgroup_mode::QueueTasks;
use super::load_average::Average;
use super::{CfsAge, Discipline, Enqueue, Reweight};
use crate::sched::entity::{Entities, Entity, NIL};
use crate::sched::ids::{EntityId, GroupId};
use crate::sched::order::Order;

/// TICK_NSEC at 250 Hz.
const TICK: u64 = 4_000_000;

/// Buddy roles: entities to pick next, or to skip, within the limits of fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buddy {
    /// To be picked next (yield_to, wake-up preemption, a group that a vCPU has left to sleep).
    Next,
    /// To be skipped (sched_yield of CFS).
    Skip,
    /// The preempted entity, which resumes first if its preempter leaves soon.
    Last,
    /// To be picked next, regardless of fairness (co-scheduling).
    First,
}

impl Buddy {
    /// The roles of the kernel.
    pub(super) const OF_KERNEL: [Buddy; 3] = [Buddy::Next, Buddy::Skip, Buddy::Last];

    /// All roles.
    pub(super) const ALL: [Buddy; 4] = [Buddy::Next, Buddy::Skip, Buddy::Last, Buddy::First];
}

/// A run queue.
#[derive(Clone, Debug)]
pub struct CfsRq {
    pub(super) discipline: Discipline,
    /// The group on this CPU that the queue belongs to; none: it is the CPU's own.
    pub owner: EntityId,
    pub(super) order: Order,
    /// The current entity.
    pub curr: EntityId,
    /// Sum of the weights of all entities accounted here (load), the current one and those that sleep included.
    /// Only in a queue of a flat class does it differ from the weights of the entities that compete here.
    pub load: u64,
    /// Sum of weight × virtual time of the queued entities, the current one not included.
    moment: i128,
    queued_load: u64,
    /// Monotonic.
    min_vruntime: i64,
    pub(super) buddies: [EntityId; 4],
    /// The entity whose wake-up preempted the current one, until the next pick (EEVDF).
    woken: EntityId,
    /// Run time of the current entity since it was picked, ns.
    ran: u64,
    /// The current entity keeps the CPU until its slice is over (RUN_TO_PARITY).
    protected: bool,
    /// The entity last returned to the queue; in the kernel it stays current until another is picked.
    pub(super) kept: EntityId,
    /// The current entity's virtual time as of the last update_curr (EEVDF).
    seen: i64,
    /// Its deadline has passed since (EEVDF).
    passed: bool,
    /// need_resched: the current entity is to be preempted, regardless of later wake-ups.
    pub resched: bool,
    /// Runnable tasks here and below (h_nr_runnable).
    pub h_nr_runnable: u32,
    /// These and delayed sleepers (h_nr_queued).
    pub h_nr_queued: u32,
    /// The group, if this is a group's queue.
    pub(super) group: GroupId,
    /// Average load of the members that were last queued here (of a group's queue).
    pub(super) average: Average,
    /// Assumed load on the other CPUs, in whole units of weight (EEVDF).
    pub(super) elsewhere: u64,
    /// Its part of the group's runnable tasks (of a group's queue of a flat class).
    pub(super) tasks: QueueTasks,
}

impl CfsRq {
    /// An empty queue.
    pub(super) fn new(discipline: Discipline, owner: EntityId, group: GroupId) -> CfsRq {
        CfsRq {
            discipline,
            owner,
            order: Order::EMPTY,
            curr: NIL,
            load: 0,
            moment: 0,
            queued_load: 0,
            min_vruntime: 0,
            buddies: [NIL; 4],
            woken: NIL,
            ran: 0,
            protected: false,
            kept: NIL,
            seen: 0,
            passed: false,
            resched: false,
            h_nr_runnable: 0,
            h_nr_queued: 0,
            group,
            average: Average::ZERO,
            elsewhere: 0,
            tasks: QueueTasks::default(),
        }
    }

    /// Number of entities in the queue, the current one and sleepers included (nr_queued).
    pub fn nr_queued(&self) -> u32 {
        self.order.len() + u32::from(self.curr != NIL)
    }

    /// The entity with a buddy role, or none.
    pub fn buddy(&self, role: Buddy) -> Option<EntityId> {
        self.buddies[role as usize].get()
    }

    /// All queued entities, the current one and sleepers included.
    pub(super) fn members<'a>(
        &'a self,
        entities: &'a Entities,
    ) -> impl Iterator<Item = EntityId> + 'a {
        self.order.iter(entities).chain(self.curr.get())
    }

    /// The queued entities in order, without the current one and sleepers.
    pub fn queued<'a>(&'a self, entities: &'a Entities) -> impl Iterator<Item = EntityId> + 'a {
        self.order.iter(entities).filter(|&id| !entities[id].sched_delayed)
    }

    pub(super) fn is_eevdf(&self) -> bool {
        matches!(self.discipline, Discipline::Eevdf { .. })
    }

    /// EEVDF as of 6.13 … 6.18.
    fn places_on_reweight(&self) -> bool {
        matches!(self.discipline, Discipline::Eevdf { reweight: Reweight::Placed, .. })
    }

    /// Weighted sum of virtual times and of weights, the current one included.
    fn sums(&self, entities: &Entities) -> (i128, i128) {
        let (mut moment, mut load) = (self.moment, i128::from(self.queued_load));
        if self.curr != NIL {
            let curr = &entities[self.curr];
            moment += i128::from(curr.h_load) * i128::from(curr.vruntime);
            load += i128::from(curr.h_load);
        }
        (moment, load)
    }

    /// V, the average virtual time; the least virtual time seen if nothing is runnable (avg_vruntime).
    fn avg_vruntime(&self, entities: &Entities) -> i64 {
        match self.sums(entities) {
            (_, 0) => self.min_vruntime,
            (moment, load) => moment.div_euclid(load) as i64,
        }
    }

    /// Lag of an entity of this queue, V − v.
    pub(super) fn lag(&self, entities: &Entities, id: EntityId) -> i64 {
        self.avg_vruntime(entities) - entities[id].vruntime
    }

    /// Whether an entity here, current or queued, is not ahead of V (entity_eligible).
    fn is_eligible(&self, entities: &Entities, id: EntityId) -> bool {
        let (moment, load) = self.sums(entities);
        i128::from(entities[id].vruntime) * load <= moment
    }

    /// Slice of an entity under EEVDF.
    pub(super) fn slice_of(&self, entity: &Entity) -> u64 {
        match self.discipline {
            Discipline::Eevdf { .. } if entity.slice > 0 => entity.slice,
            Discipline::Eevdf { base_slice, .. } => base_slice.0,
            Discipline::Cfs { .. } => 0,
        }
    }

    /// Maximum absolute lag that an entity keeps, scaled by its weight (update_entity_lag).
    /// It is two slices or a tick in 6.12, and a slice plus a tick in 6.18.44 (measured there with BPF: 5.4 ms on two CPUs).
    fn max_lag(&self, entity: &Entity) -> i64 {
        let slice = self.slice_of(entity);
        entity.scaled(if self.places_on_reweight() { slice + TICK } else { (2 * slice).max(TICK) })
    }

    fn link(&mut self, entities: &mut Entities, id: EntityId) {
        let entity = &entities[id];
        self.moment += i128::from(entity.h_load) * i128::from(entity.vruntime);
        self.queued_load += entity.h_load;
        self.order.insert(entities, id);
    }

    fn unlink(&mut self, entities: &mut Entities, id: EntityId) {
        self.order.remove(entities, id);
        let entity = &entities[id];
        self.moment -= i128::from(entity.h_load) * i128::from(entity.vruntime);
        self.queued_load -= entity.h_load;
    }

    /// EEVDF uses the minimum only for an empty queue, where any value will do.
    fn update_min_vruntime(&mut self, entities: &Entities) {
        if self.is_eevdf() {
            return;
        }
        let first = self.order.first(entities).map(|id| entities[id].vruntime);
        let curr = self.curr.get().map(|id| entities[id].vruntime);
        let least = match (first, curr) {
            (Some(first), Some(curr)) => first.min(curr),
            (Some(time), None) | (None, Some(time)) => time,
            (None, None) => return,
        };
        self.min_vruntime = self.min_vruntime.max(least);
    }

    /// Accounts `ran` ns of run time to the current entity.
    #[inline]
    pub(super) fn account(&mut self, entities: &mut Entities, ran: u64) {
        self.ran += ran;
        let slice = self.slice_of(&entities[self.curr]);
        let entity = &mut entities[self.curr];
        entity.vruntime += entity.scaled(ran);
        if slice > 0 && entity.vruntime >= entity.deadline {
            entity.deadline = entity.vruntime + entity.scaled(slice);
            self.protected = false;
            self.passed = true;
        }
        self.update_min_vruntime(entities);
    }

    /// update_curr after the accounting of the current entity's run time: publishes its virtual time.
    /// If others are queued, it sets need_resched when the deadline has passed, and returns true.
    /// It also does so when the current entity is no longer protected and, as of 6.12 (did_preempt_short), not eligible.
    pub(super) fn update_curr(&mut self, entities: &Entities) -> bool {
        if self.curr == NIL {
            return false;
        }
        self.seen = entities[self.curr].vruntime;
        let has_passed = std::mem::take(&mut self.passed);
        if self.order.len() == 0 || !self.is_eevdf() {
            return false;
        }
        let gives_way = || {
            !self.protected && (self.places_on_reweight() || !self.is_eligible(entities, self.curr))
        };
        let is_over = has_passed || gives_way();
        self.resched |= is_over;
        is_over
    }

    /// Queues an entity at its place; `slice` is a new entity's slice under CFS.
    pub(super) fn enqueue_entity(
        &mut self,
        entities: &mut Entities,
        id: EntityId,
        how: Enqueue,
        is_home: bool,
        slice: u64,
    ) {
        self.place_entity(entities, id, how, is_home, slice);
        let entity = &mut entities[id];
        entity.on_rq = true;
        self.link(entities, id);
        self.update_min_vruntime(entities);
    }

    /// Sets the virtual time of an entity that is about to be queued, and its deadline under EEVDF.
    fn place_entity(
        &self,
        entities: &mut Entities,
        id: EntityId,
        how: Enqueue,
        is_home: bool,
        slice: u64,
    ) {
        if let Discipline::Cfs { latency, .. } = self.discipline {
            let (entity, place) = (&mut entities[id], self.min_vruntime);
            entity.vruntime = match how {
                Enqueue::New => place + entity.scaled(slice),
                Enqueue::Wakeup => {
                    let kept = if is_home { entity.vruntime } else { place + entity.offset };
                    kept.max(place - (latency.0 / 2) as i64)
                }
                Enqueue::Migrated => place + entity.offset,
            };
            return;
        }
        let average = self.avg_vruntime(entities);
        let (_, load) = self.sums(entities);
        let entity = &mut entities[id];
        let mut lag = 0;
        if load > 0 && how != Enqueue::New {
            let weight = i128::from(entity.h_load);
            lag = (i128::from(entity.lag) * (load + weight) / load) as i64;
        }
        entity.vruntime = average - lag;
        let slice = entity.scaled(self.slice_of(entity));
        let distance = match how {
            Enqueue::New => slice / 2,
            Enqueue::Wakeup => slice,
            Enqueue::Migrated => entity.distance,
        };
        entity.deadline = entity.vruntime + distance;
    }

    /// Dequeues an entity that sleeps or leaves, or finally dequeues a delayed one.
    /// Returns false if it stays queued, asleep (see `delayed`).
    pub(super) fn dequeue_entity(
        &mut self,
        entities: &mut Entities,
        id: EntityId,
        sleeps: bool,
    ) -> bool {
        let was_delayed = entities[id].sched_delayed;
        if !was_delayed {
            for kept in [&mut self.woken, &mut self.kept] {
                if *kept == id {
                    *kept = NIL;
                }
            }
        }
        // CFS keeps no lag, a lone entity has none, and computing it takes two long divisions.
        let is_alone = self.curr == id && self.order.len() == 0;
        let has_lag = self.is_eevdf() && !is_alone;
        if sleeps && has_lag && !was_delayed && !self.is_eligible(entities, id) {
            self.set_delayed(entities, id);
            return false;
        }
        let mut lag = 0;
        if has_lag {
            let limit = self.max_lag(&entities[id]);
            lag = self.lag(entities, id).clamp(-limit, if was_delayed { 0 } else { limit });
        }
        if self.curr == id {
            self.curr = NIL;
        } else {
            self.unlink(entities, id);
        }
        let entity = &mut entities[id];
        entity.lag = lag;
        entity.offset = entity.vruntime - self.min_vruntime;
        entity.distance = entity.deadline - entity.vruntime;
        (entity.on_rq, entity.sched_delayed) = (false, false);
        self.update_min_vruntime(entities);
        true
    }

    /// Keeps an entity queued that goes to sleep (set_delayed).
    fn set_delayed(&mut self, entities: &mut Entities, id: EntityId) {
        entities[id].sched_delayed = true;
        if self.curr == id {
            self.curr = NIL;
            self.link(entities, id);
        }
    }

    /// Wakes an entity that is delayed here.
    pub(super) fn requeue_delayed_entity(&mut self, entities: &mut Entities, id: EntityId) {
        let entity = &mut entities[id];
        entity.sched_delayed = false;
        let (vruntime, weight) = (entity.vruntime, i128::from(entity.h_load));
        let (mut moment, mut load) = self.sums(entities);
        if self.curr != NIL {
            // As of the last update_curr.
            let curr = &entities[self.curr];
            let since = curr.vruntime - self.seen;
            moment -= i128::from(curr.h_load) * i128::from(since);
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
        let entity = &mut entities[id];
        entity.vruntime = place;
        entity.deadline = place + entity.scaled(self.slice_of(entity));
        self.link(entities, id);
    }

    /// Chooses the next entity; there must be no current entity.
    pub(super) fn pick_next_entity(&self, entities: &Entities) -> Option<EntityId> {
        debug_assert_eq!(self.curr, NIL, "there is a current entity");
        match self.discipline {
            _ if self.buddies[Buddy::First as usize] != NIL => self.buddy(Buddy::First),
            Discipline::Cfs { .. } => self.pick_cfs(entities),
            Discipline::Eevdf { .. } => self.pick_eevdf(entities),
        }
    }

    /// pick_next_entity of 3.19.
    fn pick_cfs(&self, entities: &Entities) -> Option<EntityId> {
        let first = self.order.first(entities)?;
        let mut chosen = first;
        let [next, skip, last, _] = self.buddies;
        if first == skip
            && let Some(second) = self.order.after(entities, first)
            && !self.wakeup_preempt_entity(entities, second, first)
        {
            chosen = second;
        }
        for buddy in [last, next] {
            if buddy != NIL && !self.wakeup_preempt_entity(entities, buddy, first) {
                chosen = buddy;
            }
        }
        Some(chosen)
    }

    /// Whether `se` is behind `curr` by more than the wake-up granularity (wakeup_preempt_entity(curr, se) = 1).
    pub(super) fn wakeup_preempt_entity(
        &self,
        entities: &Entities,
        curr: EntityId,
        se: EntityId,
    ) -> bool {
        let Discipline::Cfs { wakeup_granularity, own_granularity, .. } = self.discipline else {
            return false;
        };
        let (curr, se) = (&entities[curr], &entities[se]);
        let granularity =
            if own_granularity && se.slice > 0 { se.slice } else { wakeup_granularity.0 };
        curr.vruntime - se.vruntime > se.scaled(granularity)
    }

    fn pick_eevdf(&self, entities: &Entities) -> Option<EntityId> {
        if self.order.len() == 1 {
            // The only entity is picked, eligible or not.
            return self.order.first(entities);
        }
        let (moment, load) = self.sums(entities);
        let is_eligible = |vruntime: i64| i128::from(vruntime) * load <= moment;
        let next = self.buddies[Buddy::Next as usize];
        if next != NIL && is_eligible(entities[next].vruntime) {
            return Some(next);
        }
        if self.kept != NIL && self.protected && is_eligible(entities[self.kept].vruntime) {
            return Some(self.kept);
        }
        let earliest = self.order.earliest(entities, is_eligible);
        let best = earliest.or_else(|| self.order.first(entities))?;
        if self.woken != NIL {
            let (best, woken) = (&entities[best], &entities[self.woken]);
            if woken.deadline == best.deadline && is_eligible(woken.vruntime) {
                return Some(self.woken);
            }
        }
        Some(best)
    }

    /// The entity with the role [`Buddy::First`].
    pub(super) fn first(&mut self) -> &mut EntityId {
        &mut self.buddies[Buddy::First as usize]
    }

    /// Makes a queued entity current; the caller clears its buddy roles.
    pub(super) fn set_next_entity(&mut self, entities: &mut Entities, id: EntityId) {
        self.unlink(entities, id);
        self.curr = id;
        (*self.first(), self.woken) = (NIL, NIL);
        // An entity picked again keeps its slice and its protection state (pick_next_task_fair since 3.15).
        if self.kept != id {
            (self.ran, self.protected) = (0, true);
        }
        self.kept = NIL;
        self.seen = entities[id].vruntime;
        (self.passed, self.resched) = (false, false);
    }

    /// Returns the current entity to the queue, runnable.
    pub(super) fn put_prev_entity(&mut self, entities: &mut Entities) {
        let id = std::mem::replace(&mut self.curr, NIL);
        self.link(entities, id);
        self.kept = id;
    }

    /// Whether an entity that was just enqueued preempts the current one under EEVDF.
    pub(super) fn eevdf_preempts(&mut self, entities: &Entities, woken: EntityId) -> bool {
        let (moment, load) = self.sums(entities);
        let is_eligible = |vruntime: i64| i128::from(vruntime) * load <= moment;
        let (pse, se) = (&entities[woken], &entities[self.curr]);
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

    /// Whether the current entity has run for longer than its slice `ideal` under CFS (check_preempt_tick).
    /// Sets need_resched in this case, or if it is ahead of the first by a slice.
    pub(super) fn check_preempt_tick(&mut self, entities: &Entities, ideal: u64) -> bool {
        let Discipline::Cfs { min_granularity, .. } = self.discipline else {
            return false;
        };
        let is_over = self.ran > ideal;
        self.resched |= is_over;
        if !is_over
            && self.ran >= min_granularity.0
            && let Some(first) = self.order.first(entities)
        {
            let ahead = entities[self.curr].vruntime - entities[first].vruntime;
            self.resched |= ahead > ideal as i64;
        }
        is_over
    }

    /// Gives the current entity a later deadline under EEVDF (yield_task_fair).
    pub(super) fn postpone(&mut self, entities: &mut Entities) {
        let slice = self.slice_of(&entities[self.curr]);
        let entity = &mut entities[self.curr];
        entity.deadline += entity.scaled(slice);
        self.protected = false;
    }

    /// Period in which `running` entities run once, under CFS (__sched_period).
    pub(super) fn sched_period(&self, running: u64) -> u64 {
        match self.discipline {
            Discipline::Cfs { min_granularity, .. }
                if running > u64::from(self.discipline.many()) =>
            {
                running * min_granularity.0
            }
            Discipline::Cfs { latency, .. } => latency.0,
            Discipline::Eevdf { .. } => 0,
        }
    }

    /// Minimum slice, if slices derive from all tasks of the CPU (ALT_PERIOD and BASE_SLICE).
    pub(super) fn min_slice(&self) -> Option<u64> {
        match self.discipline {
            Discipline::Cfs { as_of, min_granularity, .. } if as_of >= CfsAge::AltPeriod => {
                Some(min_granularity.0)
            }
            _ => None,
        }
    }

    /// Changes the weight of an entity that competes in this queue (h_load), in parts of 1 ÷ `FINE`.
    ///
    /// Lag in time is kept, so its virtual time is rescaled; with [`Reweight::Placed`] it is inflated.
    /// Under CFS the virtual time stays.
    pub(super) fn reweight_entity(&mut self, entities: &mut Entities, id: EntityId, weight: u64) {
        let entity = &entities[id];
        let (before, on_rq) = (entity.h_load, entity.on_rq);
        let (average, limit) = if self.is_eevdf() {
            (self.avg_vruntime(entities), self.max_lag(entity))
        } else {
            (0, 0)
        };
        let queued = on_rq && self.curr != id;
        if queued {
            self.unlink(entities, id);
        }
        let rescaled =
            |time: i64| (i128::from(time) * i128::from(before) / i128::from(weight)) as i64;
        let entity = &mut entities[id];
        entity.h_load = weight;
        if let Discipline::Eevdf { reweight, .. } = self.discipline {
            entity.lag = rescaled(entity.lag);
            entity.distance = rescaled(entity.distance);
            if on_rq {
                let distance = rescaled(entity.deadline - entity.vruntime);
                let lag = average - entity.vruntime;
                let vruntime = match reweight {
                    Reweight::Kept => average - rescaled(lag),
                    Reweight::Placed => {
                        self.placed_vruntime(entities, id, rescaled(lag.clamp(-limit, limit)))
                    }
                };
                let entity = &mut entities[id];
                entity.vruntime = vruntime;
                entity.deadline = vruntime + distance;
            }
        }
        if queued {
            self.link(entities, id);
        } else if on_rq {
            self.seen = entities[id].vruntime;
        }
    }

    /// Virtual time at which place_entity of 6.13 puts a reweighted entity with this lag, which is already unlinked.
    ///
    /// The inflation by (W + w) ÷ W compensates the shift of V when the entity joins the others, whose weight is W.
    /// A waiting entity is not in V here, so that is right.
    /// The current entity already is in V and W, with its new weight.
    /// It is therefore counted twice, and its lag grows by w ÷ W each time.
    fn placed_vruntime(&self, entities: &Entities, id: EntityId, lag: i64) -> i64 {
        let Entity { h_load: weight, vruntime, .. } = entities[id];
        // A lone entity, current or not, has no lag.
        let is_alone = self.order.len() == 0 && (self.curr == NIL || self.curr == id);
        let (mut moment, mut load) = self.sums(entities);
        let weight = i128::from(weight);
        if self.kept == id {
            // Still the current entity in the kernel.
            moment += weight * i128::from(vruntime);
            load += weight;
        }
        if is_alone || load == 0 {
            return self.avg_vruntime(entities);
        }
        let lag = i128::from(lag) * (load + weight) / load;
        moment.div_euclid(load) as i64 - lag as i64
    }
}
