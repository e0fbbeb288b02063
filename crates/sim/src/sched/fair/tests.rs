//! Slices by release, and buddy roles.

use tandem_model::Nanos;

use super::*;

const MS: u64 = 1_000_000;

/// CFS of a release on one CPU: latency 6 ms, minimum granularity 0.75 ms, wake-up granularity 1 ms.
fn cfs(age: CfsAge) -> Discipline {
    let mut discipline = Discipline::cfs(1);
    if let Discipline::Cfs { as_of, .. } = &mut discipline {
        *as_of = age;
    }
    discipline
}

/// A queue of `count` entities of the same weight, without a current one.
fn queue(discipline: Discipline, count: u32) -> (FairQueue, Vec<Entity>) {
    let mut queue = FairQueue::new(discipline, 0);
    let mut entities = vec![Entity::new(1024); count as usize];
    for id in 0..count {
        queue.enqueue(&mut entities, id, Enqueue::Wakeup);
    }
    (queue, entities)
}

#[test]
fn alt_period_counts_all_entities_on_cpu() {
    let half = Above { running: 12, weight: 1024, load: 2048 };
    let sixteenth = Above { load: 16 * 1024, ..half };
    for (age, above, wanted) in [
        (CfsAge::Linux3, half, 1_000_000),
        (CfsAge::Linux3, sixteenth, 125_000),
        // The period is 12 times 0.75 ms.
        (CfsAge::AltPeriod, half, 1_500_000),
        (CfsAge::AltPeriod, sixteenth, 750_000),
        (CfsAge::KeptBuddies, half, 1_500_000),
    ] {
        let (queue, entities) = queue(cfs(age), 3);
        assert_eq!(queue.cfs_slice(&entities[0], true, above), wanted, "{age:?}");
    }
}

#[test]
fn new_entity_is_placed_by_group_slice() {
    let half = Above { running: 3, weight: 1024, load: 2048 };
    let (mut queue, mut entities) = queue(Discipline::cfs(1), 2);
    entities.push(Entity::new(1024));
    queue.enqueue_within(&mut entities, 2, Enqueue::New, half);
    // Half of a third of 6 ms.
    assert_eq!(entities[2].vruntime, MS as i64);
}

#[test]
fn repicked_entity_stays_buddy_since_5_14() {
    for (discipline, stays) in [
        (cfs(CfsAge::Linux3), false),
        (cfs(CfsAge::AltPeriod), false),
        (cfs(CfsAge::KeptBuddies), true),
        (Discipline::eevdf(1), true),
    ] {
        let (mut queue, mut entities) = queue(discipline, 3);
        for _ in 0..2 {
            queue.pick(&mut entities);
            queue.account(&mut entities, MS);
            queue.put_back(&mut entities);
        }
        let id = queue.pick(&mut entities).unwrap();
        queue.account(&mut entities, MS / 2);
        queue.set_next(&entities, id);
        queue.put_back(&mut entities);
        assert_eq!(queue.pick(&mut entities), Some(id));
        assert_eq!(queue.is_next(id), stays, "{discipline:?}");
        queue.account(&mut entities, 3 * MS);
        assert!(queue.tick_preempts(&entities));
        assert!(!queue.is_next(id), "{discipline:?}");
        queue.put_back(&mut entities);
        assert_ne!(queue.pick(&mut entities), Some(id));
    }
}

/// Among `count` entities, a long sleeper preempts one that has run 0.5 ms more than the others, and sleeps again.
/// Returns whether the preempted entity is picked next.
fn preempted_entity_resumes(count: u32) -> bool {
    let (mut queue, mut entities) = queue(Discipline::cfs(1), count);
    let sleeper = count - 1;
    queue.dequeue(&mut entities, sleeper, true);
    for _ in 0..sleeper {
        queue.pick(&mut entities);
        queue.account(&mut entities, 10 * MS);
        queue.put_back(&mut entities);
    }
    let current = queue.pick(&mut entities).unwrap();
    queue.account(&mut entities, MS / 2);
    queue.enqueue(&mut entities, sleeper, Enqueue::Wakeup);
    assert!(queue.wakeup_preempts(&entities, sleeper));
    queue.put_back(&mut entities);
    assert_eq!(queue.pick(&mut entities), Some(sleeper));
    queue.account(&mut entities, MS / 10);
    queue.dequeue(&mut entities, sleeper, true);
    queue.pick(&mut entities) == Some(current)
}

#[test]
fn last_buddy_needs_eight_entities() {
    assert!(!preempted_entity_resumes(7));
    assert!(preempted_entity_resumes(8));
}

#[test]
fn groups_have_no_last_buddy_of_their_own() {
    let (queue, mut entities) = queue(Discipline::cfs(1), 8);
    let mut queue = queue.of_groups();
    queue.pick(&mut entities);
    queue.account(&mut entities, 20 * MS);
    assert!(queue.wakeup_preempts(&entities, 7));
    assert_eq!(queue.buddies(), [7, NIL, NIL, NIL]);
}

#[test]
fn idle_class_entities_are_no_buddies() {
    let (mut queue, mut entities) = queue(Discipline::cfs(1), 2);
    entities[1].set_idle(true);
    queue.pick(&mut entities);
    queue.set_next(&entities, 1);
    entities[0].set_idle(true);
    queue.set_last(&entities);
    assert_eq!(queue.buddies(), [NIL; 4]);
}

#[test]
fn lone_entity_is_never_preempted() {
    for discipline in [cfs(CfsAge::KeptBuddies), Discipline::eevdf(1)] {
        let (mut queue, mut entities) = queue(discipline, 1);
        queue.pick(&mut entities);
        queue.account(&mut entities, Nanos::from_secs(1).0);
        assert!(queue.is_alone() && !queue.tick_preempts(&entities));
    }
}
