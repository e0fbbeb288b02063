//! Slices by release, and buddy roles.

use tandem_model::Nanos;

use super::*;
use crate::sched::entity::FINE;

const MS: u64 = 1_000_000;

/// CFS of a release on one CPU: latency 6 ms, minimum granularity 0.75 ms, wake-up granularity 1 ms.
fn cfs(age: CfsAge) -> Discipline {
    let mut discipline = Discipline::cfs(1);
    if let Discipline::Cfs { as_of, .. } = &mut discipline {
        *as_of = age;
    }
    discipline
}

const CPU: QueueId = QueueId(0);

/// A CPU with `count` tasks of the same weight, without a current one.
fn cpu(discipline: Discipline, count: u32) -> FairClass {
    let mut fair = FairClass::default();
    fair.add_cpu(discipline);
    for _ in 0..count {
        let task = fair.add_task(1024);
        fair.enqueue_task(task, CPU, Enqueue::Wakeup, 0);
    }
    fair
}

/// A CPU with tasks in these groups, of these weights, without a current one.
fn groups(discipline: Discipline, group_of: &[u32], weights: &[f64]) -> FairClass {
    let mut fair = FairClass::with_groups(discipline, 1, &vec![1024; group_of.len()], weights);
    for (id, &group) in (0..).map(EntityId).zip(group_of) {
        let rq = fair.group_queue_or_new(0, GroupId(group));
        fair.enqueue_task(id, rq, Enqueue::Wakeup, 0);
    }
    fair
}

#[test]
fn alt_period_counts_all_entities_on_cpu() {
    let group_of = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    for (age, others, wanted) in [
        (CfsAge::Linux3, 1, 1_000_000),
        (CfsAge::Linux3, 15, 125_000),
        // The period is 12 times 0.75 ms.
        (CfsAge::AltPeriod, 1, 1_500_000),
        (CfsAge::AltPeriod, 15, 750_000),
        (CfsAge::KeptBuddies, 1, 1_500_000),
    ] {
        let fair = groups(cfs(age), &group_of, &[1024.0, 1024.0 * f64::from(others)]);
        let rq = fair.entities[EntityId(0)].cfs_rq;
        assert_eq!(fair.sched_slice(EntityId(0), rq), wanted, "{age:?}");
    }
}

#[test]
fn new_entity_is_placed_by_group_slice() {
    let mut fair = groups(Discipline::cfs(1), &[0, 0, 1, 0], &[1024.0; 2]);
    fair.dequeue_task(EntityId(3), false, 0);
    let rq = fair.entities[EntityId(3)].cfs_rq;
    fair.enqueue_task(EntityId(3), rq, Enqueue::New, 0);
    // Half of a third of 6 ms.
    assert_eq!(fair.entities[EntityId(3)].vruntime, MS as i64);
}

#[test]
fn repicked_entity_stays_buddy_since_5_14() {
    for (discipline, stays) in [
        (cfs(CfsAge::Linux3), false),
        (cfs(CfsAge::AltPeriod), false),
        (cfs(CfsAge::KeptBuddies), true),
        (Discipline::eevdf(1), true),
    ] {
        let mut fair = cpu(discipline, 3);
        for _ in 0..2 {
            fair.pick_next_task(CPU, 0);
            fair.account(CPU, MS);
            fair.put_prev_task(CPU);
        }
        let id = fair.pick_next_task(CPU, 0).unwrap();
        fair.account(CPU, MS / 2);
        fair.set_next_buddy(id);
        fair.put_prev_task(CPU);
        assert_eq!(fair.pick_next_task(CPU, 0), Some(id));
        assert_eq!(fair.queue(CPU).buddy(Buddy::Next) == Some(id), stays, "{discipline:?}");
        fair.account(CPU, 3 * MS);
        assert!(fair.task_tick(CPU, 0));
        assert!(fair.queue(CPU).buddy(Buddy::Next) != Some(id), "{discipline:?}");
        fair.put_prev_task(CPU);
        assert_ne!(fair.pick_next_task(CPU, 0), Some(id));
    }
}

/// Among `count` entities, a long sleeper preempts one that has run 0.5 ms more than the others, and sleeps again.
/// Returns whether the preempted entity is picked next.
fn preempted_entity_resumes(count: u32) -> bool {
    let mut fair = cpu(Discipline::cfs(1), count);
    let sleeper = EntityId(count - 1);
    fair.dequeue_task(sleeper, true, 0);
    for _ in 0..count - 1 {
        fair.pick_next_task(CPU, 0);
        fair.account(CPU, 10 * MS);
        fair.put_prev_task(CPU);
    }
    let current = fair.pick_next_task(CPU, 0).unwrap();
    fair.account(CPU, MS / 2);
    fair.enqueue_task(sleeper, CPU, Enqueue::Wakeup, 0);
    assert!(fair.check_preempt(CPU, sleeper));
    fair.put_prev_task(CPU);
    assert_eq!(fair.pick_next_task(CPU, 0), Some(sleeper));
    fair.account(CPU, MS / 10);
    fair.dequeue_task(sleeper, true, 0);
    fair.pick_next_task(CPU, 0) == Some(current)
}

#[test]
fn last_buddy_needs_eight_entities() {
    assert!(!preempted_entity_resumes(7));
    assert!(preempted_entity_resumes(8));
}

#[test]
fn groups_have_no_last_buddy_of_their_own() {
    let mut fair = groups(Discipline::cfs(1), &[0, 1, 2, 3, 4, 5, 6, 7], &[1024.0; 8]);
    fair.pick_next_task(CPU, 0);
    fair.account(CPU, 20 * MS);
    assert!(fair.check_preempt(CPU, EntityId(7)));
    let last = fair.parent(EntityId(7)).unwrap();
    assert_eq!(fair.queue(CPU).buddies, [last, NIL, NIL, NIL]);
}

#[test]
fn idle_class_entities_are_no_buddies() {
    let mut fair = cpu(Discipline::cfs(1), 2);
    for id in [EntityId(0), EntityId(1)] {
        fair.entities[id].idle = true;
        fair.set_buddy(id, Buddy::Next);
    }
    assert_eq!(fair.queue(CPU).buddies, [NIL; 4]);
}

/// The first tasks that a CPU picks; each runs for its slice, or for 3 ms.
fn picks(fair: &mut FairClass, count: usize) -> Vec<u32> {
    let mut picked = Vec::new();
    for n in 0..count as u64 {
        let task = fair.pick_next_task(CPU, n * MS).unwrap();
        picked.push(task.0);
        fair.account(CPU, 3 * MS);
        fair.task_tick(CPU, n * MS);
        fair.put_prev_task(CPU);
    }
    picked
}

#[test]
fn flat_pick_compares_tasks_of_all_groups() {
    let weights = [1024.0; 2];
    // Two tasks of half the weight have later deadlines than the other group's task.
    let mut flat = groups(Discipline::eevdf_flat(1, CgroupMode::Smp), &[0, 0, 1], &weights);
    let loads = [0, 1, 2].map(|task| flat.entity(EntityId(task)).h_load / FINE);
    assert_eq!(loads, [1024, 512, 1024], "waiting tasks keep their weight");
    assert_eq!(picks(&mut flat, 4), [0, 2, 1, 2]);
    let loads = [0, 1, 2].map(|task| flat.entity(EntityId(task)).h_load / FINE);
    assert_eq!(loads, [512, 512, 1024]);
    assert_eq!(flat.queue(CPU).nr_queued(), 3, "tasks, not groups");
}

#[test]
fn flat_weight_multiplies_shares_of_all_levels() {
    let mut fair = FairClass::with_groups(
        Discipline::eevdf_flat(1, CgroupMode::Smp),
        1,
        &[1024; 3],
        &[2048.0],
    );
    let nested = fair.add_group(1024.0, GroupId(0));
    for (id, group) in (0..).map(EntityId).zip([GroupId(0), nested, nested]) {
        let rq = fair.group_queue_or_new(0, group);
        fair.enqueue_task(id, rq, Enqueue::Wakeup, 0);
    }
    // 2048 is divided between task 0 and the nested group, whose half is divided again.
    let load = |fair: &FairClass, task| fair.entity(EntityId(task)).h_load / FINE;
    assert_eq!(load(&fair, 2), 512);
    for task in [0, 1] {
        fair.set_first(EntityId(task));
        fair.pick_next_task(CPU, 0);
        fair.put_prev_task(CPU);
    }
    assert_eq!([0, 1, 2].map(|task| load(&fair, task)), [1024, 512, 512]);
    fair.dequeue_task(EntityId(2), false, 0);
    fair.set_first(EntityId(1));
    fair.pick_next_task(CPU, 0);
    assert_eq!(load(&fair, 1), 1024);
}

#[test]
fn nested_groups_divide_their_parents_time() {
    let flat = Discipline::eevdf_flat(1, CgroupMode::Concur);
    for discipline in [Discipline::cfs(1), Discipline::eevdf(1), flat] {
        // Group 1 contains task 1 and group 2.
        let mut fair = FairClass::with_groups(discipline, 1, &[1024; 3], &[1024.0; 2]);
        let nested = fair.add_group(1024.0, GroupId(1));
        for (id, group) in (0..).map(EntityId).zip([GroupId(0), GroupId(1), nested]) {
            let rq = fair.group_queue_or_new(0, group);
            fair.enqueue_task(id, rq, Enqueue::New, 0);
        }
        let mut ran = [0.0_f64; 3];
        for ms in 0..8000 {
            let task = fair.current(CPU).or_else(|| fair.pick_next_task(CPU, ms * MS)).unwrap();
            fair.account(CPU, MS);
            ran[task.0 as usize] += 1.0 / 8000.0;
            if fair.task_tick(CPU, ms * MS) {
                fair.put_prev_task(CPU);
            }
            if ms % 100 == 50 {
                // A short sleep of the task in the nested group.
                fair.dequeue_task(EntityId(2), true, ms * MS);
                let rq = fair.group_queue_or_new(0, nested);
                fair.enqueue_task(EntityId(2), rq, Enqueue::Wakeup, ms * MS);
            }
        }
        for (ran, share) in ran.into_iter().zip([0.5, 0.25, 0.25]) {
            assert!((ran - share).abs() < 0.03, "{discipline:?}: {ran} for {share}");
        }
    }
}

#[test]
fn lone_entity_is_never_preempted() {
    for discipline in [cfs(CfsAge::KeptBuddies), Discipline::eevdf(1)] {
        let mut fair = cpu(discipline, 1);
        fair.pick_next_task(CPU, 0);
        fair.account(CPU, Nanos::from_secs(1).0);
        assert!(!fair.task_tick(CPU, 0));
    }
}
