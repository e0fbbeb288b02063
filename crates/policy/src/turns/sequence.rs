//! Sequence of turns: the changes of idle class, slots and members at each turn.
//!
//! A live or simulated host drives it from turn to turn.
//! It checks the VMs of the row that ends ([`Sequence::row`]), passes those that slept, and applies the returned step.
//! Time, threads and cgroups stay with the host.
//!
//! Two invariants. A VM outside the rotation is never in the idle class on our account: it leaves
//! both in the same step.
//! A VM that slept had its turn just now, so it is already out of the idle class.
//!
//! A step reports the slot of a roaming VM at the latest when its turn begins.
//! It does not report that a VM stops roaming: the host restores its affinity.

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
    /// Slots of roaming members, as reported by steps.
    reported: BTreeMap<VmId, PcpuId>,
}

/// Changes of a turn, each list sorted by VM.
/// Applied in this order, the VMs of two rows are active for a moment, and never of none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// VMs that slept and leave the rotation.
    pub left: Vec<VmId>,
    /// Roaming VMs with a new slot.
    pub seats: Vec<(VmId, PcpuId)>,
    /// VMs that leave the idle class.
    pub on: Vec<VmId>,
    /// VMs that enter the idle class.
    pub off: Vec<VmId>,
}

impl Sequence {
    /// Replaces the rotation; returns the VMs that leave the idle class at once.
    pub fn follow(&mut self, rotation: Rotation) -> Vec<VmId> {
        let is_gone = |vm: &VmId| rotation.member(*vm).is_none();
        let gone: Vec<VmId> = self.off.iter().copied().filter(is_gone).collect();
        self.off.retain(|vm| !is_gone(vm));
        // A VM that begins to roam, or roams over other pCPUs, is reported again.
        let roams = |rotation: &Rotation, vm: &VmId| rotation.member(*vm)?.roams.clone();
        let before = &self.rotation;
        self.reported.retain(|vm, _| {
            let now = roams(&rotation, vm);
            now.is_some() && now == roams(before, vm)
        });
        self.rotor.follow(&rotation.members);
        self.rotation = rotation;
        gone
    }

    /// Begins the next turn; `slept` are the VMs of the ending row that slept.
    pub fn begin_turn(&mut self, slept: Vec<VmId>) -> Step {
        for vm in &slept {
            self.rotor.leave(*vm);
            self.reported.remove(vm);
        }
        self.rotation.members.retain(|member| !slept.contains(&member.vm));
        self.rotor.next_row();
        let mut step = self.standing();
        step.on.retain(|vm| self.off.remove(vm));
        step.off.retain(|vm| self.off.insert(*vm));
        step.seats.retain(|(vm, pcpu)| self.reported.insert(*vm, *pcpu) != Some(*pcpu));
        step.left = slept;
        step
    }

    /// Returns the complete desired state, as a step that does not depend on the state before.
    pub fn standing(&self) -> Step {
        let row = self.rotor.row();
        let members = self.rotation.members.iter().map(|member| member.vm);
        let (on, off): (Vec<VmId>, Vec<VmId>) = members.clone().partition(|vm| row.contains(vm));
        let seats = members.filter_map(|vm| Some((vm, self.rotor.seat(vm)?)));
        Step { left: Vec::new(), seats: seats.collect(), on, off }
    }

    /// Ends the rotation; returns the VMs that leave the idle class.
    pub fn end(&mut self) -> Vec<VmId> {
        self.follow(Rotation::default())
    }

    /// Returns the rotation.
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// The VMs of the current row.
    pub fn row(&self) -> &[VmId] {
        self.rotor.row()
    }

    /// Whether a VM is in the idle class because it is another row's turn.
    pub fn is_off(&self, vm: VmId) -> bool {
        self.off.contains(&vm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::Member;
    use tandem_model::units::{Nanos, PcpuId, VcpuId};

    const NO_VMS: [VmId; 0] = [];

    /// Members by (VM, its pCPUs, its share of all rows).
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
    fn two_vms_alternate() {
        let mut turns = Sequence::default();
        assert_eq!(turns.follow(two()), NO_VMS);
        assert_eq!(turns.row(), NO_VMS, "no row before the first turn");
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[], &[2]));
        assert_eq!(turns.row(), [VmId(1)]);
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2], &[1]));
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[1], &[2]));
        assert!(turns.is_off(VmId(2)) && !turns.is_off(VmId(1)));
    }

    #[test]
    fn consecutive_turns_change_nothing() {
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
        assert_eq!(turns.standing(), step(&[], &[1], &[2]), "the complete state");
    }

    #[test]
    fn sleeping_vm_leaves_rotation_and_idle_class() {
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
    fn last_sleepers_leave_idle_class_empty() {
        let mut turns = Sequence::default();
        turns.follow(two());
        turns.begin_turn(Vec::new());
        assert_eq!(turns.begin_turn(vec![VmId(1)]), step(&[1], &[2], &[]));
        assert_eq!(turns.begin_turn(vec![VmId(2)]), step(&[2], &[], &[]));
        assert!(turns.rotation().is_empty());
        assert_eq!(turns.begin_turn(Vec::new()), Step::default());
    }

    #[test]
    fn removed_vm_leaves_idle_class_at_once() {
        let mut turns = Sequence::default();
        turns.follow(three());
        turns.begin_turn(Vec::new());
        assert_eq!(turns.follow(two()), [VmId(3)]);
        assert!(turns.is_off(VmId(2)), "it waits for its turn as before");
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2], &[1]));
        assert_eq!(turns.end(), [VmId(1)]);
        assert_eq!(turns.end(), NO_VMS);
        assert_eq!(turns.standing(), Step::default());
    }

    #[test]
    fn removed_vm_of_current_row_changes_nothing() {
        let mut turns = Sequence::default();
        turns.follow(three());
        turns.begin_turn(Vec::new());
        let third = 1.0 / 3.0;
        let others = rotation([(2, &[0, 1], third), (3, &[0, 1], third)]);
        assert_eq!(turns.follow(others), NO_VMS, "it is on already");
        assert_eq!(turns.begin_turn(Vec::new()), step(&[], &[2], &[]));
    }

    #[test]
    fn vms_on_different_pcpus_share_rows() {
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

    /// A VM of two vCPUs and three roaming VMs of one, each with a fair share of half a pCPU of two.
    fn one_and_three() -> Rotation {
        let mut rotation =
            rotation([(1, &[0, 1], 0.25), (2, &[0], 0.5), (3, &[1], 0.5), (4, &[0], 0.5)]);
        for member in &mut rotation.members[1..] {
            member.roams = Some("0-1".parse().unwrap());
        }
        rotation
    }

    /// Begins a turn; returns (VMs of the row, changes of slots).
    fn turn(turns: &mut Sequence, slept: Vec<VmId>) -> (Vec<u64>, Vec<(u64, u32)>) {
        let seats = turns.begin_turn(slept).seats.into_iter();
        let seats = seats.map(|(vm, pcpu)| (vm.0, pcpu.0)).collect();
        (turns.row().iter().map(|vm| vm.0).collect(), seats)
    }

    #[test]
    fn roaming_vm_moves_only_on_conflict() {
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
    fn sleeping_roaming_vm_moves_no_other() {
        let mut turns = Sequence::default();
        turns.follow(one_and_three());
        turn(&mut turns, Vec::new());
        let step = turns.begin_turn(vec![VmId(2)]);
        assert_eq!(step.left, [VmId(2)]);
        assert!(step.seats.iter().all(|(vm, _)| *vm != VmId(2)), "{step:?}");
        assert_eq!(turns.row(), [VmId(3), VmId(4)], "on 1 and 0, as before");
        assert_eq!(step.seats, []);
        // Awake again, its slot is reported again.
        turns.follow(one_and_three());
        let reported: Vec<u64> =
            (0..2).flat_map(|_| turn(&mut turns, Vec::new()).1).map(|(vm, _)| vm).collect();
        assert!(reported.contains(&2), "{reported:?}");
    }

    #[test]
    fn vm_that_stops_roaming_is_forgotten() {
        let mut turns = Sequence::default();
        turns.follow(one_and_three());
        turn(&mut turns, Vec::new());
        turns.follow(three());
        assert_eq!(turn(&mut turns, Vec::new()).1, []);
        turns.follow(one_and_three());
        assert_eq!(turn(&mut turns, Vec::new()).1.len(), 3);
        // A wider set of pCPUs is reported, too.
        let mut wider = one_and_three();
        wider.members[3].roams = Some("0-2".parse().unwrap());
        turns.follow(wider);
        let seats = turn(&mut turns, Vec::new()).1;
        assert!(seats.iter().any(|(vm, _)| *vm == 4), "{seats:?}");
    }
}
