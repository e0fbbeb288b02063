//! Adoption of VMs: the cgroup and the weight of a new managed VM.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::ownership::Occupants;
use tandem_linux::procfs::ProcFs;
use tandem_model::PolicySet;
use tandem_policy::host::registry;

use super::leaving::held_by;
use super::{Backend, Fleet, FleetError};
use crate::apply::Refused;
use crate::configured::{Configured, is_tenants};
use crate::discovery::Vm;
use crate::homes::{Homes, group_name, tenants_weight};
use crate::in_force::{has_idle_class, shares};
use crate::managed::{ManagedVm, Note};
use crate::vm_cpu::VmCpu;
use crate::waits::Waits;

/// Time budget of the first update for adoptions; a service manager waits for it.
const FIRST_BUDGET: Duration = Duration::from_secs(5);

impl Fleet {
    /// Adopts new VMs within the budget: at least one that was not tried yet, and one that failed before.
    ///
    /// `all` is every VM on the host.
    /// If an adoption fails halfway, its changes are reverted like those of a VM that left.
    pub(super) fn adopt_new(
        &mut self,
        new: Vec<&Vm>,
        all: &[Vm],
        notes: &mut Vec<Note>,
        refused: &mut Vec<Refused>,
    ) {
        // Groups are named after processes, so changes of an earlier VM of the process are reverted first.
        let mut leaving = self.leaving.pids();
        let mut due = self.candidates.due(new, self.updates);
        due.retain(|due| !leaving.contains(&due.vm.process.pid));
        if due.is_empty() {
            return;
        }
        // Before the first period only the service manager waits.
        let budget = match self.updates {
            1 => FIRST_BUDGET.max(self.budget),
            _ => self.budget,
        };
        let mut changing = self.leaving.changing();
        let homes = self.homes.look(self.backend.controller(), all);
        let began = (self.now)();
        let mut tried = [false; 2];
        for due in due {
            if leaving.contains(&due.vm.process.pid) {
                continue;
            }
            let any = std::mem::replace(&mut tried[usize::from(due.has_failed)], true);
            if any && self.since(began) >= budget {
                continue;
            }
            let vm = due.vm;
            self.candidates.tried(vm.user);
            // A VM whose cgroup is not confirmed waits for its next try, so that one that keeps moving is not always first.
            if !self.homes.confirm(self.backend.controller(), vm) {
                self.candidates.failed(vm.id, self.updates, true);
                continue;
            }
            let mut theirs = Vec::new();
            let prepared = self.claim(vm).and_then(|()| self.prepare(vm, &homes, &mut theirs));
            let error = match prepared {
                // Changes of a VM that ended in the same cgroup are reverted first.
                Ok(managed) if !managed.is_left_alone() && changing.has(managed.cgroup()) => {
                    self.give_up(vm.process.pid, managed.policies);
                    self.candidates.failed(vm.id, self.updates, true);
                    continue;
                }
                Ok(mut managed) => {
                    let until = began.checked_add(budget);
                    match self.take_up(&mut managed, until, &mut theirs) {
                        Ok(()) => {
                            notes.append(&mut theirs);
                            self.vms.insert(vm.id, managed);
                            continue;
                        }
                        Err(error) => {
                            leaving.insert(vm.process.pid);
                            changing.add(held_by(&managed));
                            self.close_files_of(&managed.cpu.vcpus);
                            self.leaving.push(managed);
                            error
                        }
                    }
                }
                Err(error) => {
                    if !matches!(error, FleetError::Taken { .. }) {
                        let policies = self.policies_of(vm, &OnceCell::new());
                        self.give_up(vm.process.pid, policies);
                    }
                    error
                }
            };
            self.candidates.failed(vm.id, self.updates, error.is_of_the_vm());
            if !error.is_gone() {
                refused.push(error.refused(&vm.name));
            }
        }
    }

    /// Returns the VM with its future cgroup and weight, without any change.
    fn prepare(
        &mut self,
        vm: &Vm,
        homes: &Homes,
        notes: &mut Vec<Note>,
    ) -> Result<ManagedVm, FleetError> {
        let controller = self.backend.controller();
        let default = controller.default_weight();
        let origin = OnceCell::new();
        let wanted = self.rule(vm, &origin, |rule| rule.weight).map(|times| default.times(times));
        let policies = self.policies_of(vm, &origin);
        let is_left_alone = policies == PolicySet::NONE;
        let range = controller.weight_range();
        let own = homes.own_cgroup(vm.id, &mut Occupants::new(controller, &ProcFs::host()))?;
        let is_shared = own.is_none() && is_left_alone;
        let made = own.is_none() && !is_left_alone;
        let (cgroup, (weight, idle)) = match own {
            Some(cgroup) => {
                let now = shares(controller, &cgroup)?;
                (cgroup, now)
            }
            None => {
                let home = self.home_of(vm)?;
                let cgroup = if made { home.child(&group_name(vm)) } else { home };
                (cgroup, (default, false))
            }
        };
        // A rule's weight cannot be written to a VM that is only measured, so it does not count.
        let wanted = wanted.filter(|_| !is_left_alone);
        let per_vcpu = self.rule(vm, &origin, |rule| rule.weight_per_vcpu);
        let is_tenants = !made && is_tenants(controller, &cgroup)?;
        let found = if is_tenants {
            notes.push(tenants_weight(vm, &cgroup, default));
            default
        } else {
            weight
        };
        let mut worth = Configured::new(
            wanted.unwrap_or(found),
            per_vcpu.unwrap_or(self.weight_per_vcpu) && !is_left_alone,
            range,
        );
        let configured = worth.weight(vm.vcpus.len());
        notes.extend(worth.news(&vm.name, vm.vcpus.len()).map(Note));
        let mut cpu = VmCpu::new(cgroup, weight, idle);
        cpu.divisible = made;
        Ok(ManagedVm {
            vm: vm.clone(),
            cpu,
            made,
            configured,
            worth,
            has_rule: wanted.is_some(),
            is_tenants,
            own_quota: None,
            left_below: None,
            policies,
            is_shared,
            busy: Vec::new(),
            waits: Waits::default(),
            sampled: false,
        })
    }

    /// Makes the changes of an adoption.
    /// On an error, the caller reverts the changes made so far.
    fn take_up(
        &mut self,
        managed: &mut ManagedVm,
        until: Option<Instant>,
        notes: &mut Vec<Note>,
    ) -> Result<(), FleetError> {
        let is_left_alone = managed.is_left_alone();
        if let Backend::Live(actuator) = &mut self.backend
            && !is_left_alone
        {
            actuator.charge_to(managed.cgroup(), managed.vm.process.pid);
        }
        if managed.made {
            self.make_group(&managed.vm, &managed.above(), notes)?;
        }
        self.take_vcpus(managed, until)?;
        self.throttling.read_quotas(self.backend.controller(), managed);
        self.read_cpusets(managed);
        if !is_left_alone
            && managed.cpu.group_weight().is_some()
            && let Backend::Live(actuator) = &mut self.backend
        {
            let configured = managed.configured;
            let (cpu, mut knobs) = managed.with_knobs(actuator);
            cpu.set_weight(configured, &mut knobs)?;
        }
        self.has_idle =
            self.has_idle.or_else(|| has_idle_class(self.controller(), managed.cgroup()));
        let vm = &managed.vm;
        let whose = format!("VM {} (pid {}, {} vCPUs)", vm.name, vm.process.pid, vm.vcpus.len());
        notes.push(Note(if is_left_alone {
            format!("{whose} is measured and left as it is: it has no policy")
        } else {
            format!(
                "{whose} at weight {} in {}{}, under {}",
                managed.configured,
                managed.cgroup(),
                if managed.made { "" } else { ", its own cgroup" },
                registry::names(managed.policies),
            )
        }));
        if vm.unidentified > 0 {
            notes.push(Note(format!(
                "VM {} (pid {}): {} vCPU threads are not recognized by name; give a QMP socket or \
                 a thread pattern",
                vm.name, vm.process.pid, vm.unidentified
            )));
        }
        Ok(())
    }

    /// Returns the cgroup of the VM's vCPU threads before any change.
    fn home_of(&self, vm: &Vm) -> Result<CgroupPath, FleetError> {
        let first = vm.vcpus.first().map_or(&vm.process, |vcpu| &vcpu.thread);
        Ok(self.backend.controller().cgroup_of(first)?)
    }

    fn make_group(
        &mut self,
        vm: &Vm,
        parent: &CgroupPath,
        notes: &mut Vec<Note>,
    ) -> Result<(), FleetError> {
        let name = group_name(vm);
        match &mut self.backend {
            Backend::Live(actuator) => drop(actuator.create_group(parent, &name)?),
            Backend::Dry(_) => {
                let path = format!("{}/{name}", parent.0.trim_end_matches('/'));
                notes.push(Note(format!(
                    "would make {path} and move {} vCPU threads of VM {} there: it has no cgroup of \
                     its own",
                    vm.vcpus.len(),
                    vm.name
                )));
            }
        }
        Ok(())
    }
}
