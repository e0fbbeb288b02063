//! The vCPUs of managed VMs: updates take new ones and release those that ended.
//!
//! Taking new vCPUs has a time budget in each update, so a tenant that starts thousands delays only itself.
//! Tenants take turns, one VM each, and the next update goes on with the VMs that have waited longest (`grown`).
//! Changes for vCPUs that ended are reverted in the same update.

use std::collections::BTreeSet;
use std::time::Instant;

use tandem_linux::actuator::{Held, Outcome};
use tandem_linux::thread::ThreadRef;

use super::leaving::held;
use super::{Backend, Fleet, FleetError};
use crate::apply::Refused;
use crate::discovery::Vm;
use crate::managed::{ManagedVm, Note};
use crate::vm_cpu::{VcpuCpu, found, read_group};

/// Maximum number of ended vCPUs whose changes are reverted at once.
const PIECE: usize = 256;

impl Fleet {
    /// Takes the new vCPUs of these VMs, at least one and as many as the budget allows; the next update goes on.
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

    /// Moves new vCPU threads into the VM's group and starts to measure them: at least one, and as many as possible before `until`.
    ///
    /// A thread that cannot be moved is left out; the first such error is returned.
    pub(super) fn take_vcpus(
        &mut self,
        managed: &mut ManagedVm,
        until: Option<Instant>,
    ) -> Result<(), FleetError> {
        let mut failed = None;
        let vcpus = managed.cpu.vcpus.iter();
        let known: BTreeSet<ThreadRef> = vcpus.map(|vcpu| vcpu.host.thread).collect();
        let new = managed.vm.vcpus.iter();
        let new = new.filter(|vcpu| !known.contains(&vcpu.thread));
        for (nth, vcpu) in new.enumerate() {
            if nth > 0 && until.is_some_and(|until| (self.now)() >= until) {
                break;
            }
            if managed.made
                && let Backend::Live(actuator) = &mut self.backend
            {
                match actuator.move_thread(&vcpu.thread, managed.cgroup()) {
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
            let mut taken = found(vcpu.index, vcpu.thread, allowed);
            if !managed.made {
                match read_group(&mut taken, self.backend.controller(), managed.cgroup()) {
                    Err(error) if error.is_gone() => continue,
                    other => other?,
                };
            }
            managed.cpu.vcpus.push(taken);
        }
        managed.cpu.vcpus.sort_by_key(|vcpu| vcpu.id);
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Reverts the settings of vCPU threads that still live, and removes their groups.
    ///
    /// A group that holds other threads is retried later, as is one that cannot be removed, which is also reported.
    pub(super) fn let_go_of_vcpus(
        &mut self,
        ended: &[(&Vm, Vec<VcpuCpu>)],
        refused: &mut Vec<Refused>,
    ) {
        // Each journal record is compared with all cgroups of a piece.
        let pieces =
            ended.iter().flat_map(|(vm, vcpus)| vcpus.chunks(PIECE).map(|piece| (*vm, piece)));
        let pieces: Vec<(&Vm, &[VcpuCpu])> = pieces.collect();
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
            let is_reported = !report.failures.is_empty();
            if is_reported {
                refused.push(Refused::not_put_back(&vm.name, report, ""));
            }
            if report.is_complete() {
                continue;
            }
            for group in held.cgroups {
                if actuator.controller().exists(&group) {
                    self.leaving.push_group(vm, group, is_reported);
                }
            }
        }
    }

    pub(super) fn close_files_of(&mut self, vcpus: &[VcpuCpu]) {
        for vcpu in vcpus {
            self.sampler.forget(&vcpu.host.thread);
            self.counters.forget(&vcpu.host.thread);
        }
    }
}
