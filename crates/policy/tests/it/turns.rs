//! Turns: worked cases of the rotation, and properties for any VMs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tandem_model::{Nanos, PcpuId, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight};
use tandem_policy::host::{
    Controller, ControllerConfig, HostObservation, Knobs, Placement, registry,
};
use tandem_policy::turns::rotation::{Candidate, SHORT};
use tandem_policy::turns::{Rotation, Rotor, TurnsConfig};

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
    Rotation::of(&TurnsConfig::default(), candidates)
}

/// A row: each VM, and its slots.
type Row = Vec<(u64, PcpuSet)>;

/// The first rows, with slots.
fn seated_rows(rotation: &Rotation, count: usize) -> Vec<Row> {
    let mut rotor = Rotor::default();
    rotor.follow(&rotation.members);
    let mut row = || {
        let vms = rotor.next_row().to_vec().into_iter();
        let seats = |vm: VmId| match rotor.seat(vm) {
            Some(pcpu) => [pcpu].into_iter().collect(),
            None => rotation.member(vm).unwrap().pcpus(),
        };
        vms.map(|vm| (vm.0, seats(vm))).collect()
    };
    (0..count).map(|_| row()).collect()
}

/// Number of these rows that each VM had.
fn had(rows: &[Row]) -> BTreeMap<u64, usize> {
    let mut had = BTreeMap::new();
    for (vm, _) in rows.iter().flatten() {
        *had.entry(*vm).or_default() += 1;
    }
    had
}

/// The roaming members.
fn roaming(rotation: &Rotation) -> Vec<u64> {
    let members = rotation.members.iter().filter(|m| m.roams.is_some());
    members.map(|member| member.vm.0).collect()
}

/// One VM of two vCPUs and three of one on two pCPUs, with these fair shares.
fn one_and_three(dues: [f64; 4]) -> Vec<Candidate> {
    let vcpus = [2, 1, 1, 1];
    (1..).zip(vcpus.into_iter().zip(dues)).map(|(id, (vcpus, due))| vm(id, vcpus, due, 2)).collect()
}

/// The VMs of the first rows.
fn rows(rotation: &Rotation, count: usize) -> Vec<Vec<u64>> {
    let mut rotor = Rotor::default();
    rotor.follow(&rotation.members);
    let mut row = || rotor.next_row().iter().map(|vm| vm.0).collect();
    (0..count).map(|_| row()).collect()
}

fn members(rotation: &Rotation) -> Vec<u64> {
    rotation.members.iter().map(|member| member.vm.0).collect()
}

#[test]
fn two_vms_on_two_pcpus_alternate() {
    let rotation = rotation(&[vm(1, 2, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let first = &rotation.members[0].seats;
    assert_eq!(first.values().copied().collect::<Vec<_>>(), [PcpuId(0), PcpuId(1)]);
    assert_eq!(rows(&rotation, 4), [[1], [2], [1], [2]]);
    assert_eq!(rotation.turn, Nanos::from_millis(20));
}

#[test]
fn rows_follow_weights_of_three_to_one() {
    let rotation = rotation(&[vm(1, 2, 1.5, 2), vm(2, 2, 0.5, 2)]);
    let rows = rows(&rotation, 8);
    let of_first = rows.iter().filter(|row| **row == [1]).count();
    assert_eq!(of_first, 6);
    assert!(rows.iter().all(|row| row.len() == 1));
}

#[test]
fn two_small_vms_share_a_row() {
    // 4, 2 and 2 vCPUs on 4 pCPUs, with fair shares of 4/3: a third, two thirds and two thirds of the rows.
    let due = 4.0 / 3.0;
    let rotation = rotation(&[vm(1, 4, due, 4), vm(2, 2, due, 4), vm(3, 2, due, 4)]);
    assert_eq!(members(&rotation), [1, 2, 3]);
    let pcpus = |at: usize| rotation.members[at].pcpus().to_string();
    assert_eq!((pcpus(1), pcpus(2)), ("0-1".to_owned(), "2-3".to_owned()));
    assert_eq!(
        rows(&rotation, 6),
        [vec![2, 3], vec![1], vec![2, 3], vec![2, 3], vec![1], vec![2, 3]]
    );
}

#[test]
fn three_vms_do_not_fit_two_places() {
    // Each is entitled to two rows of three. A VM that shares its slots has one of two, and
    // without one of them none competes.
    // In rows 1 2, 2 3, 1 3 all would have their fair shares, but then one of them changes slots.
    let vms = |count: u64, due: f64| (1..=count).map(|id| vm(id, 2, due, 4)).collect::<Vec<_>>();
    assert!(rotation(&vms(3, 4.0 / 3.0)).is_empty());
    assert_eq!(members(&rotation(&vms(4, 1.0))), [1, 2, 3, 4]);
    assert_eq!(members(&rotation(&vms(5, 0.8))).len(), 4, "one stays on");
    // With four places the same holds up to seven VMs.
    for (count, taking) in [(5, 0), (6, 0), (7, 0), (8, 8), (11, 8), (12, 12)] {
        let due = 16.0 / count as f64;
        let vms: Vec<Candidate> = (1..=count).map(|id| vm(id, 4, due, 16)).collect();
        assert_eq!(members(&rotation(&vms)).len(), taking, "{count} VMs");
    }
}

#[test]
fn three_small_vms_roam_next_to_wide_vm() {
    // Each has a fair share of half a pCPU of two: a quarter of the rows, and half of them.
    // With fixed slots two of the small VMs would share three quarters of a pCPU.
    let rotation = rotation(&one_and_three([0.5; 4]));
    assert_eq!(members(&rotation), [1, 2, 3, 4]);
    assert_eq!(roaming(&rotation), [2, 3, 4]);
    let due: Vec<f64> = rotation.members.iter().map(|member| member.due).collect();
    assert_eq!(due, [0.25, 0.5, 0.5, 0.5]);
    let rows = seated_rows(&rotation, 8);
    let text: Vec<String> = rows
        .iter()
        .map(|row| {
            let vms = row.iter().map(|(vm, pcpus)| format!("{vm} on {pcpus}"));
            vms.collect::<Vec<_>>().join(", ")
        })
        .collect();
    assert_eq!(
        text,
        [
            "2 on 0, 3 on 1",
            "2 on 1, 4 on 0",
            "1 on 0-1",
            "3 on 1, 4 on 0",
            "2 on 1, 3 on 0",
            "2 on 1, 4 on 0",
            "1 on 0-1",
            "3 on 0, 4 on 1",
        ]
    );
}

#[test]
fn rows_follow_weights_of_two_to_one() {
    // The VM of two vCPUs has a fair share of 0.8, in two rows of five, and each of the others 0.4, also in two.
    let wide = rotation(&one_and_three([0.8, 0.4, 0.4, 0.4]));
    assert_eq!(roaming(&wide), [2, 3, 4]);
    let rows = seated_rows(&wide, 50);
    assert_eq!(had(&rows), BTreeMap::from([(1, 20), (2, 20), (3, 20), (4, 20)]));
    // A VM of one vCPU weighs twice as much: it is in every row but those of the wide one, which are one in five.
    let narrow = rotation(&one_and_three([0.4, 0.8, 0.4, 0.4]));
    let rows = seated_rows(&narrow, 50);
    let had = had(&rows);
    assert_eq!((had[&1], had[&2]), (10, 40));
    assert!([3, 4].iter().all(|vm| had[vm].abs_diff(20) <= 1), "{had:?}");
}

#[test]
fn two_wide_and_three_small_vms_fit() {
    // Each has a fair share of 0.4: one row of five for the wide VMs, and two of five for the others.
    let vcpus = [2, 2, 1, 1, 1];
    let vms: Vec<Candidate> = (1..).zip(vcpus).map(|(id, n)| vm(id, n, 0.4, 2)).collect();
    let rotation = rotation(&vms);
    assert_eq!(roaming(&rotation), [3, 4, 5]);
    let rows = seated_rows(&rotation, 50);
    let had = had(&rows);
    assert_eq!((had[&1], had[&2]), (10, 10));
    assert!((3..=5).all(|vm| had[&vm].abs_diff(20) <= 1), "{had:?}");
}

#[test]
fn no_roaming_without_need() {
    // 2, 1 and 1 on two pCPUs: two thirds each, a third of the rows, and two thirds on a pCPU of its own.
    let third = 2.0 / 3.0;
    let vms = [vm(1, 2, third, 2), vm(2, 1, third, 2), vm(3, 1, third, 2)];
    let fits = rotation(&vms);
    assert_eq!((members(&fits), roaming(&fits)), (vec![1, 2, 3], vec![]));
    let single: Vec<Candidate> = (1..=3).map(|id| vm(id, 1, third, 2)).collect();
    assert!(rotation(&single).is_empty());
}

#[test]
fn pinned_vm_does_not_roam() {
    let set = |list: &str| list.parse::<PcpuSet>().unwrap();
    let pinned = |id, list: &str| on(id, 1, 0.5, &set(list));
    // All are pinned: no VM can move.
    let vms = [vm(1, 2, 0.5, 2), pinned(2, "0"), pinned(3, "0"), pinned(4, "1")];
    assert!(rotation(&vms).is_empty());
    let vms = [vm(1, 2, 0.5, 2), vm(2, 1, 0.5, 2), pinned(3, "0"), vm(4, 1, 0.5, 2)];
    let rotation = rotation(&vms);
    assert_eq!(roaming(&rotation), [2, 4]);
    let rows = seated_rows(&rotation, 40);
    let of_third = rows.iter().flatten().filter(|(vm, _)| *vm == 3);
    assert!(of_third.clone().all(|(_, pcpus)| *pcpus == set("0")));
    assert_eq!(of_third.count(), 20);
}

#[test]
fn roaming_continues_with_same_members() {
    // With these fair shares VMs 2 and 4 fit on one pCPU with fixed slots.
    let config = TurnsConfig::default();
    let roams = rotation(&one_and_three([0.5; 4]));
    let fits = one_and_three([0.5, 0.2, 0.75, 0.55]);
    assert_eq!(roaming(&rotation(&fits)), [0; 0]);
    let after = Rotation::after(&roams, &config, &fits);
    assert_eq!(roaming(&after), [2, 3, 4]);
    // Another set of members starts over.
    let third = 2.0 / 3.0;
    let fewer = [vm(1, 2, third, 2), vm(2, 1, third, 2), vm(3, 1, third, 2)];
    assert_eq!(roaming(&Rotation::after(&roams, &config, &fewer)), [0; 0]);
}

#[test]
fn sleeping_roaming_vm_leaves_its_rows() {
    let rotation = rotation(&one_and_three([0.5; 4]));
    let mut rotor = Rotor::default();
    rotor.follow(&rotation.members);
    rotor.next_row();
    rotor.leave(VmId(2));
    assert_eq!(rotor.row(), [VmId(3)]);
    let rows: Vec<Vec<u64>> =
        (0..4).map(|_| rotor.next_row().iter().map(|vm| vm.0).collect()).collect();
    assert_eq!(rows, [vec![3, 4], vec![1], vec![3, 4], vec![3, 4]]);
    assert_eq!(rotor.seat(VmId(2)), None);
}

#[test]
fn smallest_vm_becomes_resident() {
    // Each has a fair share of 0.8 pCPUs. Rows cannot give that to all five: VM 5 is entitled to
    // 4 rows of 5, and VMs 1 and 2 leave it 3.
    // VM 5 becomes resident and takes its part of every row.
    // The others are entitled to a quarter, a quarter, a half and a half of the rows.
    let candidates =
        [vm(1, 4, 0.8, 4), vm(2, 4, 0.8, 4), vm(3, 2, 0.8, 4), vm(4, 2, 0.8, 4), vm(5, 1, 0.8, 4)];
    let rotation = rotation(&candidates);
    assert_eq!(members(&rotation), [1, 2, 3, 4]);
    let due: Vec<f64> = rotation.members.iter().map(|member| member.due).collect();
    assert_eq!(due, [0.25, 0.25, 0.5, 0.5]);
    let mut rows = rows(&rotation, 4);
    rows.sort();
    assert_eq!(rows, [vec![1], vec![2], vec![3, 4], vec![3, 4]]);
}

#[test]
fn oversized_vm_shares_pcpus_evenly() {
    let rotation = rotation(&[vm(1, 4, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let mut seats: Vec<u32> = rotation.members[0].seats.values().map(|p| p.0).collect();
    seats.sort_unstable();
    assert_eq!(seats, [0, 0, 1, 1]);
    assert_eq!(rows(&rotation, 2), [[1], [2]]);
}

#[test]
fn sleeping_vm_leaves_and_others_continue() {
    let third = 2.0 / 3.0;
    let rotation = rotation(&[vm(1, 2, third, 2), vm(2, 2, third, 2), vm(3, 2, third, 2)]);
    let mut rotor = Rotor::default();
    rotor.follow(&rotation.members);
    assert_eq!(rotor.next_row(), [VmId(1)]);
    rotor.leave(VmId(2));
    assert_eq!(rotor.next_row(), [VmId(3)]);
    assert_eq!(rotor.next_row(), [VmId(1)]);
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
fn always_running_vm_prevents_turns() {
    // One vCPU with a fair share of 1.0 of 2 pCPUs always runs; the other VM's two vCPUs can never run together.
    assert!(rotation(&[vm(1, 2, 1.0, 2), vm(2, 1, 1.0, 2)]).is_empty());
}

#[test]
fn partly_overlapping_pcpu_sets_rotate() {
    // VM 2 competes with both others, and these do not compete with each other.
    let set = |list: &str| list.parse::<PcpuSet>().unwrap();
    let rotation = rotation(&[
        on(1, 2, 1.0, &set("0-1")),
        on(2, 2, 1.0, &set("1-2")),
        on(3, 2, 1.0, &set("2-3")),
    ]);
    assert_eq!(rows(&rotation, 4), [vec![1, 3], vec![2], vec![1, 3], vec![2]]);
}

#[test]
fn staying_vm_keeps_its_credit() {
    let all = rotation(&[vm(1, 2, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let mut rotor = Rotor::default();
    rotor.follow(&all.members);
    assert_eq!(rotor.next_row(), [VmId(1)]);
    rotor.follow(&all.members);
    assert_eq!(rotor.next_row(), [VmId(2)]);
}

#[test]
fn returning_vm_keeps_its_credit() {
    // VM 1 is entitled to every fourth row. After its row its credit is minus half a row; without
    // memory, the fifth row would be its own.
    let all = rotation(&[vm(1, 2, 0.5, 2), vm(2, 2, 1.5, 2)]);
    let mut rotor = Rotor::default();
    rotor.follow(&all.members);
    assert_eq!(rotor.next_row(), [VmId(2)]);
    assert_eq!(rotor.next_row(), [VmId(1)]);
    rotor.leave(VmId(1));
    rotor.follow(&[]);
    rotor.follow(&all.members);
    let rows: Vec<u64> = (0..4).map(|_| rotor.next_row()[0].0).collect();
    assert_eq!(rows, [2, 2, 2, 1]);
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

/// VMs mostly of one vCPU, of equal weight, on some pCPUs: sets for which fixed slots are too tight.
fn mostly_small() -> impl Strategy<Value = (u32, Vec<Candidate>)> {
    (2u32..=4, 1usize..=2, 3usize..=8).prop_map(|(pcpus, wide, small)| {
        let due = f64::from(pcpus) / (wide + small) as f64;
        let vcpus = std::iter::repeat_n(2, wide).chain(std::iter::repeat_n(1, small));
        let vms = (0u64..).zip(vcpus);
        let vms = vms.map(|(id, n)| vm(id, n, due.min(f64::from(n)), pcpus));
        (pcpus, vms.collect())
    })
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

proptest! {
    #[test]
    fn rows_match_fair_shares((_, candidates) in candidates()) {
        let rotation = rotation(&candidates);
        let count = 400;
        let had = had(&seated_rows(&rotation, count));
        for member in &rotation.members {
            let had = had.get(&member.vm.0).copied().unwrap_or(0) as f64;
            prop_assert!(had >= member.due * count as f64 * 0.96 - 2.0, "{had} of {}", member.due);
        }
    }

    #[test]
    fn rows_are_disjoint_and_full(
        (_, candidates) in candidates(),
    ) {
        let rotation = rotation(&candidates);
        for row in seated_rows(&rotation, 50) {
            let mut taken = PcpuSet::default();
            for (_, pcpus) in &row {
                prop_assert!(!taken.overlaps(pcpus));
                taken.extend(pcpus);
            }
            let is_in_row = |vm: VmId| row.iter().any(|(of_row, _)| *of_row == vm.0);
            let others = rotation.members.iter().filter(|member| !is_in_row(member.vm));
            for other in others {
                let could_sit = match &other.roams {
                    Some(roams) => roams.iter().any(|pcpu| !taken.contains(pcpu)),
                    None => !taken.overlaps(&other.pcpus()),
                };
                prop_assert!(!could_sit, "{other:?} next to {row:?}");
            }
        }
    }

    #[test]
    fn no_vm_waits_over_two_rotations((_, candidates) in candidates()) {
        let rotation = rotation(&candidates);
        let least = rotation.members.iter().map(|member| member.due).fold(1.0, f64::min);
        let longest = (2.0 / least).ceil() as u32 + 1;
        let mut waits: BTreeMap<u64, u32> = BTreeMap::new();
        for row in rows(&rotation, 300) {
            for member in &rotation.members {
                let wait = waits.entry(member.vm.0).or_default();
                *wait = if row.contains(&member.vm.0) { 0 } else { *wait + 1 };
                prop_assert!(*wait <= longest, "{wait} rows of {longest}");
            }
        }
    }

    #[test]
    fn roaming_vms_get_shares_in_any_stretch(
        (pcpus, candidates) in mostly_small(),
        begin in 0usize..200,
    ) {
        let rotation = rotation(&candidates);
        let rows = seated_rows(&rotation, begin + 100);
        let before = had(&rows[..begin]);
        let all = had(&rows);
        for member in &rotation.members {
            let rows = |had: &BTreeMap<u64, usize>| had.get(&member.vm.0).copied().unwrap_or(0);
            let (had, due) = ((rows(&all) - rows(&before)) as f64, member.due * 100.0);
            // Short by no more than the trial tolerates, and two rows.
            prop_assert!(had >= due * (1.0 - SHORT) - 2.0, "{had} of {due} in {rotation:?}");
        }
        for (vm, on) in rows.iter().flatten() {
            let member = rotation.member(VmId(*vm)).unwrap();
            let may = member.roams.clone().unwrap_or_else(|| member.pcpus());
            prop_assert!(on.iter().all(|pcpu| may.contains(pcpu) && pcpu.0 < pcpus));
        }
    }

    #[test]
    fn slots_are_allowed_and_rarely_stacked(
        (pcpus, candidates) in candidates(),
    ) {
        let rotation = rotation(&candidates);
        for member in &rotation.members {
            let seats = member.seats.len();
            prop_assert_eq!(member.pcpus().len(), seats.min(pcpus as usize));
            prop_assert!(member.pcpus().iter().all(|pcpu| pcpu.0 < pcpus));
        }
    }
}
