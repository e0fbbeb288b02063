//! Turns: the rotation's worked cases, and what must hold for any VMs.

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

/// A row: each VM, and where it sits.
type Row = Vec<(u64, PcpuSet)>;

/// Some rows, and who sits where.
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

/// How many of these rows each VM had.
fn had(rows: &[Row]) -> BTreeMap<u64, usize> {
    let mut had = BTreeMap::new();
    for (vm, _) in rows.iter().flatten() {
        *had.entry(*vm).or_default() += 1;
    }
    had
}

/// The members that roam.
fn roaming(rotation: &Rotation) -> Vec<u64> {
    let members = rotation.members.iter().filter(|m| m.roams.is_some());
    members.map(|member| member.vm.0).collect()
}

/// One VM of two vCPUs and three of one on two pCPUs, due so much.
fn one_and_three(dues: [f64; 4]) -> Vec<Candidate> {
    let vcpus = [2, 1, 1, 1];
    (1..).zip(vcpus.into_iter().zip(dues)).map(|(id, (vcpus, due))| vm(id, vcpus, due, 2)).collect()
}

/// The VMs of some rows.
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
fn two_vms_of_two_vcpus_on_two_pcpus_alternate() {
    let rotation = rotation(&[vm(1, 2, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let first = &rotation.members[0].seats;
    assert_eq!(first.values().copied().collect::<Vec<_>>(), [PcpuId(0), PcpuId(1)]);
    assert_eq!(rows(&rotation, 4), [[1], [2], [1], [2]]);
    assert_eq!(rotation.turn, Nanos::from_millis(20));
}

#[test]
fn weights_of_three_to_one_give_rows_of_three_to_one() {
    let rotation = rotation(&[vm(1, 2, 1.5, 2), vm(2, 2, 0.5, 2)]);
    let rows = rows(&rotation, 8);
    let of_first = rows.iter().filter(|row| **row == [1]).count();
    assert_eq!(of_first, 6);
    assert!(rows.iter().all(|row| row.len() == 1));
}

#[test]
fn two_small_vms_share_a_row_beside_a_large_one() {
    // 4, 2 and 2 vCPUs on 4 pCPUs, due 4/3 each: a third, two thirds and two thirds of the rows.
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
fn on_fixed_seats_three_vms_do_not_fit_into_two_places() {
    // Each is due two rows of three. Whoever shares its seats with another has one of two, and without one of them nobody competes.
    // In rows 1 2, 2 3, 1 3 all would have their due, but then one of them changes seats.
    let vms = |count: u64, due: f64| (1..=count).map(|id| vm(id, 2, due, 4)).collect::<Vec<_>>();
    assert!(rotation(&vms(3, 4.0 / 3.0)).is_empty());
    assert_eq!(members(&rotation(&vms(4, 1.0))), [1, 2, 3, 4]);
    assert_eq!(members(&rotation(&vms(5, 0.8))).len(), 4, "one stays on");
    // Four places: the same up to seven.
    for (count, taking) in [(5, 0), (6, 0), (7, 0), (8, 8), (11, 8), (12, 12)] {
        let due = 16.0 / count as f64;
        let vms: Vec<Candidate> = (1..=count).map(|id| vm(id, 4, due, 16)).collect();
        assert_eq!(members(&rotation(&vms)).len(), taking, "{count} VMs");
    }
}

#[test]
fn three_vms_of_one_vcpu_roam_beside_one_of_two() {
    // Each is due half a pCPU of two: a quarter of the rows, and half of them. On fixed seats two of the small ones would have a pCPU's other
    // three quarters.
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
fn by_weights_of_two_to_one_whoever_weighs_more_has_two_rows_for_one() {
    // Of two pCPUs 2/5 is worth 0.4: the one of two vCPUs twice that, in two rows of five, and each of the others in two.
    let wide = rotation(&one_and_three([0.8, 0.4, 0.4, 0.4]));
    assert_eq!(roaming(&wide), [2, 3, 4]);
    let rows = seated_rows(&wide, 50);
    assert_eq!(had(&rows), BTreeMap::from([(1, 20), (2, 20), (3, 20), (4, 20)]));
    // One of one vCPU weighs twice as much: it is in every row but those of the wide one, which are one in five.
    let narrow = rotation(&one_and_three([0.4, 0.8, 0.4, 0.4]));
    let rows = seated_rows(&narrow, 50);
    let had = had(&rows);
    assert_eq!((had[&1], had[&2]), (10, 40));
    assert!([3, 4].iter().all(|vm| had[vm].abs_diff(20) <= 1), "{had:?}");
}

#[test]
fn two_of_two_vcpus_and_three_of_one_share_two_pcpus() {
    // Each is due 0.4: a row of five each, and two of five.
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
fn where_fixed_seats_fit_or_nothing_runs_together_nobody_roams() {
    // 2, 1 and 1 on two pCPUs: two thirds each, a third of the rows, and two thirds on a pCPU of its own.
    let third = 2.0 / 3.0;
    let vms = [vm(1, 2, third, 2), vm(2, 1, third, 2), vm(3, 1, third, 2)];
    let fits = rotation(&vms);
    assert_eq!((members(&fits), roaming(&fits)), (vec![1, 2, 3], vec![]));
    let single: Vec<Candidate> = (1..=3).map(|id| vm(id, 1, third, 2)).collect();
    assert!(rotation(&single).is_empty());
}

#[test]
fn who_is_pinned_does_not_roam() {
    let set = |list: &str| list.parse::<PcpuSet>().unwrap();
    let pinned = |id, list: &str| on(id, 1, 0.5, &set(list));
    // All pinned: nobody can give way.
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
fn who_roams_goes_on_to_while_the_members_are_the_same() {
    // 1 has weight for so much that on fixed seats 2 and 4 fit on a pCPU.
    let config = TurnsConfig::default();
    let roams = rotation(&one_and_three([0.5; 4]));
    let fits = one_and_three([0.5, 0.2, 0.75, 0.55]);
    assert_eq!(roaming(&rotation(&fits)), [0; 0]);
    let after = Rotation::after(&roams, &config, &fits);
    assert_eq!(roaming(&after), [2, 3, 4]);
    // Another set of members begins anew.
    let third = 2.0 / 3.0;
    let fewer = [vm(1, 2, third, 2), vm(2, 1, third, 2), vm(3, 1, third, 2)];
    assert_eq!(roaming(&Rotation::after(&roams, &config, &fewer)), [0; 0]);
}

#[test]
fn one_that_roams_and_falls_asleep_leaves_its_rows_to_the_others() {
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
fn in_4_4_2_2_1_on_4_the_vm_of_one_vcpu_stays_on() {
    // Each is due 0.8 pCPUs. In rows the five cannot all have that: 1 is due in 4 rows of 5, and 4 and 4 leave it 3. It stays on and
    // takes its part of every row; the others are due a quarter, a quarter, a half and a half of the rows.
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
fn a_vm_larger_than_the_host_shares_its_pcpus_evenly() {
    let rotation = rotation(&[vm(1, 4, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let mut seats: Vec<u32> = rotation.members[0].seats.values().map(|p| p.0).collect();
    seats.sort_unstable();
    assert_eq!(seats, [0, 0, 1, 1]);
    assert_eq!(rows(&rotation, 2), [[1], [2]]);
}

#[test]
fn one_that_falls_asleep_leaves_and_the_rest_goes_on() {
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
    assert!(rotation(&apart).is_empty(), "nobody to compete with");
    let single = [vm(1, 1, 0.5, 1), vm(2, 1, 0.5, 1)];
    assert!(rotation(&single).is_empty(), "nothing to run together");
}

#[test]
fn a_vm_due_a_whole_pcpu_leaves_no_turns() {
    // One vCPU due 1.0 of 2 pCPUs is always on; the other VM's two vCPUs can never run together.
    assert!(rotation(&[vm(1, 2, 1.0, 2), vm(2, 1, 1.0, 2)]).is_empty());
}

#[test]
fn pcpu_sets_that_overlap_in_part_share_what_they_can() {
    // The middle one competes with both, and these two not with each other.
    let set = |list: &str| list.parse::<PcpuSet>().unwrap();
    let rotation = rotation(&[
        on(1, 2, 1.0, &set("0-1")),
        on(2, 2, 1.0, &set("1-2")),
        on(3, 2, 1.0, &set("2-3")),
    ]);
    assert_eq!(rows(&rotation, 4), [vec![1, 3], vec![2], vec![1, 3], vec![2]]);
}

#[test]
fn who_stays_keeps_what_it_is_owed() {
    let all = rotation(&[vm(1, 2, 1.0, 2), vm(2, 2, 1.0, 2)]);
    let mut rotor = Rotor::default();
    rotor.follow(&all.members);
    assert_eq!(rotor.next_row(), [VmId(1)]);
    rotor.follow(&all.members);
    assert_eq!(rotor.next_row(), [VmId(2)]);
}

#[test]
fn who_comes_back_is_owed_what_it_was() {
    // Due every fourth row. After its row it is owed half a row less than nothing; begun anew, the fifth row would be its own.
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

/// VMs on some pCPUs, due what equal or unequal weights give them.
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

/// VMs mostly of one vCPU, of equal weight, on some pCPUs: such sets as fixed seats are too tight for.
fn mostly_small() -> impl Strategy<Value = (u32, Vec<Candidate>)> {
    (2u32..=4, 1usize..=2, 3usize..=8).prop_map(|(pcpus, wide, small)| {
        let due = f64::from(pcpus) / (wide + small) as f64;
        let vcpus = std::iter::repeat_n(2, wide).chain(std::iter::repeat_n(1, small));
        let vms = (0u64..).zip(vcpus);
        let vms = vms.map(|(id, n)| vm(id, n, due.min(f64::from(n)), pcpus));
        (pcpus, vms.collect())
    })
}

/// A host on which two VMs of two vCPUs never sleep, after enough periods of `turns`: the rotation.
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
fn a_host_without_the_idle_class_has_no_turns() {
    assert_eq!(members(&decided(Placement::Turns, |_| {}, false)), [1, 2]);
    let rotation = decided(Placement::Turns, |knobs| knobs.idle = false, false);
    assert!(rotation.is_empty(), "{rotation:?}");
}

#[test]
fn where_affinities_cannot_be_set_only_those_take_turns_who_sit_already() {
    let fixed = |knobs: &mut Knobs| knobs.affinity = false;
    assert!(decided(Placement::Turns, fixed, false).is_empty());
    assert_eq!(members(&decided(Placement::Turns, fixed, true)), [1, 2]);
    assert!(decided(Placement::Keep, |_| {}, false).is_empty());
    assert_eq!(members(&decided(Placement::Keep, |_| {}, true)), [1, 2]);
}

proptest! {
    #[test]
    fn shares_over_many_rows_are_what_is_due((_, candidates) in candidates()) {
        let rotation = rotation(&candidates);
        let count = 400;
        let had = had(&seated_rows(&rotation, count));
        for member in &rotation.members {
            let had = had.get(&member.vm.0).copied().unwrap_or(0) as f64;
            prop_assert!(had >= member.due * count as f64 * 0.96 - 2.0, "{had} of {}", member.due);
        }
    }

    #[test]
    fn a_row_has_one_vm_for_a_pcpu_and_no_pcpu_that_another_could_use(
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
                prop_assert!(!could_sit, "{other:?} beside {row:?}");
            }
        }
    }

    #[test]
    fn nobody_waits_over_two_rotations((_, candidates) in candidates()) {
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
    fn those_that_roam_have_what_is_due_in_any_stretch_of_rows(
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
            // Short by no more than the trial allows, and two rows.
            prop_assert!(had >= due * (1.0 - SHORT) - 2.0, "{had} of {due} in {rotation:?}");
        }
        for (vm, on) in rows.iter().flatten() {
            let member = rotation.member(VmId(*vm)).unwrap();
            let may = member.roams.clone().unwrap_or_else(|| member.pcpus());
            prop_assert!(on.iter().all(|pcpu| may.contains(pcpu) && pcpu.0 < pcpus));
        }
    }

    #[test]
    fn seats_are_within_what_is_allowed_and_stack_only_where_they_must(
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
