//! Observed figures and their verdicts.

use super::*;

fn received(one_ms: u64, others_ms: u64) -> Received {
    Received {
        window: Nanos::from_millis(1000),
        one: Nanos::from_millis(one_ms),
        others: Nanos::from_millis(others_ms),
    }
}

#[test]
fn share_is_judged_by_both_expected_figures() {
    assert_eq!(weight(received(780, 210)).verdict, Verdict::Acts);
    assert_eq!(weight(received(505, 490)).verdict, Verdict::DoesNotAct);
    assert_eq!(weight(received(650, 350)).verdict, Verdict::Unclear);
    assert_eq!(idle_class(received(3, 990)).verdict, Verdict::Acts);
    assert_eq!(idle_class(received(490, 500)).verdict, Verdict::DoesNotAct);
    assert_eq!(nice(received(750, 250)).verdict, Verdict::Acts);
    assert_eq!(nice(received(500, 500)).verdict, Verdict::DoesNotAct);
}

#[test]
fn others_on_the_pcpu_change_no_share() {
    let busy = weight(received(400, 100));
    assert_eq!(busy.verdict, Verdict::Acts);
    assert_eq!(busy.values["share"], 0.8);
}

#[test]
fn a_host_that_is_too_busy_measures_nothing() {
    for finding in [
        weight(received(80, 20)),
        pinned_hog(received(200, 20)),
        quota(0.2, 0.3),
        vcpu_groups(received(80, 20), received(50, 50)),
        weight(received(0, 0)),
    ] {
        assert!(!finding.is_measured(), "{finding:?}");
        assert!(finding.figure.is_empty(), "{finding:?}");
        assert!(finding.values.is_empty(), "{finding:?}");
    }
}

#[test]
fn groups_in_a_group_need_both_shares() {
    let good = vcpu_groups(received(400, 100), received(500, 500));
    assert_eq!(good.verdict, Verdict::Acts);
    let flat = vcpu_groups(received(330, 330), received(660, 330));
    assert_eq!(flat.verdict, Verdict::DoesNotAct);
    let leaks = vcpu_groups(received(533, 133), received(666, 333));
    assert_eq!(leaks.verdict, Verdict::Unclear);
}

#[test]
fn switch_must_act_soon_and_reliably() {
    let ms = |ms| Some(Nanos::from_millis(ms));
    let soon = idle_switch(&[ms(1), ms(2), ms(3), ms(4)]);
    assert_eq!(soon.verdict, Verdict::Acts);
    assert_eq!((soon.values["median_ms"], soon.values["worst_ms"]), (3.0, 4.0));
    assert_eq!(idle_switch(&[ms(30), ms(25)]).verdict, Verdict::Unclear);
    assert_eq!(idle_switch(&[None, None, ms(1)]).verdict, Verdict::DoesNotAct);
    assert_eq!(idle_switch(&[None, None]).verdict, Verdict::DoesNotAct);
    assert!(!idle_switch(&[]).is_measured());
}

#[test]
fn a_long_slice_makes_long_runs() {
    let us = |us: u64| Some(Nanos(us * 1000));
    assert_eq!(slice(us(4_000), us(20_000)).verdict, Verdict::Acts);
    assert_eq!(slice(us(4_000), us(4_100)).verdict, Verdict::DoesNotAct);
    assert_eq!(slice(us(4_000), us(24_000)).verdict, Verdict::Acts);
    assert!(!slice(None, us(1)).is_measured());
}

#[test]
fn affinity_is_judged_by_the_pcpu() {
    assert_eq!(affinity(1, 0, 1).verdict, Verdict::Acts);
    assert_eq!(affinity(1, 0, 0).verdict, Verdict::DoesNotAct);
    assert_eq!(affinity(1, 0, 2).verdict, Verdict::Unclear);
}

#[test]
fn a_cap_is_kept_or_not() {
    assert_eq!(quota(0.31, 0.99).verdict, Verdict::Acts);
    assert_eq!(quota(0.98, 0.99).verdict, Verdict::DoesNotAct);
}

#[test]
fn defect_differs_from_a_healthy_host() {
    // 1.64 of 2 pCPUs on Linux 6.18; 0.52 : 0.46 per pCPU on 6.12.
    assert_eq!(pinned_hog(received(1640, 360)).verdict, Verdict::Present);
    assert_eq!(pinned_hog(received(1040, 920)).verdict, Verdict::Absent);
    assert_eq!(pinned_hog(received(600, 1400)).verdict, Verdict::Absent);
    assert_eq!(pinned_hog(received(1240, 760)).verdict, Verdict::Unclear);
}
