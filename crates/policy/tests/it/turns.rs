//! Turns: worked cases of the rotation, and properties for any VMs.

use proptest::prelude::*;
use tandem_model::{Nanos, PcpuId, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight};
use tandem_policy::host::{
    Controller, ControllerConfig, HostObservation, Knobs, Placement, registry,
};
use tandem_policy::turns::rotation::Candidate;
use tandem_policy::turns::{Member, Residents, Rotation, TurnsConfig};

/// A VM that may run on pCPUs 0 … P-1.
fn vm(id: u64, vcpus: u32, due: f64, pcpus: u32) -> Candidate {
    on(id, vcpus, due, &(0..pcpus).map(PcpuId).collect())
}

fn on(id: u64, vcpus: u32, due: f64, pcpus: &PcpuSet) -> Candidate {
    Candidate {
        vm: VmId(id),
        due,
        correction: 1.0,
        vcpus: (0..vcpus).map(|n| (VcpuId(n), pcpus.clone())).collect(),
    }
}

fn rotation(candidates: &[Candidate]) -> Rotation {
    next_to(candidates, 0.0)
}

/// The rotation next to resident VMs with this fair share.
fn next_to(candidates: &[Candidate], due: f64) -> Rotation {
    let residents = Residents { due, ..Residents::default() };
    Rotation::of(&TurnsConfig::default(), candidates, &residents)
}

/// Slots as "VM on pCPUs from-to", in ms.
fn slots(rotation: &Rotation) -> Vec<String> {
    let of = |member: &Member| -> Vec<String> {
        let slots = member.slots.iter().map(|slot| {
            let pcpus: PcpuSet = slot.pcpus.values().copied().collect();
            let ms = |time: Nanos| time.0 / 1_000_000;
            format!("{} on {pcpus} {}-{}", member.vm.0, ms(slot.from), ms(slot.to))
        });
        slots.collect()
    };
    rotation.members.iter().flat_map(of).collect()
}

fn members(rotation: &Rotation) -> Vec<u64> {
    rotation.members.iter().map(|member| member.vm.0).collect()
}

#[test]
fn two_vms_on_two_pcpus_alternate() {
    let rotation = rotation(&[vm(1, 2, 1.0, 2), vm(2, 2, 1.0, 2)]);
    assert_eq!(slots(&rotation), ["1 on 0-1 0-20", "2 on 0-1 20-40"]);
    assert_eq!(rotation.length, Nanos::from_millis(40));
}

#[test]
fn slots_follow_weights_of_three_to_one() {
    let rotation = rotation(&[vm(1, 2, 1.5, 2), vm(2, 2, 0.5, 2)]);
    assert_eq!(slots(&rotation), ["1 on 0-1 0-60", "2 on 0-1 60-80"]);
}

#[test]
fn small_vms_share_time_of_wide_vm() {
    // 4, 2 and 2 vCPUs on 4 pCPUs, with fair shares of 4/3: a third, two thirds and two thirds of the rotation.
    let due = 4.0 / 3.0;
    let rotation = rotation(&[vm(1, 4, due, 4), vm(2, 2, due, 4), vm(3, 2, due, 4)]);
    assert_eq!(slots(&rotation), ["1 on 0-3 0-20", "2 on 0-1 20-60", "3 on 2-3 20-60"]);
}

#[test]
fn three_vms_share_two_places() {
    // Each is entitled to two thirds of the rotation; one of them changes its pCPUs.
    let vms = |count: u64, due: f64| (1..=count).map(|id| vm(id, 2, due, 4)).collect::<Vec<_>>();
    assert_eq!(
        slots(&rotation(&vms(3, 4.0 / 3.0))),
        ["1 on 0-1 0-20", "2 on 0-1 20-30", "2 on 2-3 0-10", "3 on 2-3 10-30"]
    );
    for count in 4..=12 {
        let due = 16.0 / count as f64;
        let vms: Vec<Candidate> = (1..=count).map(|id| vm(id, 4, due.min(4.0), 16)).collect();
        let expected = if count == 4 { 0 } else { count };
        assert_eq!(members(&rotation(&vms)).len(), expected as usize, "{count} VMs");
    }
}

#[test]
fn mixed_sizes_fill_eight_pcpus() {
    // 8, 4, 4, 2, 1 and 1 vCPUs of equal weight: the single vCPUs have a pCPU each, the others 1.5 pCPUs.
    let sizes = [(8, 1.5), (4, 1.5), (4, 1.5), (2, 1.5), (1, 1.0), (1, 1.0)];
    let vms: Vec<Candidate> = (1..).zip(sizes).map(|(id, (n, due))| vm(id, n, due, 8)).collect();
    let rotation = rotation(&vms);
    // No pCPU is left for them throughout: they are resident.
    assert_eq!(members(&rotation), [1, 2, 3, 4]);
    assert_eq!(
        slots(&rotation),
        ["1 on 0-7 0-20", "2 on 0-3 20-60", "3 on 0-3 60-100", "4 on 4-5 20-100"]
    );
}

#[test]
fn small_vms_wrap_around_next_to_wide_vm() {
    // Each has a fair share of half a pCPU of two: a quarter of the rotation, and half of it.
    let vms = [vm(1, 2, 0.5, 2), vm(2, 1, 0.5, 2), vm(3, 1, 0.5, 2), vm(4, 1, 0.5, 2)];
    let rotation = rotation(&vms);
    assert_eq!(
        slots(&rotation),
        ["1 on 0-1 0-20", "2 on 0 20-60", "3 on 0 60-80", "3 on 1 20-40", "4 on 1 40-80"]
    );
}

#[test]
fn pinned_vms_keep_their_pcpus() {
    let set = |list: &str| list.parse::<PcpuSet>().unwrap();
    let rotation = rotation(&[
        on(1, 2, 1.0, &set("0-1")),
        Candidate { vcpus: vec![(VcpuId(0), set("1")), (VcpuId(1), set("2"))], ..vm(2, 2, 1.0, 4) },
        on(3, 2, 1.0, &set("2-3")),
    ]);
    assert_eq!(slots(&rotation), ["1 on 0-1 20-40", "2 on 1-2 0-20", "3 on 2-3 20-40"]);
    let moves: Vec<bool> = rotation.members.iter().map(|member| member.moves).collect();
    assert_eq!(moves, [true, false, true]);
}

#[test]
fn oversized_vm_shares_pcpus_evenly() {
    let rotation = rotation(&[vm(1, 4, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let first = rotation.member(VmId(1)).unwrap();
    let mut pcpus: Vec<u32> = first.slots[0].pcpus.values().map(|pcpu| pcpu.0).collect();
    pcpus.sort_unstable();
    assert_eq!(pcpus, [0, 0, 1, 1]);
    assert_eq!(members(&rotation), [1, 2]);
}

#[test]
fn nothing_rotates_without_need() {
    assert!(rotation(&[]).is_empty());
    assert!(rotation(&[vm(1, 2, 2.0, 2)]).is_empty(), "alone");
    let apart = [on(1, 2, 2.0, &"0-1".parse().unwrap()), on(2, 2, 2.0, &"2-3".parse().unwrap())];
    assert!(rotation(&apart).is_empty(), "no competitors");
    let single = [vm(1, 1, 0.5, 1), vm(2, 1, 0.5, 1)];
    assert!(rotation(&single).is_empty(), "nothing to run together");
}

#[test]
fn always_running_vcpu_prevents_slots_next_to_it() {
    // A vCPU with a fair share of one of two pCPUs always runs, so the other VM's two vCPUs can never run together.
    assert!(rotation(&[vm(1, 2, 1.0, 2), vm(2, 1, 1.0, 2)]).is_empty());
    let single = [2, 3, 4].map(|id| vm(id, 1, 1.0, 4));
    let vms = [&[vm(1, 4, 1.0, 4)], &single[..]].concat();
    assert_eq!(members(&rotation(&vms)), [1], "each lacks a quarter");
    // Two narrower VMs still take turns on the other pCPUs.
    let vms = [vm(1, 4, 1.6, 4), vm(2, 1, 1.0, 4), vm(3, 2, 0.7, 4), vm(4, 2, 0.7, 4)];
    assert_eq!(members(&rotation(&vms)), [2, 3, 4], "it would lack two fifths");
}

#[test]
fn residents_keep_the_rest_of_the_rotation() {
    let vms = [vm(1, 2, 0.5, 2), vm(2, 2, 0.5, 2)];
    assert_eq!(slots(&next_to(&vms, 1.0)), ["1 on 0-1 0-20", "2 on 0-1 20-40"]);
    assert_eq!(next_to(&vms, 1.0).length, Nanos::from_millis(80));
    // Without them, or next to uncontrolled tasks, the members have all of it.
    assert_eq!(rotation(&vms).length, Nanos::from_millis(40));
    let pinned = Residents { due: 0.5, pinned: [(PcpuId(1), 0.5)].into() };
    let vms = [vm(1, 2, 0.5, 2), vm(2, 2, 0.5, 2)];
    let rotation = Rotation::of(&TurnsConfig::default(), &vms, &pinned);
    assert_eq!(slots(&rotation), ["1 on 0-1 40-60", "2 on 0-1 60-80"]);
}

#[test]
fn many_members_have_shorter_slots() {
    let rotation = |count: u64| {
        let vms = (1..=count).map(|id| vm(id, 2, 2.0 / count as f64, 2)).collect::<Vec<_>>();
        rotation(&vms)
    };
    let length = |count| rotation(count).length.0 / 1_000_000;
    assert_eq!([2, 10, 20, 100].map(length), [40, 200, 220, 1000]);
}

/// The rotation of a host with two VMs of two vCPUs that never sleep, after enough periods of `turns`.
fn decided(placement: Placement, knobs: impl Fn(&mut Knobs), pins: bool) -> Rotation {
    let period = Nanos::from_millis(100);
    let vm = |id: u64| {
        let vcpu = |n: u32| VcpuObservation {
            ran: Nanos::from_millis(50),
            waited: Nanos::from_millis(50),
            runnable: true,
            ..VcpuObservation::new(
                VcpuId(n),
                if pins { [PcpuId(n)].into_iter().collect() } else { "0-1".parse().unwrap() },
            )
        };
        VmObservation::new(VmId(id), Weight::constant(1024.0), (0..2).map(vcpu).collect())
    };
    let idle = [(PcpuId(0), Nanos::ZERO), (PcpuId(1), Nanos::ZERO)];
    let mut host =
        HostObservation::with_any_knobs(period, vec![vm(1), vm(2)], idle.into_iter().collect());
    knobs(&mut host.knobs);
    let config = ControllerConfig {
        placement,
        ..ControllerConfig::new(registry::set(["fair", "turns"]).unwrap())
    };
    let mut controller = Controller::new(config);
    let rounds = (0..8).map(|_| controller.decide(&host));
    rounds.last().and_then(|round| round.rotation).unwrap()
}

#[test]
fn no_turns_without_idle_class() {
    assert_eq!(members(&decided(Placement::Turns, |_| {}, false)), [1, 2]);
    let rotation = decided(Placement::Turns, |knobs| knobs.idle = false, false);
    assert!(rotation.is_empty(), "{rotation:?}");
}

#[test]
fn fixed_affinities_rotate_only_pinned_vms() {
    let fixed = |knobs: &mut Knobs| knobs.affinity = false;
    assert!(decided(Placement::Turns, fixed, false).is_empty());
    assert_eq!(members(&decided(Placement::Turns, fixed, true)), [1, 2]);
    assert!(decided(Placement::Keep, |_| {}, false).is_empty());
    assert_eq!(members(&decided(Placement::Keep, |_| {}, true)), [1, 2]);
}

/// VMs on some pCPUs, with the fair shares of equal or unequal weights.
fn candidates() -> impl Strategy<Value = (u32, Vec<Candidate>)> {
    let vms = prop::collection::vec((1u32..=8, 1u32..=4), 2..10);
    (2u32..=8, vms).prop_map(|(pcpus, sizes)| {
        let weights: u32 = sizes.iter().map(|(_, weight)| weight).sum();
        let vms = (0u64..).zip(sizes).map(|(id, (vcpus, weight))| {
            let share = f64::from(pcpus) * f64::from(weight) / f64::from(weights);
            vm(id, vcpus, share.min(f64::from(vcpus.min(pcpus))), pcpus)
        });
        (pcpus, vms.collect())
    })
}

proptest! {
    #[test]
    fn members_have_their_fair_shares((pcpus, candidates) in candidates()) {
        let rotation = rotation(&candidates);
        for member in &rotation.members {
            let candidate = candidates.iter().find(|candidate| candidate.vm == member.vm).unwrap();
            let width = candidate.vcpus.len().min(pcpus as usize) as f64;
            let part = rotation.part(member);
            // Boundaries are whole ms.
            let error = 1e6 * member.slots.len() as f64 / rotation.length.0 as f64;
            // Parts may be cut by 3 %, so that all VMs have slots.
            prop_assert!(part + error >= 0.97 * candidate.due / width, "{part} of {candidate:?}");
            prop_assert!(member.slots.len() <= 2);
        }
    }

    #[test]
    fn slots_are_disjoint_and_allowed((pcpus, candidates) in candidates()) {
        let rotation = rotation(&candidates);
        let slots: Vec<_> = rotation.members.iter().flat_map(|m| m.slots.iter().map(move |s| (m.vm, s))).collect();
        for (at, (vm, slot)) in slots.iter().enumerate() {
            let used: PcpuSet = slot.pcpus.values().copied().collect();
            prop_assert_eq!(used.len(), slot.pcpus.len().min(pcpus as usize));
            prop_assert!(used.iter().all(|pcpu| pcpu.0 < pcpus));
            prop_assert!(slot.from < slot.to && slot.to <= rotation.length);
            for (other_vm, other) in &slots[at + 1..] {
                let theirs: PcpuSet = other.pcpus.values().copied().collect();
                let apart = slot.to <= other.from || other.to <= slot.from;
                prop_assert!(apart || (vm != other_vm && !used.overlaps(&theirs)), "{slot:?} {other:?}");
            }
        }
    }

    #[test]
    fn small_changes_of_fair_shares_keep_places(
        (pcpus, candidates) in candidates(),
        at in 0usize..10,
    ) {
        // The order of VMs of a size does not depend on their fair shares.
        let before = rotation(&candidates);
        if before.members.len() < candidates.len() {
            // Some VMs are resident; others may be with different fair shares.
            return Ok(());
        }
        let mut changed = candidates.clone();
        let at = at % changed.len();
        changed[at].due *= 0.999;
        let after = rotation(&changed);
        prop_assert_eq!(members(&before), members(&after), "{} pCPUs", pcpus);
    }
}
