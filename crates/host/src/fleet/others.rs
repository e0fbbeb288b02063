//! Other writers on the same VMs: other daemons, and people who set weights.

use std::cell::OnceCell;
use std::collections::HashMap;

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::thread::Pid;
use tandem_model::{PolicySet, VmId};

use super::{Backend, Fleet, FleetError};
use crate::discovery::Vm;
use crate::managed::Note;
use crate::origin::Origin;

impl Fleet {
    /// Claims this VM among the host's daemons; fails if another daemon has it.
    pub(super) fn claim(&mut self, vm: &Vm) -> Result<(), FleetError> {
        let pid = vm.process.pid;
        if self.policies_of(vm, &OnceCell::new()) == PolicySet::NONE {
            return Ok(());
        }
        match self.claims.as_mut().map(|claims| claims.claim(pid)) {
            None | Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(FleetError::Taken { pid }),
            Some(Err(source)) => Err(FleetError::Claim { pid, source }),
        }
    }

    /// Releases the claim on a process's VM.
    pub(super) fn give_up(&mut self, pid: Pid, policies: PolicySet) {
        if policies != PolicySet::NONE
            && let Some(claims) = &mut self.claims
        {
            claims.release(pid);
        }
    }

    /// Returns the policies that may act on a VM.
    /// The VM's origin is read once, if a rule needs it.
    pub(super) fn policies_of(&self, vm: &Vm, origin: &OnceCell<Origin>) -> PolicySet {
        let policies = self.rule(vm, origin, |rule| rule.policies);
        policies.unwrap_or(self.policies)
    }

    /// Takes in foreign settings of the VMs' own cgroups.
    ///
    /// A VM with a rule keeps the rule's weight, and the foreign weight is restored when the VM is released.
    /// For any other VM the foreign weight becomes the configured one.
    pub(super) fn take_foreign(&mut self, notes: &mut Vec<Note>) {
        let Backend::Live(actuator) = &mut self.backend else {
            return;
        };
        let theirs = actuator.take_foreign();
        if theirs.is_empty() {
            return;
        }
        let vms = self.vms.iter();
        let by_cgroup: HashMap<CgroupPath, VmId> =
            vms.map(|(id, managed)| (managed.cgroup().clone(), *id)).collect();
        for foreign in theirs {
            let owner = by_cgroup.get(&foreign.cgroup);
            let note = match owner.and_then(|id| self.vms.get_mut(id)) {
                Some(managed) => managed.on_foreign_write(&foreign),
                None => Note(format!(
                    "someone else set the {} of {} to {}: that comes back in the end",
                    foreign.knob, foreign.cgroup, foreign.text
                )),
            };
            self.sum_up(&foreign.cgroup, vec![note], notes);
        }
    }

    /// Logs foreign changes of a cgroup, within the line limit of the owner of the cgroup above.
    pub(super) fn sum_up(&mut self, cgroup: &CgroupPath, theirs: Vec<Note>, notes: &mut Vec<Note>) {
        if !theirs.is_empty() {
            let above = cgroup.parent().unwrap_or_else(CgroupPath::root);
            let owners = self.controller().owners(&above);
            let user = owners.map_or(0, |owners| owners.folder);
            self.summed.say(user, theirs, notes);
        }
    }
}
