//! Each wait is explained once: the estimated part of the VM itself goes with the explanation of the vCPU's other waits.

use super::*;

/// A VM of one vCPU that may run on pCPUs 0 and 1, and waits for others and, by the estimate, for itself.
fn free(mut world: World, id: u64, culprit: Party, time: u64, itself: u64) -> World {
    world = world.edge(id, 0, culprit, time);
    world.edge(id, 0, own(id, 0), itself)
}

#[test]
fn hog_explains_the_estimated_part() {
    let world = hog(1640, 100).host(|world| {
        for vcpu in &mut world.interval.vms[1].vcpus {
            vcpu.allowed = set("0-1");
        }
    });
    let world = world.edge(2, 0, own(2, 1), 300).edge(2, 1, own(2, 0), 300);
    assert_eq!(world.kinds(2), [Kind::PinnedHog]);
}

#[test]
fn unfair_pins_explain_the_estimated_part() {
    let mut world = World::new();
    for id in 1..=2 {
        world = world.vm(id, &[vcpu(300, 700, "0-1")]);
        world = world.known(id, |known| known.due = ms(1100));
        world = free(world, id, own(3 - id, 0), 500, 200);
    }
    let world = world.host(|world| world.host.online = set("0-3"));
    assert_eq!(world.kinds(1), [Kind::UnfairPins]);
}

#[test]
fn slow_vcpu_explains_only_its_own_estimate() {
    let slow = |sibling_waits: u64| {
        let sibling = vcpu(200, sibling_waits, "1-2");
        let world = World::new()
            .vm(1, &[vcpu(400, 600, "0-1"), sibling, sibling])
            .vm(2, &[vcpu(600, 0, "0")]);
        let world = free(world, 1, own(2, 0), 400, 200);
        world.edge(1, 1, own(1, 2), sibling_waits)
    };
    assert_eq!(slow(0).kinds(1), [Kind::SlowSibling]);
    // The waits of its siblings are a separate cause.
    assert_eq!(slow(150).kinds(1), [Kind::SlowSibling, Kind::Unexplained]);
}

#[test]
fn remaining_wait_is_reported_as_such() {
    let world = |process_time| {
        let world = World::new().vm(1, &[vcpu(300, 700, "0")]).edge(1, 0, vm(2), 400);
        world.edge(1, 0, process("dd", "/"), process_time)
    };
    let findings = world(300).all().findings;
    let kinds: Vec<Kind> = findings.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [Kind::Neighbour, Kind::HostProcess]);
    let said = &findings[0].evidence[0];
    assert!(
        said.contains("RDY 40 % of its time, in addition to 30 % that other findings explain"),
        "{said}"
    );
    assert!(findings[1].evidence[0].ends_with("RDY 30 % of its time"));
    let lost: u64 = findings.iter().map(|one| one.lost_per_second.0).sum();
    assert_eq!(lost, ms(700).0, "all of it, once");
    let only = world(0).all().findings;
    assert!(!only[0].evidence[0].contains("in addition"), "{only:#?}");
}
