//! What a VM weighs on a pCPU when its vCPUs elsewhere fall asleep, wake and move, and when they are apart.

use super::*;
use crate::host::BUSY_FACTOR;
use crate::sched::fair::Reweight;

/// What is forgotten to a half.
const HALF_LIFE: u64 = 1 << 25;

/// VMs of weight 1024 with these vCPUs, which may run everywhere.
pub(super) fn shape(pcpus: u32, vm_of: &[u32]) -> Shape {
    let all: PcpuSet = (0..pcpus).map(PcpuId).collect();
    let vms = vm_of.iter().max().map_or(0, |&vm| vm as usize + 1);
    Shape {
        pcpus,
        pcpus_per_llc: pcpus,
        vm_of: vm_of.to_vec(),
        weights: vec![1024.0; vms],
        vcpu_weights: vec![1024; vm_of.len()],
        allowed: vec![all; vm_of.len()],
        placement: Placement::LoadBalancing,
        busy_factor: BUSY_FACTOR,
    }
}

/// One VM of weight 1024 with two vCPUs on two pCPUs, both always there before.
fn host(discipline: Discipline) -> LinuxHost {
    let pcpus: PcpuSet = "0-1".parse().unwrap();
    let mut host = LinuxHost::new(
        discipline,
        Shape {
            pcpus: 2,
            pcpus_per_llc: 2,
            vm_of: vec![0, 0],
            weights: vec![1024.0],
            vcpu_weights: vec![1024; 2],
            allowed: vec![pcpus; 2],
            placement: Placement::LoadBalancing,
            busy_factor: BUSY_FACTOR,
        },
    );
    for v in 0..2 {
        host.enqueue(v, v, Arrival::New, 0);
        host.pick(v, 0);
    }
    // The first came when there was no other yet.
    host.tick(0, 0);
    host
}

impl LinuxHost {
    /// This vCPU is the one that runs on the first pCPU.
    fn move_to_run(&mut self, v: u32) {
        self.boost(v, 0, 0);
        assert_eq!(self.pick(0, 0), Some(v));
    }
}

fn weight(host: &LinuxHost, p: u32) -> f64 {
    let group = host.group_at(p, p).unwrap();
    host.group_entities[group as usize].weight() as f64 / FINE as f64
}

#[test]
fn what_a_sleeping_sibling_weighed_is_gained_as_it_is_forgotten() {
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
fn who_wakes_counts_in_full_at_once_where_it_is_and_elsewhere_by_and_by() {
    let mut host = host(Discipline::cfs(2));
    host.put_back(1, 1, 0);
    host.dequeue(1, 1, true, 0);
    // All of it is forgotten.
    let late = 100 * HALF_LIFE;
    host.tick(0, late);
    host.enqueue(1, 1, Arrival::Wakeup, late);
    host.tick(0, late);
    assert_eq!([weight(&host, 0), weight(&host, 1)], [1024.0, 512.0]);
    host.tick(0, late + HALF_LIFE);
    assert!((weight(&host, 0) - 1024.0 / 1.5).abs() < 1.0);
}

#[test]
fn a_vcpu_takes_its_average_along() {
    let mut host = host(Discipline::cfs(2));
    host.put_back(1, 1, HALF_LIFE);
    host.dequeue(1, 1, false, HALF_LIFE);
    host.enqueue(1, 0, Arrival::Migrated, HALF_LIFE);
    // All the VM's load is on pCPU 0 now, and none is remembered elsewhere.
    assert_eq!(weight(&host, 0), 1024.0);
    let (load, all) = host.loads[0];
    let there = host.groups[0].average.value();
    assert_eq!((load, all.value()), (2 * 1024 * FINE, there));
}

#[test]
fn a_heavier_vcpu_gets_more_of_what_its_vm_weighs() {
    let mut host = LinuxHost::new(
        Discipline::cfs(2),
        Shape {
            pcpus: 2,
            pcpus_per_llc: 2,
            vm_of: vec![0, 0],
            weights: vec![1024.0],
            vcpu_weights: vec![3072, 1024],
            allowed: vec!["0-1".parse().unwrap(); 2],
            placement: Placement::LoadBalancing,
            busy_factor: BUSY_FACTOR,
        },
    );
    for v in 0..2 {
        host.enqueue(v, v, Arrival::New, 0);
        host.pick(v, 0);
    }
    host.tick(0, 0);
    assert_eq!([weight(&host, 0), weight(&host, 1)], [768.0, 256.0]);
}

/// What is in force in the queues: of each vCPU its family, its group's weight on its pCPU and whether that is in the idle class; of
/// the VM its load; of each pCPU its load, how many are queued, and who runs.
#[derive(Debug, PartialEq)]
struct InForce {
    vcpus: Vec<(u32, u64, bool)>,
    load: u64,
    pcpus: Vec<(u64, u32, u32)>,
}

fn in_force(host: &LinuxHost) -> InForce {
    let vcpu = |v: u32| {
        let group = host.group_at(v % 2, v).unwrap();
        let entity = &host.group_entities[group as usize];
        (host.family_of[v as usize], entity.weight(), entity.is_idle())
    };
    let pcpu = |p: usize| (host.roots[p].load(), host.queued[p], host.current[p]);
    InForce {
        vcpus: (0..4).map(vcpu).collect(),
        load: host.loads[0].0,
        pcpus: (0..2).map(pcpu).collect(),
    }
}

/// One VM of weight 1024 with two vCPUs on each of two pCPUs: on each one that runs; on the first one that waits, and on the other
/// one that sleeps.
fn crowded(discipline: Discipline, placement: Placement) -> LinuxHost {
    let mut host = LinuxHost::new(
        discipline,
        Shape {
            pcpus: 2,
            pcpus_per_llc: 2,
            vm_of: vec![0; 4],
            weights: vec![1024.0],
            vcpu_weights: vec![1024; 4],
            allowed: vec!["0-1".parse().unwrap(); 4],
            placement,
            busy_factor: BUSY_FACTOR,
        },
    );
    for v in 0..4 {
        host.enqueue(v, v % 2, Arrival::New, 0);
    }
    host.dequeue(3, 1, true, 0);
    for p in 0..2 {
        assert_eq!(host.pick(p, 0), Some(p));
        host.tick(p, 0);
    }
    host
}

#[test]
fn a_vcpu_that_is_apart_weighs_what_it_is_given_and_together_all_is_as_before() {
    for discipline in [Discipline::cfs(2), Discipline::eevdf(2)] {
        let mut host = crowded(discipline, Placement::LoadBalancing);
        let before = in_force(&host);
        let averages = |host: &LinuxHost| -> Vec<f64> {
            let groups = host.groups.iter().take(2);
            let groups = groups.map(|group| group.average.value());
            groups.chain([host.loads[0].1.value()]).collect()
        };
        let averages_before = averages(&host);
        let weights = [100.0, 200.0, 300.0, 400.0];
        for (v, weight) in (0..4).zip(weights) {
            host.set_own_group(v, Some(weight), 0);
        }
        let apart = in_force(&host);
        let runnable = [0, 1, 2].map(|v: usize| apart.vcpus[v].1 / FINE);
        assert_eq!(runnable, [100, 200, 300]);
        assert_eq!((apart.load, apart.pcpus[0].0 / FINE), (0, 400));
        assert_eq!(apart.pcpus[1].0 / FINE, 200);
        // Who runs, runs on; and who sleeps wakes in its own group.
        assert_eq!([host.current[0], host.current[1]], [0, 1]);
        host.enqueue(3, 1, Arrival::Wakeup, 0);
        assert_eq!(host.roots[1].load() / FINE, 600);
        host.dequeue(3, 1, true, 0);
        // Another weight while they are apart.
        host.set_own_group(0, Some(500.0), 0);
        assert_eq!(host.roots[0].load() / FINE, 800);
        for v in 0..4 {
            host.set_own_group(v, None, 0);
        }
        for p in 0..2 {
            host.tick(p, 0);
        }
        assert_eq!(in_force(&host), before);
        for (now, before) in averages(&host).iter().zip(averages_before) {
            assert!((now - before).abs() < 1e-6, "{now}, was {before}");
        }
        // The groups of before are used again.
        let families = host.loads.len();
        host.set_own_group(2, Some(64.0), 0);
        assert_eq!(host.loads.len(), families);
    }
}

#[test]
fn the_idle_class_is_that_of_the_vms_group() {
    let mut host = crowded(Discipline::eevdf(2), Placement::LoadBalancing);
    host.set_own_group(0, Some(512.0), 0);
    host.set_idle(0, true, 0);
    let idle = |host: &LinuxHost| in_force(host).vcpus.iter().map(|vcpu| vcpu.2).collect();
    let now: Vec<bool> = idle(&host);
    assert_eq!(now, [false, true, true, true]);
    host.set_own_group(0, None, 0);
    let now: Vec<bool> = idle(&host);
    assert_eq!(now, [true; 4]);
}

#[test]
fn no_vcpu_is_stacked_on_a_sibling_that_is_apart() {
    let mut host = crowded(Discipline::eevdf(2), Placement::NoStacking);
    host.dequeue(2, 0, true, 0);
    host.dequeue(0, 0, true, 0);
    // The only one that is runnable runs on pCPU 1.
    let none = PcpuSet::default();
    assert_eq!(host.select(3, 1, &none, 0), 0);
    host.set_own_group(1, Some(512.0), 0);
    assert_eq!(host.select(3, 1, &none, 0), 0);
    // One that is apart does not come to its siblings either.
    host.set_own_group(3, Some(512.0), 0);
    host.set_own_group(1, None, 0);
    assert_eq!(host.select(3, 1, &none, 0), 0);
}

/// A host of so many pCPUs, so many for each cache, and four VMs of one vCPU: the first on pCPU 0, the others on pCPU `crowded`.
fn uneven(pcpus: u32, pcpus_per_llc: u32, busy_factor: u32, crowded: u32) -> LinuxHost {
    let allowed: PcpuSet = (0..pcpus).map(PcpuId).collect();
    let mut host = LinuxHost::new(
        Discipline::cfs(pcpus),
        Shape {
            pcpus,
            pcpus_per_llc,
            vm_of: vec![0, 1, 2, 3],
            weights: vec![1024.0; 4],
            vcpu_weights: vec![1024; 4],
            allowed: vec![allowed; 4],
            placement: Placement::LoadBalancing,
            busy_factor,
        },
    );
    for v in 0..4 {
        let p = if v == 0 { 0 } else { crowded };
        host.enqueue(v, p, Arrival::New, 0);
    }
    host.pick(0, 0);
    host.pick(crowded, 0);
    host
}

#[test]
fn a_group_whose_vcpus_always_run_keeps_its_weight_to_the_last_digit() {
    let mut host = host(Discipline::eevdf(2));
    let before =
        [0, 1].map(|p| host.group_entities[host.group_at(p, p).unwrap() as usize].weight());
    for ms in (1..4000).step_by(3) {
        let now = ms * 1_000_003;
        host.tick((ms % 2) as u32, now);
        let after =
            [0, 1].map(|p| host.group_entities[host.group_at(p, p).unwrap() as usize].weight());
        assert_eq!(after, before, "at {now} ns");
    }
}

#[test]
fn what_is_elsewhere_is_known_to_a_sixty_fourth() {
    let mut host = host(Discipline::eevdf(2));
    host.put_back(1, 1, 0);
    host.dequeue(1, 1, true, 0);
    let mut weights = Vec::new();
    for now in (0..HALF_LIFE).step_by(100_000) {
        host.tick(0, now);
        weights.push(weight(&host, 0));
    }
    weights.dedup();
    // From all of it to half of it in steps of a 64th: 44, and not one for each of the 335 looks.
    assert!((35..=50).contains(&weights.len()), "{}", weights.len());
    assert!(weights.is_sorted(), "it is forgotten");
    assert!((weights.last().unwrap() - 1024.0 / 1.5).abs() < 8.0);
}

#[test]
fn of_those_that_wait_the_one_that_has_not_run_for_longest_is_moved() {
    let pcpus: PcpuSet = "0-1".parse().unwrap();
    for (discipline, wanted) in [(Discipline::eevdf(2), 2), (Discipline::cfs(2), 0)] {
        // Two vCPUs of one VM and one of another on pCPU 0, which runs two of them.
        let mut host = LinuxHost::new(
            discipline,
            Shape {
                pcpus: 2,
                pcpus_per_llc: 2,
                vm_of: vec![0, 0, 1],
                weights: vec![1024.0; 2],
                vcpu_weights: vec![1024; 3],
                allowed: vec![pcpus.clone(); 3],
                placement: Placement::LoadBalancing,
                busy_factor: BUSY_FACTOR,
            },
        );
        for v in [0, 1, 2] {
            host.enqueue(v, 0, Arrival::New, 0);
        }
        // As if vCPU 0 had run after 2, and 1 after both.
        host.stirred = vec![2, 3, 1];
        host.stirs = 3;
        assert_eq!(host.movable(0, 1, 0, u64::MAX), Some(wanted), "{discipline:?}");
    }
}

/// When pCPU 0 first takes a vCPU, ms, if it asks at each ms of two seconds.
fn first_taken_at(mut host: LinuxHost) -> Option<u64> {
    (1..=2000).find(|ms| host.balance(0, ms * 1_000_000).is_some())
}

#[test]
fn loads_are_compared_every_busy_factor_ms_for_each_pcpu_of_the_domain() {
    // pCPUs, of them in a cache, busy_factor, where the load is: when it is first compared.
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
    // With one cache there is one domain: after a comparison that moved a vCPU none comes before the next interval.
    let mut host = uneven(2, 2, 16, 1);
    let moved: Vec<u64> = (1..=64).filter(|ms| host.balance(0, ms * 1_000_000).is_some()).collect();
    assert_eq!(moved, [32, 64]);
    // Nothing to even out: one vCPU each.
    let mut host = uneven(2, 2, 16, 1);
    for v in [2, 3] {
        host.dequeue(v, 1, true, 0);
    }
    assert_eq!(first_taken_at(host), None);
}

/// VM 0 has vCPUs 0 and 1 on one pCPU, where vCPU 0 has run ahead and sleeps; VM 1 has vCPU 2 there. There is a second pCPU.
fn ahead_and_asleep() -> LinuxHost {
    let mut host = LinuxHost::new(Discipline::eevdf(2), shape(2, &[0, 0, 1]));
    for v in 0..2 {
        host.enqueue(v, 0, Arrival::New, 0);
    }
    assert_eq!(host.pick(0, 0), Some(0));
    host.account(0, 0, 1_000_000, 1_000_000);
    host.dequeue(0, 0, true, 1_000_000);
    host.enqueue(2, 0, Arrival::New, 1_000_000);
    host
}

#[test]
fn a_group_keeps_the_weight_of_a_vcpu_that_sleeps_ahead_and_that_wakes_where_it_is() {
    let mut host = ahead_and_asleep();
    let idle: PcpuSet = "1".parse().unwrap();
    assert!(host.vcpu_entities[0].is_delayed());
    assert_eq!((host.queued(0), host.loads[0].0), (2, 2048 * FINE));
    assert_eq!(host.select(0, 0, &idle, 1_100_000), 0, "queued still");
    host.enqueue(0, 0, Arrival::Wakeup, 1_100_000);
    assert_eq!((host.queued(0), host.loads[0].0), (3, 2048 * FINE));
}

/// VM 0 has vCPUs 0 and 1 on one pCPU, VM 1 vCPU 2 and VM 2 vCPU 3, which has run for so long that both others are behind; of these VM 1 has the
/// earlier deadline. Who is next once vCPU 1 has gone, to sleep or not.
fn next_once_one_has_gone(sleeps: bool) -> Option<u32> {
    let discipline =
        Discipline::Eevdf { base_slice: tandem_model::Nanos(1_500_000), reweight: Reweight::Kept };
    let mut host = LinuxHost::new(discipline, shape(1, &[0, 0, 1, 2]));
    for v in 0..4 {
        host.enqueue(v, 0, Arrival::New, 0);
    }
    // Deadlines are those of new ones first, half a slice from the beginning, and then a slice after what each has run.
    for (v, ran) in [(0, 800_000), (2, 760_000), (3, 12_000_000)] {
        assert_eq!(host.pick(0, 0), Some(v));
        host.account(v, 0, ran, 0);
        host.put_back(v, 0, 0);
    }
    host.dequeue(1, 0, sleeps, 0);
    host.pick(0, 0)
}

#[test]
fn a_group_that_one_has_left_to_sleep_is_next_whatever_its_deadline() {
    assert_eq!(next_once_one_has_gone(false), Some(2));
    assert_eq!(next_once_one_has_gone(true), Some(0));
}

/// Under CFS: VM 0 has vCPUs 0 and 1 on the first of so many pCPUs, and VM 1 has vCPU 2 there.
fn siblings_beside_another(pcpus: u32) -> LinuxHost {
    let mut host = LinuxHost::new(Discipline::cfs(1), shape(pcpus, &[0, 0, 1]));
    for v in 0..3 {
        host.enqueue(v, 0, Arrival::New, 0);
    }
    host
}

/// They take turns of half a millisecond until one of VM 0 runs for so long that VM 1 is behind. Who that is.
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
    unreachable!("one of VM 0 has its turn")
}

#[test]
fn under_cfs_a_group_that_one_has_left_to_sleep_is_next_as_far_as_that_is_fair() {
    // A turn is half a millisecond, the wake-up granularity one.
    for (ran, sleeps, goes_on) in
        [(900_000, true, true), (900_000, false, false), (2_000_000, true, false)]
    {
        let mut host = siblings_beside_another(1);
        let v = run_ahead(&mut host, ran);
        host.dequeue(v, 0, sleeps, 0);
        let next = if goes_on { 1 - v } else { 2 };
        assert_eq!(host.pick(0, 0), Some(next), "{ran} {sleeps}");
    }
}

#[test]
fn under_cfs_the_group_of_a_vcpu_that_preempts_its_sibling_is_next_too() {
    let mut host = siblings_beside_another(1);
    let v = run_ahead(&mut host, 500_000);
    // The sibling is away for long, and its leaving nominates nobody.
    host.dequeue(1 - v, 0, false, 0);
    let group = host.group_at(0, v).unwrap();
    assert!(!host.roots[0].is_next(group));
    host.account(v, 0, 20_000_000, 0);
    host.account(v, 0, 0, 0);
    host.enqueue(1 - v, 0, Arrival::Wakeup, 0);
    assert!(host.preempts(1 - v, 0, 0));
    assert!(host.roots[0].is_next(group));
    // Nobody else is nominated before the pCPU has chosen.
    assert!(host.preempts(2, 0, 0));
    assert!(host.roots[0].is_next(group));
}

#[test]
fn a_group_is_not_next_any_more_once_the_vcpu_that_was_has_left() {
    for leaves in [false, true] {
        let mut host = siblings_beside_another(2);
        host.move_to_run(2);
        let group = host.group_at(0, 0).unwrap();
        host.prefer(0, 0);
        assert!(host.roots[0].is_next(group));
        if leaves {
            host.dequeue(0, 0, false, 0);
        }
        assert_eq!(host.roots[0].is_next(group), !leaves);
    }
}

#[test]
fn a_group_of_the_idle_class_is_no_buddy() {
    let mut host = siblings_beside_another(1);
    host.move_to_run(2);
    host.set_idle(0, true, 0);
    host.prefer(0, 0);
    let group = host.group_at(0, 0).unwrap();
    assert!(!host.roots[0].is_next(group));
}

#[test]
fn a_group_of_sleepers_alone_leaves_when_it_is_found_asleep() {
    let mut host = ahead_and_asleep();
    let group = host.group_at(0, 0).unwrap();
    let mut now = 1_000_000;
    host.move_to_run(2);
    now += 4_000_000;
    host.account(2, 0, 4_000_000, now);
    host.put_back(2, 0, now);
    // vCPU 1 runs less than vCPU 0 did, and sleeps.
    assert_eq!(host.pick(0, now), Some(1));
    now += 500_000;
    host.account(1, 0, 500_000, now);
    host.dequeue(1, 0, true, now);
    assert!(!host.vcpu_entities[1].is_delayed() && host.vcpu_entities[0].is_delayed());
    assert!(host.groups[group as usize].vcpus.is_empty());
    assert_eq!(host.roots[0].len(), 2, "the group is queued as ever");
    for _ in 0..4 {
        assert_eq!(host.pick(0, now), Some(2));
        now += 4_000_000;
        host.account(2, 0, 4_000_000, now);
        host.put_back(2, 0, now);
    }
    assert!(!host.vcpu_entities[0].is_delayed());
    assert_eq!((host.roots[0].len(), host.loads[0].0), (1, 0));
    let idle: PcpuSet = "1".parse().unwrap();
    assert_eq!(host.select(0, 0, &idle, now), 1, "it goes where one is idle");
}

#[test]
fn who_sleeps_queued_and_is_put_apart_or_may_not_be_there_is_not_queued_any_more() {
    let mut host = ahead_and_asleep();
    let before = host.group_at(0, 0).unwrap();
    host.set_own_group(0, Some(512.0), 1_000_000);
    assert!(!host.vcpu_entities[0].is_delayed());
    assert_eq!(host.groups[before as usize].vcpus.load(), 1024 * FINE);
    let mut host = ahead_and_asleep();
    host.set_affinity(0, &"1".parse().unwrap());
    assert_eq!(host.select(0, 0, &"1".parse().unwrap(), 1_100_000), 1);
    host.enqueue(0, 1, Arrival::Wakeup, 1_100_000);
    assert!(!host.vcpu_entities[0].is_delayed());
    assert_eq!((host.queued(0), host.queued(1)), (2, 1));
    assert_eq!(host.loads[0].0, 2048 * FINE);
}
