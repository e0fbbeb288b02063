//! Meaning of group weights since Linux 7.3 (`sched/cgroup_mode` in debugfs), and the number of tasks of a group (tg_tasks).
//!
//! A group's weight on a CPU is the part of its load there (see `group`) of its weight W times a factor:
//!
//! - `up`: W on every CPU, undivided (calc_up_shares).
//! - `smp`: W, as before 7.3 (calc_smp_shares).
//! - `concur`, the default: W × min(tasks, CPUs), so W per active CPU (calc_concur_shares).
//! - `max`: W × CPUs, but at most the weight of nice -20 on one CPU (calc_max_shares).
//! - `tasks`: W × tasks (calc_tasks_shares).
//!
//! Source: Peter Zijlstra, "sched/fair: Add cgroup_mode" (v3, 2026-06-05, 20260605105513.354837583@infradead.org), merged for 7.3.
//! The number of tasks is tg->runnable_avg in whole tasks, rounded down: a sum of load averages that the CPUs publish.
//! A CPU publishes its average at most once per ms, and only if it has changed by more than one part in 64 (update_tg_load_avg).
//! New tasks start at half (post_init_entity_util_avg on an idle CPU), so their published sum stays below their number.
//! Two new tasks that always run thus count as one, until one migrates.
//! Measured on Linux 7.3.4: four tasks and two on one CPU receive 3:1 in `concur` and `tasks`.
//! All else here is from source, and `research/docs/kernel-comparison.md` compares the results with that kernel.
//! Left out: cpusets, which limit tg_cpus (pins are affinities, which do not), and publication because the load has changed.

use serde::{Deserialize, Serialize};

use super::FairClass;
use super::load_average::Average;
use crate::sched::entity::FINE;
use crate::sched::ids::{EntityId, GroupId, QueueId};

/// Average of an entity that is always runnable (SCHED_CAPACITY_SCALE).
const CAPACITY: u64 = 1024;

/// Minimum time between two publications of a CPU's average, ns (update_tg_load_avg).
const PUBLISH_INTERVAL: u64 = 1_000_000;

/// sched_prio_to_weight of nice -20.
const MAX_WEIGHT: f64 = 88_761.0;

/// Meaning of group weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupMode {
    /// The weight on every CPU.
    Up,
    /// The weight divided over the CPUs.
    Smp,
    /// The weight per active CPU.
    Concur,
    /// The weight per CPU.
    Max,
    /// The weight per task.
    Tasks,
}

impl CgroupMode {
    /// Weight on a CPU of a group with a `weight` in parts of 1 ÷ [`FINE`], which has this `part` of its load there.
    pub(super) fn shares(self, weight: f64, part: f64, tasks: u64, cpus: u32) -> u64 {
        let cpus = u64::from(cpus);
        let divided = |factor: u64| weight * factor as f64 * part;
        let shares = match self {
            CgroupMode::Up => weight,
            CgroupMode::Smp => weight * part,
            CgroupMode::Concur => divided(tasks.min(cpus)),
            CgroupMode::Max => divided(cpus).min(MAX_WEIGHT * FINE as f64),
            CgroupMode::Tasks => divided(tasks),
        };
        shares as u64
    }
}

/// Runnable tasks of a group on one CPU, in parts of 1 ÷ [`CAPACITY`].
#[derive(Clone, Debug, Default)]
pub(super) struct QueueTasks {
    /// Average (cfs_rq->avg.runnable_avg).
    runnable: Average,
    /// Its published value (tg_runnable_avg_contrib); 0 while the queue is empty.
    published: u64,
    /// Time of the last publication, ns.
    at: u64,
}

/// Runnable tasks of a group on all CPUs, in parts of 1 ÷ [`CAPACITY`].
#[derive(Clone, Debug, Default)]
pub(super) struct GroupTasks {
    /// Sum of the published values.
    published: u64,
    /// Average on the CPUs whose queue is empty.
    /// The kernel publishes it as it decays, with every load balancing.
    blocked: Average,
}

impl FairClass {
    /// Advances the averages of a task and of all groups that contain it, before their numbers of runnable tasks change.
    pub(super) fn update_runnable(&mut self, task: EntityId, now: u64) {
        let entity = &self.entities[task];
        let (rq, is_runnable) = (entity.cfs_rq, entity.on_rq && !entity.sched_delayed);
        if rq == QueueId::NIL || self.queues[rq].group == GroupId::NIL {
            return;
        }
        let groups = &mut self.groups;
        let load = u64::from(is_runnable) * CAPACITY;
        groups.members[task].runnable.advance(&groups.decay, load, now);
        self.for_each_group_queue(rq, |fair, rq| fair.advance_runnable(rq, now));
    }

    /// Takes a step for the queue of a group and for those of the groups that contain it.
    fn for_each_group_queue(
        &mut self,
        mut rq: QueueId,
        mut step: impl FnMut(&mut FairClass, QueueId),
    ) {
        while let Some(owner) = self.queues[rq].owner.get() {
            step(self, rq);
            rq = self.entities[owner].cfs_rq;
        }
    }

    fn advance_runnable(&mut self, rq: QueueId, now: u64) {
        let queue = &mut self.queues[rq];
        let load = u64::from(queue.h_nr_runnable) * CAPACITY;
        queue.tasks.runnable.advance(&self.groups.decay, load, now);
    }

    /// Adds to the average of an up-to-date queue.
    fn add_runnable(&mut self, rq: QueueId, average: f64, now: u64) {
        let queue = &mut self.queues[rq];
        queue.tasks.runnable.add(average);
        if queue.load == 0 {
            let (group, decay) = self.groups.tasks(queue.group);
            group.blocked.advance(decay, 0, now);
            group.blocked.add(average);
        }
    }

    /// Moves the average of a task that is not queued to another queue; a new task gets its first average.
    pub(super) fn move_runnable(&mut self, task: EntityId, from: QueueId, to: QueueId, now: u64) {
        if self.entities[task].my_q != QueueId::NIL {
            return;
        }
        let groups = &mut self.groups;
        let runnable = &mut groups.members[task].runnable;
        if from == QueueId::NIL {
            runnable.add((CAPACITY / 2) as f64);
        }
        let average = runnable.advance(&groups.decay, 0, now);
        if from != QueueId::NIL {
            self.for_each_group_queue(from, |fair, rq| {
                fair.advance_runnable(rq, now);
                fair.add_runnable(rq, -average, now);
                fair.update_tg_load_avg(rq, now);
            });
        }
        self.for_each_group_queue(to, |fair, rq| {
            fair.advance_runnable(rq, now);
            fair.add_runnable(rq, average, now);
        });
    }

    /// The queue of a group, up to date, gets its first entity or has lost its last one.
    pub(super) fn set_active(&mut self, rq: QueueId, is_active: bool, now: u64) {
        let queue = &mut self.queues[rq];
        if queue.group == GroupId::NIL {
            return;
        }
        let (group, decay) = self.groups.tasks(queue.group);
        let average = queue.tasks.runnable.value();
        group.blocked.advance(decay, 0, now);
        group.blocked.add(if is_active { -average } else { average });
        group.published -= queue.tasks.published;
        queue.tasks.published = if is_active { average.round() as u64 } else { 0 };
        group.published += queue.tasks.published;
    }

    /// update_tg_load_avg: publishes the average of a group's queue, and returns the group's number of tasks (tg_tasks).
    pub(super) fn update_tg_load_avg(&mut self, rq: QueueId, now: u64) -> u64 {
        self.advance_runnable(rq, now);
        let queue = &mut self.queues[rq];
        let (group, decay) = self.groups.tasks(queue.group);
        let tasks = &mut queue.tasks;
        let average = tasks.runnable.value().round() as u64;
        let is_changed = average.abs_diff(tasks.published) > tasks.published / 64;
        if queue.load > 0 && is_changed && now >= tasks.at + PUBLISH_INTERVAL {
            group.published = group.published - tasks.published + average;
            (tasks.published, tasks.at) = (average, now);
        }
        let blocked = group.blocked.advance(decay, 0, now) as u64;
        ((group.published + blocked) / CAPACITY).max(1)
    }
}
