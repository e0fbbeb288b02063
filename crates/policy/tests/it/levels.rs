//! Fairness level by level: a tenant's settings and VMs below the tenant's cgroups cost the neighbours nothing.
//!
//! The host is two fully used pCPUs, divided as the kernel does: by the current weights, level by level.
//! A host service computes in the same slice as the neighbours, so a neighbour whose weight is
//! lowered loses time to it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tandem_model::observation::Level;
use tandem_model::{Decision, Nanos, PcpuId, VcpuId, VcpuObservation, VmId, VmObservation, Weight};
use tandem_policy::fair_share::{Claim, LeveledClaim, fair_shares_by_level};
use tandem_policy::host::{HostObservation, IdleTimes};
use tandem_policy::{FlexW, FlexWConfig};

const PERIOD: Nanos = Nanos::from_millis(100);
const PCPUS: u64 = 2;
const PERIODS: usize = 300;

/// `/machine.slice`, and a tenant's `/user.slice/…` of three levels.
const MACHINE: u32 = 1;
const USERS: [u32; 3] = [2, 3, 4];

fn levels(groups: &[u32]) -> Vec<Level> {
    let weight = Weight::constant(100.0);
    groups.iter().map(|&group| Level { group, weight, quota: None }).collect()
}

/// A VM that computes on both pCPUs: its slices, and the weight of its own cgroup.
struct Vm {
    levels: Vec<Level>,
    configured: f64,
    in_force: f64,
}

fn neighbour() -> Vm {
    Vm { levels: levels(&[MACHINE]), configured: 100.0, in_force: 100.0 }
}

fn tenants(weight: f64) -> Vm {
    Vm { levels: levels(&USERS), configured: weight, in_force: weight }
}

fn burner(weight: f64) -> Claim {
    Claim::always_runnable(Weight::saturating(weight), Nanos(PERIOD.0 * PCPUS), PERIOD)
}

/// Time that each VM receives in a period, and the host's service.
fn kernel(vms: &[Vm]) -> Vec<Nanos> {
    let machine = levels(&[MACHINE]);
    let service = LeveledClaim { levels: &machine, claim: burner(100.0) };
    let claims =
        vms.iter().map(|vm| LeveledClaim { levels: &vm.levels, claim: burner(vm.in_force) });
    let claims: Vec<_> = claims.chain([service]).collect();
    fair_shares_by_level(Nanos(PERIOD.0 * PCPUS), PERIOD, &claims)
}

fn observe(i: usize, vm: &Vm, received: Nanos) -> VmObservation {
    let vcpus = (0..PCPUS as u32).map(|n| {
        let ran = Nanos(received.0 / PCPUS);
        VcpuObservation {
            ran,
            waited: PERIOD - ran,
            runnable: true,
            ..VcpuObservation::new(VcpuId(n), (0..PCPUS as u32).map(PcpuId).collect())
        }
    });
    let mut observed =
        VmObservation::new(VmId(i as u64), Weight::saturating(vm.configured), vcpus.collect());
    observed.in_force.weight = Weight::saturating(vm.in_force);
    observed.siblings = vm.levels.last().map_or(0, |level| level.group);
    observed.levels.clone_from(&vm.levels);
    observed
}

/// The mean CPU time that each VM received, in pCPUs, and its minimum weight.
fn run(mut vms: Vec<Vm>) -> Vec<(f64, f64)> {
    let mut policy = FlexW::new(FlexWConfig::default());
    let mut seen: Vec<(f64, f64)> = vms.iter().map(|vm| (0.0, vm.in_force)).collect();
    for _ in 0..PERIODS {
        let received = kernel(&vms);
        let observed = vms.iter().zip(&received).enumerate();
        let observed = observed.map(|(i, (vm, received))| observe(i, vm, *received));
        let host = HostObservation::with_any_knobs(PERIOD, observed.collect(), IdleTimes::new());
        for decision in policy.decide(&host, |_| true).decisions {
            if let Decision::SetWeight { target, weight, .. } = decision {
                vms[target.vm().0 as usize].in_force = weight.value();
            }
        }
        for (i, vm) in vms.iter().enumerate() {
            seen[i].0 += received[i].0 as f64 / PERIOD.0 as f64 / PERIODS as f64;
            seen[i].1 = seen[i].1.min(vm.in_force);
        }
    }
    seen
}

#[test]
fn delegated_weight_costs_neighbours_little() {
    let with_neighbours = |tenant: Vec<Vm>| {
        let vms = [neighbour(), neighbour()].into_iter().chain(tenant);
        run(vms.collect())
    };
    let before = with_neighbours(vec![tenants(100.0)]);
    let many = || (0..100).map(|_| tenants(10_000.0)).collect();
    for (what, tenant) in [("the most", vec![tenants(10_000.0)]), ("a hundred", many())] {
        let after = with_neighbours(tenant);
        for neighbour in 0..2 {
            let (had, has) = (before[neighbour].0, after[neighbour].0);
            assert!(has >= 0.99 * had, "{what}: {has:.3} of {had:.3} pCPUs");
            let least = after[neighbour].1;
            assert!(least >= 99.0, "{what}: weight down to {least}");
        }
    }
}

#[test]
fn hard_cap_is_shared_by_weights() {
    let mut capped = [tenants(300.0), tenants(100.0)];
    for vm in &mut capped {
        vm.levels[0].quota = Some(0.4);
    }
    let vms: Vec<Vm> = [neighbour(), neighbour()].into_iter().chain(capped).collect();
    // 0.4 of the 2 pCPUs for the tenant; the rest for the neighbours and the service of the host.
    let received = kernel(&vms);
    let mut policy = FlexW::new(FlexWConfig::default());
    for _ in 0..PERIODS {
        let observed = vms.iter().zip(&received).enumerate();
        let observed = observed.map(|(i, (vm, received))| observe(i, vm, *received));
        let host = HostObservation::with_any_knobs(PERIOD, observed.collect(), IdleTimes::new());
        let round = policy.decide(&host, |_| true);
        assert!(round.decisions.is_empty(), "{:?}", round.decisions);
        let fair = |i: usize| round.groups[0].vms[i].fair.0 as f64 / PERIOD.0 as f64;
        for (i, due) in [(0, 1.6 / 3.0), (1, 1.6 / 3.0), (2, 0.3), (3, 0.1)] {
            assert!((fair(i) - due).abs() < 0.001, "{i}: {}", fair(i));
        }
    }
}

#[test]
fn weights_move_among_siblings_and_keep_their_sum() {
    // Two siblings of unequal pins are adjusted, and keep their total.
    let mut policy = FlexW::new(FlexWConfig::default());
    let mut vms = [neighbour(), neighbour(), tenants(10_000.0)];
    for _ in 0..8 {
        let ms = Nanos::from_millis;
        let received = [ms(70), ms(30), ms(100)];
        let observed = vms.iter().zip(received).enumerate();
        let observed = observed.map(|(i, (vm, received))| observe(i, vm, received));
        let host = HostObservation::with_any_knobs(PERIOD, observed.collect(), IdleTimes::new());
        for decision in policy.decide(&host, |_| true).decisions {
            if let Decision::SetWeight { target, weight, .. } = decision {
                vms[target.vm().0 as usize].in_force = weight.value();
            }
        }
    }
    let [a, b, tenant] = vms.map(|vm| vm.in_force);
    assert!(a < 100.0 && b > 100.0, "{a} {b}");
    assert!((a + b - 200.0).abs() < 1e-6, "{a} + {b}");
    assert_eq!(tenant, 10_000.0, "it is alone there");
}

/// Up to eight VMs on two pCPUs, anywhere in a hierarchy of three levels.
fn anywhere() -> impl Strategy<Value = Vec<(Vec<Level>, Claim)>> {
    let level = (0u32..3, 1u32..1000);
    let vm = (prop::collection::vec(level, 0..4), 1u32..1000, 0..=2 * PERIOD.0, 0..=2 * PERIOD.0);
    prop::collection::vec(vm, 0..8).prop_map(|vms| {
        let mut weights: BTreeMap<Vec<u32>, (u32, u32)> = BTreeMap::new();
        let vm = |(groups, weight, received, waited): (Vec<(u32, u32)>, u32, u64, u64)| {
            let mut path = Vec::new();
            let levels = groups.into_iter().map(|(group, weight)| {
                path.push(group);
                let number = weights.len() as u32;
                // One cgroup has one weight.
                let (group, weight) = *weights.entry(path.clone()).or_insert((number, weight));
                let weight = Weight::saturating(f64::from(weight));
                Level { group, weight, quota: None }
            });
            let levels: Vec<Level> = levels.collect();
            let could_run = (received + waited).min(2 * PERIOD.0);
            let claim = Claim {
                received: Nanos(received),
                could_run: Nanos(could_run),
                backlogged: Nanos(could_run.min(PERIOD.0)),
                ..burner(f64::from(weight))
            };
            (levels, claim)
        };
        vms.into_iter().map(vm).collect()
    })
}

proptest! {
    #[test]
    fn received_time_is_divided_within_usable_time(vms in anywhere()) {
        let claims: Vec<_> = vms.iter().map(|(levels, claim)| LeveledClaim { levels, claim: *claim }).collect();
        let capacity: Nanos = claims.iter().map(|leveled| leveled.claim.received).sum();
        let shares = fair_shares_by_level(capacity, PERIOD, &claims);
        let sum: u64 = shares.iter().map(|share| share.0).sum();
        let slack = 1 + 8 * claims.len() as u64;
        prop_assert!(sum.abs_diff(capacity.0) <= slack, "{sum} of {}", capacity.0);
        for (share, leveled) in shares.iter().zip(&claims) {
            prop_assert!(share.0 <= leveled.claim.could_run.0 + slack);
        }
    }
}
