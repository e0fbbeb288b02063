//! Handles for the turn keeper and its watchdog, which change a few journaled settings many times a second.
//!
//! [`Actuator::idle_switch`](super::Actuator::idle_switch) and [`Actuator::prepare_affinity`](super::Actuator::prepare_affinity) journal the values that a handle may write.
//! A handle writes no others, and needs no actuator, so that another thread or process can use it.

use serde::{Deserialize, Serialize};
use tandem_model::{PcpuId, PcpuSet, Weight};

use crate::affinity::{AffinityError, Threads};
use crate::cgroup::{CgroupError, CgroupPath, CpuController};
use crate::thread::ThreadRef;

/// A cgroup that may enter the idle class (`cpu.idle`), and leave it with a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdleSwitch {
    cgroup: CgroupPath,
    weight: Weight,
}

impl IdleSwitch {
    /// Returns a handle for values that are journaled, or that need no journal, as in tests.
    pub fn journaled(cgroup: CgroupPath, weight: Weight) -> IdleSwitch {
        IdleSwitch { cgroup, weight }
    }

    /// Returns the cgroup.
    pub fn cgroup(&self) -> &CgroupPath {
        &self.cgroup
    }

    /// Returns the cgroup's weight outside the idle class.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// Moves the cgroup into the idle class.
    pub fn enter(&self, controller: &dyn CpuController) -> Result<(), CgroupError> {
        controller.set_idle(&self.cgroup, true)
    }

    /// Takes the cgroup out of the idle class, which sets the kernel's default weight.
    /// [`IdleSwitch::reweigh`] then sets its own.
    pub fn leave(&self, controller: &dyn CpuController) -> Result<(), CgroupError> {
        controller.set_idle(&self.cgroup, false)
    }

    /// Sets the cgroup's weight.
    pub fn reweigh(&self, controller: &dyn CpuController) -> Result<(), CgroupError> {
        controller.set_weight(&self.cgroup, self.weight).map(drop)
    }

    /// Takes the cgroup out of the idle class if it is there, and sets its weight.
    pub fn revert(&self, controller: &dyn CpuController) -> Result<(), CgroupError> {
        if controller.is_idle(&self.cgroup)? == Some(true) {
            self.leave(controller)?;
            self.reweigh(controller)?;
        }
        Ok(())
    }
}

/// The slots of a thread: a pCPU of its own in each, its home outside them.
///
/// An affinity that others set meanwhile stays.
#[derive(Clone, Debug)]
pub struct Slots {
    thread: ThreadRef,
    home: PcpuSet,
    /// The last slot.
    now: Option<PcpuId>,
}

/// The result of a move to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The thread has moved.
    Moved,
    /// The thread is there already, or has ended.
    Unchanged,
    /// Others have set its affinity.
    Foreign,
}

impl Slots {
    /// Returns a handle for affinities that are journaled, or that need no journal, as in tests.
    pub fn journaled(thread: ThreadRef, home: PcpuSet) -> Slots {
        Slots { thread, home, now: None }
    }

    /// Returns the pCPUs on which the thread may run outside its slots.
    pub fn home(&self) -> &PcpuSet {
        &self.home
    }

    /// Moves the thread to this pCPU.
    pub fn sit(&mut self, threads: &dyn Threads, pcpu: PcpuId) -> Result<Moved, AffinityError> {
        if self.now == Some(pcpu) || !threads.is_alive(&self.thread) {
            return Ok(Moved::Unchanged);
        }
        if !self.is_ours(threads)? {
            return Ok(Moved::Foreign);
        }
        threads.set_affinity(self.thread.tid, &only(pcpu))?;
        self.now = Some(pcpu);
        Ok(Moved::Moved)
    }

    /// Restores the thread's affinity until the next slot.
    pub fn leave(&mut self, threads: &dyn Threads) -> Result<(), AffinityError> {
        if self.now.is_some() && threads.is_alive(&self.thread) && self.is_ours(threads)? {
            threads.set_affinity(self.thread.tid, &self.home)?;
        }
        self.now = None;
        Ok(())
    }

    /// Whether the affinity is the last slot or the home, so that others have not changed it.
    fn is_ours(&self, threads: &dyn Threads) -> Result<bool, AffinityError> {
        let now = threads.affinity(self.thread.tid)?;
        Ok(now == self.home || self.now.is_some_and(|slot| now == only(slot)))
    }
}

fn only(pcpu: PcpuId) -> PcpuSet {
    [pcpu].into_iter().collect()
}
