//! Sequence of turns: the changes of idle class and pCPUs at each boundary between slots.
//!
//! A live or simulated host drives it from boundary to boundary.
//! It checks the VMs whose slots end for sleep, passes those that slept, and applies the returned step.
//! Time, threads and cgroups stay with the host.
//!
//! Two invariants. A VM outside the rotation is never in the idle class on our account: it leaves
//! both in the same step.
//! A VM that slept had its turn just now, so it is already out of the idle class.

use std::collections::{BTreeMap, BTreeSet};

use super::rotation::Rotation;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// The turns of a rotation, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    rotation: Rotation,
    /// Time in the rotation at which the next turn begins.
    next: Nanos,
    /// Members in their slots, sorted.
    row: Vec<VmId>,
    /// Members in the idle class.
    off: BTreeSet<VmId>,
    /// pCPUs of the members in their slots, as reported by steps.
    reported: BTreeMap<VmId, BTreeMap<VcpuId, PcpuId>>,
}

/// Changes of a turn, each list sorted by VM.
/// Applied in this order, the VMs of two turns are active for a moment, and never of none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// VMs that slept and leave the rotation.
    pub left: Vec<VmId>,
    /// VMs that leave the idle class or change pCPUs, and the pCPUs of their vCPUs.
    pub on: Vec<(VmId, BTreeMap<VcpuId, PcpuId>)>,
    /// VMs that enter the idle class.
    /// [`Step::frees`] tells whether their vCPUs may leave the pCPUs of the slot.
    pub off: Vec<VmId>,
    /// Whether vCPUs of VMs in the idle class may run on all of their pCPUs.
    pub frees: bool,
}

impl Sequence {
    /// Replaces the rotation; returns the VMs that leave the idle class at once.
    pub fn follow(&mut self, rotation: Rotation) -> Vec<VmId> {
        let is_gone = |vm: &VmId| rotation.member(*vm).is_none();
        let gone: Vec<VmId> = self.off.iter().copied().filter(is_gone).collect();
        self.off.retain(|vm| !is_gone(vm));
        self.row.retain(|vm| !is_gone(vm));
        self.reported.retain(|vm, _| !is_gone(vm));
        if self.rotation.length != rotation.length {
            // It goes on at the same fraction.
            let (next, before) = (u128::from(self.next.0), u128::from(self.rotation.length.0));
            let next = next * u128::from(rotation.length.0) / before.max(1);
            self.next = Nanos(next as u64);
        }
        self.rotation = rotation;
        gone
    }

    /// Begins the next turn; `slept` are the VMs that slept in the ending one.
    /// Returns its length as well.
    pub fn begin_turn(&mut self, slept: Vec<VmId>) -> (Step, Nanos) {
        self.rotation.members.retain(|member| !slept.contains(&member.vm));
        let at = if self.next < self.rotation.length { self.next } else { Nanos::ZERO };
        self.next = self.rotation.next_boundary(at);
        let mut step = self.state_at(at);
        self.reported.retain(|vm, _| !slept.contains(vm) && !step.off.contains(vm));
        step.on.retain(|(vm, pcpus)| {
            let was_off = self.off.remove(vm);
            self.reported.insert(*vm, pcpus.clone()).as_ref() != Some(pcpus) || was_off
        });
        step.off.retain(|vm| self.off.insert(*vm));
        let members = self.rotation.members.iter().map(|member| member.vm);
        self.row = members.filter(|vm| !self.off.contains(vm)).collect();
        step.left = slept;
        (step, self.next - at)
    }

    fn state_at(&self, time: Nanos) -> Step {
        let mut step = Step { frees: self.rotation.next_to_residents, ..Step::default() };
        for member in &self.rotation.members {
            match member.slot_at(time) {
                Some(slot) => step.on.push((member.vm, slot.pcpus.clone())),
                None => step.off.push(member.vm),
            }
        }
        step
    }

    /// Returns the complete desired state, as a step that does not depend on the state before.
    pub fn standing(&self) -> Step {
        // The current turn ends at `next`.
        self.state_at(Nanos(self.next.0.saturating_sub(1)))
    }

    /// Ends the rotation; returns the VMs that leave the idle class.
    pub fn end(&mut self) -> Vec<VmId> {
        self.follow(Rotation::default())
    }

    /// Returns the rotation.
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// The VMs in their slots, sorted.
    pub fn row(&self) -> &[VmId] {
        &self.row
    }

    /// The VMs whose slots end with the current turn.
    pub fn ending(&self) -> Vec<VmId> {
        let ends = |vm: &&VmId| {
            let member = self.rotation.member(**vm);
            member.is_some_and(|member| member.slots.iter().any(|slot| slot.to == self.next))
        };
        self.row.iter().filter(ends).copied().collect()
    }

    /// Whether a VM is in the idle class because it is another's turn.
    pub fn is_off(&self, vm: VmId) -> bool {
        self.off.contains(&vm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::{Member, Slot};

    /// A VM, and its slots as (begin, end, pCPUs) in ms.
    type Vm<'a> = (u64, &'a [(u64, u64, &'a [u32])]);

    /// A rotation of 60 ms.
    fn rotation<const N: usize>(vms: [Vm<'_>; N]) -> Rotation {
        let slot = |(from, to, pcpus): &(u64, u64, &[u32])| Slot {
            from: Nanos::from_millis(*from),
            to: Nanos::from_millis(*to),
            pcpus: (0u32..).map(VcpuId).zip(pcpus.iter().copied().map(PcpuId)).collect(),
        };
        let member = |(vm, slots): Vm<'_>| Member {
            vm: VmId(vm),
            slots: slots.iter().map(slot).collect(),
            moves: true,
        };
        let members = vms.into_iter().map(member).collect();
        Rotation { length: Nanos::from_millis(60), members, next_to_residents: true }
    }

    /// Begins a turn: VMs that left, VMs on with their pCPUs, VMs off, length in ms.
    fn turn(turns: &mut Sequence, slept: &[u64]) -> String {
        let (step, length) = turns.begin_turn(slept.iter().copied().map(VmId).collect());
        let pcpus = |slot: BTreeMap<VcpuId, PcpuId>| {
            slot.into_values().map(|pcpu| pcpu.0.to_string()).collect::<Vec<_>>().join(",")
        };
        let left = step.left.iter().map(|vm| format!("{vm} left"));
        let on = step.on.into_iter().map(|(vm, slot)| format!("{vm} on {}", pcpus(slot)));
        let off = step.off.iter().map(|vm| format!("{vm} off"));
        let changes: Vec<String> = left.chain(on).chain(off).collect();
        format!("{} ms: {}", length.0 / 1_000_000, changes.join(", "))
    }

    fn two() -> Rotation {
        rotation([(1, &[(0, 40, &[0, 1])]), (2, &[(40, 60, &[0, 1])])])
    }

    /// Three VMs of two vCPUs on four pCPUs; VM 2 is split.
    fn split() -> Rotation {
        rotation([
            (1, &[(0, 40, &[0, 1])]),
            (2, &[(40, 60, &[0, 1]), (0, 20, &[2, 3])]),
            (3, &[(20, 60, &[2, 3])]),
        ])
    }

    #[test]
    fn vms_alternate_for_their_parts() {
        let mut turns = Sequence::default();
        assert_eq!(turns.follow(two()), []);
        assert_eq!(turns.row(), [], "no turn has begun");
        assert_eq!(turn(&mut turns, &[]), "40 ms: 1 on 0,1, 2 off");
        assert_eq!((turns.row(), turns.ending()), (&[VmId(1)][..], vec![VmId(1)]));
        assert_eq!(turn(&mut turns, &[]), "20 ms: 2 on 0,1, 1 off");
        assert_eq!(turn(&mut turns, &[]), "40 ms: 1 on 0,1, 2 off");
        assert!(turns.is_off(VmId(2)) && !turns.is_off(VmId(1)));
    }

    #[test]
    fn split_vm_changes_pcpus_once_per_rotation() {
        let mut turns = Sequence::default();
        turns.follow(split());
        assert_eq!(turn(&mut turns, &[]), "20 ms: 1 on 0,1, 2 on 2,3, 3 off");
        assert_eq!(turns.ending(), [VmId(2)]);
        assert_eq!(turn(&mut turns, &[]), "20 ms: 3 on 2,3, 2 off");
        assert_eq!(turn(&mut turns, &[]), "20 ms: 2 on 0,1, 1 off");
        // Its first slot follows its last one: it only moves.
        assert_eq!(turn(&mut turns, &[]), "20 ms: 1 on 0,1, 2 on 2,3, 3 off");
        let standing = turns.standing();
        assert_eq!((standing.on.len(), standing.off), (2, vec![VmId(3)]));
    }

    #[test]
    fn sleeping_vm_leaves_rotation_and_idle_class() {
        let mut turns = Sequence::default();
        turns.follow(split());
        turn(&mut turns, &[]);
        assert_eq!(turn(&mut turns, &[2]), "20 ms: 2 left, 3 on 2,3");
        let left: Vec<u64> = turns.rotation().members.iter().map(|m| m.vm.0).collect();
        assert_eq!(left, [1, 3]);
        assert!(!turns.is_off(VmId(2)));
    }

    #[test]
    fn removed_vm_leaves_idle_class_at_once() {
        let mut turns = Sequence::default();
        turns.follow(split());
        turn(&mut turns, &[]);
        assert_eq!(turns.follow(two()), [VmId(3)]);
        assert_eq!(turns.row(), [VmId(1), VmId(2)]);
        assert_eq!(turn(&mut turns, &[]), "20 ms: 2 off");
        assert_eq!(turn(&mut turns, &[]), "20 ms: 2 on 0,1, 1 off");
        assert_eq!(turns.end(), [VmId(1)]);
        assert_eq!(turns.end(), []);
        assert_eq!(turns.standing(), Step::default());
    }

    #[test]
    fn longer_rotation_goes_on_at_same_fraction() {
        let mut turns = Sequence::default();
        turns.follow(two());
        turn(&mut turns, &[]);
        let mut longer = rotation([(1, &[(0, 80, &[0, 1])]), (2, &[(80, 120, &[0, 1])])]);
        longer.length = Nanos::from_millis(120);
        turns.follow(longer);
        assert_eq!(turn(&mut turns, &[]), "40 ms: 2 on 0,1, 1 off");
    }
}
