//! What a fair scheduler schedules: anything with a weight, and what its run queue keeps with it.
//!
//! Entities lie in one vector of their owner and are named by their number there. Virtual time is ns of
//! run time scaled by 1024 ÷ weight. The links are those of the tree that a long queue keeps its entities
//! in, so that nothing is allocated when one is queued.

/// No entity.
pub(crate) const NIL: u32 = u32::MAX;

/// An entity's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    pub left: u32,
    pub right: u32,
    /// The least deadline in the subtree below and with this entity.
    pub least: i64,
}

impl Default for Links {
    fn default() -> Links {
        Links { left: NIL, right: NIL, least: i64::MAX }
    }
}

/// Weights are kept in so many parts of one (scale_load of 64-bit kernels), so that a VM's weight can
/// be divided over many vCPUs.
pub const FINE: u64 = 1024;

/// Something that is scheduled.
#[derive(Clone, Debug)]
pub struct Entity {
    pub(super) weight: u64,
    pub(crate) vruntime: i64,
    pub(crate) deadline: i64,
    pub(crate) links: Links,
    /// Its slice in ns; 0: the discipline's.
    pub(super) slice: u64,
    /// Lag kept while it is not queued (EEVDF).
    pub(super) lag: i64,
    /// Distance from the queue's least virtual time, and of the deadline from the virtual time,
    /// kept while it is not queued.
    pub(super) offset: i64,
    pub(super) distance: i64,
    /// The queue that it was in last.
    pub(super) home: u32,
    /// It sleeps with negative lag, and is still queued.
    pub(super) delayed: bool,
    /// It is in the idle class (SCHED_IDLE, `cpu.idle`).
    idle: bool,
}

impl Entity {
    /// One with this weight; 1024 is nice 0.
    pub fn new(weight: u32) -> Entity {
        Entity {
            weight: u64::from(weight.max(2)) * FINE,
            vruntime: 0,
            deadline: 0,
            links: Links::default(),
            slice: 0,
            lag: 0,
            offset: 0,
            distance: 0,
            home: NIL,
            delayed: false,
            idle: false,
        }
    }

    /// Its weight, in parts of 1 ÷ [`FINE`].
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Gives an entity that was in no queue yet another weight, in parts of 1 ÷ [`FINE`].
    pub fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
    }

    /// Whether it is in the idle class.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Puts it into the idle class, or takes it out; its weight is the caller's business.
    pub fn set_idle(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// A slice of its own in ns (EEVDF's sched_setattr); 0: the discipline's.
    pub fn set_slice(&mut self, slice: u64) {
        self.slice = slice;
    }

    /// Its own slice in ns; 0: the discipline's.
    pub fn slice(&self) -> u64 {
        self.slice
    }

    /// Time as it counts for this entity.
    #[inline]
    pub(super) fn scaled(&self, time: u64) -> i64 {
        if self.weight == 1024 * FINE {
            // The usual weight, by which nothing needs to be divided.
            return time as i64;
        }
        match time.checked_mul(1024 * FINE) {
            Some(product) => (product / self.weight) as i64,
            None => (u128::from(time) * u128::from(1024 * FINE) / u128::from(self.weight)) as i64,
        }
    }
}
