//! VMs that are gone, or no longer selected, until what was changed for them is put back.
//!
//! Nothing is done with them any more but that, and nobody hears of them. Thousands may end at once: an update puts back what it can in its time,
//! one of them at least, and the next goes on. A group in which threads still are is tried again at each look, after those that were not tried. The
//! journal lists them until then, so the end of the daemon puts them back, whatever end that is.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::actuator::Actuator;
use tandem_linux::actuator::Held;
use tandem_linux::thread::Pid;
use tandem_policy::PolicySet;

use crate::apply::Refused;
use crate::discovery::Vm;
use crate::managed::ManagedVcpu;
use crate::managed::ManagedVm;

/// After so many tries it is told that a group cannot be removed.
const TOLD_AFTER: u32 = 20;

/// The VMs, in the order in which they left.
#[derive(Debug, Default)]
pub(super) struct Leaving(VecDeque<Left>);

/// One that left.
#[derive(Debug)]
pub(super) struct Left {
    /// As it was discovered.
    pub(super) vm: Vm,
    /// The policies that acted on it.
    pub(super) policies: PolicySet,
    held: Held,
    /// How often it was tried to put that back.
    tries: u32,
}

impl Leaving {
    /// A VM leaves.
    pub(super) fn push(&mut self, managed: ManagedVm) {
        let mut held = held(&managed.vcpus);
        if !managed.is_left_alone() {
            held.cgroups.push(managed.cgroup);
        }
        let again = self.0.iter().position(|left| left.tries > 0);
        let place = again.unwrap_or(self.0.len());
        let left = Left {
            vm: managed.vm,
            policies: managed.policies,
            held,
            tries: 0,
        };
        self.0.insert(place, left);
    }

    /// Their processes.
    pub(super) fn pids(&self) -> BTreeSet<Pid> {
        self.0.iter().map(|left| left.vm.process.pid).collect()
    }

    /// Puts back what was changed, for so long; returns those of which all is done, and says what could not be put back. Without an actuator nothing
    /// was changed.
    pub(super) fn release(
        &mut self,
        actuator: Option<&mut Actuator>,
        for_so_long: Duration,
        refused: &mut Vec<Refused>,
    ) -> Vec<Left> {
        let Some(actuator) = actuator.filter(|_| !self.0.is_empty()) else {
            return self.0.drain(..).collect();
        };
        let all: Vec<&Held> = self.0.iter().map(|left| &left.held).collect();
        let began = Instant::now();
        let mut any = false;
        let reports = actuator.release(&all, || {
            !std::mem::replace(&mut any, true) || began.elapsed() < for_so_long
        });
        let tried: Vec<Left> = self.0.drain(..reports.len()).collect();
        let mut done = Vec::new();
        for (mut left, report) in tried.into_iter().zip(&reports) {
            let is_busy = !report.busy.is_empty();
            left.tries += 1;
            if !report.is_complete() && (!is_busy || left.tries == TOLD_AFTER) {
                let again = if is_busy { "; it is tried again" } else { "" };
                refused.push(Refused {
                    vm: left.vm.name.clone(),
                    error: format!("{report}{again}"),
                    is_of_disk: false,
                    is_others: false,
                });
            }
            // Behind those that were not tried yet.
            match is_busy {
                true => self.0.push_back(left),
                false => done.push(left),
            }
        }
        done
    }
}

/// What vCPUs hold: their threads, and the cgroups that hold one alone.
pub(super) fn held(vcpus: &[ManagedVcpu]) -> Held {
    Held {
        threads: vcpus.iter().map(|vcpu| vcpu.thread).collect(),
        cgroups: vcpus.iter().filter_map(|vcpu| vcpu.group.clone()).collect(),
    }
}
