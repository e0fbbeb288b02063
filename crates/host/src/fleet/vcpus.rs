//! How the fleet follows the vCPUs of VMs that it has: new ones are taken, those that ended are let go of.
//!
//! Who starts vCPUs by the thousand waits for himself: new ones are taken in a bounded time of each update, of one VM of each tenant after the other
//! (`grown`), and the next goes on with those that have waited longest. What was changed for those that ended is put back in the same update.

use std::collections::BTreeSet;
use std::time::Instant;

use tandem_linux::actuator::{Held, Outcome};
use tandem_linux::thread::ThreadRef;

use super::leaving::held;
use super::{Backend, Fleet, FleetError};
use crate::apply::Refused;
use crate::discovery::Vm;
use crate::managed::{ManagedVcpu, ManagedVm, Note};

/// What so many vCPUs that ended held is put back at once.
const PIECE: usize = 256;

impl Fleet {
    /// Takes the new vCPUs of these VMs, as far as there is time, one of them at least; the next update goes on.
    pub(super) fn take_new_vcpus(
        &mut self,
        grown: &[&Vm],
        notes: &mut Vec<Note>,
        refused: &mut Vec<Refused>,
    ) {
        let began = (self.now)();
        for (nth, vm) in self.grown.due(grown).into_iter().enumerate() {
            if nth > 0 && self.since(began) >= self.budget {
                break;
            }
            let Some(mut managed) = self.vms.remove(&vm.id) else {
                continue;
            };
            self.grown.tried(vm);
            let until = began.checked_add(self.budget);
            let outcome = self.take_vcpus(&mut managed, until);
            self.read_bounds(&mut managed);
            self.keep(managed, outcome, notes, refused);
        }
    }

    /// Moves vCPU threads that are new into the VM's group and starts to measure them: one of them, and as many as it does until then. One that cannot
    /// be moved is left out; the first such error is returned.
    pub(super) fn take_vcpus(
        &mut self,
        managed: &mut ManagedVm,
        until: Option<Instant>,
    ) -> Result<(), FleetError> {
        let mut failed = None;
        let known: BTreeSet<ThreadRef> = managed.vcpus.iter().map(|vcpu| vcpu.thread).collect();
        let new = managed.vm.vcpus.iter();
        let new = new.filter(|vcpu| !known.contains(&vcpu.thread));
        for (nth, vcpu) in new.enumerate() {
            if nth > 0 && until.is_some_and(|until| (self.now)() >= until) {
                break;
            }
            if managed.made
                && let Backend::Live(actuator) = &mut self.backend
            {
                match actuator.move_thread(&vcpu.thread, &managed.cgroup) {
                    Ok(Outcome::Done) => {}
                    Ok(Outcome::Gone) => continue,
                    Err(error) if error.is_gone() => return Err(error.into()),
                    Err(error) => {
                        failed.get_or_insert(error);
                        continue;
                    }
                }
            }
            let Ok(allowed) = self.sampler.read_affinity(&vcpu.thread) else {
                continue;
            };
            let mut taken = ManagedVcpu::new(vcpu.index, vcpu.thread, allowed);
            if !managed.made {
                match taken.reread_group(self.backend.controller(), &managed.cgroup) {
                    Err(error) if error.is_gone() => continue,
                    other => other?,
                };
            }
            managed.vcpus.push(taken);
        }
        managed.vcpus.sort_by_key(|vcpu| vcpu.index);
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Puts back what was set on vCPUs' threads, if they still live, and removes the groups made for them. A group in which somebody is is not
    /// emptied now, but tried again later, as is one that cannot be removed, which is told.
    pub(super) fn let_go_of_vcpus(
        &mut self,
        ended: &[(&Vm, Vec<ManagedVcpu>)],
        refused: &mut Vec<Refused>,
    ) {
        // Each record is held against all cgroups of a piece.
        let pieces =
            ended.iter().flat_map(|(vm, vcpus)| vcpus.chunks(PIECE).map(|piece| (*vm, piece)));
        let pieces: Vec<(&Vm, &[ManagedVcpu])> = pieces.collect();
        if pieces.is_empty() {
            return;
        }
        for (_, vcpus) in &pieces {
            self.close_files_of(vcpus);
        }
        let Backend::Live(actuator) = &mut self.backend else {
            return;
        };
        let all: Vec<Held> = pieces.iter().map(|(_, vcpus)| held(vcpus)).collect();
        let reports = actuator.release_empty(&all.iter().collect::<Vec<_>>());
        for (((vm, _), held), report) in pieces.iter().zip(all).zip(&reports) {
            let told = !report.failures.is_empty();
            if told {
                refused.push(Refused::not_put_back(&vm.name, report, ""));
            }
            if report.is_complete() {
                continue;
            }
            for group in held.cgroups {
                if actuator.controller().exists(&group) {
                    self.leaving.push_group(vm, group, told);
                }
            }
        }
    }

    pub(super) fn close_files_of(&mut self, vcpus: &[ManagedVcpu]) {
        for vcpu in vcpus {
            self.sampler.forget(&vcpu.thread);
            self.counters.forget(&vcpu.thread);
        }
    }
}
