//! The fair class: CFS as of Linux 3.15 … 6.1 (see [`CfsAge`]) or EEVDF as of 6.12, or of 7.3 (see `flat`, `cgroup_mode`).
//! The host uses it for VMs and vCPUs, the guest for threads.
//!
//! Source: kernel/sched/fair.c of those versions, whose names the functions have.
//! An [`Entity`] is a task or a group; a group has a run queue of its own ([`CfsRq`]) on each CPU.
//! The functions here walk the levels of a CPU's hierarchy (for_each_sched_entity); those of [`CfsRq`] concern one level.
//! Virtual time is ns of run time scaled by 1024 ÷ weight.
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
//! Delayed dequeue (DELAY_DEQUEUE and DELAY_ZERO of Linux 6.12): a sleeper with negative lag stays queued until it would be picked.
//! It counts in V and in the load, but not as runnable.
//! While queued, it works off its negative lag as the others run; when it is picked, it is dequeued with lag 0.
//! If it wakes before, it is requeued in place.
//! If it is still ahead, it keeps its deadline; otherwise it is placed at V with a new deadline.
//! That V is as of the last update_curr (the last tick, switch or wake-up), because this path does not call it.
//! V has advanced since, and the difference is positive lag for the woken entity, which decides many wake-ups.
//! A BPF program on sched_wakeup and sched_switch showed this for a sleeper next to a CPU-bound thread
//! (`research/docs/kernel-comparison.md`).

mod cfs_rq;
mod cgroup_mode;
mod discipline;
mod flat;
mod group;
mod load_average;

use super::entity::{Entities, Entity, NIL};
use super::ids::{EntityId, GroupId, QueueId, Table};
pub use cfs_rq::{Buddy, CfsRq};
pub use cgroup_mode::CgroupMode;
pub use discipline::{CfsAge, Discipline, Reweight};
use group::Groups;

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

/// The run queues of some CPUs, and their entities.
#[derive(Clone, Debug, Default)]
pub struct FairClass {
    entities: Entities,
    queues: Table<QueueId, CfsRq>,
    groups: Groups,
    /// Whether any task ever had a custom slice.
    has_slices: bool,
    /// The tasks of all groups compete in the CPU's own queue (see `flat`).
    is_flat: bool,
}

impl FairClass {
    /// Adds a CPU's own queue.
    pub fn add_cpu(&mut self, discipline: Discipline) -> QueueId {
        self.queues.push(CfsRq::new(discipline, NIL, GroupId::NIL))
    }

    /// Adds a task.
    pub fn add_task(&mut self, weight: u32) -> EntityId {
        self.entities.push(Entity::new(weight))
    }

    /// A run queue.
    #[inline]
    pub fn queue(&self, rq: QueueId) -> &CfsRq {
        &self.queues[rq]
    }

    /// An entity.
    #[inline]
    pub fn entity(&self, se: EntityId) -> &Entity {
        &self.entities[se]
    }

    /// The queued entities of a queue in order, without the current one and sleepers.
    pub fn queued(&self, rq: QueueId) -> impl Iterator<Item = EntityId> {
        self.queues[rq].queued(&self.entities)
    }

    /// Lag of an entity that is queued or current, V − v: the service that it is owed, scaled by its weight.
    pub fn lag(&self, se: EntityId) -> i64 {
        self.queues[self.rq_of(se)].lag(&self.entities, se)
    }

    /// Number of runnable tasks of a CPU, the current one included.
    #[inline]
    pub fn nr_running(&self, rq: QueueId) -> u32 {
        self.queues[rq].h_nr_runnable
    }

    /// The group in whose queue an entity is.
    #[inline]
    fn parent(&self, se: EntityId) -> Option<EntityId> {
        self.queues[self.entities[se].cfs_rq].owner.get()
    }

    /// The CPU's own queue above a queue.
    pub fn root(&self, mut rq: QueueId) -> QueueId {
        while let Some(owner) = self.queues[rq].owner.get() {
            rq = self.entities[owner].cfs_rq;
        }
        rq
    }

    /// The current task of a CPU.
    pub fn current(&self, rq: QueueId) -> Option<EntityId> {
        let mut curr = self.queues[rq].curr.get()?;
        while let Some(my_q) = self.entities[curr].my_q.get() {
            curr = self.queues[my_q].curr.get()?;
        }
        Some(curr)
    }

    /// The entity that competes for this one in the queue above, or none.
    #[inline]
    fn above(&self, se: EntityId) -> Option<EntityId> {
        if self.is_flat { None } else { self.parent(se) }
    }

    /// Takes a step for an entity and then for each of its groups that competes, up to the CPU's own queue.
    #[inline]
    fn for_each_sched_entity(
        &mut self,
        mut level: Option<EntityId>,
        mut step: impl FnMut(&mut FairClass, EntityId),
    ) {
        while let Some(se) = level {
            step(self, se);
            level = self.above(se);
        }
    }

    /// Adds to the numbers of runnable and queued tasks of a queue and those above.
    fn count(&mut self, mut rq: QueueId, runnable: i32, queued: i32) {
        loop {
            let queue = &mut self.queues[rq];
            queue.h_nr_runnable = queue.h_nr_runnable.wrapping_add_signed(runnable);
            queue.h_nr_queued = queue.h_nr_queued.wrapping_add_signed(queued);
            let Some(owner) = queue.owner.get() else {
                return;
            };
            rq = self.entities[owner].cfs_rq;
        }
    }

    /// Clears buddy roles of an entity and those that its groups have for it (__clear_buddies_next, _skip and _last).
    fn clear_buddies(&mut self, se: EntityId, roles: &[Buddy]) {
        for &role in roles {
            let mut level = Some(se);
            while let Some(se) = level {
                let rq = self.rq_of(se);
                let buddy = &mut self.queues[rq].buddies[role as usize];
                if *buddy != se {
                    break;
                }
                *buddy = NIL;
                level = self.above(se);
            }
        }
    }

    /// Gives an entity and its groups a buddy role (set_next_buddy, set_last_buddy), up to an entity of the idle class.
    fn set_buddy(&mut self, se: EntityId, role: Buddy) {
        let mut level = Some(se);
        while let Some(se) = level.filter(|&se| !self.entities[se].idle) {
            let rq = self.rq_of(se);
            self.queues[rq].buddies[role as usize] = se;
            level = self.above(se);
        }
    }

    /// Makes a queued task the next buddy.
    pub fn set_next_buddy(&mut self, task: EntityId) {
        self.set_buddy(task, Buddy::Next);
    }

    /// Makes a queued task the next of its CPU, regardless of fairness; its run time counts as usual.
    pub fn set_first(&mut self, task: EntityId) {
        self.for_each_sched_entity(Some(task), |fair, se| {
            let rq = fair.rq_of(se);
            let queue = &mut fair.queues[rq];
            let mut before = std::mem::replace(queue.first(), se);
            while before != se
                && let Some(my_q) = before.get().and_then(|before| fair.entities[before].my_q.get())
            {
                before = std::mem::replace(fair.queues[my_q].first(), NIL);
            }
        });
    }

    /// Accounts `ran` ns of run time to the current task of a CPU and its groups.
    #[inline]
    pub fn account(&mut self, mut rq: QueueId, ran: u64) {
        while let Some(curr) = self.queues[rq].curr.get() {
            self.queues[rq].account(&mut self.entities, ran);
            rq = match self.entities[curr].my_q.get() {
                Some(my_q) => my_q,
                None => return,
            };
        }
    }

    /// Publishes the current entity's virtual time.
    #[inline]
    fn update_curr(&mut self, rq: QueueId) {
        if self.queues[rq].update_curr(&self.entities) {
            // Otherwise its buddy role would pick it again.
            self.clear_buddies(self.queues[rq].curr, &Buddy::OF_KERNEL);
        }
    }

    /// Slice of an entity that is in a queue or about to be, under CFS.
    /// At every level it is the entity's part of the slice, and at the lowest level of a period in which all entities run once.
    fn sched_slice(&self, se: EntityId, rq: QueueId) -> u64 {
        let queue = &self.queues[rq];
        let least = queue.min_slice();
        let running = match least {
            Some(_) => self.queues[self.root(rq)].h_nr_runnable,
            None => queue.nr_queued(),
        };
        let running = u64::from(running) + u64::from(!self.entities[se].on_rq);
        let mut slice = u128::from(queue.sched_period(running));
        let (mut se, mut rq) = (se, rq);
        loop {
            let (entity, queue) = (&self.entities[se], &self.queues[rq]);
            let load = queue.load + if entity.on_rq { 0 } else { entity.weight };
            slice = slice * u128::from(entity.weight) / u128::from(load.max(1));
            let Some(owner) = queue.owner.get() else {
                return (slice as u64).max(least.unwrap_or(0));
            };
            (se, rq) = (owner, self.entities[owner].cfs_rq);
        }
    }

    /// Enqueues a task that starts, wakes or migrates, in a CPU's own queue or in that of a group (enqueue_task_fair).
    pub fn enqueue_task(&mut self, task: EntityId, rq: QueueId, how: Enqueue, now: u64) {
        if self.is_flat {
            self.enqueue_flat(task, rq, how, now);
            return;
        }
        let entity = &self.entities[task];
        if entity.sched_delayed && entity.cfs_rq == rq {
            // Its load never left the group (ENQUEUE_DELAYED).
            self.queues[rq].requeue_delayed_entity(&mut self.entities, task);
            self.count(rq, 1, 0);
            self.update_slice(task);
            return;
        }
        self.dequeue_delayed(task, now);
        self.enqueue_entity(task, rq, how, now);
        self.count(rq, 1, 1);
        self.update_slice(task);
        self.for_each_sched_entity(self.queues[rq].owner.get(), |fair, se| {
            // For a group this is always a wake-up.
            fair.enqueue_entity(se, fair.entities[se].cfs_rq, Enqueue::Wakeup, now);
            fair.update_slice(se);
        });
    }

    /// Enqueues an entity; one that is queued already is requeued if it sleeps, and its weight is updated.
    fn enqueue_entity(&mut self, se: EntityId, rq: QueueId, how: Enqueue, now: u64) {
        let Entity { on_rq, sched_delayed, cfs_rq, .. } = self.entities[se];
        if sched_delayed {
            self.queues[rq].requeue_delayed_entity(&mut self.entities, se);
        }
        if !on_rq {
            self.attach_load(se, rq, how, now);
        }
        self.update_cfs_group(se, now);
        if on_rq {
            return;
        }
        self.update_curr(rq);
        let slice = if how == Enqueue::New { self.sched_slice(se, rq) } else { 0 };
        // A task that was never queued has no virtual time to keep.
        let is_home = cfs_rq == rq || cfs_rq == QueueId::NIL;
        self.entities[se].cfs_rq = rq;
        self.queues[rq].enqueue_entity(&mut self.entities, se, how, is_home, slice);
        self.account_entity(se, true);
    }

    /// Dequeues a task, queued or current, that sleeps or migrates (dequeue_entities).
    /// With EEVDF a sleeper may stay queued; a delayed task or group is finally dequeued.
    pub fn dequeue_task(&mut self, task: EntityId, sleeps: bool, now: u64) {
        if self.is_flat {
            self.dequeue_flat(task, sleeps, now);
            return;
        }
        let rq = self.entities[task].cfs_rq;
        let was_runnable = !self.entities[task].sched_delayed;
        let was_current = self.queues[rq].curr == task;
        let (mut se, mut sleeps) = (task, sleeps);
        while self.dequeue_entity(se, sleeps, now)
            && let Some(parent) = self.parent(se)
        {
            if self.queues[self.entities[se].cfs_rq].load > 0 {
                self.update_slice(se);
                if sleeps {
                    // The sleeper has not used up its group's slice ("bias pick_next" since 3.0).
                    self.set_next_buddy(parent);
                }
                self.for_each_sched_entity(Some(parent), |fair, se| {
                    fair.update_slice(se);
                    fair.update_cfs_group(se, now);
                });
                break;
            }
            // For the group this is a sleep, even if its last task migrates.
            (se, sleeps) = (parent, true);
        }
        if self.entities[task].my_q == QueueId::NIL {
            let is_gone = !self.entities[task].on_rq;
            self.count(rq, -i32::from(was_runnable), -i32::from(is_gone));
        }
        if was_current {
            // In the kernel the groups stay current until others are picked.
            self.for_each_sched_entity(self.parent(task), FairClass::put_prev_entity);
        }
    }

    fn dequeue_entity(&mut self, se: EntityId, sleeps: bool, now: u64) -> bool {
        let rq = self.entities[se].cfs_rq;
        self.update_load_avg(se, rq, now);
        if !self.entities[se].sched_delayed {
            self.update_curr(rq);
            self.clear_buddies(se, &Buddy::ALL);
        }
        let is_gone = self.queues[rq].dequeue_entity(&mut self.entities, se, sleeps);
        if is_gone {
            self.account_entity(se, false);
        }
        is_gone
    }

    /// Dequeues a task with delayed dequeue; no effect on others.
    pub fn dequeue_delayed(&mut self, task: EntityId, now: u64) {
        if self.entities[task].sched_delayed {
            self.dequeue_task(task, true, now);
        }
    }

    /// Picks the next task of a CPU without a current one, and makes it current (pick_next_task_fair).
    /// Sleepers that are found first are dequeued.
    pub fn pick_next_task(&mut self, cpu: QueueId, now: u64) -> Option<EntityId> {
        let mut rq = cpu;
        let task = loop {
            let se = self.queues[rq].pick_next_entity(&self.entities)?;
            if self.entities[se].sched_delayed {
                self.dequeue_task(se, true, now);
                rq = cpu;
            } else if let Some(my_q) = self.entities[se].my_q.get() {
                rq = my_q;
            } else {
                break se;
            }
        };
        self.for_each_sched_entity(Some(task), FairClass::set_next_entity);
        if self.is_flat {
            self.reweight_eevdf(task);
        }
        Some(task)
    }

    fn set_next_entity(&mut self, se: EntityId) {
        let rq = self.rq_of(se);
        let mut kept = self.queues[rq].kept;
        // A buddy that is not picked keeps its role.
        if kept != se || !self.queues[rq].discipline.keeps_buddies() {
            self.clear_buddies(se, &Buddy::OF_KERNEL);
        }
        if kept != se {
            // A task that ran in another group is no longer current there, either (put_prev_entity).
            while let Some(my_q) = kept.get().and_then(|se| self.entities[se].my_q.get()) {
                kept = std::mem::replace(&mut self.queues[my_q].kept, NIL);
            }
        }
        self.queues[rq].set_next_entity(&mut self.entities, se);
    }

    /// Returns the current task of a CPU to the queue, runnable (put_prev_task_fair).
    pub fn put_prev_task(&mut self, cpu: QueueId) {
        self.for_each_sched_entity(self.current(cpu), FairClass::put_prev_entity);
    }

    fn put_prev_entity(&mut self, se: EntityId) {
        let rq = self.rq_of(se);
        if self.queues[rq].curr == se {
            self.update_curr(rq);
            self.queues[rq].put_prev_entity(&mut self.entities);
        }
    }

    /// Whether a clock tick preempts the current task of a CPU (task_tick_fair).
    pub fn task_tick(&mut self, cpu: QueueId, now: u64) -> bool {
        let task = self.current(cpu);
        if self.is_flat {
            return task.is_some_and(|task| self.tick_flat(task, now));
        }
        self.for_each_sched_entity(task, |fair, se| fair.update_cfs_group(se, now));
        let mut preempts = false;
        self.for_each_sched_entity(task, |fair, se| preempts |= fair.entity_tick(se));
        preempts
    }

    fn entity_tick(&mut self, se: EntityId) -> bool {
        let rq = self.rq_of(se);
        self.update_curr(rq);
        if self.queues[rq].order.len() == 0 {
            return false;
        }
        if !self.queues[rq].is_eevdf() {
            let ideal = self.sched_slice(se, rq);
            if self.queues[rq].check_preempt_tick(&self.entities, ideal) {
                // Otherwise its buddy role would pick it again.
                self.clear_buddies(se, &Buddy::OF_KERNEL);
            }
        }
        self.queues[rq].resched
    }

    /// Whether a task that was just enqueued preempts the current one of its CPU (check_preempt_wakeup_fair).
    pub fn check_preempt(&mut self, cpu: QueueId, woken: EntityId) -> bool {
        // A CPU has one flag for all its queues (TIF_NEED_RESCHED).
        let mut level = Some(cpu);
        while let Some(rq) = level {
            let queue = &self.queues[rq];
            if queue.curr == NIL || queue.resched {
                return true;
            }
            level = self.entities[queue.curr].my_q.get();
        }
        // Only the queues of the current task and its groups have a current entity (find_matching_se).
        let mut pse = woken;
        while self.queues[self.rq_of(pse)].curr == NIL
            && let Some(above) = self.above(pse)
        {
            pse = above;
        }
        let rq = self.rq_of(pse);
        let se = self.queues[rq].curr;
        let of_current = self.entities[se].idle;
        if of_current != self.entities[pse].idle {
            self.queues[rq].resched |= of_current;
            return of_current;
        }
        if self.queues[rq].is_eevdf() {
            self.update_curr(rq);
            let queue = &mut self.queues[rq];
            return queue.resched || queue.eevdf_preempts(&self.entities, pse);
        }
        let queue = &mut self.queues[rq];
        queue.resched = queue.wakeup_preempt_entity(&self.entities, se, pse);
        if !queue.resched {
            return false;
        }
        let is_crowded = queue.nr_queued() >= queue.discipline.many();
        self.set_next_buddy(pse);
        // Groups have no last buddy of their own.
        if is_crowded && self.entities[se].my_q == QueueId::NIL {
            self.set_buddy(se, Buddy::Last);
        }
        true
    }

    /// The current task of a CPU yields (yield_task_fair); a lone task loses nothing.
    pub fn yield_task(&mut self, cpu: QueueId) {
        let Some(task) = self.current(cpu) else {
            return;
        };
        if self.queues[cpu].h_nr_queued == 1 {
            return;
        }
        self.clear_buddies(task, &Buddy::OF_KERNEL);
        let rq = self.rq_of(task);
        self.update_curr(rq);
        if self.queues[rq].is_eevdf() {
            self.queues[rq].postpone(&mut self.entities);
            return;
        }
        self.for_each_sched_entity(Some(task), |fair, se| {
            fair.queues[fair.entities[se].cfs_rq].buddies[Buddy::Skip as usize] = se;
        });
    }

    /// The current task of a CPU yields to a task that waits on the same or another CPU (yield_to).
    /// Returns false if it has no effect.
    pub fn yield_to(&mut self, cpu: QueueId, to_cpu: QueueId, to: EntityId) -> bool {
        if [cpu, to_cpu].iter().all(|&rq| self.queues[rq].h_nr_queued == 1) {
            // Both CPUs have a single task.
            return false;
        }
        self.set_next_buddy(to);
        if cpu != to_cpu {
            // Later wake-ups there do not preempt: a reschedule is pending (resched_curr in yield_to).
            self.set_resched(to_cpu);
        }
        self.yield_task(cpu);
        true
    }

    /// Sets need_resched, if there is a current task.
    pub fn set_resched(&mut self, cpu: QueueId) {
        let queue = &mut self.queues[cpu];
        queue.resched = queue.curr != NIL;
    }

    /// Sets a task's custom slice in ns (sched_setattr of EEVDF); 0: the discipline's.
    pub fn set_slice(&mut self, task: EntityId, slice: u64) {
        self.has_slices |= slice > 0;
        self.entities[task].slice = slice;
        self.update_slice(task);
    }

    /// Sets the slice of the group of an entity.
    /// Under EEVDF it is the shortest slice of the queued members, asleep or not (cfs_rq_min_slice of 6.12).
    /// Under CFS, in the prototype with wake-up granularities, it is the slice of this entity.
    fn update_slice(&mut self, se: EntityId) {
        let rq = self.entities[se].cfs_rq;
        if !self.has_slices || self.is_flat || rq == QueueId::NIL {
            return;
        }
        let queue = &self.queues[rq];
        if let Some(owner) = queue.owner.get() {
            self.entities[owner].slice = if queue.is_eevdf() {
                let members = queue.members(&self.entities);
                members.map(|id| queue.slice_of(&self.entities[id])).min().unwrap_or(0)
            } else {
                self.entities[se].slice
            };
        }
    }
}

#[cfg(test)]
mod tests;
