//! Scheduling entities (sched_entity): a weight, and the state that the run queue keeps for it.
//!
//! An entity is a task (a vCPU on the host, a thread in a guest) or a group of tasks on one CPU, which has its own run queue.
//! Virtual time is ns of run time scaled by 1024 ÷ weight.
//! A long queue keeps its entities in a tree; an entity holds its own links, so queueing needs no allocation.

use super::ids::{EntityId, QueueId, Table};

/// All entities that share a set of run queues.
pub type Entities = Table<EntityId, Entity>;

/// No entity.
pub(crate) const NIL: EntityId = EntityId::NIL;

/// An entity's links in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    pub left: EntityId,
    pub right: EntityId,
    /// Earliest deadline in the subtree rooted at this entity.
    pub least: i64,
}

impl Default for Links {
    fn default() -> Links {
        Links { left: NIL, right: NIL, least: i64::MAX }
    }
}

/// Fixed-point scale of weights (scale_load of 64-bit kernels), so that a VM's weight can be divided over many vCPUs.
pub const FINE: u64 = 1024;

/// A scheduling entity.
#[derive(Clone, Debug)]
pub struct Entity {
    /// Its weight within its group, in parts of 1 ÷ [`FINE`].
    pub weight: u64,
    /// Its weight in the queue in which it competes (h_load): its `weight`, unless the class is flat.
    pub(crate) h_load: u64,
    pub(crate) vruntime: i64,
    pub(crate) deadline: i64,
    pub(crate) links: Links,
    /// Its slice in ns; 0: the discipline's.
    pub(super) slice: u64,
    /// Lag, kept while it is not queued (EEVDF).
    pub(super) lag: i64,
    /// Virtual time relative to the queue's minimum, kept while it is not queued.
    pub(super) offset: i64,
    /// Deadline relative to the virtual time, kept while it is not queued.
    pub(super) distance: i64,
    /// The queue in which it is or was last (cfs_rq).
    pub(super) cfs_rq: QueueId,
    /// The queue of a group's members.
    pub my_q: QueueId,
    /// It is in its queue or current, asleep or not.
    pub on_rq: bool,
    /// It sleeps with negative lag and is still queued (sched_delayed).
    pub sched_delayed: bool,
    /// It is in the idle class (SCHED_IDLE, `cpu.idle`).
    pub idle: bool,
}

impl Entity {
    /// An entity of this weight; 1024 is nice 0.
    pub fn new(weight: u32) -> Entity {
        Entity {
            weight: u64::from(weight.max(2)) * FINE,
            h_load: u64::from(weight.max(2)) * FINE,
            vruntime: 0,
            deadline: 0,
            links: Links::default(),
            slice: 0,
            lag: 0,
            offset: 0,
            distance: 0,
            cfs_rq: QueueId::NIL,
            my_q: QueueId::NIL,
            on_rq: false,
            sched_delayed: false,
            idle: false,
        }
    }

    /// Virtual time of a run time (calc_delta_fair).
    #[inline]
    pub(super) fn scaled(&self, time: u64) -> i64 {
        if self.h_load == 1024 * FINE {
            // The default weight needs no division.
            return time as i64;
        }
        match time.checked_mul(1024 * FINE) {
            Some(product) => (product / self.h_load) as i64,
            None => (u128::from(time) * u128::from(1024 * FINE) / u128::from(self.h_load)) as i64,
        }
    }
}
