//! Domains, wake-ups and balancing on hosts with a described topology, as kernel/sched does them.

use super::*;

/// A host of one VM per vCPU with this topology; vCPU v runs on pCPU `on[v]`.
fn host(layout: &str, on: &[u32]) -> LinuxHost {
    let layout: tandem_model::Layout = layout.parse().unwrap();
    let vms: Vec<u32> = (0..on.len() as u32).collect();
    let pcpus = layout.pcpus().unwrap();
    let topology = layout.topology();
    let shape = Shape { topology, follows_topology: true, ..shape(pcpus, &vms) };
    let mut host = LinuxHost::new(Discipline::eevdf(pcpus), shape);
    for (v, &p) in on.iter().enumerate() {
        host.enqueue(v as u32, p, Enqueue::New, 0);
        if !host.is_current(v as u32, p) && host.queued(p) == 1 {
            host.pick(p, 0);
        }
    }
    host
}

fn set(list: &str) -> PcpuSet {
    list.parse().unwrap()
}

#[test]
fn degenerate_levels_have_no_domain() {
    let levels = |layout| host(layout, &[]).domains.iter().map(|d| d.level).collect::<Vec<_>>();
    use Level::*;
    assert_eq!(levels("2:2:2:4:2"), [Core, Cache, Node, Socket, Machine]);
    assert_eq!(levels("2:1:1:32:2"), [Core, Cache, Machine]);
    assert_eq!(levels("1:1:1:4:1"), [Cache]);
    let intervals =
        host("2:1:1:32:2", &[]).domains.iter().map(|d| d.interval / 1_000_000).collect::<Vec<_>>();
    assert_eq!(intervals, [32, 1024, 2048], "16 ms per pCPU");
}

#[test]
fn wakeup_prefers_idle_target_then_idle_core() {
    // Two caches of four cores: 0-3,8-11 and 4-7,12-15.
    let mut host = host("1:1:2:4:2", &[0, 1]);
    for (last, idle, wanted) in [
        (2, "2-15", 2),
        (0, "2-15", 2),
        // pCPU 8 is idle, but its sibling 0 is busy; core 3 is idle.
        (0, "3,8,11", 3),
        (0, "3,8", 3),
        (0, "8,4-7,12-15", 8),
        // Other caches are not searched.
        (0, "4-7,12-15", 0),
    ] {
        assert_eq!(host.select(1, last, None, &set(idle), 0), wanted, "{last}, idle: {idle}");
    }
    // No idle core: the first idle pCPU of the cache.
    assert_eq!(host.select(1, 0, None, &set("9-11"), 0), 9);
}

#[test]
fn waker_attracts_unless_it_wakes_many() {
    // vCPU 0 runs on pCPU 0, and pCPU 4, in the other cache, has two vCPUs.
    let mut host = host("1:1:2:4:2", &[0, 4, 4, 1]);
    let idle = set("2-3,8-11");
    assert_eq!(host.select(3, 4, Some(0), &idle, 0), 2, "beneath the waker's cache");
    assert_eq!(host.select(3, 4, None, &idle, 0), 4);
    assert_eq!(host.select(3, 5, Some(0), &set("2,5"), 0), 5, "its last pCPU is idle");
    // The waker alternates between wakees, and so does the wakee: more than the cache holds.
    for n in 0..64 {
        host.wakees.record(0, 1 + n % 2, 0);
        host.wakees.record(3, 1 + n % 2, 0);
    }
    assert!(!host.wakees.is_wide(0, 3, 8), "64 is less than 8 times 64");
    for n in 0..1000 {
        host.wakees.record(0, 1 + n % 2, 0);
    }
    assert!(host.wakees.is_wide(0, 3, 8));
    assert_eq!(host.select(3, 4, Some(0), &idle, 0), 4);
}

#[test]
fn idle_pcpu_pulls_from_innermost_domain() {
    // pCPU 0's sibling 8, pCPU 1 in its cache and pCPU 4 in the other have a waiting vCPU each.
    let mut host = host("1:1:2:4:2", &[8, 8, 1, 1, 4, 4, 4]);
    for from in [8, 1, 4, 4] {
        let taken = host.pull(0, 0).unwrap();
        assert_eq!(taken.from, from);
        host.dequeue(taken.vcpu, taken.from, false, 0);
    }
    assert_eq!(host.pull(0, 0), None);
}

#[test]
fn crowded_core_waits_for_four_intervals() {
    let mut host = host("1:1:2:4:2", &[0, 8]);
    let idle = set("1-7,9-15");
    // A cache of eight pCPUs: 4 × 8 ms.
    assert_eq!(host.spread(0, &idle, 0), None);
    assert_eq!(host.spread(0, &idle, 31_000_000), None);
    assert_eq!(host.spread(0, &idle, 32_000_000), Some(1));
    // The time restarts when the sibling has been idle.
    assert_eq!(host.spread(0, &idle, 40_000_000), None);
    assert_eq!(host.spread(0, &set("1-15"), 50_000_000), None);
    assert_eq!(host.spread(0, &idle, 73_000_000), None);
    // Without an idle core, none moves.
    assert_eq!(host.spread(0, &set("1-7"), 200_000_000), None);
    assert_eq!(host.spread(0, &set("1-7"), 400_000_000), None);
}
