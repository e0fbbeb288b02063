//! Properties of the detector and of the search for every input.

use proptest::prelude::*;
use tandem_model::branch_counters::BranchCounts;
use tandem_model::{Nanos, PcpuId, VmId, Weight};
use tandem_policy::flexs::{RunQueues, SpinDetector, VcpuPlace, swap_plan};
use tandem_policy::{FlexS, FlexSConfig};

use super::queues::{Queues, SPIN, WORK, counts, detector, ms, swapped_with, vcpu};

/// Consistent counts, small enough to be scaled by 1,000.
fn possible() -> impl Strategy<Value = BranchCounts> {
    (1u64..1 << 40, 0u64..=1000, 0u64..=1000).prop_map(|(instructions, bpi, bmpr)| {
        let branches = instructions * bpi / 1000;
        counts(instructions, branches, branches * bmpr / 1000)
    })
}

/// vCPUs on pCPUs, each with a weight.
fn placed() -> impl Strategy<Value = Vec<VcpuPlace>> {
    prop::collection::vec((0u64..3, 0u32..4, 1u32..1000), 2..16).prop_map(|places| {
        let place = |(i, (vm, pcpu, weight)): (usize, (u64, u32, u32))| VcpuPlace {
            vcpu: vcpu(vm, i as u32),
            pcpu: PcpuId(pcpu),
            weight: Weight::saturating(f64::from(weight)),
            position: i as u32,
        };
        places.into_iter().enumerate().map(place).collect()
    })
}

/// Per pCPU: the total weight, the VMs, ascending, and the positions.
fn per_pcpu(places: &[VcpuPlace]) -> Vec<(f64, Vec<VmId>, Vec<u32>)> {
    let on = |pcpu| {
        let here = || places.iter().filter(move |place| place.pcpu == PcpuId(pcpu));
        let mut vms: Vec<VmId> = here().map(|place| place.vcpu.vm).collect();
        vms.sort();
        let mut positions: Vec<u32> = here().map(|place| place.position).collect();
        positions.sort();
        (here().map(|place| place.weight.value()).sum(), vms, positions)
    };
    (0..4).map(on).collect()
}

proptest! {
    #[test]
    fn scaling_all_counts_changes_no_verdict(
        samples in prop::collection::vec((possible(), 1u64..1000), 1..40),
    ) {
        let (mut plain, mut scaled) = (detector(), detector());
        for (sample, by) in samples {
            let BranchCounts { instructions, branches, mispredicted } = sample;
            let larger = counts(instructions * by, branches * by, mispredicted * by);
            prop_assert_eq!(plain.observe(&sample), scaled.observe(&larger));
        }
    }

    #[test]
    fn verdicts_follow_the_formula_with_floors(
        samples in prop::collection::vec((1u128..300, 0u128..300, 0u128..300), 1..40),
    ) {
        let mut detector = detector();
        let (mut max_bpi, mut min_bmpr) = ((0, 1), (1, 1));
        for (i, b, m) in samples {
            let (b, m) = (b.min(i), m.min(b).min(i));
            let verdict = detector.observe(&counts(i as u64, b as u64, m as u64));
            if b == 0 {
                prop_assert!(!verdict.busy_waiting);
                continue;
            }
            if b * max_bpi.1 > max_bpi.0 * i {
                max_bpi = (b, i);
            }
            if m * min_bmpr.1 < min_bmpr.0 * b {
                min_bmpr = (m, b);
            }
            // (B/I − b/i) × 10 ÷ (B/I) over the common denominator, and likewise for bmpr.
            let far_bpi = (max_bpi.0 * i - b * max_bpi.1) * 10 / (max_bpi.0 * i);
            let above = m * min_bmpr.1 - min_bmpr.0 * b;
            let far_bmpr = match min_bmpr.0 * b {
                0 => above,
                least => above * 10 / least,
            };
            prop_assert_eq!(verdict.busy_waiting, far_bpi == 0 && far_bmpr == 0);
        }
    }

    #[test]
    fn no_counts_make_the_detector_panic(
        samples in prop::collection::vec(any::<(u64, u64, u64)>(), 1..20),
        similarity in any::<u32>(),
        warm_up in any::<u32>(),
    ) {
        let mut detector = SpinDetector::new(similarity, warm_up);
        for (i, b, m) in samples {
            let verdict = detector.observe(&counts(i, b, m));
            prop_assert!(verdict.busy_waiting <= verdict.ratios().is_some());
        }
    }

    #[test]
    fn swap_keeps_weight_positions_and_vms(
        places in placed(),
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
    ) {
        let (a, b) = (a.get(&places).vcpu, b.get(&places).vcpu);
        let mut after = places.clone();
        if let Ok(swapped) = swap_plan(&places, a, b) {
            for place in &mut after {
                for new in swapped {
                    if new.vcpu == place.vcpu {
                        *place = new;
                    }
                }
            }
            prop_assert_ne!(&after, &places);
        } else {
            let pcpu = |vcpu| places.iter().find(|place| place.vcpu == vcpu).map(|place| place.pcpu);
            prop_assert!(a.vm != b.vm || pcpu(a) == pcpu(b));
        }
        prop_assert_eq!(per_pcpu(&after), per_pcpu(&places));
    }

    #[test]
    fn swap_partner_is_unmarked_waiting_and_allowed(
        places in placed(),
        spinning in prop::collection::vec(any::<bool>(), 16),
        forbidden in prop::collection::vec((0usize..16, 0u32..4), 0..8),
        seed in any::<u64>(),
    ) {
        let mut flexs = FlexS::new(FlexSConfig::default(), seed).expect("in range");
        let mut queues = Queues::new(4);
        for (i, pcpu) in forbidden {
            if let Some(place) = places.get(i) {
                queues.forbidden.push((place.vcpu, PcpuId(pcpu)));
            }
        }
        // So that work is not its own extreme.
        for vm in 0..3 {
            flexs.tick(Nanos::ZERO, vcpu(vm, 99), PcpuId(0), &SPIN, &Queues::new(4));
        }
        for (place, &spins) in places.iter().zip(&spinning).skip(1) {
            let sample = if spins { SPIN } else { WORK };
            flexs.tick(Nanos::ZERO, place.vcpu, place.pcpu, &sample, &Queues::new(4));
            queues.queued[place.pcpu.0 as usize].push(place.vcpu);
        }
        let me = places[0];
        let outcome = flexs.tick(ms(1), me.vcpu, me.pcpu, &SPIN, &queues);
        if let Some((with, on)) = swapped_with(&outcome) {
            let sibling = vcpu(me.vcpu.vm.0, with);
            prop_assert!(queues.queued(PcpuId(on)).contains(&sibling));
            prop_assert!(!flexs.is_marked(sibling));
            prop_assert!(queues.allowed(sibling, me.pcpu));
            prop_assert!(queues.allowed(me.vcpu, PcpuId(on)));
            prop_assert!(swap_plan(&places, me.vcpu, sibling).is_ok());
        }
    }
}
