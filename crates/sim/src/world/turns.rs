//! Turns on the simulated host: the same sequence as on a live host, and the same knobs.
//!
//! At each turn, the host checks the VMs of the ending row for sleep.
//! The next row leaves the idle class, and the other VMs enter it.
//! Each pCPU follows at its next clock tick, as a kernel does.
//! Turns start on time, and writing the settings costs nothing.

use std::collections::BTreeSet;

use tandem_model::{Nanos, VcpuId, VmId};
use tandem_policy::turns::{Member, Rotation, sleep};
use tandem_policy::vm_cpu::VcpuCpu;

use crate::trace::VcpuState;

use super::calendar::Event;
use super::policy_host::Group;
use super::rotation::Turns;
use super::simulation::World;

impl World {
    /// Follows a new rotation: its members take turns, and no other VMs.
    pub(super) fn follow_turns(&mut self, rotation: &Rotation) {
        let was_still = self.turns.sequence.rotation().is_empty();
        for vm in self.turns.sequence.follow(rotation.clone()) {
            self.set_vm_idle(vm.0 as u32, false);
        }
        for vm in 0..self.vms.len() {
            match rotation.member(VmId(vm as u64)) {
                Some(member) => self.join_rotation(vm as u32, member),
                None => self.leave_rotation(vm as u32),
            }
        }
        self.follow_roaming(rotation);
        // Activity outside the rotation tells nothing about sleep within it.
        let vms = &self.vms;
        self.turns.accounts.retain(|v, _| {
            rotation.members.iter().any(|member| {
                let vm = &vms[member.vm.0 as usize];
                (vm.first_vcpu..vm.first_vcpu + vm.vcpus).contains(v)
            })
        });
        match (rotation.is_empty(), was_still) {
            (true, _) => self.calendar.cancel(Event::Turn, 0),
            (false, true) => self.calendar.set(Event::Turn, 0, self.now),
            (false, false) => {}
        }
    }

    /// Lets a VM take turns, at its current weight.
    fn join_rotation(&mut self, vm: u32, member: &Member) {
        let mut cpu = self.policies.take(vm);
        // No knob of the simulated host refuses a change.
        let _ = cpu.prepare_turns(member, self);
        cpu.on_turns();
        let weight = cpu.weight();
        self.policies.cpu[vm as usize] = cpu;
        if weight.value() != self.weights[vm as usize] {
            self.set_vm_weight(vm, weight);
        }
    }

    /// Records that a VM takes no turns any more; it leaves them at its current weight.
    fn leave_rotation(&mut self, vm: u32) {
        let cpu = &mut self.policies.cpu[vm as usize];
        if cpu.takes_turns() {
            let weight = cpu.weight();
            cpu.on_end_of_turns(false);
            self.set_vm_weight(vm, weight);
        }
    }

    /// Starts the roaming of the rotation's roaming vCPUs, and stops that of the others.
    fn follow_roaming(&mut self, rotation: &Rotation) {
        let members = rotation.members.iter().filter(|m| m.roams.is_some());
        let roaming: BTreeSet<u32> = members
            .flat_map(|member| {
                let first = self.vms[member.vm.0 as usize].first_vcpu;
                member.seats.keys().map(move |vcpu| first + vcpu.0)
            })
            .collect();
        let before: Vec<u32> = self.turns.roaming.keys().copied().collect();
        for v in before.into_iter().filter(|v| !roaming.contains(v)) {
            self.stop_roaming(v);
        }
        for v in roaming {
            let home = self.known_vcpu(v).allowed.clone();
            self.turns.roaming.entry(v).or_insert(home);
        }
    }

    /// The controller's view of a vCPU.
    fn known_vcpu(&mut self, v: u32) -> &mut VcpuCpu<Group, u32> {
        let vm = self.vcpus[v as usize].vm as usize;
        let index = v - self.vms[vm].first_vcpu;
        &mut self.policies.cpu[vm].vcpus[index as usize]
    }

    /// Stops a vCPU's roaming, and reverts its affinity.
    fn stop_roaming(&mut self, v: u32) {
        if let Some(home) = self.turns.roaming.remove(&v) {
            self.known_vcpu(v).roams = false;
            self.set_vcpu_affinity(v, &home);
        }
    }

    /// Starts a turn.
    pub(crate) fn turn(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        let row = turns.sequence.row().to_vec();
        let slept = row.into_iter();
        let slept = slept.filter(|vm| self.slept_in_turns(&mut turns, *vm));
        let slept = slept.collect();
        let step = turns.sequence.begin_turn(slept);
        let seats = step.seats.into_iter().filter_map(|(vm, pcpu)| {
            let member = turns.sequence.rotation().member(vm)?;
            let vcpu = member.seats.keys().next()?;
            Some((self.vms[vm.0 as usize].first_vcpu + vcpu.0, pcpu))
        });
        for (v, pcpu) in seats.collect::<Vec<_>>() {
            self.set_vcpu_affinity(v, &[pcpu].into_iter().collect());
        }
        let slept = |v: &u32| step.left.contains(&VmId(self.vcpus[*v as usize].vm.into()));
        let slept: Vec<u32> = turns.roaming.keys().copied().filter(slept).collect();
        turns.left.extend(&step.left);
        for vm in step.on {
            self.set_vm_idle(vm.0 as u32, false);
        }
        for vm in step.off {
            self.set_vm_idle(vm.0 as u32, true);
        }
        let rotation = turns.sequence.rotation();
        if !rotation.is_empty() {
            self.calendar.set(Event::Turn, 0, self.now + rotation.turn.0);
        }
        self.turns = turns;
        for v in slept {
            self.stop_roaming(v);
        }
    }

    /// Whether a VM has slept since the end of its last turn.
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
