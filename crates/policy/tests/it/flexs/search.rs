//! The search for a sibling, the swap, and the tunables: worked cases on small run queues.

use tandem_model::branch_counters::BranchCounts;
use tandem_model::{Nanos, PcpuId, VmId, Weight};
use tandem_policy::flexs::{
    Basis, SwapAction, SwapError, SwapReason, VcpuPlace, may_steal, swap_plan,
};
use tandem_policy::{FlexS, FlexSConfig};

use super::queues::{Queues, SPIN, WORK, flexs, ms, spin, swapped_with, vcpu};

#[test]
fn a_spinning_vcpu_swaps_with_a_waiting_sibling() {
    let queues = Queues::new(2).queue(1, &[vcpu(2, 0), vcpu(1, 3), vcpu(1, 2)]);
    let outcome = spin(&mut flexs(), ms(5), &queues);
    assert_eq!(swapped_with(&outcome), Some((3, 1)));
    assert_eq!(outcome.next_tick, ms(15));
    let SwapAction::Swap { because, .. } = outcome.action else {
        panic!("expected a swap, got {outcome:?}");
    };
    assert_eq!(
        because.to_string(),
        "spins: 0.3333 branches per instruction, 0.0001 of them mispredicted; \
         a sibling with work was found on pCPU 1 of those looked at"
    );
}

#[test]
fn a_working_vcpu_is_left_alone() {
    let queues = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    let mut flexs = flexs();
    spin(&mut flexs, ms(0), &Queues::new(2));
    let outcome = flexs.tick(ms(10), vcpu(1, 0), PcpuId(0), &WORK, &queues);
    let because = SwapReason::NotSpinning { basis: Basis::Compared };
    assert_eq!(outcome.action, SwapAction::GoOn { because });
    assert!(!flexs.is_marked(vcpu(1, 0)));
}

#[test]
fn marked_sibling_is_no_candidate() {
    let mut flexs = flexs();
    flexs.tick(ms(0), vcpu(1, 1), PcpuId(1), &SPIN, &Queues::new(2));
    assert!(flexs.is_marked(vcpu(1, 1)));
    let queues = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    assert_eq!(swapped_with(&spin(&mut flexs, ms(1), &queues)), None);
    let queues = Queues::new(2).queue(1, &[vcpu(1, 1), vcpu(1, 2)]);
    assert_eq!(swapped_with(&spin(&mut flexs, ms(2), &queues)), Some((2, 1)));
}

#[test]
fn meaningless_counters_keep_the_mark() {
    let mut flexs = flexs();
    let queues = Queues::new(1);
    spin(&mut flexs, ms(0), &queues);
    flexs.tick(ms(10), vcpu(1, 0), PcpuId(0), &BranchCounts::default(), &queues);
    assert!(flexs.is_marked(vcpu(1, 0)));
}

#[test]
fn swap_partners_must_be_allowed_on_both_pcpus() {
    let waits = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    let mine = waits.forbid(vcpu(1, 0), 1);
    let outcome = spin(&mut flexs(), ms(0), &mine);
    let because = SwapReason::NoSibling { looked: 0, failures: 1 };
    assert_eq!(outcome.action, SwapAction::GoOn { because });
    let its = Queues::new(2).queue(1, &[vcpu(1, 1)]).forbid(vcpu(1, 1), 0);
    assert_eq!(swapped_with(&spin(&mut flexs(), ms(0), &its)), None);
}

#[test]
fn two_choices_search_two_pcpus() {
    let queues = Queues::new(8).queue(5, &[vcpu(1, 1)]);
    let mut flexs = flexs();
    let mut found = 0;
    for i in 0..7000 {
        let outcome = spin(&mut flexs, ms(i), &queues);
        match outcome.action {
            SwapAction::Swap { on, .. } => {
                assert_eq!(on, PcpuId(5));
                found += 1;
            }
            SwapAction::GoOn { because: SwapReason::NoSibling { looked, .. } } => {
                assert_eq!(looked, 2)
            }
            other => panic!("expected a search, got {other:?}"),
        }
    }
    // 7000 × 2 ÷ 7, and 5 standard deviations (of 38) to either side.
    assert!((1810..=2190).contains(&found), "found {found} of 2000");
}

#[test]
fn equal_seeds_choose_equally() {
    let queues = Queues::new(8).queue(5, &[vcpu(1, 1)]);
    let (mut one, mut other) = (flexs(), flexs());
    let mut third = FlexS::new(FlexSConfig::default(), 2).expect("in range");
    let mut differs = false;
    for i in 0..100 {
        let outcome = spin(&mut one, ms(i), &queues);
        assert_eq!(outcome, spin(&mut other, ms(i), &queues));
        differs |= outcome != spin(&mut third, ms(i), &queues);
    }
    assert!(differs, "another seed should choose otherwise");
}

#[test]
fn failed_searches_advance_next_accounting() {
    let mut flexs = flexs();
    let empty = Queues::new(4);
    for failures in 1..=12 {
        let outcome = spin(&mut flexs, ms(100), &empty);
        let wait = 10u64.saturating_sub(failures).max(1);
        assert_eq!(outcome.next_tick, ms(100 + wait), "failure {failures}");
    }
    let waiting = Queues::new(2).queue(1, &[vcpu(1, 1)]);
    assert_eq!(spin(&mut flexs, ms(100), &waiting).next_tick, ms(110));
    assert_eq!(spin(&mut flexs, ms(100), &empty).next_tick, ms(109));
}

#[test]
fn a_fair_window_clears_extremes_and_marks() {
    let mut flexs = flexs();
    let empty = Queues::new(1);
    let work = |flexs: &mut FlexS, now| {
        let outcome = flexs.tick(now, vcpu(1, 1), PcpuId(0), &WORK, &empty);
        outcome.verdict.busy_waiting
    };
    spin(&mut flexs, ms(0), &empty);
    assert!(!work(&mut flexs, ms(9_999)));
    assert!(flexs.is_marked(vcpu(1, 0)));
    // Work is now the tightest loop of the window.
    assert!(work(&mut flexs, ms(10_000)));
    assert!(!flexs.is_marked(vcpu(1, 0)));
    spin(&mut flexs, ms(19_999), &empty);
    assert!(!work(&mut flexs, ms(19_999)));
    // Three windows later: still on the grid of 10 s.
    assert!(work(&mut flexs, ms(45_000)));
    spin(&mut flexs, ms(49_999), &empty);
    assert!(!work(&mut flexs, ms(49_999)));
    assert!(work(&mut flexs, ms(50_000)));
}

#[test]
fn gone_vm_is_forgotten() {
    let mut flexs = flexs();
    spin(&mut flexs, ms(0), &Queues::new(1));
    flexs.tick(ms(0), vcpu(2, 0), PcpuId(0), &SPIN, &Queues::new(1));
    flexs.forget(VmId(1));
    assert!(!flexs.is_marked(vcpu(1, 0)) && flexs.detector(VmId(1)).is_none());
    assert!(flexs.is_marked(vcpu(2, 0)) && flexs.detector(VmId(2)).is_some());
}

#[test]
fn tunables_out_of_range_are_named() {
    let wrong = |change: fn(&mut FlexSConfig)| {
        let mut config = FlexSConfig::default();
        change(&mut config);
        match FlexS::new(config, 1) {
            Ok(_) => "accepted".to_string(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(wrong(|c| c.tick = Nanos::ZERO), "tick is 0ns: expected 100us … 1s");
    assert_eq!(wrong(|c| c.choices = 0), "choices is 0: expected 1 … 64");
    assert_eq!(wrong(|c| c.similarity = 1), "similarity is 1: expected 2 … 1000");
    assert_eq!(wrong(|c| c.fair_window = ms(9)), "fair_window is 9ms: expected 10ms … 3600s");
    assert_eq!(wrong(|c| c.earlier = ms(11)), "earlier is 11ms: expected 0ns … 10ms");
    assert_eq!(wrong(|c| c.floor = ms(11)), "floor is 11ms: expected 100us … 10ms");
    assert_eq!(wrong(|c| c.warm_up = 0), "warm_up is 0: expected 1 … 1000");
    assert_eq!(
        wrong(|c| c.least_branches = 1_000_001),
        "least_branches is 1000001: expected 0 … 1000000"
    );
    assert_eq!(wrong(|_| ()), "accepted");
}

#[test]
fn a_swap_exchanges_pcpu_position_and_weight() {
    let place = |vcpu, pcpu, weight, position| VcpuPlace {
        vcpu,
        pcpu: PcpuId(pcpu),
        weight: Weight::saturating(weight),
        position,
    };
    let (a, b, c) = (vcpu(1, 0), vcpu(1, 1), vcpu(2, 0));
    let places = [
        place(a, 0, 256.0, 0),
        place(b, 1, 341.0, 2),
        place(c, 1, 9.0, 0),
        place(vcpu(1, 2), 0, 1.0, 1),
    ];
    let swapped = [place(a, 1, 341.0, 2), place(b, 0, 256.0, 0)];
    assert_eq!(swap_plan(&places, a, b), Ok(swapped));
    assert_eq!(swap_plan(&places, a, c), Err(SwapError::NotSiblings(a, c)));
    let on_0 = vcpu(1, 2);
    let same = SwapError::SamePcpu(a, on_0, PcpuId(0));
    assert_eq!(swap_plan(&places, a, on_0), Err(same));
    let nowhere = vcpu(1, 9);
    assert_eq!(swap_plan(&places, a, nowhere), Err(SwapError::NotPlaced(nowhere)));
}

#[test]
fn stealing_takes_only_absent_vms() {
    assert!(may_steal(VmId(1), []));
    assert!(may_steal(VmId(1), [VmId(2), VmId(3)]));
    assert!(!may_steal(VmId(1), [VmId(2), VmId(1)]));
}
