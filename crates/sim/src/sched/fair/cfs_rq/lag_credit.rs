//! Lag credit: a directed yield makes its target eligible, so that the hint is not dropped.
//!
//! Source: "sched/fair, KVM: Semantics-aware directed yield for oversubscribed KVM" (Wanpeng Li, v3 of 2026-06-12, patches 1 … 5,
//! `YIELD_TO_LAG_CREDIT`), after its description.
//!
//! yield_to makes the target the next buddy of its queue and of its groups' queues, but pick_eevdf takes a buddy only if it is eligible.
//! The credit goes to each of these entities that is not eligible: it gets a positive lag, so it stays eligible for several picks.
//! A queued entity is placed with this lag and a new deadline; the current one (a group of both vCPUs) is shifted together with its deadline.
//! The others pay: V moves back, and their lag falls.
//! The yielding vCPU also forfeits its deadline, as without the credit.
//!
//! The margin is "small", "scales with runqueue depth and is clamped to entity_lag()'s legal bound"; the description has no formula.
//! Assumed is a constant time for each queued entity, a setting.
//!
//! The yielder's slice protection (RUN_TO_PARITY) ends at all levels, at most once per 6 ms and CPU; the caller keeps that time.

use tandem_model::Nanos;

use crate::sched::entity::{Entities, NIL};
use crate::sched::fair::{CfsRq, FairClass};
use crate::sched::ids::{EntityId, QueueId};

impl CfsRq {
    /// Lag that a credited entity gets, scaled by its weight.
    fn credit_margin(&self, entities: &Entities, id: EntityId, margin: Nanos) -> i64 {
        let entity = &entities[id];
        let depth = u64::from(self.nr_queued());
        entity.scaled(margin.0 * depth).min(self.max_lag(entity))
    }

    /// Gives an entity that is not eligible a positive lag (eevdf_credit_entity_vlag).
    fn credit_lag(&mut self, entities: &mut Entities, id: EntityId, margin: Nanos) {
        let (moment, load) = self.sums(entities);
        let entity = &entities[id];
        let (weight, before) = (i128::from(entity.h_load), entity.vruntime);
        let others = load - weight;
        if !self.is_eevdf() || others <= 0 || self.is_eligible(entities, id) {
            return;
        }
        // V includes the entity, so its lag is the distance to the others' average times others ÷ load.
        let average = (moment - weight * i128::from(before)).div_euclid(others);
        let margin = i128::from(self.credit_margin(entities, id, margin));
        let vruntime = (average - margin * load / others) as i64;
        if self.curr == id {
            let entity = &mut entities[id];
            entity.deadline += vruntime - before;
            entity.vruntime = vruntime;
            self.seen += vruntime - before;
        } else {
            self.unlink(entities, id);
            let slice = self.slice_of(&entities[id]);
            let entity = &mut entities[id];
            entity.vruntime = vruntime;
            entity.deadline = vruntime + entity.scaled(slice);
            self.link(entities, id);
        }
    }
}

impl FairClass {
    /// Credits lag, `margin` for each queued entity, to a queued task and to its groups, up to one in the idle class.
    pub fn credit_lag(&mut self, task: EntityId, margin: Nanos) {
        let mut level = Some(task);
        while let Some(se) = level.filter(|&se| !self.entities[se].idle) {
            let rq = self.rq_of(se);
            self.queues[rq].credit_lag(&mut self.entities, se, margin);
            level = self.above(se);
        }
    }

    /// Whether the slice of the current entity of a queue is protected.
    #[cfg(test)]
    pub fn is_protected(&self, rq: QueueId) -> bool {
        self.queues[rq].protected
    }

    /// Ends the slice protection of the current task of a CPU and of its groups (cancel_protect_slice).
    pub fn cancel_protection(&mut self, mut rq: QueueId) {
        while self.queues[rq].curr != NIL {
            self.queues[rq].protected = false;
            match self.entities[self.queues[rq].curr].my_q.get() {
                Some(my_q) => rq = my_q,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::fair::{CgroupMode, Discipline, Enqueue};
    use crate::sched::ids::GroupId;

    const MS: u64 = 1_000_000;
    const CPU: QueueId = QueueId(0);
    const TARGET: EntityId = EntityId(1);
    const OTHER: EntityId = EntityId(2);
    const MARGIN: Nanos = Nanos(100_000);

    /// Two vCPUs of one VM and one of another on a CPU; the first VM has just run for a while, mostly its second vCPU.
    /// The first vCPU is current, and neither its VM nor its sibling is eligible.
    fn cpu(discipline: Discipline) -> FairClass {
        let mut fair = FairClass::with_groups(discipline, 1, &[1024; 3], &[1024.0; 2]);
        for (task, group) in [(0, 0), (1, 0), (2, 1)] {
            let rq = fair.group_queue_or_new(0, GroupId(group));
            fair.enqueue_task(EntityId(task), rq, Enqueue::Wakeup, 0);
        }
        for (task, ran) in [(TARGET, MS / 2), (EntityId(0), MS / 8)] {
            fair.set_first(task);
            assert_eq!(fair.pick_next_task(CPU, 0), Some(task));
            fair.account(CPU, ran);
            if task == TARGET {
                fair.put_prev_task(CPU);
            }
        }
        fair
    }

    /// Yields to the target; returns the next task.
    fn next(discipline: Discipline, credit: bool) -> EntityId {
        let mut fair = cpu(discipline);
        assert!(fair.yield_to(CPU, CPU, TARGET));
        if credit {
            fair.credit_lag(TARGET, MARGIN);
        }
        fair.put_prev_task(CPU);
        fair.pick_next_task(CPU, 0).unwrap()
    }

    #[test]
    fn credited_target_runs_next() {
        for discipline in [Discipline::eevdf(1), Discipline::eevdf_flat(1, CgroupMode::Smp)] {
            assert_eq!(next(discipline, false), OTHER, "the hint is dropped: it is not eligible");
            assert_eq!(next(discipline, true), TARGET);
        }
    }

    #[test]
    fn yielder_and_others_pay() {
        let [before, mut fair] = [(); 2].map(|()| cpu(Discipline::eevdf(1)));
        fair.credit_lag(TARGET, MARGIN);
        assert!(fair.lag(TARGET) > 0 && before.lag(TARGET) < 0);
        assert!(fair.lag(EntityId(0)) < before.lag(EntityId(0)), "the yielding vCPU");
        let group = |fair: &FairClass, task| fair.parent(task).unwrap();
        let of_other = |fair: &FairClass| fair.lag(group(fair, OTHER));
        assert!(of_other(&fair) < of_other(&before), "the other VM");
    }

    #[test]
    fn credit_scales_with_queue_depth_up_to_bound() {
        // The bound is a tick.
        for (tasks, wanted) in [(2, 200_000), (8, 800_000), (60, 4_000_000)] {
            let mut fair = FairClass::default();
            fair.add_cpu(Discipline::eevdf(1));
            for _ in 0..tasks {
                let task = fair.add_task(1024);
                fair.enqueue_task(task, CPU, Enqueue::Wakeup, 0);
            }
            let target = fair.pick_next_task(CPU, 0).unwrap();
            fair.account(CPU, MS);
            fair.put_prev_task(CPU);
            fair.pick_next_task(CPU, 0);
            fair.credit_lag(target, MARGIN);
            let lag = fair.lag(target);
            assert!((wanted - 1..=wanted + 1).contains(&lag), "{tasks} tasks: {lag}");
            fair.credit_lag(target, MARGIN);
            assert_eq!(fair.lag(target), lag, "an eligible entity keeps its lag");
        }
    }

    #[test]
    fn protection_ends_at_all_levels() {
        let mut fair = cpu(Discipline::eevdf(1));
        let queues =
            |fair: &FairClass| [CPU, fair.entity(TARGET).cfs_rq].map(|rq| fair.is_protected(rq));
        assert_eq!(queues(&fair), [true, true]);
        fair.cancel_protection(CPU);
        assert_eq!(queues(&fair), [false, false]);
    }
}
