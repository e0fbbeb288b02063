//! Slices over repeated picks, and skip and next buddies, between the groups of a pCPU.

use super::*;

/// One pCPU, shared equally by VM 0 with two vCPUs and VM 1 with one.
/// Under CFS a group's slice is 3 ms, and that of a vCPU of VM 0 is 1.5 ms.
fn two_groups(discipline: Discipline) -> LinuxHost {
    let mut host = LinuxHost::new(discipline, shape(1, &[0, 0, 1]));
    for v in 0..3 {
        host.enqueue(v, 0, Enqueue::Wakeup, 0);
    }
    host
}

/// Picks a vCPU, runs it, and requeues it unless it `stays`; returns whether a tick preempts it.
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
fn slice_scales_with_group_share() {
    for (micros, is_over) in [(1_400, false), (1_600, true)] {
        let mut host = two_groups(Discipline::cfs(1));
        assert_eq!(run(&mut host, 0, micros, true), is_over);
    }
}

#[test]
fn group_slice_restarts_after_another_group() {
    for (another, is_over) in [(false, true), (true, false)] {
        let mut host = two_groups(Discipline::cfs(1));
        assert!(!run(&mut host, 0, 1_400, false));
        assert!(!run(&mut host, 1, 1_400, false));
        if another {
            run(&mut host, 2, 1_000, false);
        }
        // The vCPU starts a new slice; the group's slice is 3 ms.
        assert_eq!(run(&mut host, 0, 400, true), is_over);
    }
}

#[test]
fn vcpu_slice_restarts_after_another_group() {
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
fn eevdf_protection_ends_after_another_group() {
    for (another, next) in [(false, 0), (true, 1)] {
        let mut host = LinuxHost::new(Discipline::eevdf(1), shape(1, &[0, 0, 1]));
        // Both are eligible. vCPU 0 is protected, and vCPU 1 has the earlier deadline.
        host.set_slice(1, 400_000);
        for v in 0..3 {
            host.enqueue(v, 0, Enqueue::Wakeup, 0);
        }
        run(&mut host, 1, 50, false);
        run(&mut host, 0, 50, false);
        if another {
            run(&mut host, 2, 100, false);
        }
        // The group alone, not vCPU 0.
        let group = host.group_at(0, 0);
        host.fair.set_first(group);
        assert_eq!(host.pick(0, 0), Some(next), "{another}");
    }
}

/// Two pCPUs: the first has vCPUs 0 and 3 of VM 0 and vCPU 2 of VM 1, the second vCPU 1 of VM 0.
/// vCPU 0 runs, and VM 1 has run a little more than VM 0.
fn sibling_elsewhere() -> LinuxHost {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(2, &[0, 0, 1, 0]));
    for (v, p) in [(0, 0), (1, 1), (2, 0), (3, 0)] {
        host.enqueue(v, p, Enqueue::Wakeup, 0);
    }
    run(&mut host, 2, 500, false);
    host.boost(0, 0, 0);
    assert_eq!(host.pick(0, 0), Some(0));
    host
}

#[test]
fn remote_yield_skips_own_group() {
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
fn dequeue_clears_skipped_group() {
    let mut host = sibling_elsewhere();
    assert!(host.yield_to(0, 0, 1, 1, 0));
    let skipped = |host: &LinuxHost| host.fair.queue(QueueId(0)).buddy(Buddy::Skip);
    let group = Some(host.group_at(0, 0));
    assert_eq!(skipped(&host), group);
    host.dequeue(0, 0, false, 0);
    assert_ne!(skipped(&host), group);
    assert_eq!(host.pick(0, 0), Some(3));
}

#[test]
fn lone_vcpu_keeps_deadline_on_directed_yield() {
    for discipline in [Discipline::cfs(1), Discipline::eevdf(1)] {
        // vCPU 0 runs alone; vCPU 1 waits on the other pCPU for vCPU 2.
        let mut host = LinuxHost::new(discipline, shape(2, &[0, 0, 1]));
        for (v, p) in [(0, 0), (1, 1), (2, 1)] {
            host.enqueue(v, p, Enqueue::Wakeup, 0);
        }
        host.pick(0, 0);
        host.boost(2, 1, 0);
        host.pick(1, 0);
        let deadline = host.fair.entity(EntityId(0)).deadline;
        assert!(host.yield_to(0, 0, 1, 1, 0));
        assert_eq!(host.fair.entity(EntityId(0)).deadline, deadline);
        assert_eq!(host.fair.queue(QueueId(0)).buddy(Buddy::Skip), None);
        assert!(host.is_group_next(1, 1));
    }
}

#[test]
fn lone_vcpus_refuse_directed_yield() {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(2, &[0, 0]));
    for v in 0..2 {
        host.enqueue(v, v, Enqueue::Wakeup, 0);
    }
    host.pick(0, 0);
    assert!(!host.yield_to(0, 0, 1, 1, 0));
}

#[test]
fn idle_class_vcpu_nominates_no_group() {
    let mut host = two_groups(Discipline::cfs(1));
    run(&mut host, 2, 100, true);
    host.set_vcpu(0, 1024, true, 0);
    host.prefer(0, 0);
    let rq = host.fair.group_queue(0, GroupId(0)).unwrap();
    assert!(!host.is_group_next(0, 0));
    assert_eq!(host.fair.queue(rq).buddy(Buddy::Next), None);
    host.prefer(1, 0);
    assert!(host.is_group_next(0, 0));
}

#[test]
fn wakeup_keeps_target_of_remote_yield() {
    for (yields, next) in [(false, 3), (true, 0)] {
        // On pCPU 0: vCPU 0 of VM 0, vCPU 2 of VM 1 and vCPU 3 of VM 2. vCPU 1 runs on pCPU 1.
        let mut host = LinuxHost::new(Discipline::cfs(1), shape(2, &[0, 0, 1, 2]));
        for (v, p) in [(0, 0), (1, 1), (2, 0), (3, 0)] {
            host.enqueue(v, p, Enqueue::Wakeup, 0);
        }
        host.pick(1, 0);
        run(&mut host, 0, 500, false);
        run(&mut host, 3, 500, false);
        run(&mut host, 2, 2_000, true);
        host.dequeue(3, 0, true, 0);
        if yields {
            assert!(host.yield_to(1, 1, 0, 0, 0));
        }
        // vCPU 3 has run as much as VM 0, and is behind the current vCPU by more than the granularity.
        host.enqueue(3, 0, Enqueue::Wakeup, 0);
        assert!(host.preempts(3, 0, 0));
        host.put_back(2, 0, 0);
        assert_eq!(host.pick(0, 0), Some(next), "{yields}");
    }
}

#[test]
fn local_yield_runs_sibling_next() {
    for (yields, next) in [(false, 2), (true, 1)] {
        let mut host = two_groups(Discipline::cfs(1));
        run(&mut host, 0, 800, true);
        if yields {
            assert!(host.yield_to(0, 0, 1, 0, 0));
        }
        host.put_back(0, 0, 0);
        // VM 0 is ahead by less than the granularity.
        assert_eq!(host.pick(0, 0), Some(next));
    }
}

#[test]
fn eevdf_expired_group_is_not_next() {
    for (micros, is_next) in [(1_000, true), (4_000, false)] {
        let mut host = two_groups(Discipline::eevdf(4));
        // vCPU 0 falls behind its sibling, so that it is dequeued when it sleeps.
        run(&mut host, 1, 5_000, false);
        run(&mut host, 2, 5_000, false);
        host.boost(0, 0, 0);
        assert_eq!(host.pick(0, 0), Some(0));
        host.account(0, 0, micros * 1000, 0);
        host.dequeue(0, 0, true, 0);
        assert_eq!(host.is_group_next(0, 0), is_next, "{micros}");
    }
}

#[test]
fn cfs_places_new_group_half_latency_behind() {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(1, &[0, 1]));
    host.enqueue(0, 0, Enqueue::Wakeup, 0);
    host.pick(0, 0);
    host.account(0, 0, 50_000_000, 0);
    host.enqueue(1, 0, Enqueue::New, 0);
    assert_eq!(host.group(0, 0).vruntime - host.group(0, 1).vruntime, 3_000_000);
}

#[test]
fn group_loses_first_with_its_vcpu() {
    for leaves in [false, true] {
        let mut host = two_groups(Discipline::cfs(1));
        host.boost(0, 0, 0);
        if leaves {
            host.dequeue(0, 0, false, 0);
        } else {
            host.boost(2, 0, 0);
        }
        let rq = host.fair.group_queue(0, GroupId(0)).unwrap();
        assert_eq!(host.fair.queue(rq).buddy(Buddy::First), None);
        let first = host.fair.queue(QueueId(0)).buddy(Buddy::First);
        assert_ne!(first, Some(host.group_at(0, 0)));
    }
}
