//! Turns on the simulated host: the same sequence as on a live one, and the same knob.
//!
//! At each turn the row that ends is looked at for VMs that slept, the next row leaves the idle class, the others enter it, and
//! each pCPU acts on it at its next clock tick, as a kernel does. Turns begin on time and writing costs nothing.

use tandem_policy::Nanos;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::turns::Rotation;
use tandem_policy::turns::sleep;

use crate::queue::Slot;
use crate::trace::VcpuState;

use super::rotation::Turns;
use super::simulation::World;

impl World {
    /// These VMs take turns from now on, and no others.
    pub(super) fn follow_turns(&mut self, rotation: &Rotation) {
        let was_still = self.turns.sequence.rotation().is_empty();
        for vm in self.turns.sequence.follow(rotation.clone()) {
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
        let row = turns.sequence.row().to_vec();
        let slept = row.into_iter();
        let slept = slept.filter(|vm| self.slept_in_turns(&mut turns, *vm));
        let slept = slept.collect();
        let step = turns.sequence.begin_turn(slept);
        turns.left.extend(step.left);
        for vm in step.on {
            self.set_idle(vm.0 as u32, false);
        }
        for vm in step.off {
            self.set_idle(vm.0 as u32, true);
        }
        let rotation = turns.sequence.rotation();
        if !rotation.is_empty() {
            self.queue
                .set(Slot(self.slots.turns), self.now + rotation.turn.0);
        }
        self.turns = turns;
    }

    /// Whether a VM slept since the end of its last turn.
    fn slept_in_turns(&mut self, turns: &mut Turns, vm: VmId) -> bool {
        let Some(member) = turns.sequence.rotation().member(vm) else {
            return false;
        };
        let first = self.vms[vm.0 as usize].first_vcpu;
        let turn = turns.sequence.rotation().turn;
        let mut slept = false;
        for VcpuId(index) in member.seats.keys().copied() {
            let v = first + index;
            self.sync(v);
            let vcpu = &self.vcpus[v as usize];
            let runnable = vcpu.ran_total + vcpu.waited_total;
            if let Some((then, at)) = turns.accounts.insert(v, (runnable, self.now)) {
                let elapsed = Nanos(self.now - at);
                let runnable = Nanos(runnable - then);
                slept |= match vcpu.state {
                    VcpuState::Running | VcpuState::Ready => {
                        sleep::is_sleep(turn, elapsed, runnable)
                    }
                    _ => sleep::has_dozed_off(turn, elapsed, runnable),
                };
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
