//! Turns on the simulated host: the same sequence as on a live host, and the same knobs.
//!
//! At each boundary between slots, the host checks the VMs whose slots end for sleep.
//! VMs whose slots begin move to their pCPUs and leave the idle class; the others enter it, and may run on any pCPU.
//! Each pCPU follows at its next clock tick, as a kernel does.
//! Turns start on time, and writing the settings costs nothing.

use std::collections::BTreeSet;

use tandem_model::{Nanos, PcpuSet, VcpuId, VmId};
use tandem_policy::turns::{Member, Rotation, sleep};
use tandem_policy::vm_cpu::VcpuCpu;

use crate::trace::VcpuState;

use super::calendar::Event;
use super::policy_host::Group;
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
        self.follow_homes(rotation);
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

    /// Notes the affinities of vCPUs that get slots, and restores those of the others.
    fn follow_homes(&mut self, rotation: &Rotation) {
        let members = rotation.members.iter().filter(|member| member.moves);
        let slotted: BTreeSet<u32> = members
            .flat_map(|member| {
                let first = self.vms[member.vm.0 as usize].first_vcpu;
                member.vcpus().map(move |vcpu| first + vcpu.0)
            })
            .collect();
        let before: Vec<u32> = self.turns.homes.keys().copied().collect();
        for v in before.into_iter().filter(|v| !slotted.contains(v)) {
            self.go_home(v);
        }
        for v in slotted {
            let home = self.known_vcpu(v).allowed.clone();
            self.turns.homes.entry(v).or_insert(home);
        }
    }

    /// The controller's view of a vCPU.
    fn known_vcpu(&mut self, v: u32) -> &mut VcpuCpu<Group, u32> {
        let vm = self.vcpus[v as usize].vm as usize;
        let index = v - self.vms[vm].first_vcpu;
        &mut self.policies.cpu[vm].vcpus[index as usize]
    }

    /// Ends a vCPU's slots, and reverts its affinity.
    fn go_home(&mut self, v: u32) {
        if let Some(home) = self.turns.homes.remove(&v) {
            self.known_vcpu(v).slots = PcpuSet::default();
            self.set_vcpu_affinity(v, &home);
        }
    }

    /// The vCPUs of a VM that have an affinity outside their slots.
    fn slotted(&self, vm: VmId) -> Vec<u32> {
        let vm = &self.vms[vm.0 as usize];
        let (first_vcpu, vcpus) = (vm.first_vcpu, vm.vcpus);
        self.turns.homes.range(first_vcpu..first_vcpu + vcpus).map(|(v, _)| *v).collect()
    }

    /// Starts a turn.
    pub(crate) fn turn(&mut self) {
        let ending = self.turns.sequence.ending();
        let slept = ending.into_iter().filter(|vm| self.slept_in_turns(*vm)).collect();
        let (step, length) = self.turns.sequence.begin_turn(slept);
        for vm in &step.left {
            self.slotted(*vm).into_iter().for_each(|v| self.go_home(v));
        }
        self.turns.left.extend(&step.left);
        for (vm, slot) in step.on {
            let first = self.vms[vm.0 as usize].first_vcpu;
            for (VcpuId(index), pcpu) in slot {
                if self.turns.homes.contains_key(&(first + index)) {
                    self.set_vcpu_affinity(first + index, &[pcpu].into_iter().collect());
                }
            }
            self.set_vm_idle(vm.0 as u32, false);
        }
        for vm in step.off {
            self.set_vm_idle(vm.0 as u32, true);
            let freed = if step.frees { self.slotted(vm) } else { Vec::new() };
            for v in freed {
                let home = self.turns.homes[&v].clone();
                self.set_vcpu_affinity(v, &home);
            }
        }
        if !self.turns.sequence.rotation().is_empty() {
            self.calendar.set(Event::Turn, 0, self.now + length.0);
        }
    }

    /// Whether a VM has slept since the end of its last slot.
    fn slept_in_turns(&mut self, vm: VmId) -> bool {
        let Some(member) = self.turns.sequence.rotation().member(vm) else {
            return false;
        };
        let first = self.vms[vm.0 as usize].first_vcpu;
        let turn = member.length();
        let vcpus: Vec<u32> = member.vcpus().map(|VcpuId(index)| first + index).collect();
        let mut sleep = sleep::VmSleep::default();
        for v in &vcpus {
            self.sync(*v);
            let vcpu = &self.vcpus[*v as usize];
            let runnable = vcpu.ran_total + vcpu.waited_total;
            if let Some((then, at)) = self.turns.accounts.insert(*v, (runnable, self.now)) {
                let is_runnable = matches!(vcpu.state, VcpuState::Running | VcpuState::Ready);
                sleep.add(sleep::Seen {
                    elapsed: Nanos(self.now - at),
                    runnable: Nanos(runnable - then),
                    is_runnable,
                });
            }
        }
        let slept = sleep.ends_turns(turn);
        if slept {
            for v in &vcpus {
                self.turns.accounts.remove(v);
            }
        }
        slept
    }
}
