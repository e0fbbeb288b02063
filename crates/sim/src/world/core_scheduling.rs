//! Core scheduling: the threads of a core run vCPUs of one VM at a time.
//!
//! The kernel gives threads a cookie (PR_SCHED_CORE), and a core picks for all its threads at once: the task of highest priority,
//! and tasks with the same cookie on the siblings, which otherwise are *forced idle* (pick_next_task in kernel/sched/core.c, 6.12;
//! Documentation/admin-guide/hw-vuln/core-scheduling.rst).
//! Here a VM is a cookie, and each pCPU picks for itself:
//!
//! - If its choice matches the vCPU on the sibling, or the sibling is idle, the choice runs.
//! - Otherwise a queued vCPU of the sibling's VM runs in its place, or the pCPU is forced idle.
//! - A pCPU whose choice has been denied for [`SLICE`] takes the core: its choice runs, and the sibling picks again.
//!
//! So VMs that conflict on a core alternate by slices, whatever their weights; the kernel compares vruntimes (cfs_prio_less).
//! Non-goals: stealing a matching task from another core (sched_core_balance), cookies within a VM, the cost of the interrupt to the sibling.

use crate::host::Scheduler;

use super::simulation::World;
use super::state::{NONE, Work};

/// Time after which a denied choice takes the core, ns: EEVDF's base slice on hosts of eight or more pCPUs.
const SLICE: u64 = 3_000_000;

/// A pCPU under core scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Denial {
    /// Time since which its choices have been denied, ns.
    since: u64,
    /// Time up to which its forced idle time is counted; `None`: it runs a vCPU of the sibling's VM.
    idle_from: Option<u64>,
}

/// The denied choices of the pCPUs.
#[derive(Clone, Debug)]
pub(super) struct CoreScheduling {
    denied: Vec<Option<Denial>>,
}

impl CoreScheduling {
    /// No pCPU is denied its choice.
    pub fn new(pcpus: usize) -> CoreScheduling {
        CoreScheduling { denied: vec![None; pcpus] }
    }
}

impl World {
    /// The vCPU that a pCPU may run; its scheduler has picked `choice` and made it current.
    pub(super) fn match_core(&mut self, p: u32, choice: Option<u32>) -> Option<u32> {
        let (Some(cores), Some(smt)) = (&mut self.core_scheduling, &self.smt) else {
            return choice;
        };
        let sibling = smt.sibling(p);
        let denied = cores.denied[p as usize].take();
        if let Some(from) = denied.and_then(|denied| denied.idle_from) {
            self.pcpus[p as usize].results.forced_idle.0 += self.now - from;
        }
        let v = choice?;
        let other = self.pcpus[sibling as usize].current;
        if other == NONE || self.vcpus[other as usize].vm == self.vcpus[v as usize].vm {
            return choice;
        }
        let since = denied.map_or(self.now, |denied| denied.since);
        if self.now - since >= SLICE {
            self.reschedule(sibling);
            return choice;
        }
        self.host.put_back(v, p, self.now);
        let matching = self.host.pick_of(self.vcpus[other as usize].vm, p, self.now);
        let idle_from = matching.is_none().then_some(self.now);
        if let Some(cores) = &mut self.core_scheduling {
            cores.denied[p as usize] = Some(Denial { since, idle_from });
        }
        matching
    }

    /// The vCPU on a pCPU has changed, or its tick is due: a forced idle sibling picks again if the core may be its own.
    pub(super) fn wake_forced_idle(&mut self, p: u32) {
        let (Some(cores), Some(smt)) = (&self.core_scheduling, &self.smt) else {
            return;
        };
        let sibling = smt.sibling(p);
        if let Some(Denial { idle_from: Some(_), .. }) = cores.denied[sibling as usize] {
            self.work.push(Work::Pcpu(sibling));
        }
    }

    /// Whether a pCPU without a vCPU is forced idle.
    pub(super) fn is_forced_idle(&self, p: u32) -> bool {
        let cores = self.core_scheduling.as_ref();
        cores.is_some_and(|cores| {
            cores.denied[p as usize].is_some_and(|denied| denied.idle_from.is_some())
        })
    }

    /// Counts the forced idle time up to now.
    pub(super) fn count_forced_idle(&mut self) {
        let Some(cores) = &mut self.core_scheduling else {
            return;
        };
        for (denied, pcpu) in cores.denied.iter_mut().zip(&mut self.pcpus) {
            if let Some(Denial { idle_from: Some(from), .. }) = denied {
                pcpu.results.forced_idle.0 += self.now - *from;
                *from = self.now;
            }
        }
    }

    /// The first core that runs vCPUs of two VMs, as two pCPUs.
    pub(super) fn mixed_core(&self) -> Option<(u32, u32)> {
        let (Some(_), Some(smt)) = (&self.core_scheduling, &self.smt) else {
            return None;
        };
        let vm = |p: u32| self.vcpus.get(self.pcpus[p as usize].current as usize).map(|v| v.vm);
        let mut cores = (0..self.pcpus.len() as u32).map(|p| (p, smt.sibling(p)));
        cores.find(|&(p, q)| vm(p).is_some() && vm(q).is_some() && vm(p) != vm(q))
    }
}
