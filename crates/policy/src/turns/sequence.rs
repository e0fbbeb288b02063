//! Turn after turn: who enters the idle class, who leaves it, who changes seats, and who takes no turns any more.
//!
//! What a host that keeps the rhythm has to know between turns, whether it is live or simulated. The host looks at the VMs
//! of the row that ends ([`Sequence::row`]), says which of them slept, and applies what changes. Time, threads and cgroups are its own.
//!
//! Two invariants. A VM that is in no rotation is in no idle class on our account: who leaves the rotation leaves the idle class in the same
//! step. And a VM that slept had its turn just now, so it is out of the idle class already.
//!
//! A VM that roams has been told its seat at the latest when its turn begins. One that roams no more is not told: the host lets it run again
//! where it may.

use std::collections::{BTreeMap, BTreeSet};

use super::rotation::Rotation;
use super::rotor::Rotor;
use tandem_model::units::{PcpuId, VmId};

/// The turns of a rotation, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    rotor: Rotor,
    rotation: Rotation,
    /// Members in the idle class.
    off: BTreeSet<VmId>,
    /// Where those sit that roam, as far as steps have told.
    told: BTreeMap<VmId, PcpuId>,
}

/// What a turn changes, each in the order of the VMs' identities. To be applied in this order: for a moment the VMs of two rows
/// are on, never of none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Who slept and takes no turns any more.
    pub left: Vec<VmId>,
    /// Who roams and sits elsewhere than before.
    pub seats: Vec<(VmId, PcpuId)>,
    /// Who leaves the idle class.
    pub on: Vec<VmId>,
    /// Who enters the idle class.
    pub off: Vec<VmId>,
}

impl Sequence {
    /// These VMs take turns from now on, and no others: who leaves the idle class at once.
    pub fn follow(&mut self, rotation: Rotation) -> Vec<VmId> {
        let is_gone = |vm: &VmId| rotation.member(*vm).is_none();
        let gone: Vec<VmId> = self.off.iter().copied().filter(is_gone).collect();
        self.off.retain(|vm| !is_gone(vm));
        // Whoever begins to roam, or to do so elsewhere, is told anew.
        let roams = |rotation: &Rotation, vm: &VmId| rotation.member(*vm)?.roams.clone();
        let before = &self.rotation;
        self.told.retain(|vm, _| {
            let now = roams(&rotation, vm);
            now.is_some() && now == roams(before, vm)
        });
        self.rotor.follow(&rotation.members);
        self.rotation = rotation;
        gone
    }

    /// The next turn begins; of the row that ends these have slept.
    pub fn begin_turn(&mut self, slept: Vec<VmId>) -> Step {
        for vm in &slept {
            self.rotor.leave(*vm);
            self.told.remove(vm);
        }
        self.rotation.members.retain(|member| !slept.contains(&member.vm));
        self.rotor.next_row();
        let mut step = self.standing();
        step.on.retain(|vm| self.off.remove(vm));
        step.off.retain(|vm| self.off.insert(*vm));
        step.seats.retain(|(vm, pcpu)| self.told.insert(*vm, *pcpu) != Some(*pcpu));
        step.left = slept;
        step
    }

    /// What is to be in force: a step that leaves nothing to what was before.
    pub fn standing(&self) -> Step {
        let row = self.rotor.row();
        let members = self.rotation.members.iter().map(|member| member.vm);
        let (on, off): (Vec<VmId>, Vec<VmId>) = members.clone().partition(|vm| row.contains(vm));
        let seats = members.filter_map(|vm| Some((vm, self.rotor.seat(vm)?)));
        Step { left: Vec::new(), seats: seats.collect(), on, off }
    }

    /// Nobody takes turns any more: who leaves the idle class.
    pub fn end(&mut self) -> Vec<VmId> {
        self.follow(Rotation::default())
    }

    /// Who takes turns.
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// The VMs whose turn it is.
    pub fn row(&self) -> &[VmId] {
        self.rotor.row()
    }

    /// Whether a VM is in the idle class because others have their turn.
    pub fn is_off(&self, vm: VmId) -> bool {
        self.off.contains(&vm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::Member;
    use tandem_model::units::{Nanos, PcpuId, VcpuId};

    const NOBODY: [VmId; 0] = [];

    /// Members by (VM, its pCPUs, the part of all rows that it is due).
    fn rotation<const N: usize>(members: [(u64, &[u32], f64); N]) -> Rotation {
        let member = |(vm, pcpus, due): (u64, &[u32], f64)| Member {
            vm: VmId(vm),
            seats: (0u32..).zip(pcpus).map(|(n, &pcpu)| (VcpuId(n), PcpuId(pcpu))).collect(),
            roams: None,
            due,
        };
        Rotation {
            turn: Nanos::from_millis(20),
            members: members.into_iter().map(member).collect(),
        }
    }

    fn step(left: &[u64], on: &[u64], off: &[u64]) -> Step {
        let vms = |ids: &[u64]| ids.iter().copied().map(VmId).collect();
        Step { left: vms(left), on: vms(on), off: vms(off), ..Step::default() }
    }

    /// Two VMs on the same two pCPUs.
    fn two() -> Rotation {
        rotation([(1, &[0, 1], 0.5), (2, &[0, 1], 0.5)])
    }

    /// Three VMs on the same two pCPUs.
    fn three() -> Rotation {
        let third = 1.0 / 3.0;
        rotation([(1, &[0, 1], third), (2, &[0, 1], third), (3, &[0, 1], third)])
    }

    #[test]
    fn two_vms_change_places() {
        let mut turns = Sequence::default();
        assert_eq!(turns.follow(two()), NOBODY);
        assert_eq!(turns.row(), NOBODY, "before the first turn nobody was on");
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[], &[2]));
        assert_eq!(turns.row(), [VmId(1)]);
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2], &[1]));
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[1], &[2]));
        assert!(turns.is_off(VmId(2)) && !turns.is_off(VmId(1)));
    }

    #[test]
    fn a_vm_with_three_turns_in_a_row_is_written_once() {
        let mut turns = Sequence::default();
        turns.follow(rotation([(1, &[0, 1], 0.75), (2, &[0, 1], 0.25)]));
        let steps: Vec<Step> = (0..5).map(|_| turns.begin_turn(Vec::new())).collect();
        let unchanged = Step::default();
        assert_eq!(
            steps,
            [
                step(&[], &[], &[2]),
                step(&[], &[2], &[1]),
                step(&[], &[1], &[2]),
                unchanged.clone(),
                unchanged,
            ]
        );
        assert_eq!(turns.standing(), step(&[], &[1], &[2]), "all of it, if need be");
    }

    #[test]
    fn who_slept_leaves_and_stays_out_of_the_idle_class() {
        let mut turns = Sequence::default();
        turns.follow(three());
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[], &[2, 3]));
        assert_eq!(turns.begin_turn(vec![VmId(1)]), step(&[1], &[2], &[]));
        let left: Vec<u64> = turns.rotation().members.iter().map(|m| m.vm.0).collect();
        assert_eq!(left, [2, 3]);
        assert!(!turns.is_off(VmId(1)));
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[3], &[2]));
    }

    #[test]
    fn the_last_that_sleep_leave_nobody_in_the_idle_class() {
        let mut turns = Sequence::default();
        turns.follow(two());
        turns.begin_turn(Vec::new());
        assert_eq!(turns.begin_turn(vec![VmId(1)]), step(&[1], &[2], &[]));
        assert_eq!(turns.begin_turn(vec![VmId(2)]), step(&[2], &[], &[]));
        assert!(turns.rotation().is_empty());
        assert_eq!(turns.begin_turn(Vec::new()), Step::default());
    }

    #[test]
    fn who_leaves_the_rotation_leaves_the_idle_class_at_once() {
        let mut turns = Sequence::default();
        turns.follow(three());
        turns.begin_turn(Vec::new());
        assert_eq!(turns.follow(two()), [VmId(3)]);
        assert!(turns.is_off(VmId(2)), "it waits for its turn as before");
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2], &[1]));
        assert_eq!(turns.end(), [VmId(1)]);
        assert_eq!(turns.end(), NOBODY);
        assert_eq!(turns.standing(), Step::default());
    }

    #[test]
    fn whose_turn_it_is_changes_nothing_when_it_leaves_the_rotation() {
        let mut turns = Sequence::default();
        turns.follow(three());
        turns.begin_turn(Vec::new());
        let third = 1.0 / 3.0;
        let others = rotation([(2, &[0, 1], third), (3, &[0, 1], third)]);
        assert_eq!(turns.follow(others), NOBODY, "it is on already");
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2], &[]));
    }

    #[test]
    fn vms_side_by_side_are_on_together() {
        let mut turns = Sequence::default();
        turns.follow(rotation([
            (1, &[0, 1, 2, 3], 1.0 / 3.0),
            (2, &[0, 1], 2.0 / 3.0),
            (3, &[2, 3], 2.0 / 3.0),
        ]));
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[], &[1]));
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[1], &[2, 3]));
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2, 3], &[1]));
    }

    /// One of two vCPUs and three of one that roam, each due half a pCPU of two.
    fn one_and_three() -> Rotation {
        let mut rotation =
            rotation([(1, &[0, 1], 0.25), (2, &[0], 0.5), (3, &[1], 0.5), (4, &[0], 0.5)]);
        for member in &mut rotation.members[1..] {
            member.roams = Some("0-1".parse().unwrap());
        }
        rotation
    }

    /// (Who is on, who changes seats) as a turn begins.
    fn turn(turns: &mut Sequence, slept: Vec<VmId>) -> (Vec<u64>, Vec<(u64, u32)>) {
        let seats = turns.begin_turn(slept).seats.into_iter();
        let seats = seats.map(|(vm, pcpu)| (vm.0, pcpu.0)).collect();
        (turns.row().iter().map(|vm| vm.0).collect(), seats)
    }

    #[test]
    fn who_roams_changes_seats_only_where_two_sat_on_the_same() {
        let mut turns = Sequence::default();
        turns.follow(one_and_three());
        let steps: Vec<_> = (0..9).map(|_| turn(&mut turns, Vec::new())).collect();
        let alone = || (vec![1], vec![]);
        assert_eq!(
            steps,
            [
                (vec![2, 3], vec![(2, 0), (3, 1), (4, 0)]),
                (vec![2, 4], vec![(2, 1)]),
                alone(),
                (vec![3, 4], vec![]),
                (vec![2, 3], vec![(3, 0)]),
                (vec![2, 4], vec![]),
                alone(),
                (vec![3, 4], vec![(4, 1)]),
                (vec![2, 3], vec![]),
            ]
        );
        assert_eq!(
            turns.standing().seats,
            [(2, 1), (3, 0), (4, 1)].map(|(vm, pcpu)| (VmId(vm), PcpuId(pcpu)))
        );
    }

    #[test]
    fn who_roams_and_falls_asleep_leaves_the_others_their_seats() {
        let mut turns = Sequence::default();
        turns.follow(one_and_three());
        turn(&mut turns, Vec::new());
        let step = turns.begin_turn(vec![VmId(2)]);
        assert_eq!(step.left, [VmId(2)]);
        assert!(step.seats.iter().all(|(vm, _)| *vm != VmId(2)), "{step:?}");
        assert_eq!(turns.row(), [VmId(3), VmId(4)], "on 1 and 0, as before");
        assert_eq!(step.seats, []);
        // Awake again, it is told its seat again.
        turns.follow(one_and_three());
        let told: Vec<u64> =
            (0..2).flat_map(|_| turn(&mut turns, Vec::new()).1).map(|(vm, _)| vm).collect();
        assert!(told.contains(&2), "{told:?}");
    }

    #[test]
    fn who_roams_no_more_is_forgotten() {
        let mut turns = Sequence::default();
        turns.follow(one_and_three());
        turn(&mut turns, Vec::new());
        turns.follow(three());
        assert_eq!(turn(&mut turns, Vec::new()).1, []);
        turns.follow(one_and_three());
        assert_eq!(turn(&mut turns, Vec::new()).1.len(), 3);
        // One may sit elsewhere, too.
        let mut wider = one_and_three();
        wider.members[3].roams = Some("0-2".parse().unwrap());
        turns.follow(wider);
        let seats = turn(&mut turns, Vec::new()).1;
        assert!(seats.iter().any(|(vm, _)| *vm == 4), "{seats:?}");
    }
}
