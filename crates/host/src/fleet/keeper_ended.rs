//! Recovery from an unexpected end of the turn thread.
//!
//! The watchdog, if it runs, has taken the VMs out of the idle class by then.
//! The fleet does not rely on that: it knows the members of the rotation and is now the only writer of their journaled settings.
//!
//! The next rotation starts another thread: at once after the first end, and then at most once in 10 s.
//! Until then no VM takes turns.

use tandem_linux::actuator::ActuatorError;
use tandem_linux::sampler::Sampler;

use super::{Backend, Fleet};
use crate::managed::{Note, recheck_thread};
use crate::turns::TurnKeeper;
use crate::vm_cpu::{LiveKnobs, VcpuCpu};

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
            let name = managed.vm.name.clone();
            let (cpu, mut knobs) = managed.with_knobs(actuator);
            let mut failed = vec![cpu.recover_from_turns(&mut knobs).err()];
            for vcpu in cpu.vcpus.iter_mut().filter(|vcpu| !vcpu.slots.is_empty()) {
                let left = leave_slot(vcpu, &name, &self.sampler, &mut knobs, &mut notes);
                failed.push(left.err());
            }
            let errors = failed.into_iter().flatten().filter(|error| !error.is_gone());
            let errors = errors.map(|error| format!("VM {name}: {error}"));
            self.turns.errors.extend(errors);
        }
        let notes = notes.into_iter().map(|note| note.0);
        self.turns.errors.extend(notes);
    }
}

/// Restores the affinity of a vCPU that had slots, unless others moved it.
fn leave_slot(
    vcpu: &mut VcpuCpu,
    vm: &str,
    sampler: &Sampler,
    knobs: &mut LiveKnobs<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), ActuatorError> {
    if let Ok(now) = sampler.read_affinity(&vcpu.host.thread) {
        vcpu.recover_from_slot(&now, knobs)?;
    }
    recheck_thread(vcpu, vm, sampler, Some(knobs.actuator), notes)
}
