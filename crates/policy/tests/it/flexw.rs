//! FlexW on a small host: worked cases, convergence, and properties for every input.

use std::collections::BTreeMap;

use crate::test_host::{PERIOD, TestHost};
use proptest::prelude::*;
use tandem_model::{
    Because, Decision, Nanos, PcpuId, Target, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::flexw::Round;
use tandem_policy::host::HostObservation;
use tandem_policy::{FlexW, FlexWConfig};

/// Periods in two seconds: the promise is "fair again within 2 s".
const TWO_SECONDS: u32 = 20;
/// Periods in ten seconds.
const TEN_SECONDS: u32 = 100;

fn assert_near(shares: &[f64], expected: &[f64], tolerance: f64) {
    for (share, fair) in shares.iter().zip(expected) {
        let near = (share - fair).abs() <= tolerance * fair;
        assert!(near, "shares {shares:?} are not within {tolerance} of {expected:?}");
    }
}

fn settled(mut host: TestHost) -> Vec<f64> {
    host.shares_over(TWO_SECONDS);
    host.shares_over(TEN_SECONDS)
}

#[test]
fn spec_10_unfair_host_without_flexw() {
    let mut host = TestHost::new(4).vm(4, 1024.0).vm(3, 1024.0);
    host.noise = 0.0;
    let (observed, _) = host.run_period();
    let shares: Vec<f64> =
        observed.iter().map(|vm| vm.received().0 as f64 / PERIOD.0 as f64).collect();
    assert_near(&shares, &[2.286, 1.714], 0.001);
}

#[test]
fn spec_10_unfair_host_becomes_fair() {
    assert_near(&settled(TestHost::new(4).vm(4, 1024.0).vm(3, 1024.0)), &[2.0, 2.0], 0.01);
}

#[test]
fn mixes_on_two_pcpus_become_fair() {
    assert_near(&settled(TestHost::new(2).vm(2, 1024.0).vm(1, 1024.0)), &[1.0, 1.0], 0.02);
    assert_near(&settled(TestHost::new(2).vm(3, 1024.0).vm(1, 1024.0)), &[1.0, 1.0], 0.02);
    let third = 2.0 / 3.0;
    let host = TestHost::new(2).vm(4, 100.0).vm(2, 100.0).vm(1, 100.0);
    assert_near(&settled(host), &[third; 3], 0.02);
    let host = TestHost::new(2).pinned(&[0, 1], 1.0).pinned(&[0], 1.0).pinned(&[1], 1.0);
    assert_near(&settled(host.pinned(&[0], 1.0)), &[0.5; 4], 0.02);
}

#[test]
fn weights_are_honoured_with_different_vcpu_counts() {
    let expected = [1.0 / 3.0, 2.0 / 3.0, 1.0];
    let host = TestHost::new(2).vm(4, 100.0).vm(3, 200.0).vm(2, 300.0);
    assert_near(&settled(host), &expected, 0.02);
    let host = TestHost::new(2).vm(4, 300.0).vm(3, 200.0).vm(2, 100.0);
    assert_near(&settled(host), &[1.0, 2.0 / 3.0, 1.0 / 3.0], 0.02);
}

/// Two VMs of two vCPUs on two pCPUs, the first capped at half a pCPU.
fn capped() -> TestHost {
    TestHost::new(2).vm(2, 1024.0).capped(0.5).vm(2, 1024.0)
}

/// Fair shares in the last of some periods, in pCPUs; asserts that the weights never change.
fn shares_at_constant_weights(mut host: TestHost, periods: u32) -> Vec<f64> {
    let before: Vec<f64> = host.vms.iter().map(|vm| vm.weight).collect();
    let mut due = Vec::new();
    for period in 0..periods {
        let (_, round) = host.step();
        let weights: Vec<f64> = host.vms.iter().map(|vm| vm.weight).collect();
        assert_eq!(weights, before, "period {period}: {:?}", round.decisions);
        let vms = round.groups.iter().flat_map(|group| &group.vms);
        due = vms.map(|account| account.fair.0 as f64 / PERIOD.0 as f64).collect();
    }
    due
}

#[test]
fn cap_limits_share_and_weights_stay() {
    assert_near(&shares_at_constant_weights(capped(), TEN_SECONDS), &[0.5, 1.5], 0.05);
    // Its vCPUs wait for each other, too: four are on the first pCPU.
    let stacked = TestHost::new(2).pinned(&[0; 4], 100.0).capped(0.25).pinned(&[0, 1], 100.0);
    let due = shares_at_constant_weights(stacked, TEN_SECONDS);
    assert_near(&due, &[0.25, 1.75], 0.05);
}

#[test]
fn loose_cap_changes_nothing() {
    let shares = |host: TestHost| settled(host.vm(3, 1024.0));
    let host = || TestHost::new(4).vm(4, 1024.0);
    assert_eq!(shares(host().capped(3.5)), shares(host()));
}

#[test]
fn vm_below_its_cap_gains_by_weight() {
    // By pCPUs VM 2 would get 0.33 pCPUs; both have a fair share of one, which its cap reduces to 0.9.
    let host = || TestHost::new(2).pinned(&[0, 0, 1], 100.0);
    let capped = host().pinned(&[0], 100.0).capped(0.9);
    let shares = settled(capped);
    assert!(shares[1] > 0.8, "{shares:?}");
}

#[test]
fn weights_from_unknown_quota_are_reverted() {
    let mut host = capped();
    host.vms[0].cap_is_known = false;
    host.shares_over(50);
    let (high, low) = (host.vms[0].weight, host.vms[1].weight);
    assert!(high > 1900.0 && low < 50.0, "with an unknown cap: {high} {low}");
    host.vms[0].cap_is_known = true;
    host.shares_over(50);
    let weights = [host.vms[0].weight, host.vms[1].weight];
    assert_near(&weights, &[1024.0; 2], 0.1);
}

#[test]
fn infeasible_weight_gets_its_peak() {
    let host = TestHost::new(2).vm(2, 100.0).pinned(&[1], 100.0).pinned(&[0], 600.0);
    assert_near(&settled(host), &[0.5, 0.5, 1.0], 0.02);
}

#[test]
fn each_accounting_group_is_fair() {
    let host = TestHost::new(2)
        .pinned(&[0, 0], 100.0)
        .pinned(&[0], 300.0)
        .pinned(&[1], 100.0)
        .pinned(&[1, 1, 1], 100.0);
    assert_near(&settled(host), &[0.25, 0.75, 0.5, 0.5], 0.02);
}

#[test]
fn weights_do_not_oscillate_once_settled() {
    let mut host = TestHost::new(2).vm(4, 100.0).vm(2, 100.0).vm(1, 100.0);
    host.shares_over(TWO_SECONDS);
    let mut extremes: Vec<(f64, f64)> = vec![(f64::INFINITY, 0.0); 3];
    for _ in 0..TEN_SECONDS {
        host.step();
        for (extreme, vm) in extremes.iter_mut().zip(&host.vms) {
            *extreme = (extreme.0.min(vm.weight), extreme.1.max(vm.weight));
        }
    }
    for (least, most) in extremes {
        assert!(most / least < 1.25, "a weight moves between {least} and {most}");
    }
}

#[test]
fn new_vm_is_fair_within_two_seconds() {
    let mut host = TestHost::new(2).vm(2, 100.0);
    host.shares_over(50);
    host.add(&[0], 100.0);
    host.shares_over(TWO_SECONDS);
    assert_near(&host.shares_over(30), &[1.0, 1.0], 0.03);
}

#[test]
fn new_vm_does_not_rob_small_weight() {
    // VM 1 has the second pCPU for itself, and so a small weight next to VM 2, which has the first pCPU.
    let mut host = TestHost::new(2).vm(2, 100.0).pinned(&[0], 100.0);
    host.shares_over(50);
    let weight = host.vms[0].weight;
    assert!(weight < 20.0, "{weight}");
    host.add(&[1], 100.0);
    // The first period, with its configured weight.
    host.step();
    let first = host.shares_over(5);
    assert!(first.iter().all(|share| *share > 0.45), "{first:?}");
    host.shares_over(10);
    assert_near(&host.shares_over(30), &[2.0 / 3.0; 3], 0.03);
}

#[test]
fn stopped_vm_leaves_share_within_two_seconds() {
    let mut host = TestHost::new(2).vm(4, 100.0).vm(2, 100.0).vm(1, 100.0);
    host.shares_over(50);
    host.vms.remove(0);
    host.shares_over(TWO_SECONDS);
    assert_near(&host.shares_over(30), &[1.0, 1.0], 0.03);
}

#[test]
fn woken_vm_does_not_starve_others() {
    let mut host = TestHost::new(2).vm(2, 100.0).vm(2, 100.0).pinned(&[0], 100.0);
    host.shares_over(50);
    host.vms[2].vcpus[0].demand = 0.0;
    assert_near(&host.shares_over(50)[..2], &[1.0, 1.0], 0.03);
    assert_eq!(host.vms[2].weight, 100.0, "it saved up weight in its sleep");
    host.vms[2].vcpus[0].demand = 1.0;
    // Even in its first second awake, the others keep most of their two thirds.
    let first = host.shares_over(10);
    assert!(first[0] > 0.5 && first[1] > 0.5, "{first:?}");
    host.shares_over(10);
    assert_near(&host.shares_over(30), &[2.0 / 3.0; 3], 0.03);
}

#[test]
fn idle_time_resets_weights() {
    let mut host = TestHost::new(2).vm(2, 100.0).vm(1, 100.0);
    host.shares_over(TWO_SECONDS);
    assert!(host.vms[1].weight > 150.0);
    host.vms[0].vcpus[1].demand = 0.5;
    let mut reasons = Vec::new();
    for _ in 0..TWO_SECONDS {
        reasons.extend(host.step().1.decisions);
    }
    assert_eq!((host.vms[0].weight, host.vms[1].weight), (100.0, 100.0));
    let back = reasons.iter().any(|decision| {
        matches!(decision, Decision::SetWeight { because: Because::WorkConserving { .. }, .. })
    });
    assert!(back, "{reasons:?}");
}

#[test]
fn fair_window_resets_bursty_vm() {
    let config = FlexWConfig { fair_window: Nanos::from_secs(1), ..FlexWConfig::default() };
    let mut host = TestHost::with(2, config).vm(2, 100.0).vm(2, 100.0).pinned(&[0], 100.0);
    host.vms[2].vcpus[0].demand = 0.6;
    let mut windows = 0;
    for _ in 0..TEN_SECONDS {
        let (_, round) = host.step();
        windows += round
            .decisions
            .iter()
            .filter(|d| {
                matches!(
                    d,
                    Decision::SetWeight {
                        target: Target::Vm(VmId(3)),
                        because: Because::FairWindow,
                        ..
                    }
                )
            })
            .count();
    }
    assert!(windows > 0, "the bursty VM's weight was never reset");
}

#[test]
fn new_configured_weight_counts_next_period() {
    let mut host = TestHost::new(2).vm(2, 100.0).vm(2, 100.0);
    host.shares_over(TWO_SECONDS);
    host.vms[1].configured = 300.0;
    host.shares_over(TWO_SECONDS);
    assert_near(&host.shares_over(30), &[0.5, 1.5], 0.03);
}

#[test]
fn never_picked_vcpu_counts_as_waiting() {
    let starved =
        VcpuObservation { runnable: true, ..VcpuObservation::new(VcpuId(0), "0".parse().unwrap()) };
    assert_eq!(starved.could_run(PERIOD), PERIOD);
    assert_eq!(VcpuObservation { runnable: false, ..starved }.could_run(PERIOD), Nanos::ZERO);
}

/// A period with these VMs and no idle pCPU; earlier decisions are not applied.
fn decide(policy: &mut FlexW, period: Nanos, vms: &[VmObservation]) -> Round {
    let host = HostObservation::with_any_knobs(period, vms.to_vec(), BTreeMap::new());
    policy.decide(&host, |_| true)
}

#[test]
fn an_empty_period_decides_nothing() {
    let mut policy = FlexW::new(FlexWConfig::default());
    assert_eq!(decide(&mut policy, Nanos::ZERO, &[]), Round::default());
    assert_eq!(decide(&mut policy, PERIOD, &[]), Round::default());
}

/// Up to 6 VMs of up to 5 vCPUs on 3 pCPUs, with any times within the period.
fn any_vms() -> impl Strategy<Value = Vec<VmObservation>> {
    let vcpu = (1u32..8, 0u64..=PERIOD.0, 0u64..=PERIOD.0, any::<bool>());
    let vm = (1u32..1000, prop::collection::vec(vcpu, 0..5));
    prop::collection::vec(vm, 0..6).prop_map(|vms| {
        vms.into_iter()
            .enumerate()
            .map(|(i, (weight, vcpus))| {
                let vcpus = vcpus.into_iter().zip(0..);
                let vcpus = vcpus.map(|((mask, ran, waited, runnable), number)| {
                    let allowed = (0..3).filter(|p| mask >> p & 1 == 1).map(PcpuId);
                    VcpuObservation {
                        ran: Nanos(ran),
                        waited: Nanos(waited.min(PERIOD.0 - ran)),
                        runnable,
                        ..VcpuObservation::new(VcpuId(number), allowed.collect())
                    }
                });
                VmObservation::new(
                    VmId(i as u64),
                    Weight::saturating(f64::from(weight)),
                    vcpus.collect(),
                )
            })
            .collect()
    })
}

fn weights(round: &Round) -> BTreeMap<VmId, f64> {
    round
        .decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::SetWeight { target, weight, .. } => Some((target.vm(), weight.value())),
            _ => None,
        })
        .collect()
}

proptest! {
    #[test]
    fn fair_shares_conserve_received_time(vms in any_vms()) {
        for group in tandem_policy::assess::accounting_groups(&vms) {
            let members: Vec<_> = group.members.iter().map(|&i| vms[i].clone()).collect();
            let assessments = tandem_policy::assess(PERIOD, &members);
            let fair: u64 = assessments.iter().map(|a| a.fair.0).sum();
            let received: u64 = members.iter().map(|vm| vm.received().0).sum();
            // A VM's observed time can exceed its peak here, unlike that of a real VM.
            let feasible: u64 =
                members.iter().map(|vm| vm.received().0.min(vm.peak(PERIOD).0)).sum();
            prop_assert!(fair <= received + members.len() as u64);
            prop_assert!(fair + members.len() as u64 >= feasible);
        }
    }

    #[test]
    fn weights_stay_in_their_range(vms in any_vms(), rounds in 1usize..30) {
        let config = FlexWConfig::default();
        let spread = config.spread;
        let mut policy = FlexW::new(config);
        for _ in 0..rounds {
            decide(&mut policy, PERIOD, &vms);
            for vm in &vms {
                let r = policy.real_time_weight(vm.vm).unwrap().value();
                prop_assert!(r.is_finite());
                prop_assert!(r >= vm.weight.value() / spread * 0.999);
                prop_assert!(r <= vm.weight.value() * spread * 1.001);
            }
        }
    }

    #[test]
    fn satisfied_vms_keep_their_weights(
        weights in prop::collection::vec(1u32..100, 1..6),
    ) {
        // One pCPU, a burner per VM, each served exactly by its weight.
        let total: u32 = weights.iter().sum();
        let vms: Vec<VmObservation> = weights
            .iter()
            .enumerate()
            .map(|(i, &weight)| {
                let ran = PERIOD.0 * u64::from(weight) / u64::from(total);
                let vcpu = VcpuObservation {
                    ran: Nanos(ran),
                    waited: Nanos(PERIOD.0 - ran),
                    runnable: true,
                    ..VcpuObservation::new(VcpuId(0), "0".parse().unwrap())
                };
                VmObservation::new(VmId(i as u64), Weight::saturating(f64::from(weight)), vec![vcpu])
            })
            .collect();
        let mut policy = FlexW::new(FlexWConfig::default());
        for _ in 0..150 {
            let round = decide(&mut policy, PERIOD, &vms);
            prop_assert!(round.decisions.is_empty(), "{:?}", round.decisions);
        }
    }

    #[test]
    fn permuting_the_vms_permutes_the_result(vms in any_vms(), turn in 0usize..6) {
        let mut turned = vms.clone();
        if !turned.is_empty() {
            let by = turn % turned.len();
            turned.rotate_left(by);
        }
        let mut straight = FlexW::new(FlexWConfig::default());
        let mut permuted = FlexW::new(FlexWConfig::default());
        for _ in 0..5 {
            let a = weights(&decide(&mut straight, PERIOD, &vms));
            let b = weights(&decide(&mut permuted, PERIOD, &turned));
            // Sums in another order differ in the last bits, and a change of that size may or may
            // not count as one.
            for vm in &vms {
                let r = straight.real_time_weight(vm.vm).unwrap().value();
                let s = permuted.real_time_weight(vm.vm).unwrap().value();
                prop_assert!((r - s).abs() <= 1e-9 * r.abs(), "{} {r} {s}", vm.vm);
            }
            prop_assert!(a.keys().chain(b.keys()).all(|vm| vms.iter().any(|v| v.vm == *vm)));
        }
    }
}

#[test]
fn charge_costs_weight_and_is_no_capacity() {
    let vm = |id: u64, charged: u64| {
        let vcpu = |n: u32| VcpuObservation {
            ran: Nanos(PERIOD.0 / 2),
            waited: Nanos(PERIOD.0 / 2),
            runnable: true,
            ..VcpuObservation::new(VcpuId(n), [PcpuId(n)].into_iter().collect())
        };
        let mut vm = VmObservation::new(VmId(id), Weight::constant(1024.0), vec![vcpu(0), vcpu(1)]);
        vm.charged = Nanos::from_millis(charged);
        vm
    };
    let host =
        HostObservation::with_any_knobs(PERIOD, vec![vm(1, 20), vm(2, 0)], Default::default());
    let mut policy = FlexW::new(FlexWConfig::default());
    let round = policy.decide(&host, |_| true);
    for account in &round.groups[0].vms {
        assert_eq!((account.fair, account.received), (PERIOD, PERIOD), "{account:?}");
    }
    let weight = |id: u64| policy.real_time_weight(VmId(id)).unwrap();
    assert!(weight(1).value() < 0.95 * weight(2).value(), "{:?} {:?}", weight(1), weight(2));
}
