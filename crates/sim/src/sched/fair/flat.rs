//! Flat EEVDF: the tasks of all groups compete in the CPU's own queue, as since Linux 7.3.
//!
//! Source: 85570f10a4c6, "sched/eevdf: Move to a single runqueue" (Peter Zijlstra, 2026), and its mail of 2026-06-05.
//! The hierarchy of groups stays for load and weights; a group's queue holds no entities, and groups are never picked.
//! A task competes with its hierarchical weight (h_load): its weight times, at every level, the group's weight ÷ the load of the queue there.
//! The weight is recomputed when the task is enqueued, when it is picked, and at the tick while it runs.
//! A waiting task keeps its value until then, also if its group's weight changes.
//! Lag, deadlines, slices and delayed dequeue concern tasks only, and all tasks of the CPU share one V.
//!
//! `cpu.idle` of a group is only its small weight: se_is_idle of a task looks at the task's own policy.
//! So a woken task preempts a task of an idle group by eligibility and deadline: usually at once, but not in a protected slice.
//!
//! Left out: 7.3 bounds slice protection by shorter slices of waiting tasks (set_protect_slice), bounds lag by the longest queued slice,
//! ends slices with a timer (HRTICK) rather than at the tick, and makes a woken task that preempts by a shorter slice the next buddy.

use super::{Buddy, Enqueue, FairClass};
use crate::sched::entity::FINE;
use crate::sched::ids::{EntityId, QueueId};

/// NICE_0_LOAD.
const NICE_0: u64 = 1024 * FINE;

/// MIN_SHARES, in parts of 1 ÷ [`FINE`] as in the kernel.
const MIN_SHARES: u64 = 2;

impl FairClass {
    /// The queue in which an entity competes.
    #[inline]
    pub(super) fn rq_of(&self, se: EntityId) -> QueueId {
        let rq = self.entities[se].cfs_rq;
        if self.is_flat { self.root(rq) } else { rq }
    }

    /// Whether an entity or a group that contains it is in the idle class.
    pub fn is_sched_idle(&self, se: EntityId) -> bool {
        self.entities[se].idle || self.parent(se).is_some_and(|group| self.is_sched_idle(group))
    }

    /// The queued tasks of a CPU with their part of its load, without the current one and sleepers.
    pub fn queued_tasks(&self, cpu: QueueId) -> impl Iterator<Item = (EntityId, u64)> {
        self.queued(cpu).map(|task| (task, self.entities[task].h_load))
    }

    /// enqueue_task_fair.
    pub(super) fn enqueue_flat(&mut self, task: EntityId, rq: QueueId, how: Enqueue, now: u64) {
        let cpu = self.root(rq);
        let entity = &self.entities[task];
        if entity.sched_delayed && entity.cfs_rq == rq {
            self.update_runnable(task, now);
            self.queues[cpu].requeue_delayed_entity(&mut self.entities, task);
            self.count(rq, 1, 0);
            return;
        }
        self.dequeue_delayed(task, now);
        self.update_curr(cpu);
        self.enqueue_hierarchy(task, rq, how, now);
        self.reweight_eevdf(task);
        self.queues[cpu].enqueue_entity(&mut self.entities, task, how, true, 0);
    }

    /// Accounts the task and, if it is their first, the groups that contain it; updates the weights of the groups.
    fn enqueue_hierarchy(&mut self, task: EntityId, rq: QueueId, how: Enqueue, now: u64) {
        self.update_runnable(task, now);
        self.attach_load(task, rq, how, now);
        self.entities[task].cfs_rq = rq;
        self.update_runnable(task, now);
        self.account_first(task, now);
        self.count(rq, 1, 1);
        let mut level = self.parent(task);
        while let Some(se) = level {
            if !self.entities[se].on_rq {
                let rq = self.entities[se].cfs_rq;
                self.attach_load(se, rq, Enqueue::Wakeup, now);
                self.update_cfs_group(se, now);
                self.account_first(se, now);
                self.entities[se].on_rq = true;
            } else {
                self.update_cfs_group(se, now);
            }
            level = self.parent(se);
        }
    }

    fn account_first(&mut self, se: EntityId, now: u64) {
        let rq = self.entities[se].cfs_rq;
        if self.queues[rq].load == 0 {
            self.set_active(rq, true, now);
        }
        self.account_entity(se, true);
    }

    /// dequeue_task_fair, and the final dequeue of a delayed task.
    pub(super) fn dequeue_flat(&mut self, task: EntityId, sleeps: bool, now: u64) {
        let rq = self.entities[task].cfs_rq;
        let cpu = self.root(rq);
        let was_delayed = self.entities[task].sched_delayed;
        self.update_load_avg(task, rq, now);
        self.update_runnable(task, now);
        if !was_delayed {
            self.update_curr(cpu);
            self.clear_buddies(task, &Buddy::ALL);
        }
        let runnable = -i32::from(!was_delayed);
        if !self.queues[cpu].dequeue_entity(&mut self.entities, task, sleeps) {
            self.count(rq, runnable, 0);
            return;
        }
        self.count(rq, runnable, -1);
        self.account_last(task, now);
        let mut level = self.parent(task);
        while let Some(se) = level {
            if self.queues[self.entities[se].my_q].load > 0 {
                self.update_cfs_group(se, now);
            } else if self.entities[se].on_rq {
                self.update_load_avg(se, self.entities[se].cfs_rq, now);
                self.account_last(se, now);
                self.entities[se].on_rq = false;
            }
            level = self.parent(se);
        }
    }

    fn account_last(&mut self, se: EntityId, now: u64) {
        self.account_entity(se, false);
        let rq = self.entities[se].cfs_rq;
        if self.queues[rq].load == 0 {
            self.set_active(rq, false, now);
        }
    }

    /// task_tick_fair: whether the tick preempts the current task.
    pub(super) fn tick_flat(&mut self, task: EntityId, now: u64) -> bool {
        let preempts = self.entity_tick(task);
        self.update_runnable(task, now);
        self.update_load_avg(task, self.entities[task].cfs_rq, now);
        let mut level = self.parent(task);
        while let Some(se) = level {
            self.update_cfs_group(se, now);
            level = self.parent(se);
        }
        self.reweight_eevdf(task);
        preempts
    }

    /// Updates the weight with which a task competes.
    pub(super) fn reweight_eevdf(&mut self, task: EntityId) {
        let (rq, weight) = (self.rq_of(task), self.prop_weight(task));
        if weight == self.entities[task].h_load {
            return;
        }
        self.queues[rq].reweight_entity(&mut self.entities, task, weight);
    }

    /// Hierarchical weight of a task (__calc_prop_weight at every level).
    fn prop_weight(&self, task: EntityId) -> u64 {
        let (mut weight, mut level) = (NICE_0, Some(task));
        while let Some(se) = level {
            let entity = &self.entities[se];
            level = self.parent(se);
            let of = if level.is_some() { self.queues[entity.cfs_rq].load } else { NICE_0 };
            let product = u128::from(weight) * u128::from(entity.weight);
            weight = ((product / u128::from(of.max(1))) as u64).max(MIN_SHARES);
        }
        weight
    }
}
