//! VMs that are gone, or no longer selected, until what was changed for them is put back; and groups of single vCPUs that were busy when they were
//! given up.
//!
//! Nothing is done with them any more but that, and nobody hears of them. Thousands may end at once: an update puts back what it can in its time,
//! one of them at least, and the next goes on, with one of each tenant's after the other ([`ByTenant`]). Those in which threads still are are tried
//! again at each look, one of them at least, and the rest after those that were not tried. The journal lists them until then, so the end of the
//! daemon puts them back, whatever end that is. A vCPU's group that is in use again by then is no longer given up.

use std::collections::{BTreeSet, HashSet};

use tandem_linux::actuator::{Actuator, Held};
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::thread::Pid;
use tandem_model::PolicySet;

use super::by_tenant::ByTenant;
use crate::apply::Refused;
use crate::discovery::Vm;
use crate::managed::{ManagedVcpu, ManagedVm};

/// After so many tries it is told that a group cannot be removed.
const TOLD_AFTER: u32 = 20;

/// What is to be put back, in the order in which it was given up, but for what was tried since.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    left: Vec<Left>,
    /// The groups of vCPUs among that.
    groups: HashSet<CgroupPath>,
    by_tenant: ByTenant,
}

/// A VM that left, or the group of a vCPU.
#[derive(Debug)]
struct Left {
    /// Its VM's name.
    name: String,
    tenant: Option<u32>,
    /// What left; `None`: a vCPU's group, whose VM may be under care.
    vm: Option<LeftVm>,
    held: Held,
    /// How often it was tried to put that back.
    tries: u32,
    /// Whether it was told that it cannot be put back, for another reason than that somebody is in it.
    told: bool,
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
    /// The vCPU's group, if it is one.
    fn group(&self) -> Option<&CgroupPath> {
        self.held.cgroups.first().filter(|_| self.vm.is_none())
    }
}

impl Leaving {
    /// A VM leaves.
    pub(super) fn push(&mut self, managed: ManagedVm) {
        for group in &managed.busy {
            self.push_group(&managed.vm, group.clone(), false);
        }
        self.left.push(Left {
            held: held_by(&managed),
            name: managed.vm.name,
            tenant: managed.vm.tenant,
            vm: Some(LeftVm { pid: managed.vm.process.pid, policies: managed.policies }),
            tries: 0,
            told: false,
        });
    }

    /// A group that held a vCPU of this VM's alone could not be removed when it was given up, which was told or is to be.
    pub(super) fn push_group(&mut self, vm: &Vm, group: CgroupPath, told: bool) {
        if !self.groups.insert(group.clone()) {
            return;
        }
        self.left.push(Left {
            name: vm.name.clone(),
            tenant: vm.tenant,
            vm: None,
            held: Held { cgroups: vec![group], ..Held::default() },
            tries: 1,
            told,
        });
    }

    /// Whether nothing is to be put back.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Groups of vCPUs that are among these are not given up any more.
    pub(super) fn withdraw(&mut self, in_use: &HashSet<&CgroupPath>) {
        let is_free = |group: &CgroupPath| !in_use.contains(group);
        for left in &mut self.left {
            left.held.cgroups.retain(is_free);
        }
        self.left.retain(|left| left.vm.is_some() || left.group().is_some());
        self.groups.retain(is_free);
    }

    /// The processes of VMs.
    pub(super) fn pids(&self) -> BTreeSet<Pid> {
        let vms = self.left.iter().filter_map(|left| left.vm);
        vms.map(|vm| vm.pid).collect()
    }

    /// Where something is put back.
    pub(super) fn changing(&self) -> Changing {
        let mut changing = Changing::default();
        for left in &self.left {
            changing.add(left.held.clone());
        }
        changing
    }

    /// Puts back what was changed, one that was not tried yet and one that was busy at least, and for as long as `goes_on` says so; returns the VMs of
    /// which all is done, and says what could not be put back. Without an actuator nothing was changed. Groups of VMs under care are `kept`, also
    /// where they are below others, because a thread of the one VM started the other.
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
        // Whoever has VMs end all the time must not keep the others' groups from being tried again.
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
            // A VM of which not all can be put back must be free to come back.
            let is_tried_again = is_busy || left.vm.is_none() && !report.is_complete();
            let is_due = match is_busy {
                true => left.tries == TOLD_AFTER,
                false => !std::mem::replace(&mut left.told, true),
            };
            if !report.is_complete() && is_due {
                let again = if is_tried_again { "; it is tried again" } else { "" };
                refused.push(Refused::not_put_back(&left.name, report, again));
            }
            if is_tried_again {
                // What was its own was put back, and may be another VM's by the next try.
                left.held.own = None;
                busy.push(left);
                continue;
            }
            if let Some(group) = left.group() {
                self.groups.remove(group);
            }
            done.extend(left.vm);
        }
        // Behind those that were not tried yet.
        self.left = left.chain(busy).collect();
        done
    }
}

/// Cgroups in which something is put back.
#[derive(Debug, Default)]
pub(super) struct Changing {
    /// There and below.
    within: HashSet<CgroupPath>,
    /// There alone.
    own: HashSet<CgroupPath>,
}

impl Changing {
    /// Also what is held here.
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

/// What a VM under care holds. A cgroup that is its own may have those of other VMs below it.
pub(super) fn held_by(managed: &ManagedVm) -> Held {
    let mut held = held(&managed.vcpus);
    if managed.is_left_alone() {
        return held;
    }
    match managed.made {
        true => held.cgroups.push(managed.cgroup.clone()),
        false => held.own = Some(managed.cgroup.clone()),
    }
    held
}

/// What vCPUs hold: their threads, and the cgroups that hold one alone.
pub(super) fn held(vcpus: &[ManagedVcpu]) -> Held {
    Held {
        threads: vcpus.iter().map(|vcpu| vcpu.thread).collect(),
        cgroups: vcpus.iter().filter_map(|vcpu| vcpu.group.clone()).collect(),
        own: None,
    }
}
