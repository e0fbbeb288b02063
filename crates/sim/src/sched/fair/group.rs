//! Groups of tasks (task_group): the weight of a group on each CPU, and the load averages from which it derives.
//!
//! A group's weight on a CPU is the group's weight times the part of its load on that CPU, at least 2 (calc_group_shares).
//! The local load is the load runnable now (with EEVDF its average, if that is larger); the remote load is an average (see `load_average`).
//! Four tasks of a group of the default weight that always run, each on its own CPU, therefore weigh 256 each.
//! When other members fall asleep, a task gains their weight only as their load averages decay.
//! As in the kernel, a group's weight on a CPU is updated by changes there and at the tick.
//! With EEVDF, loads are integers and remote load has a resolution of one part in 64, so a group whose tasks always run keeps its weight.
//!
//! Since Linux 7.3, `cgroup_mode` multiplies the weight that is divided (see `cgroup_mode`).
//!
//! A group may be in another.
//! Load averages of entities outside groups are not kept.

use super::cgroup_mode::GroupTasks;
use super::load_average::{Average, Decay};
use super::{CfsRq, Discipline, Enqueue, FairClass};
use crate::sched::entity::{Entity, FINE};
use crate::sched::ids::{EntityId, GroupId, QueueId, Table};

/// A group's remote load is updated if it has changed by more than one part in this number.
/// In the kernel each CPU publishes its own load by that rule (update_tg_load_avg).
/// Here the rule applies to the sum of all others, which is the same for two CPUs and coarser for groups on many.
const COARSE: u64 = 64;

/// WEIGHT_IDLEPRIO of kernel/sched/sched.h.
const IDLE_WEIGHT: u32 = 3;

/// A group on all CPUs.
#[derive(Clone, Debug)]
struct TaskGroup {
    /// The group that contains it, or none.
    parent: GroupId,
    weight: f64,
    /// It is in the idle class (`cpu.idle`).
    idle: bool,
    /// Load of its runnable members.
    load: u64,
    /// Average of all its load.
    average: Average,
    tasks: GroupTasks,
}

/// Load average of a member of a group, which is a task or another group.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberLoad {
    average: Average,
    /// Average of its being runnable (a task of a flat class), see `cgroup_mode`.
    pub(super) runnable: Average,
    /// The queue whose average it is part of.
    home: QueueId,
}

impl MemberLoad {
    /// Load of a member that was never queued.
    const NEW: MemberLoad =
        MemberLoad { average: Average::ZERO, runnable: Average::ZERO, home: QueueId::NIL };
}

/// The groups of a [`FairClass`].
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    groups: Table<GroupId, TaskGroup>,
    /// Per (group, CPU): its queue, created on first use.
    queues: Vec<QueueId>,
    /// Number of CPUs.
    cpus: u32,
    pub(super) members: Table<EntityId, MemberLoad>,
    pub(super) decay: Decay,
}

impl Groups {
    /// The runnable tasks of a group, and the decay of averages.
    pub(super) fn tasks(&mut self, group: GroupId) -> (&mut GroupTasks, &Decay) {
        (&mut self.groups[group].tasks, &self.decay)
    }
}

impl FairClass {
    /// The class for a number of CPUs, with tasks of these weights that are all in groups of these weights.
    pub fn with_groups(
        discipline: Discipline,
        cpus: u32,
        tasks: &[u32],
        weights: &[f64],
    ) -> FairClass {
        let mut class = FairClass { is_flat: discipline.is_flat(), ..FairClass::default() };
        for _ in 0..cpus {
            class.add_cpu(discipline);
        }
        class.groups.cpus = cpus;
        class.groups.decay = Decay::new();
        for &weight in tasks {
            class.add_task(weight);
            class.groups.members.push(MemberLoad::NEW);
        }
        for &weight in weights {
            class.add_group(weight, GroupId::NIL);
        }
        class
    }

    /// Adds a group, perhaps within another.
    pub fn add_group(&mut self, weight: f64, parent: GroupId) -> GroupId {
        let groups = &mut self.groups;
        groups.queues.resize(groups.queues.len() + groups.cpus as usize, QueueId::NIL);
        let (average, tasks) = (Average::ZERO, GroupTasks::default());
        groups.groups.push(TaskGroup { parent, weight, idle: false, load: 0, average, tasks })
    }

    /// A group's queue on a CPU, if it was ever used.
    pub fn group_queue(&self, cpu: u32, group: GroupId) -> Option<QueueId> {
        self.groups.queues[(group.0 * self.groups.cpus + cpu) as usize].get()
    }

    /// A group's queue on a CPU, created on first use.
    pub fn group_queue_or_new(&mut self, cpu: u32, group: GroupId) -> QueueId {
        if let Some(rq) = self.group_queue(cpu, group) {
            return rq;
        }
        let TaskGroup { parent, idle, .. } = self.groups.groups[group];
        let within = match parent {
            GroupId::NIL => QueueId(cpu),
            parent => self.group_queue_or_new(cpu, parent),
        };
        let mut entity = Entity::new(1024);
        entity.cfs_rq = within;
        entity.my_q = QueueId(self.queues.len());
        entity.idle = idle;
        let owner = self.entities.push(entity);
        self.groups.members.push(MemberLoad::NEW);
        let rq = self.queues.push(CfsRq::new(self.queues[within].discipline, owner, group));
        self.groups.queues[(group.0 * self.groups.cpus + cpu) as usize] = rq;
        rq
    }

    /// Load of a group's runnable members.
    pub fn group_load(&self, group: GroupId) -> u64 {
        self.groups.groups[group].load
    }

    /// Average load of a group on all CPUs.
    #[cfg(test)]
    pub(crate) fn group_average(&self, group: GroupId) -> f64 {
        self.groups.groups[group].average.value()
    }

    /// Average load of the members of a group that were last queued on a CPU.
    #[cfg(test)]
    pub(crate) fn local_average(&self, cpu: u32, group: GroupId) -> f64 {
        self.group_queue(cpu, group).map_or(0.0, |rq| self.queues[rq].average.value())
    }

    /// calc_group_shares: the weight of a group on the CPU of a queue.
    fn calc_group_shares(&mut self, rq: QueueId, now: u64) -> u64 {
        let tasks = if self.is_flat { self.update_tg_load_avg(rq, now) } else { 1 };
        let queue = &mut self.queues[rq];
        let decay = &self.groups.decay;
        let group = &mut self.groups.groups[queue.group];
        let all = group.average.advance(decay, group.load, now);
        let was_here = queue.average.advance(decay, queue.load, now);
        let elsewhere = (all - was_here).max(0.0);
        let (here, elsewhere) = match queue.discipline {
            Discipline::Cfs { .. } => (queue.load as f64, elsewhere),
            Discipline::Eevdf { .. } => {
                let elsewhere = (elsewhere / FINE as f64) as u64;
                if queue.elsewhere.abs_diff(elsewhere) > queue.elsewhere / COARSE {
                    queue.elsewhere = elsewhere;
                }
                let here = was_here.max(queue.load as f64) / FINE as f64;
                (here.floor(), queue.elsewhere as f64)
            }
        };
        let part = here / (here + elsewhere).max(1.0);
        let weight = if group.idle { f64::from(IDLE_WEIGHT) } else { group.weight };
        queue.discipline.cgroup_mode().shares(weight * FINE as f64, part, tasks, self.groups.cpus)
    }

    /// Updates the weight of a group on its CPU; no effect on tasks.
    #[inline]
    pub(super) fn update_cfs_group(&mut self, se: EntityId, now: u64) {
        if let Some(my_q) = self.entities[se].my_q.get() {
            let (rq, weight) = (self.entities[se].cfs_rq, self.calc_group_shares(my_q, now));
            self.update_load_avg(se, rq, now);
            self.reweight_entity(se, rq, weight);
        }
    }

    /// Sets the weight of an entity within its group, in parts of 1 ÷ [`FINE`].
    pub fn reweight_entity(&mut self, se: EntityId, rq: QueueId, weight: u64) {
        let weight = weight.max(2 * FINE);
        let Entity { weight: before, on_rq, .. } = self.entities[se];
        if before == weight {
            return;
        }
        if on_rq {
            if !self.is_flat {
                self.update_curr(rq);
            }
            self.account_entity(se, false);
        }
        if !self.is_flat {
            self.queues[rq].reweight_entity(&mut self.entities, se, weight);
        }
        self.entities[se].weight = weight;
        if on_rq {
            self.account_entity(se, true);
        }
    }

    /// Advances all averages that include a member on a CPU to now.
    pub(super) fn update_load_avg(&mut self, se: EntityId, rq: QueueId, now: u64) {
        let queue = &mut self.queues[rq];
        if queue.group == GroupId::NIL {
            return;
        }
        let decay = &self.groups.decay;
        let group = &mut self.groups.groups[queue.group];
        group.average.advance(decay, group.load, now);
        queue.average.advance(decay, queue.load, now);
        let entity = &self.entities[se];
        let load = if entity.on_rq { entity.weight } else { 0 };
        self.groups.members[se].average.advance(decay, load, now);
    }

    /// Adds the weight of an entity to the load of its queue and its group, or removes it (account_entity_enqueue, _dequeue).
    #[inline]
    pub(super) fn account_entity(&mut self, se: EntityId, add: bool) {
        let entity = &self.entities[se];
        let change = |load: &mut u64| {
            *load = if add { *load + entity.weight } else { *load - entity.weight };
        };
        let queue = &mut self.queues[entity.cfs_rq];
        change(&mut queue.load);
        if let Some(group) = queue.group.get() {
            change(&mut self.groups.groups[group].load);
        }
    }

    /// Moves a member's load average to the queue in which it is about to be queued.
    pub(super) fn attach_load(&mut self, se: EntityId, rq: QueueId, how: Enqueue, now: u64) {
        let Some(group) = self.queues[rq].group.get() else {
            return;
        };
        self.update_load_avg(se, rq, now);
        let Groups { groups, members, decay, .. } = &mut self.groups;
        let member = &mut members[se];
        if how == Enqueue::New {
            // A new entity starts with the average of one that always ran (init_task_runnable_average).
            let gained = self.entities[se].weight as f64 - member.average.value();
            member.average.add(gained);
            groups[group].average.add(gained);
            if member.home == rq {
                self.queues[rq].average.add(gained);
            }
        }
        let average = member.average.value();
        let before = std::mem::replace(&mut member.home, rq);
        if before == rq {
            return;
        }
        self.queues[rq].average.add(average);
        if before != QueueId::NIL {
            let before = &mut self.queues[before];
            before.average.advance(decay, before.load, now);
            before.average.add(-average);
        }
        if self.is_flat {
            self.move_runnable(se, before, rq, now);
        }
    }

    /// The queue of which a task's load is part.
    fn load_home(&self, task: EntityId) -> Option<QueueId> {
        self.groups.members[task].home.get()
    }

    /// The CPU of the queue of which a task's load is part.
    pub fn load_cpu(&self, task: EntityId) -> Option<u32> {
        Some(self.root(self.load_home(task)?).0)
    }

    /// Moves the load average of a task that is not queued to another group on the same CPU (sched_move_task).
    pub fn move_load(&mut self, task: EntityId, cpu: u32, group: GroupId, now: u64) {
        let Some(home) = self.load_home(task) else {
            return;
        };
        self.update_load_avg(task, home, now);
        let Groups { groups, members, decay, .. } = &mut self.groups;
        let average = members[task].average.value();
        groups[self.queues[home].group].average.add(-average);
        let to = &mut groups[group];
        to.average.advance(decay, to.load, now);
        to.average.add(average);
        let rq = self.group_queue_or_new(cpu, group);
        self.attach_load(task, rq, Enqueue::Migrated, now);
    }

    /// Updates the weights of a group on all CPUs.
    pub fn update_group(&mut self, group: GroupId, now: u64) {
        for cpu in 0..self.groups.cpus {
            if let Some(rq) = self.group_queue(cpu, group)
                && self.queues[rq].load > 0
            {
                self.update_cfs_group(self.queues[rq].owner, now);
            }
        }
    }

    /// Sets a group's weight; the caller calls [`update_group`](FairClass::update_group).
    pub fn set_group_weight(&mut self, group: GroupId, weight: f64) {
        self.groups.groups[group].weight = weight;
    }

    /// Moves a group into the idle class or out of it.
    pub fn set_group_idle(&mut self, group: GroupId, idle: bool, now: u64) {
        self.groups.groups[group].idle = idle;
        for cpu in 0..self.groups.cpus {
            if let Some(rq) = self.group_queue(cpu, group) {
                self.entities[self.queues[rq].owner].idle = idle;
            }
        }
        self.update_group(group, now);
    }

    /// Whether any group is in the idle class.
    pub fn has_idle_groups(&self) -> bool {
        self.groups.groups.iter().any(|group| group.idle)
    }

    /// Sets the weight of a member of a group within it, and its membership of the idle class there.
    pub fn set_member(&mut self, task: EntityId, weight: u32, idle: bool, now: u64) {
        let weight = u64::from(if idle { IDLE_WEIGHT } else { weight.max(2) }) * FINE;
        self.entities[task].idle = idle;
        let Some(home) = self.load_home(task) else {
            self.entities[task].weight = weight;
            return;
        };
        self.update_load_avg(task, home, now);
        self.reweight_entity(task, home, weight);
        if self.entities[task].on_rq {
            self.update_group(self.queues[home].group, now);
            if self.is_flat {
                self.reweight_eevdf(task);
            }
        }
    }
}
