//! Group weights on a pCPU while sibling vCPUs on other pCPUs sleep, wake, migrate or are apart.

use tandem_model::Topology;

use super::*;
use crate::host::BUSY_FACTOR;
use crate::sched::entity::{Entity, FINE};
use crate::sched::fair::{Buddy, Reweight};

mod buddies;
mod topology;

/// Half-life of a load average, ns.
const HALF_LIFE: u64 = 1 << 25;

/// VMs of weight 1024 with these vCPUs, unpinned.
pub(super) fn shape(pcpus: u32, vm_of: &[u32]) -> Shape {
    let all: PcpuSet = (0..pcpus).map(PcpuId).collect();
    let vms = vm_of.iter().max().map_or(0, |&vm| vm as usize + 1);
    Shape {
        pcpus,
        topology: Topology::of_caches(pcpus, pcpus),
        follows_topology: false,
        vm_of: vm_of.to_vec(),
        weights: vec![1024.0; vms],
        vcpu_weights: vec![1024; vm_of.len()],
        allowed: vec![all; vm_of.len()],
        placement: Placement::LoadBalancing,
        busy_factor: BUSY_FACTOR,
    }
}

/// One VM of weight 1024 with two running vCPUs, one on each of two pCPUs.
fn host(discipline: Discipline) -> LinuxHost {
    let mut host = LinuxHost::new(discipline, shape(2, &[0, 0]));
    for v in 0..2 {
        host.enqueue(v, v, Enqueue::New, 0);
        host.pick(v, 0);
    }
    // vCPU 0 was weighed before vCPU 1 was queued.
    host.tick(0, 0);
    host
}

impl LinuxHost {
    /// The group of a vCPU on a pCPU where it has been queued.
    fn group_at(&self, p: u32, v: u32) -> EntityId {
        let rq = self.fair.group_queue(p, self.group_of[v as usize]).unwrap();
        self.fair.queue(rq).owner.get().unwrap()
    }

    /// The entity of a vCPU's group on a pCPU where it has been queued.
    fn group(&self, p: u32, v: u32) -> &Entity {
        self.fair.entity(self.group_at(p, v))
    }

    /// Whether a vCPU's group is the next buddy of a pCPU.
    fn is_group_next(&self, p: u32, v: u32) -> bool {
        self.fair.queue(QueueId(p)).buddy(Buddy::Next) == Some(self.group_at(p, v))
    }

    fn is_delayed(&self, v: u32) -> bool {
        self.fair.entity(EntityId(v)).sched_delayed
    }

    /// Makes a vCPU current on the first pCPU.
    fn make_current(&mut self, v: u32) {
        self.boost(v, 0, 0);
        assert_eq!(self.pick(0, 0), Some(v));
    }
}

fn weight(host: &LinuxHost, p: u32) -> f64 {
    host.group(p, p).weight as f64 / FINE as f64
}

#[test]
fn sleeping_siblings_weight_shifts_gradually() {
    for discipline in [Discipline::cfs(2), Discipline::eevdf(2)] {
        let mut host = host(discipline);
        assert_eq!([weight(&host, 0), weight(&host, 1)], [512.0, 512.0]);
        host.put_back(1, 1, HALF_LIFE);
        host.dequeue(1, 1, true, HALF_LIFE);
        host.tick(0, HALF_LIFE);
        assert_eq!(weight(&host, 0), 512.0);
        host.tick(0, 2 * HALF_LIFE);
        assert!((weight(&host, 0) - 1024.0 / 1.5).abs() < 1.0);
        host.tick(0, 12 * HALF_LIFE);
        assert!(weight(&host, 0) > 1022.0);
    }
}

#[test]
fn wakeup_counts_locally_at_once() {
    let mut host = host(Discipline::cfs(2));
    host.put_back(1, 1, 0);
    host.dequeue(1, 1, true, 0);
    // Its load average has decayed.
    let late = 100 * HALF_LIFE;
    host.tick(0, late);
    host.enqueue(1, 1, Enqueue::Wakeup, late);
    host.tick(0, late);
    assert_eq!([weight(&host, 0), weight(&host, 1)], [1024.0, 512.0]);
    host.tick(0, late + HALF_LIFE);
    assert!((weight(&host, 0) - 1024.0 / 1.5).abs() < 1.0);
}

#[test]
fn migrated_vcpu_keeps_load_average() {
    let mut host = host(Discipline::cfs(2));
    host.put_back(1, 1, HALF_LIFE);
    host.dequeue(1, 1, false, HALF_LIFE);
    host.enqueue(1, 0, Enqueue::Migrated, HALF_LIFE);
    // All of the VM's load is on pCPU 0, and no average stays on pCPU 1.
    assert_eq!(weight(&host, 0), 1024.0);
    let vm = GroupId(0);
    assert_eq!(host.fair.group_load(vm), 2 * 1024 * FINE);
    assert_eq!(host.fair.group_average(vm), host.fair.local_average(0, vm));
}

#[test]
fn heavier_vcpu_gets_larger_group_weight() {
    let shape = Shape { vcpu_weights: vec![3072, 1024], ..shape(2, &[0, 0]) };
    let mut host = LinuxHost::new(Discipline::cfs(2), shape);
    for v in 0..2 {
        host.enqueue(v, v, Enqueue::New, 0);
        host.pick(v, 0);
    }
    host.tick(0, 0);
    assert_eq!([weight(&host, 0), weight(&host, 1)], [768.0, 256.0]);
}

/// State of the run queues.
/// Per vCPU: its group, its group's weight on its pCPU, and whether the group is in the idle class.
/// Per pCPU: its load, the number of queued vCPUs, and the current vCPU.
#[derive(Debug, PartialEq)]
struct QueueState {
    vcpus: Vec<(GroupId, u64, bool)>,
    load: u64,
    pcpus: Vec<(u64, u32, Option<EntityId>)>,
}

fn queue_state(host: &LinuxHost) -> QueueState {
    let vcpu = |v: u32| {
        let entity = host.group(v % 2, v);
        (host.group_of[v as usize], entity.weight, entity.idle)
    };
    let pcpu = |p: u32| (host.load(p), host.queued(p), host.fair.current(QueueId(p)));
    QueueState {
        vcpus: (0..4).map(vcpu).collect(),
        load: host.fair.group_load(GroupId(0)),
        pcpus: (0..2).map(pcpu).collect(),
    }
}

/// One VM of weight 1024 with two vCPUs on each of two pCPUs.
/// One runs on each pCPU; the second vCPU waits on pCPU 0 and sleeps on pCPU 1.
fn crowded(discipline: Discipline, placement: Placement) -> LinuxHost {
    let mut host = LinuxHost::new(discipline, Shape { placement, ..shape(2, &[0; 4]) });
    for v in 0..4 {
        host.enqueue(v, v % 2, Enqueue::New, 0);
    }
    host.dequeue(3, 1, true, 0);
    for p in 0..2 {
        assert_eq!(host.pick(p, 0), Some(p));
        host.tick(p, 0);
    }
    host
}

#[test]
fn own_group_weight_applies_and_reverts() {
    for discipline in [Discipline::cfs(2), Discipline::eevdf(2)] {
        let mut host = crowded(discipline, Placement::LoadBalancing);
        let before = queue_state(&host);
        let averages = |host: &LinuxHost| -> Vec<f64> {
            let vm = GroupId(0);
            let local = [0, 1].map(|p| host.fair.local_average(p, vm));
            local.into_iter().chain([host.fair.group_average(vm)]).collect()
        };
        let averages_before = averages(&host);
        let weights = [100.0, 200.0, 300.0, 400.0];
        for (v, weight) in (0..4).zip(weights) {
            host.set_own_group(v, Some(weight), 0);
        }
        let apart = queue_state(&host);
        let runnable = [0, 1, 2].map(|v: usize| apart.vcpus[v].1 / FINE);
        assert_eq!(runnable, [100, 200, 300]);
        assert_eq!((apart.load, apart.pcpus[0].0 / FINE), (0, 400));
        assert_eq!(apart.pcpus[1].0 / FINE, 200);
        // Running vCPUs keep running; the sleeping vCPU wakes in its own group.
        assert!(host.is_current(0, 0) && host.is_current(1, 1));
        host.enqueue(3, 1, Enqueue::Wakeup, 0);
        assert_eq!(host.load(1) / FINE, 600);
        host.dequeue(3, 1, true, 0);
        // The weight changes while they are apart.
        host.set_own_group(0, Some(500.0), 0);
        assert_eq!(host.load(0) / FINE, 800);
        for v in 0..4 {
            host.set_own_group(v, None, 0);
        }
        for p in 0..2 {
            host.tick(p, 0);
        }
        assert_eq!(queue_state(&host), before);
        for (now, before) in averages(&host).iter().zip(averages_before) {
            assert!((now - before).abs() < 1e-6, "{now}, was {before}");
        }
        // The previous groups are reused.
        let groups = apart.vcpus[2].0;
        host.set_own_group(2, Some(64.0), 0);
        assert_eq!(host.group_of[2], groups);
    }
}

#[test]
fn idle_class_applies_to_vm_group_only() {
    let mut host = crowded(Discipline::eevdf(2), Placement::LoadBalancing);
    host.set_own_group(0, Some(512.0), 0);
    host.set_idle(0, true, 0);
    let idle = |host: &LinuxHost| queue_state(host).vcpus.iter().map(|vcpu| vcpu.2).collect();
    let now: Vec<bool> = idle(&host);
    assert_eq!(now, [false, true, true, true]);
    host.set_own_group(0, None, 0);
    let now: Vec<bool> = idle(&host);
    assert_eq!(now, [true; 4]);
}

#[test]
fn no_stacking_counts_siblings_apart() {
    let mut host = crowded(Discipline::eevdf(2), Placement::NoStacking);
    host.dequeue(2, 0, true, 0);
    host.dequeue(0, 0, true, 0);
    // The only runnable vCPU runs on pCPU 1.
    let none = PcpuSet::default();
    assert_eq!(host.select(3, 1, None, &none, 0), 0);
    host.set_own_group(1, Some(512.0), 0);
    assert_eq!(host.select(3, 1, None, &none, 0), 0);
    // A vCPU that is apart is not stacked on its siblings, either.
    host.set_own_group(3, Some(512.0), 0);
    host.set_own_group(1, None, 0);
    assert_eq!(host.select(3, 1, None, &none, 0), 0);
}

/// Four VMs of one vCPU each: the first on pCPU 0, the others on pCPU `crowded`.
fn uneven(pcpus: u32, pcpus_per_llc: u32, busy_factor: u32, crowded: u32) -> LinuxHost {
    let topology = Topology::of_caches(pcpus, pcpus_per_llc);
    let shape = Shape { topology, busy_factor, ..shape(pcpus, &[0, 1, 2, 3]) };
    let mut host = LinuxHost::new(Discipline::cfs(pcpus), shape);
    for v in 0..4 {
        let p = if v == 0 { 0 } else { crowded };
        host.enqueue(v, p, Enqueue::New, 0);
    }
    host.pick(0, 0);
    host.pick(crowded, 0);
    host
}

#[test]
fn busy_group_weight_is_constant() {
    let mut host = host(Discipline::eevdf(2));
    let before = [0, 1].map(|p| host.group(p, p).weight);
    for ms in (1..4000).step_by(3) {
        let now = ms * 1_000_003;
        host.tick((ms % 2) as u32, now);
        let after = [0, 1].map(|p| host.group(p, p).weight);
        assert_eq!(after, before, "at {now} ns");
    }
}

#[test]
fn remote_load_changes_in_coarse_steps() {
    let mut host = host(Discipline::eevdf(2));
    host.put_back(1, 1, 0);
    host.dequeue(1, 1, true, 0);
    let mut weights = Vec::new();
    for now in (0..HALF_LIFE).step_by(100_000) {
        host.tick(0, now);
        weights.push(weight(&host, 0));
    }
    weights.dedup();
    // Steps of 1/64 from full to half load: 44 changes in 335 ticks.
    assert!((35..=50).contains(&weights.len()), "{}", weights.len());
    assert!(weights.is_sorted(), "the remote load decays");
    assert!((weights.last().unwrap() - 1024.0 / 1.5).abs() < 8.0);
}

#[test]
fn eevdf_moves_least_recently_run_vcpu() {
    for (discipline, wanted) in [(Discipline::eevdf(2), 2), (Discipline::cfs(2), 0)] {
        // Two vCPUs of one VM and one of another on pCPU 0.
        let mut host = LinuxHost::new(discipline, shape(2, &[0, 0, 1]));
        for v in [0, 1, 2] {
            host.enqueue(v, 0, Enqueue::New, 0);
        }
        // vCPU 0 ran after vCPU 2, and vCPU 1 after both.
        host.touched = vec![2, 3, 1];
        host.touches = 3;
        assert_eq!(host.movable(0, 1, 0, u64::MAX), Some(wanted), "{discipline:?}");
    }
}

/// Time in ms at which pCPU 0 first takes a vCPU, if it balances every ms for two seconds.
fn first_taken_at(mut host: LinuxHost) -> Option<u64> {
    (1..=2000).find(|ms| host.balance(0, ms * 1_000_000).is_some())
}

#[test]
fn balance_interval_scales_with_domain_size() {
    // pCPUs, pCPUs per cache, busy_factor, loaded pCPU, time of the first comparison in ms.
    for (pcpus, cache, factor, crowded, wanted) in [
        (2, 2, 16, 1, 32),
        (16, 8, 16, 1, 128),
        (16, 8, 16, 8, 256),
        (16, 8, 32, 1, 256),
        (16, 8, 32, 8, 512),
        (4, 1, 16, 1, 64),
        (6, 6, 32, 5, 192),
    ] {
        let host = uneven(pcpus, cache, factor, crowded);
        let taken = first_taken_at(host);
        assert_eq!(taken, Some(wanted), "{pcpus} pCPUs, {cache}, {factor}");
    }
    // One cache, one domain: after a move, the next comparison comes an interval later.
    let mut host = uneven(2, 2, 16, 1);
    let moved: Vec<u64> = (1..=64).filter(|ms| host.balance(0, ms * 1_000_000).is_some()).collect();
    assert_eq!(moved, [32, 64]);
    // A pCPU of the idle class alone: no busy_factor.
    let mut host = uneven(2, 2, 16, 1);
    host.set_idle(0, true, 0);
    assert_eq!(first_taken_at(host), Some(2));
    // Already balanced: one vCPU on each pCPU.
    let mut host = uneven(2, 2, 16, 1);
    for v in [2, 3] {
        host.dequeue(v, 1, true, 0);
    }
    assert_eq!(first_taken_at(host), None);
}

/// pCPU 0 of two has vCPUs 0 and 1 of VM 0 and vCPU 2 of VM 1; vCPU 0 has run ahead and sleeps.
fn ahead_and_asleep() -> LinuxHost {
    let mut host = LinuxHost::new(Discipline::eevdf(2), shape(2, &[0, 0, 1]));
    for v in 0..2 {
        host.enqueue(v, 0, Enqueue::New, 0);
    }
    assert_eq!(host.pick(0, 0), Some(0));
    host.account(0, 0, 1_000_000, 1_000_000);
    host.dequeue(0, 0, true, 1_000_000);
    host.enqueue(2, 0, Enqueue::New, 1_000_000);
    host
}

#[test]
fn delayed_vcpu_counts_and_wakes_in_place() {
    let mut host = ahead_and_asleep();
    let idle: PcpuSet = "1".parse().unwrap();
    assert!(host.is_delayed(0));
    assert_eq!((host.queued(0), host.fair.group_load(GroupId(0))), (2, 2048 * FINE));
    assert_eq!(host.select(0, 0, None, &idle, 1_100_000), 0, "still queued");
    host.enqueue(0, 0, Enqueue::Wakeup, 1_100_000);
    assert_eq!((host.queued(0), host.fair.group_load(GroupId(0))), (3, 2048 * FINE));
}

/// One pCPU has vCPUs 0 and 1 of VM 0, vCPU 2 of VM 1 and vCPU 3 of VM 2.
/// VM 2 has run far ahead; of the other two, VM 1 has the earlier deadline.
/// Returns the vCPU picked after vCPU 1 has left, to sleep or not.
fn next_after_dequeue(sleeps: bool) -> Option<u32> {
    let discipline = Discipline::Eevdf {
        cgroup_mode: None,
        base_slice: tandem_model::Nanos(1_500_000),
        reweight: Reweight::Kept,
    };
    let mut host = LinuxHost::new(discipline, shape(1, &[0, 0, 1, 2]));
    for v in 0..4 {
        host.enqueue(v, 0, Enqueue::New, 0);
    }
    // A new entity's deadline is half a slice after its start, later ones a slice after its run time.
    for (v, ran) in [(0, 800_000), (2, 760_000), (3, 12_000_000)] {
        assert_eq!(host.pick(0, 0), Some(v));
        host.account(v, 0, ran, 0);
        host.put_back(v, 0, 0);
    }
    host.dequeue(1, 0, sleeps, 0);
    host.pick(0, 0)
}

#[test]
fn sleeping_vcpu_makes_group_next() {
    assert_eq!(next_after_dequeue(false), Some(2));
    assert_eq!(next_after_dequeue(true), Some(0));
}

/// Under CFS, the first pCPU has vCPUs 0 and 1 of VM 0 and vCPU 2 of VM 1.
fn two_siblings_and_another(pcpus: u32) -> LinuxHost {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(pcpus, &[0, 0, 1]));
    for v in 0..3 {
        host.enqueue(v, 0, Enqueue::New, 0);
    }
    host
}

/// Alternates picks of 0.5 ms, then lets a vCPU of VM 0 run for `ran` ns and returns it.
fn run_ahead(host: &mut LinuxHost, ran: u64) -> u32 {
    for turn in 1.. {
        let v = host.pick(0, 0).unwrap();
        if v < 2 && turn > 20 {
            host.account(v, 0, ran, 0);
            return v;
        }
        host.account(v, 0, 500_000, 0);
        host.put_back(v, 0, 0);
    }
    unreachable!("a vCPU of VM 0 is picked")
}

#[test]
fn cfs_sleeping_vcpu_makes_group_next_within_granularity() {
    // The wake-up granularity is 1 ms.
    for (ran, sleeps, goes_on) in
        [(900_000, true, true), (900_000, false, false), (2_000_000, true, false)]
    {
        let mut host = two_siblings_and_another(1);
        let v = run_ahead(&mut host, ran);
        host.dequeue(v, 0, sleeps, 0);
        let next = if goes_on { 1 - v } else { 2 };
        assert_eq!(host.pick(0, 0), Some(next), "{ran} {sleeps}");
    }
}

#[test]
fn cfs_sibling_preemption_nominates_group() {
    let mut host = two_siblings_and_another(1);
    let v = run_ahead(&mut host, 500_000);
    // The sibling leaves for long without sleeping, so its group is not nominated.
    host.dequeue(1 - v, 0, false, 0);
    assert!(!host.is_group_next(0, v));
    host.account(v, 0, 20_000_000, 0);
    host.account(v, 0, 0, 0);
    host.enqueue(1 - v, 0, Enqueue::Wakeup, 0);
    assert!(host.preempts(1 - v, 0, 0));
    assert!(host.is_group_next(0, v));
    // A later wake-up does not change the nomination before the next pick.
    assert!(host.preempts(2, 0, 0));
    assert!(host.is_group_next(0, v));
}

#[test]
fn dequeue_clears_next_group() {
    for leaves in [false, true] {
        let mut host = two_siblings_and_another(2);
        host.make_current(2);
        host.prefer(0, 0);
        assert!(host.is_group_next(0, 0));
        if leaves {
            host.dequeue(0, 0, false, 0);
        }
        assert_eq!(host.is_group_next(0, 0), !leaves);
    }
}

#[test]
fn idle_class_group_is_no_buddy() {
    let mut host = two_siblings_and_another(1);
    host.make_current(2);
    host.set_idle(0, true, 0);
    host.prefer(0, 0);
    assert!(!host.is_group_next(0, 0));
}

#[test]
fn group_of_sleepers_leaves_at_pick() {
    let mut host = ahead_and_asleep();
    let mut now = 1_000_000;
    host.make_current(2);
    now += 4_000_000;
    host.account(2, 0, 4_000_000, now);
    host.put_back(2, 0, now);
    // vCPU 1 runs less than vCPU 0 did, then sleeps.
    assert_eq!(host.pick(0, now), Some(1));
    now += 500_000;
    host.account(1, 0, 500_000, now);
    host.dequeue(1, 0, true, now);
    assert!(!host.is_delayed(1) && host.is_delayed(0));
    assert!(!host.is_runnable(GroupId(0), 0));
    assert_eq!(host.fair.queue(QueueId(0)).nr_queued(), 2, "the group is still queued");
    for _ in 0..4 {
        assert_eq!(host.pick(0, now), Some(2));
        now += 4_000_000;
        host.account(2, 0, 4_000_000, now);
        host.put_back(2, 0, now);
    }
    assert!(!host.is_delayed(0));
    assert_eq!((host.fair.queue(QueueId(0)).nr_queued(), host.fair.group_load(GroupId(0))), (1, 0));
    let idle: PcpuSet = "1".parse().unwrap();
    assert_eq!(host.select(0, 0, None, &idle, now), 1, "it wakes on the idle pCPU");
}

#[test]
fn moving_a_delayed_vcpu_dequeues_it() {
    let mut host = ahead_and_asleep();
    let before = host.fair.group_queue(0, GroupId(0)).unwrap();
    host.set_own_group(0, Some(512.0), 1_000_000);
    assert!(!host.is_delayed(0));
    assert_eq!(host.fair.queue(before).load, 1024 * FINE);
    let mut host = ahead_and_asleep();
    host.set_affinity(0, &"1".parse().unwrap());
    assert_eq!(host.select(0, 0, None, &"1".parse().unwrap(), 1_100_000), 1);
    host.enqueue(0, 1, Enqueue::Wakeup, 1_100_000);
    assert!(!host.is_delayed(0));
    assert_eq!((host.queued(0), host.queued(1)), (2, 1));
    assert_eq!(host.fair.group_load(GroupId(0)), 2048 * FINE);
}

/// Source: the rate limit of "sched/fair: Force a local resched on yield_to() so the buddy is picked" (Wanpeng Li, v3, 2026-06-12).
#[test]
fn credited_yield_ends_protection_once_in_6_ms() {
    const MS: u64 = 1_000_000;
    let mut host = LinuxHost::new(Discipline::eevdf(1), shape(1, &[0, 0, 1]));
    for v in 0..3 {
        host.enqueue(v, 0, Enqueue::New, 0);
    }
    let is_protected_after_yield = |now| {
        // The first VM is picked after the other one, so its slice begins.
        for v in [2, 0] {
            host.boost(v, 0, now);
            assert_eq!(host.pick(0, now), Some(v));
            if v == 2 {
                host.put_back(v, 0, now);
            }
        }
        assert!(host.fair.is_protected(QueueId(0)));
        assert!(host.yield_to(0, 0, 1, 0, now));
        host.credit_lag(1, 0, Nanos(100_000), now);
        let is_protected = host.fair.is_protected(QueueId(0));
        host.put_back(0, 0, now);
        is_protected
    };
    let times = [0, MS, 6 * MS - 1, 6 * MS, 7 * MS];
    assert_eq!(times.map(is_protected_after_yield), [false, true, true, false, true]);
}
