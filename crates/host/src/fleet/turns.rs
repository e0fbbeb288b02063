//! The fleet's part in turns: prepares the VMs of a rotation and hands them to the turn thread.

use std::collections::BTreeSet;
use std::io;
use std::process::Command;
use std::time::Instant;

use tandem_linux::actuator::ActuatorError;
use tandem_model::{PcpuSet, VmId};
use tandem_policy::turns::{Member, Rotation};

use super::{Backend, Fleet};
use crate::apply::Refused;
use crate::in_force::shares;
use crate::managed::recheck_thread;
use crate::turns::{Player, PlayerVcpu, TurnKeeper, TurnStats, WatchdogStarter};
use crate::vm_cpu::VcpuCpu;

impl Fleet {
    /// Sets the command of the watchdog, a process that takes VMs out of the idle class if this one cannot.
    ///
    /// It runs [`crate::turns::watchdog::watch`].
    #[must_use]
    pub fn with_watchdog(mut self, command: Command) -> Fleet {
        self.turns.watchdog = Some(WatchdogStarter::new(command));
        self
    }

    /// Returns the statistics of turns; `None` before the first turn.
    pub fn turn_stats(&self) -> Option<TurnStats> {
        self.turns.stats()
    }

    /// Returns the watchdog's process; `None` before it is started, and after it was lost until the next is started.
    pub fn turn_watchdog(&self) -> Option<u32> {
        self.turns.keeper.as_ref()?.watchdog()
    }

    /// Returns the errors of turns since the last call.
    pub fn turn_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.turns.errors)
    }

    /// Takes in the turn thread's news: VMs that left the rotation because they slept, foreign moves of vCPUs, and errors.
    pub(super) fn take_turn_news(&mut self) {
        self.outlive_keeper();
        let Some(keeper) = &mut self.turns.keeper else {
            return;
        };
        let (left, errors) = keeper.news();
        let (moving, taken) = (keeper.moving(), keeper.taken());
        self.turns.errors.extend(errors);
        self.turns.replace_watchdog();
        for managed in self.vms.values_mut() {
            for vcpu in managed.cpu.vcpus.iter_mut().filter(|vcpu| !vcpu.slots.is_empty()) {
                let thread = vcpu.host.thread;
                let is_taken = taken.contains(&thread);
                if is_taken || !moving.contains(&thread) {
                    vcpu.slots = PcpuSet::default();
                }
                if is_taken && let Backend::Live(actuator) = &mut self.backend {
                    let mut notes = Vec::new();
                    let name = &managed.vm.name;
                    let read =
                        recheck_thread(vcpu, name, &self.sampler, Some(actuator), &mut notes);
                    let errors = &mut self.turns.errors;
                    errors.extend(notes.into_iter().map(|note| note.0));
                    errors.extend(read.err().map(|error| error.to_string()));
                }
            }
            if managed.cpu.has_ended_turns() {
                let controller = self.backend.controller();
                // The keeper has written the weight that it knew.
                let (weight, idle) =
                    shares(controller, managed.cgroup()).unwrap_or((managed.weight(), false));
                managed.cpu.on_read(weight, idle);
            }
        }
        for vm in left {
            if let Some(managed) = self.vms.get_mut(&vm) {
                managed.cpu.on_end_of_turns(true);
            }
        }
    }

    /// Prepares a VM for turns by journaling the coming changes.
    fn player(&mut self, member: &Member) -> Result<Option<Player>, ActuatorError> {
        let (Some(managed), Backend::Live(actuator)) =
            (self.vms.get_mut(&member.vm), &mut self.backend)
        else {
            return Ok(None);
        };
        let (cpu, mut knobs) = managed.with_knobs(actuator);
        let Some(switch) = cpu.prepare_turns(member, &mut knobs)? else {
            return Ok(None);
        };
        let slotted = |vcpu: &&VcpuCpu| member.vcpus().any(|id| id == vcpu.id);
        let vcpus = cpu.vcpus.iter().filter(slotted).map(|vcpu| PlayerVcpu {
            id: vcpu.id,
            thread: vcpu.host.thread,
            home: (!vcpu.slots.is_empty()).then(|| vcpu.allowed.clone()),
        });
        Ok(Some(Player { vm: member.vm, switch, vcpus: vcpus.collect() }))
    }

    /// Returns the VMs that take turns and are not in this rotation, with the weights at which they leave.
    fn departing(&mut self, rotation: &Rotation) -> Vec<Player> {
        let Backend::Live(actuator) = &mut self.backend else {
            return Vec::new();
        };
        let members: BTreeSet<VmId> = rotation.members.iter().map(|member| member.vm).collect();
        let mut players = Vec::new();
        for (vm, managed) in self.vms.iter_mut().filter(|(vm, _)| !members.contains(vm)) {
            let (cpu, mut knobs) = managed.with_knobs(actuator);
            match cpu.prepare_end_of_turns(&mut knobs) {
                Ok(switch) => players.extend(switch.map(|switch| Player {
                    vm: *vm,
                    switch,
                    vcpus: Vec::new(),
                })),
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    let refused = Refused::new(&managed.vm.name, &error);
                    self.turns.errors.push(refused.to_string());
                }
            }
        }
        players
    }

    /// Starts the turn thread.
    fn start_turns(&mut self) -> Result<TurnKeeper, String> {
        let Backend::Live(actuator) = &self.backend else {
            return Err("a dry run has no turns".to_owned());
        };
        let controller = actuator.shared_controller();
        let watchdog = self.turns.start_watchdog();
        let keeper = TurnKeeper::start(controller, watchdog)
            .map_err(|error| format!("cannot start the thread that keeps turns: {error}"))?;
        let not_real_time = keeper.not_real_time().map(without_real_time);
        self.turns.errors.extend(not_real_time);
        Ok(keeper)
    }

    /// Hands the rotation to the turn thread.
    /// A VM that cannot be prepared takes no turns; the error is logged, and the next period retries.
    pub(super) fn take_turns(&mut self, rotation: &Rotation) {
        if rotation.is_empty() && self.turns.keeper.is_none() {
            return;
        }
        // After a turn thread ended, the next one starts with a delay.
        if self.turns.keeper.is_none() && !self.turns.keepers.is_due(Instant::now()) {
            return;
        }
        let mut players = Vec::new();
        let mut rotation = rotation.clone();
        rotation.members.retain(|member| match self.player(member) {
            Ok(Some(player)) => {
                players.push(player);
                true
            }
            Ok(None) => false,
            Err(error) if error.is_gone() => false,
            Err(error) => {
                let name = self.vms.get(&member.vm).map(|managed| &managed.vm.name);
                let refused = Refused::new(name.map_or("", String::as_str), &error);
                self.turns.errors.push(refused.to_string());
                false
            }
        });
        players.extend(self.departing(&rotation));
        if self.turns.keeper.is_none() {
            match self.start_turns() {
                Ok(keeper) => self.turns.keeper = Some(keeper),
                Err(error) => {
                    self.turns.errors.push(error);
                    return;
                }
            }
        }
        let Some(keeper) = &mut self.turns.keeper else {
            return;
        };
        keeper.follow(&rotation, players);
        let rotating = keeper.rotating();
        for (id, managed) in &mut self.vms {
            if rotating.contains(id) {
                managed.cpu.on_turns();
            } else {
                managed.cpu.on_end_of_turns(false);
            }
        }
    }
}

/// Returns advice for a turn thread that cannot be real-time.
fn without_real_time(error: &io::Error) -> String {
    format!(
        "turns are kept without real-time priority ({error}), and begin late on a busy host; real-time needs root or \
         CAP_SYS_NICE, a systemd unit without RestrictRealtime=yes, and on cgroup v1 a budget in the daemon's cgroup \
         (cpu.rt_runtime_us)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_can_forbid_real_time_is_named() {
        let text = without_real_time(&rustix::io::Errno::PERM.into());
        for reason in
            ["Operation not permitted", "CAP_SYS_NICE", "RestrictRealtime=yes", "cpu.rt_runtime_us"]
        {
            assert!(text.contains(reason), "{reason}: {text}");
        }
    }
}
