//! The costs of quotas and halt polling.

use super::*;

/// Cgroups with quotas, and the throttled time of each in ms.
type QuotasOf<'a> = &'a [(&'a str, Option<u64>)];

/// VMs of one vCPU on pCPU 0 or 1: id, throttled ms, and quotas.
fn throttled(vms: &[(u64, u64, QuotasOf<'_>)], idle: u64) -> World {
    let mut world = World::new().idle(idle);
    for (id, limited, quotas) in vms {
        let second = Second { limited: *limited, ..vcpu(1000 - limited, 0, "0-1") };
        world = world.vm(*id, &[second]).known(*id, |known| {
            known.quotas = quotas
                .iter()
                .map(|(cgroup, throttled)| KnownQuota {
                    cgroup: CgroupPath((*cgroup).to_owned()),
                    quota: Quota { quota_us: 30_000, period_us: 100_000 },
                    throttled: throttled.map(ms),
                })
                .collect();
        });
    }
    world
}

fn lost(world: World) -> Vec<(u64, u64)> {
    let findings = world.all().findings.into_iter();
    let of_quota = findings.filter(|finding| finding.kind == Kind::Quota);
    of_quota.map(|finding| (finding.id.0, finding.lost_per_second.0 / 1_000_000)).collect()
}

#[test]
fn idle_time_is_divided_among_throttled_vms() {
    let two = |idle| {
        let quota: QuotasOf<'_> = &[("/vms", None)];
        lost(throttled(&[(1, 600, quota), (2, 200, quota)], idle))
    };
    assert_eq!(two(400), [(1, 300), (2, 100)], "at most the idle time");
    assert_eq!(two(1600), [(1, 600), (2, 200)], "at most the withheld time");
}

#[test]
fn throttled_time_of_a_cgroup_counts_once() {
    // A per-vCPU source shows both in LIM all the time; the cgroup was throttled on one pCPU.
    let shared: QuotasOf<'_> = &[("/vms", Some(600))];
    let vms = [(1, 800, shared), (2, 400, shared)];
    assert_eq!(lost(throttled(&vms, 2000)), [(1, 400), (2, 200)]);
    let two: QuotasOf<'_> = &[("/vms/a", Some(100)), ("/vms", Some(200))];
    assert_eq!(lost(throttled(&[(1, 800, two)], 2000)), [(1, 300)]);
    // One of the times is unknown, and may be the larger one.
    let unknown: QuotasOf<'_> = &[("/vms/a", Some(100)), ("/vms", None)];
    assert_eq!(lost(throttled(&[(1, 800, unknown)], 2000)), [(1, 800)]);
}

#[test]
fn unfinished_throttling_is_unknown() {
    let quota: QuotasOf<'_> = &[("/vms", Some(0))];
    let long = throttled(&[(1, 800, quota)], 2000).known(1, |known| {
        known.quotas[0].quota.period_us = 1_000_000;
    });
    assert_eq!(lost(long), [(1, 800)]);
}

#[test]
fn longest_throttling_quota_is_lifted() {
    let quotas: QuotasOf<'_> = &[("/vms", Some(50)), ("/vms/vm1", Some(700))];
    let world = throttled(&[(1, 700, quotas)], 2000).known(1, |known| {
        // By its size the other is the tightest.
        known.quotas[0].quota.quota_us = 10_000;
    });
    let finding = world.only();
    assert_eq!(finding.cure.commands, ["echo -1 | sudo tee /cg/vms/vm1/cpu.cfs_quota_us"]);
    assert!(finding.evidence[1].contains("throttled 0.70"), "{finding:#?}");
    let cgroup = CgroupPath("/vms/vm1".to_owned());
    assert_eq!(finding.cure.changes, [Change::NoQuota { cgroup }]);
}

#[test]
fn halt_polling_sorts_after_all_waits() {
    let poll = |run, poll| Second { poll, ..vcpu(run, 0, "0") };
    let world = World::new()
        .vm(1, &[poll(100, 300)])
        .vm(2, &[poll(200, 700)])
        .vm(3, &[vcpu(840, 60, "1")])
        .edge(3, 0, process("dd", "/"), 60);
    let findings = world.all().findings;
    let found: Vec<(u64, Kind)> = findings.iter().map(|one| (one.id.0, one.kind)).collect();
    let expected = [(3, Kind::HostProcess), (2, Kind::HaltPolling), (1, Kind::HaltPolling)];
    assert_eq!(found, expected);
    assert_eq!(findings[1].lost_per_second, Nanos::ZERO);
    assert_eq!(findings[1].lost_of_run, None);
    assert_eq!(findings[1].burned_per_second, Some(ms(700)));
    assert_eq!(findings[0].burned_per_second, None);
}

#[test]
fn waits_for_polling_are_in_the_evidence() {
    let second = Second { poll: 600, ..vcpu(200, 0, "0") };
    let world =
        World::new().vm(1, &[second]).vm(2, &[vcpu(600, 400, "0")]).edge(2, 0, own(1, 0), 400);
    let findings = world.all().findings;
    let polling = findings.iter().find(|one| one.kind == Kind::HaltPolling);
    let said = &polling.unwrap().evidence[1];
    assert!(said.contains("0.40 pCPUs") && said.contains("0.30"), "{said}");
}

#[test]
fn cost_ignores_thresholds() {
    // Below 5 % of the VM's time and 10 % of each vCPU's.
    let little = |on| {
        let little = World::new().vm(1, &[vcpu(500, 49, on), vcpu(451, 49, on)]);
        let little = little.edge(1, 0, own(1, 1), 49).edge(1, 1, own(1, 0), 49);
        little.idle(1100)
    };
    assert_eq!(little("0").kinds(1), []);
    assert_eq!(little("0").cost(1, Kind::Stacked), ms(98));
    assert_eq!(little("0-1").cost(1, Kind::Stacked), Nanos::ZERO);
    assert_eq!(little("0").cost(1, Kind::Neighbour), Nanos::ZERO);
    assert_eq!(little("0").cost(9, Kind::Stacked), Nanos::ZERO);
    let quota: QuotasOf<'_> = &[("/vms", None)];
    let seldom = || throttled(&[(1, 9, quota)], 90);
    assert_eq!(seldom().kinds(1), []);
    assert_eq!(seldom().cost(1, Kind::Quota), ms(9));
    // The cost equals that of a finding.
    let much = || throttled(&[(1, 600, quota)], 1600);
    assert_eq!(much().cost(1, Kind::Quota), much().only().lost_per_second);
}

#[test]
fn cost_is_independent_of_other_causes() {
    let waits = |idle_of_others: u64| {
        let restless = [vcpu(500, 500, "0-1"), vcpu(500, 500, "0-1")];
        let other =
            [vcpu(500 - idle_of_others, 500, "0-1"), vcpu(500 - idle_of_others, 500, "0-1")];
        let world = World::new().vm(1, &restless).vm(2, &other);
        world.edge(1, 0, vm(2), 500).edge(1, 1, vm(2), 500)
    };
    // If no VM sleeps, the finding is turns.
    assert_eq!(waits(0).kinds(1), [Kind::Turns]);
    assert_eq!(waits(200).kinds(1), [Kind::Neighbour]);
    for idle in [0, 200] {
        assert_eq!(waits(idle).cost(1, Kind::Neighbour), SECOND);
    }
}
