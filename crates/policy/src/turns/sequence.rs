//! Turn after turn: who enters the idle class, who leaves it, and who takes no turns any more.
//!
//! What a host that keeps the rhythm has to know between turns, whether it is live or simulated. The host looks at the VMs
//! of the row that ends ([`Sequence::row`]), says which of them slept, and applies what changes. Time, threads and cgroups are its own.
//!
//! Two invariants. A VM that is in no rotation is in no idle class on our account: who leaves the rotation leaves the idle class in the same
//! step. And a VM that slept had its turn just now, so it is out of the idle class already.

use std::collections::BTreeSet;

use super::rotation::Rotation;
use super::rotor::Rotor;
use crate::units::VmId;

/// The turns of a rotation, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    rotor: Rotor,
    rotation: Rotation,
    /// Members in the idle class.
    off: BTreeSet<VmId>,
}

/// What a turn changes, each in the order of the VMs' identities. To be applied in this order: for a moment the VMs of two rows
/// are on, never of none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Who slept and takes no turns any more.
    pub left: Vec<VmId>,
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
        self.rotor.follow(&rotation.members);
        self.rotation = rotation;
        gone
    }

    /// The next turn begins; of the row that ends these have slept.
    pub fn begin_turn(&mut self, slept: Vec<VmId>) -> Step {
        for vm in &slept {
            self.rotor.leave(*vm);
        }
        self.rotation
            .members
            .retain(|member| !slept.contains(&member.vm));
        self.rotor.next_row();
        let mut step = self.standing();
        step.on.retain(|vm| self.off.remove(vm));
        step.off.retain(|vm| self.off.insert(*vm));
        step.left = slept;
        step
    }

    /// What is to be in force: a step that leaves nothing to what was before.
    pub fn standing(&self) -> Step {
        let row = self.rotor.row();
        let members = self.rotation.members.iter().map(|member| member.vm);
        let (on, off) = members.partition(|vm| row.contains(vm));
        Step {
            left: Vec::new(),
            on,
            off,
        }
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
    use crate::units::Nanos;
    use crate::units::PcpuId;
    use crate::units::VcpuId;

    const NOBODY: [VmId; 0] = [];

    /// Members by (VM, its pCPUs, the part of all rows that it is due).
    fn rotation<const N: usize>(members: [(u64, &[u32], f64); N]) -> Rotation {
        let member = |(vm, pcpus, due): (u64, &[u32], f64)| Member {
            vm: VmId(vm),
            seats: (0u32..)
                .zip(pcpus)
                .map(|(n, &pcpu)| (VcpuId(n), PcpuId(pcpu)))
                .collect(),
            due,
        };
        Rotation {
            turn: Nanos::from_millis(20),
            members: members.into_iter().map(member).collect(),
        }
    }

    fn step(left: &[u64], on: &[u64], off: &[u64]) -> Step {
        let vms = |ids: &[u64]| ids.iter().copied().map(VmId).collect();
        Step {
            left: vms(left),
            on: vms(on),
            off: vms(off),
        }
    }

    /// Two VMs on the same two pCPUs.
    fn two() -> Rotation {
        rotation([(1, &[0, 1], 0.5), (2, &[0, 1], 0.5)])
    }

    /// Three VMs on the same two pCPUs.
    fn three() -> Rotation {
        let third = 1.0 / 3.0;
        rotation([
            (1, &[0, 1], third),
            (2, &[0, 1], third),
            (3, &[0, 1], third),
        ])
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
        assert_eq!(
            turns.standing(),
            step(&[], &[1], &[2]),
            "all of it, if need be"
        );
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
}
