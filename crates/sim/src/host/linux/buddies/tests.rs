//! What goes on over a pick, and who is skipped or next, between the groups of a pCPU.

use super::super::tests::shape;
use super::super::*;

/// Half of a pCPU for VM 0 with two vCPUs there, half for VM 1 with one. Under CFS a group's slice is 3 ms then, and a vCPU's of VM 0
/// one of 1.5 ms.
fn two_groups(discipline: Discipline) -> LinuxHost {
    let mut host = LinuxHost::new(discipline, shape(1, &[0, 0, 1]));
    for v in 0..3 {
        host.enqueue(v, 0, Arrival::Wakeup, 0);
    }
    host
}

/// A vCPU is the next one, runs for so long, and is put back unless it is to run on. Whether a tick ends that.
fn run(host: &mut LinuxHost, v: u32, micros: u64, stays: bool) -> bool {
    host.boost(v, 0, 0);
    assert_eq!(host.pick(0, 0), Some(v));
    host.account(v, 0, micros * 1000, 0);
    let is_over = host.tick(0, 0);
    if !stays {
        host.put_back(v, 0, 0);
    }
    is_over
}

#[test]
fn a_slice_is_that_of_the_groups_part_of_the_pcpu() {
    for (micros, is_over) in [(1_400, false), (1_600, true)] {
        let mut host = two_groups(Discipline::cfs(1));
        assert_eq!(run(&mut host, 0, micros, true), is_over);
    }
}

#[test]
fn a_group_goes_on_with_its_slice_when_its_vcpus_change_and_not_after_another_group() {
    for (another, is_over) in [(false, true), (true, false)] {
        let mut host = two_groups(Discipline::cfs(1));
        assert!(!run(&mut host, 0, 1_400, false));
        assert!(!run(&mut host, 1, 1_400, false));
        if another {
            run(&mut host, 2, 1_000, false);
        }
        // A slice of its own; the group's is 3 ms.
        assert_eq!(run(&mut host, 0, 400, true), is_over);
    }
}

#[test]
fn a_vcpu_goes_on_with_its_slice_only_if_no_other_group_had_the_pcpu() {
    for (another, is_over) in [(false, true), (true, false)] {
        let mut host = two_groups(Discipline::cfs(1));
        assert!(!run(&mut host, 0, 1_400, false));
        if another {
            run(&mut host, 2, 1_000, false);
        }
        assert_eq!(run(&mut host, 0, 400, true), is_over, "{another}");
    }
}

#[test]
fn under_eevdf_a_vcpu_is_not_the_current_one_once_another_group_had_the_pcpu() {
    for (another, next) in [(false, 0), (true, 1)] {
        let mut host = LinuxHost::new(Discipline::eevdf(1), shape(1, &[0, 0, 1]));
        // Both may run, and the first is protected; the other one's deadline is earlier.
        host.set_slice(1, 400_000);
        for v in 0..3 {
            host.enqueue(v, 0, Arrival::Wakeup, 0);
        }
        run(&mut host, 1, 50, false);
        run(&mut host, 0, 50, false);
        let group = host.group_at(0, 0).unwrap();
        if another {
            run(&mut host, 2, 100, false);
        }
        host.roots[0].set_first(group);
        assert_eq!(host.pick(0, 0), Some(next), "{another}");
    }
}

/// Two pCPUs: on the first VM 0 has vCPUs 0 and 3 and VM 1 vCPU 2, on the second VM 0 has vCPU 1. vCPU 0 runs, and VM 1 has run a little more.
fn sibling_elsewhere() -> LinuxHost {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(2, &[0, 0, 1, 0]));
    for (v, p) in [(0, 0), (1, 1), (2, 0), (3, 0)] {
        host.enqueue(v, p, Arrival::Wakeup, 0);
    }
    run(&mut host, 2, 500, false);
    host.boost(0, 0, 0);
    assert_eq!(host.pick(0, 0), Some(0));
    host
}

#[test]
fn the_group_of_who_yields_to_a_sibling_elsewhere_is_skipped() {
    for (yields, next) in [(false, 3), (true, 2)] {
        let mut host = sibling_elsewhere();
        if yields {
            assert!(host.yield_to(0, 0, 1, 1, 0));
        }
        host.account(0, 0, 10_000, 0);
        host.put_back(0, 0, 0);
        assert_eq!(host.pick(0, 0), Some(next));
    }
}

#[test]
fn it_is_not_skipped_once_who_yielded_has_left() {
    let mut host = sibling_elsewhere();
    assert!(host.yield_to(0, 0, 1, 1, 0));
    let group = host.group_at(0, 0).unwrap();
    assert_eq!(host.roots[0].buddies()[1], group);
    host.dequeue(0, 0, false, 0);
    assert_ne!(host.roots[0].buddies()[1], group);
    assert_eq!(host.pick(0, 0), Some(3));
}

#[test]
fn who_is_alone_on_its_pcpu_loses_nothing_by_a_directed_yield() {
    for discipline in [Discipline::cfs(1), Discipline::eevdf(1)] {
        // vCPU 0 runs alone; vCPU 1 waits on the other pCPU beside vCPU 2.
        let mut host = LinuxHost::new(discipline, shape(2, &[0, 0, 1]));
        for (v, p) in [(0, 0), (1, 1), (2, 1)] {
            host.enqueue(v, p, Arrival::Wakeup, 0);
        }
        host.pick(0, 0);
        host.boost(2, 1, 0);
        host.pick(1, 0);
        let deadline = host.vcpu_entities[0].deadline;
        assert!(host.yield_to(0, 0, 1, 1, 0));
        assert_eq!(host.vcpu_entities[0].deadline, deadline);
        assert_eq!(host.roots[0].buddies()[1], NONE);
        assert!(host.roots[1].is_next(host.group_at(1, 1).unwrap()));
    }
}

#[test]
fn there_is_no_directed_yield_between_two_that_are_alone() {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(2, &[0, 0]));
    for v in 0..2 {
        host.enqueue(v, v, Arrival::Wakeup, 0);
    }
    host.pick(0, 0);
    assert!(!host.yield_to(0, 0, 1, 1, 0));
}

#[test]
fn a_vcpu_of_the_idle_class_is_no_buddy_and_its_group_neither() {
    let mut host = two_groups(Discipline::cfs(1));
    run(&mut host, 2, 100, true);
    host.set_vcpu(0, 1024, true, 0);
    host.prefer(0, 0);
    let group = host.group_at(0, 0).unwrap();
    assert!(!host.roots[0].is_next(group));
    assert!(!host.groups[group as usize].vcpus.is_next(0));
    host.prefer(1, 0);
    assert!(host.roots[0].is_next(group));
}

#[test]
fn who_wakes_after_a_directed_yield_from_another_pcpu_does_not_take_its_place() {
    for (yields, next) in [(false, 3), (true, 0)] {
        // On the first pCPU VM 0 has vCPU 0, VM 1 vCPU 2 and VM 2 vCPU 3; vCPU 1 runs on the other one.
        let mut host = LinuxHost::new(Discipline::cfs(1), shape(2, &[0, 0, 1, 2]));
        for (v, p) in [(0, 0), (1, 1), (2, 0), (3, 0)] {
            host.enqueue(v, p, Arrival::Wakeup, 0);
        }
        host.pick(1, 0);
        run(&mut host, 0, 500, false);
        run(&mut host, 3, 500, false);
        run(&mut host, 2, 2_000, true);
        host.dequeue(3, 0, true, 0);
        if yields {
            assert!(host.yield_to(1, 1, 0, 0, 0));
        }
        // It has run as much as VM 0, and is behind who runs by more than the granularity.
        host.enqueue(3, 0, Arrival::Wakeup, 0);
        assert!(host.preempts(3, 0, 0));
        host.put_back(2, 0, 0);
        assert_eq!(host.pick(0, 0), Some(next), "{yields}");
    }
}

#[test]
fn who_yields_to_a_sibling_on_the_same_pcpu_is_followed_by_that_one() {
    for (yields, next) in [(false, 2), (true, 1)] {
        let mut host = two_groups(Discipline::cfs(1));
        run(&mut host, 0, 800, true);
        if yields {
            assert!(host.yield_to(0, 0, 1, 0, 0));
        }
        host.put_back(0, 0, 0);
        // VM 0 is ahead, by less than the granularity.
        assert_eq!(host.pick(0, 0), Some(next));
    }
}

#[test]
fn a_group_whose_slice_is_over_is_not_next_for_having_been_left_under_eevdf() {
    for (micros, is_next) in [(1_000, true), (4_000, false)] {
        let mut host = two_groups(Discipline::eevdf(4));
        // So that vCPU 0 is behind its sibling, and leaves when it sleeps.
        run(&mut host, 1, 5_000, false);
        run(&mut host, 2, 5_000, false);
        host.boost(0, 0, 0);
        assert_eq!(host.pick(0, 0), Some(0));
        host.account(0, 0, micros * 1000, 0);
        host.dequeue(0, 0, true, 0);
        let group = host.group_at(0, 0).unwrap();
        assert_eq!(host.roots[0].is_next(group), is_next, "{micros}");
    }
}

#[test]
fn a_group_that_comes_to_a_pcpu_is_half_a_latency_behind_under_cfs() {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(1, &[0, 1]));
    host.enqueue(0, 0, Arrival::Wakeup, 0);
    host.pick(0, 0);
    host.account(0, 0, 50_000_000, 0);
    host.enqueue(1, 0, Arrival::New, 0);
    let [before, new] = [0, 1].map(|v| host.group_at(0, v).unwrap() as usize);
    let behind = host.group_entities[before].vruntime - host.group_entities[new].vruntime;
    assert_eq!(behind, 3_000_000);
}

#[test]
fn a_group_is_not_first_any_more_once_the_vcpu_that_was_has_left_or_another_is() {
    for leaves in [false, true] {
        let mut host = two_groups(Discipline::cfs(1));
        host.boost(0, 0, 0);
        match leaves {
            true => host.dequeue(0, 0, false, 0),
            false => host.boost(2, 0, 0),
        }
        let group = host.group_at(0, 0).unwrap();
        assert_eq!(host.groups[group as usize].vcpus.buddies()[3], NONE);
        assert_ne!(host.roots[0].buddies()[3], group);
    }
}
