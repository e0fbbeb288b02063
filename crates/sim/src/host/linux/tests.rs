//! What a VM weighs on a pCPU when its vCPUs elsewhere fall asleep, wake and move.

use super::*;

/// What is forgotten to a half.
const HALF_LIFE: u64 = 1 << 25;

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
        },
    );
    for v in 0..2 {
        host.enqueue(v, v, Arrival::New, 0);
        host.pick(v, 0);
    }
    host.tick(0, 0);
    assert_eq!([weight(&host, 0), weight(&host, 1)], [768.0, 256.0]);
}
