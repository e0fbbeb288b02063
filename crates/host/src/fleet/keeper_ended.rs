//! Recovery from an unexpected end of the turn thread.
//!
//! The watchdog, if it runs, has taken the VMs out of the idle class by then.
//! The fleet does not rely on that: it knows the members of the rotation and is now the only writer of their journaled settings.
//!
//! The next rotation starts another thread: at once after the first end, and then at most once in 10 s.
//! Until then no VM takes turns.

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::sampler::Sampler;

use super::{Backend, Fleet};
use crate::managed::{ManagedVm, Note};
use crate::turns::TurnKeeper;

impl Fleet {
    /// Recovers if the turn thread has ended.
    pub(super) fn outlive_keeper(&mut self) {
        let keeper = self.turns.keeper.as_mut();
        let Some((why, errors)) = keeper.and_then(|keeper| {
            let why = keeper.ended()?;
            Some((why, TurnKeeper::news(keeper).1))
        }) else {
            return;
        };
        self.turns.errors.extend(errors);
        self.turns.lose_keeper();
        self.turns.errors.push(format!(
            "the thread that keeps turns has ended ({why}): its VMs are taken out of the idle class, and take turns again with another one; please \
             report this"
        ));
        let Backend::Live(actuator) = &mut self.backend else {
            return;
        };
        let mut notes = Vec::new();
        for managed in self.vms.values_mut() {
            managed.in_force.left_turns = false;
            let failed = [
                leave_idle_class(managed, actuator).err(),
                leave_seats(managed, &self.sampler, actuator, &mut notes).err(),
            ];
            let failed = failed.into_iter().flatten();
            let errors = failed.filter(|error| !error.is_gone());
            let errors = errors.map(|error| format!("VM {}: {error}", managed.vm.name));
            self.turns.errors.extend(errors);
        }
        let notes = notes.into_iter().map(|note| note.0);
        self.turns.errors.extend(notes);
    }
}

/// Takes a member of the rotation out of the idle class and sets its weight.
fn leave_idle_class(managed: &mut ManagedVm, actuator: &mut Actuator) -> Result<(), ActuatorError> {
    if !managed.in_force.rotating && !managed.ended_turns {
        return Ok(());
    }
    (managed.in_force.rotating, managed.ended_turns) = (false, false);
    actuator.set_idle(&managed.cgroup, false)?;
    managed.in_force.weight = actuator.set_weight(&managed.cgroup, managed.in_force.weight)?;
    Ok(())
}

/// Restores the affinity of vCPUs that roamed, except of one that was moved by others.
fn leave_seats(
    managed: &mut ManagedVm,
    sampler: &Sampler,
    actuator: &mut Actuator,
    notes: &mut Vec<Note>,
) -> Result<(), ActuatorError> {
    let name = &managed.vm.name;
    for vcpu in managed.vcpus.iter_mut().filter(|vcpu| vcpu.roams) {
        vcpu.roams = false;
        let Ok(now) = sampler.read_affinity(&vcpu.thread) else {
            continue;
        };
        // A slot is a single one of its pCPUs.
        if now.len() == 1 && now.overlaps(&vcpu.allowed) {
            actuator.set_affinity(&vcpu.thread, &vcpu.allowed)?;
        }
        vcpu.recheck(name, sampler, Some(&mut *actuator), notes)?;
    }
    Ok(())
}
