//! VMs that are gone or no longer selected, until their changes are reverted, and groups of single vCPUs that were too busy to remove.
//!
//! Thousands of VMs may end at once: an update reverts at least one, and as many as its budget allows.
//! Tenants take turns, one VM each ([`ByTenant`]).
//! Groups that still hold threads are retried in each update: at least one, and the rest after those that were not tried yet.
//!
//! The journal lists all of them until they are reverted, so the end of the daemon reverts them, even if it is killed and restarted.
//! A vCPU's group that is in use again is withdrawn.

use std::collections::{BTreeSet, HashSet};

use tandem_linux::actuator::{Actuator, Held};
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::thread::Pid;
use tandem_model::PolicySet;

use super::by_tenant::ByTenant;
use crate::apply::Refused;
use crate::discovery::Vm;
use crate::managed::ManagedVm;
use crate::vm_cpu::VcpuCpu;

/// Number of tries after which a busy group is reported.
const REPORT_AFTER: u32 = 20;

/// Pending reverts, the oldest first; those that were tried are at the end.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    left: Vec<Left>,
    /// The groups of vCPUs among these.
    groups: HashSet<CgroupPath>,
    by_tenant: ByTenant,
}

/// A VM that left, or the group of a vCPU.
#[derive(Debug)]
struct Left {
    /// Its VM's name.
    name: String,
    tenant: Option<u32>,
    /// The VM; `None` for a vCPU's group, whose VM may still be managed.
    vm: Option<LeftVm>,
    held: Held,
    /// Number of tries to revert it.
    tries: u32,
    /// Whether a failure other than a busy group was reported.
    is_reported: bool,
}

/// A VM that left.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftVm {
    /// Its process.
    pub(super) pid: Pid,
    /// The policies that acted on it.
    pub(super) policies: PolicySet,
}

impl Left {
    /// Returns the vCPU's group, if it is one.
    fn group(&self) -> Option<&CgroupPath> {
        self.held.cgroups.first().filter(|_| self.vm.is_none())
    }
}

impl Leaving {
    /// Adds a VM and its busy groups.
    pub(super) fn push(&mut self, managed: ManagedVm) {
        for group in &managed.busy {
            self.push_group(&managed.vm, group.clone(), false);
        }
        self.left.push(Left {
            held: held_by(&managed),
            name: managed.vm.name,
            tenant: managed.vm.user,
            vm: Some(LeftVm { pid: managed.vm.process.pid, policies: managed.policies }),
            tries: 0,
            is_reported: false,
        });
    }

    /// Adds a group that held a single vCPU of this VM and could not be removed; `is_reported` if that was reported.
    pub(super) fn push_group(&mut self, vm: &Vm, group: CgroupPath, is_reported: bool) {
        if !self.groups.insert(group.clone()) {
            return;
        }
        self.left.push(Left {
            name: vm.name.clone(),
            tenant: vm.user,
            vm: None,
            held: Held { cgroups: vec![group], ..Held::default() },
            tries: 1,
            is_reported,
        });
    }

    /// Whether no revert is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Drops groups of vCPUs that are in use again.
    pub(super) fn withdraw(&mut self, in_use: &HashSet<&CgroupPath>) {
        let is_free = |group: &CgroupPath| !in_use.contains(group);
        for left in &mut self.left {
            left.held.cgroups.retain(is_free);
        }
        self.left.retain(|left| left.vm.is_some() || left.group().is_some());
        self.groups.retain(is_free);
    }

    /// Returns the processes of the VMs.
    pub(super) fn pids(&self) -> BTreeSet<Pid> {
        let vms = self.left.iter().filter_map(|left| left.vm);
        vms.map(|vm| vm.pid).collect()
    }

    /// Returns the cgroups with pending reverts.
    pub(super) fn changing(&self) -> Changing {
        let mut changing = Changing::default();
        for left in &self.left {
            changing.add(left.held.clone());
        }
        changing
    }

    /// Reverts changes while `goes_on` returns true: at least those of one that was not tried yet and of one that was busy.
    ///
    /// Returns the VMs that are done, and adds failures to `refused`.
    /// Without an actuator there are no changes.
    /// Groups in `kept`, those of managed VMs, stay, even below others: a thread of one VM may have started another VM.
    pub(super) fn release(
        &mut self,
        actuator: Option<&mut Actuator>,
        kept: &HashSet<CgroupPath>,
        goes_on: impl Fn() -> bool,
        refused: &mut Vec<Refused>,
    ) -> Vec<LeftVm> {
        let left = std::mem::take(&mut self.left);
        let Some(actuator) = actuator.filter(|_| !left.is_empty()) else {
            return left.into_iter().filter_map(|left| left.vm).collect();
        };
        let (fresh, again): (Vec<Left>, Vec<Left>) =
            left.into_iter().partition(|left| left.tries == 0);
        // A tenant whose VMs end all the time must not keep other tenants' groups from being retried.
        let mut at_least = usize::from(!fresh.is_empty()) + usize::from(!again.is_empty());
        let order = |left: Vec<Left>| self.by_tenant.order(left, |left: &Left| left.tenant);
        let mut fresh = order(fresh).into_iter();
        let first = fresh.next().into_iter();
        let mut again = order(again).into_iter();
        let second = again.next().into_iter();
        let left: Vec<Left> = first.chain(second).chain(fresh).chain(again).collect();
        let all: Vec<&Held> = left.iter().map(|left| &left.held).collect();
        let reports = actuator.release_except(&all, kept, || {
            let is_due = at_least > 0;
            at_least = at_least.saturating_sub(1);
            is_due || goes_on()
        });
        let (mut done, mut busy) = (Vec::new(), Vec::new());
        let mut left = left.into_iter();
        for (report, mut left) in reports.iter().zip(left.by_ref()) {
            let is_busy = !report.busy.is_empty();
            self.by_tenant.tried(left.tenant);
            left.tries += 1;
            // A VM with a failed revert is dropped, so that it can be adopted again.
            let is_tried_again = is_busy || left.vm.is_none() && !report.is_complete();
            let is_due = if is_busy {
                left.tries == REPORT_AFTER
            } else {
                !std::mem::replace(&mut left.is_reported, true)
            };
            if !report.is_complete() && is_due {
                let again = if is_tried_again { "; it is tried again" } else { "" };
                refused.push(Refused::not_put_back(&left.name, report, again));
            }
            if is_tried_again {
                // Its own cgroup was reverted, and may belong to another VM by the next try.
                left.held.own = None;
                busy.push(left);
                continue;
            }
            if let Some(group) = left.group() {
                self.groups.remove(group);
            }
            done.extend(left.vm);
        }
        // Busy ones queue behind those that were not tried yet.
        self.left = left.chain(busy).collect();
        done
    }
}

/// Cgroups with pending reverts.
#[derive(Debug, Default)]
pub(super) struct Changing {
    /// Cgroups with all cgroups below them.
    within: HashSet<CgroupPath>,
    /// Single cgroups.
    own: HashSet<CgroupPath>,
}

impl Changing {
    /// Adds the cgroups of `held`.
    pub(super) fn add(&mut self, held: Held) {
        self.within.extend(held.cgroups);
        self.own.extend(held.own);
    }

    /// Whether this cgroup is one of them.
    pub(super) fn has(&self, cgroup: &CgroupPath) -> bool {
        let mut at_and_above = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        self.own.contains(cgroup) || at_and_above.any(|cgroup| self.within.contains(&cgroup))
    }
}

/// Returns the resources of a managed VM.
/// A cgroup of its own may have other VMs' cgroups below it.
pub(crate) fn held_by(managed: &ManagedVm) -> Held {
    let mut held = held(&managed.cpu.vcpus);
    if managed.is_left_alone() {
        return held;
    }
    if managed.made {
        held.cgroups.push(managed.cgroup().clone());
    } else {
        held.own = Some(managed.cgroup().clone());
    }
    held
}

/// Returns the resources of vCPUs: their threads, and the cgroups that hold a single vCPU.
pub(super) fn held(vcpus: &[VcpuCpu]) -> Held {
    Held {
        threads: vcpus.iter().map(|vcpu| vcpu.host.thread).collect(),
        cgroups: vcpus.iter().filter_map(|vcpu| vcpu.group.clone()).collect(),
        own: None,
    }
}
