//! Turns on the simulated host: the same rotor as on a live one, and the same knob.
//!
//! At each turn the row that ends is looked at for VMs that slept, the next row leaves the idle class, the others enter it, and
//! each pCPU acts on it at its next clock tick, as a kernel does. Turns begin on time and writing costs nothing.

use std::collections::BTreeSet;

use tandem_policy::Nanos;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::turns::Rotation;
use tandem_policy::turns::Rotor;

use crate::queue::Slot;

use super::rotation::Turns;
use super::simulation::World;

impl World {
    /// These VMs take turns from now on, and no others.
    pub(super) fn follow_turns(&mut self, rotation: &Rotation) {
        let was_still = self.turns.rotor.is_empty();
        let off = self.turns.off.iter();
        let gone: Vec<VmId> = off
            .filter(|vm| rotation.member(**vm).is_none())
            .copied()
            .collect();
        for vm in gone {
            self.turns.off.remove(&vm);
            self.set_idle(vm.0 as u32, false);
        }
        // What a VM did while it took no turns says nothing about whether it sleeps in them.
        let vms = &self.vms;
        self.turns.accounts.retain(|v, _| {
            rotation.members.iter().any(|member| {
                let vm = &vms[member.vm.0 as usize];
                (vm.first_vcpu..vm.first_vcpu + vm.vcpus).contains(v)
            })
        });
        self.turns.rotor.follow(&rotation.members);
        self.turns.rotation.clone_from(rotation);
        let slot = Slot(self.slots.turns);
        match (rotation.is_empty(), was_still) {
            (true, _) => self.queue.cancel(slot),
            (false, true) => self.queue.set(slot, self.now),
            (false, false) => {}
        }
    }

    /// A turn begins.
    pub(crate) fn turn(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        for vm in turns.rotor.row().to_vec() {
            if self.slept_in_turns(&mut turns, vm) {
                turns.rotor.leave(vm);
                turns.rotation.members.retain(|member| member.vm != vm);
                turns.left.insert(vm);
            }
        }
        let row: BTreeSet<VmId> = turns.rotor.next_row().iter().copied().collect();
        for member in &turns.rotation.members {
            let is_on = row.contains(&member.vm);
            let changes = match is_on {
                true => turns.off.remove(&member.vm),
                false => turns.off.insert(member.vm),
            };
            if changes {
                self.set_idle(member.vm.0 as u32, !is_on);
            }
        }
        let next = self.now + turns.rotation.turn.0;
        if !turns.rotor.is_empty() {
            self.queue.set(Slot(self.slots.turns), next);
        }
        self.turns = turns;
    }

    /// Whether a VM slept since the end of its last turn.
    fn slept_in_turns(&mut self, turns: &mut Turns, vm: VmId) -> bool {
        let Some(member) = turns.rotation.member(vm) else {
            return false;
        };
        let first = self.vms[vm.0 as usize].first_vcpu;
        let mut slept = false;
        for VcpuId(index) in member.seats.keys().copied() {
            let v = first + index;
            self.sync(v);
            let vcpu = &self.vcpus[v as usize];
            let runnable = vcpu.ran_total + vcpu.waited_total;
            if let Some((then, at)) = turns.accounts.insert(v, (runnable, self.now)) {
                let elapsed = Nanos(self.now - at);
                slept |= Rotor::is_sleep(turns.rotation.turn, elapsed, Nanos(runnable - then));
            }
        }
        if slept {
            for VcpuId(index) in member.seats.keys() {
                turns.accounts.remove(&(first + index));
            }
        }
        slept
    }
}
