//! Slice of an entity (sched_slice): its part of a period in which all entities run once.

use super::{Above, CfsAge, Discipline, Entity, FairQueue};

impl FairQueue {
    /// Slice of an entity under EEVDF.
    pub(super) fn slice_of(&self, entity: &Entity) -> u64 {
        match self.discipline {
            Discipline::Eevdf { .. } if entity.slice > 0 => entity.slice,
            Discipline::Eevdf { base_slice, .. } => base_slice.0,
            Discipline::Cfs { .. } => 0,
        }
    }

    /// Slice of an entity under CFS; one that is not yet queued here counts in addition to the queued ones.
    pub(super) fn cfs_slice(&self, entity: &Entity, is_queued: bool, above: Above) -> u64 {
        let Discipline::Cfs { as_of, latency, min_granularity, .. } = self.discipline else {
            return 0;
        };
        let has_base = as_of >= CfsAge::AltPeriod;
        let (comes, more) = if is_queued { (0, 0) } else { (1, entity.weight) };
        let running = comes + u64::from(if has_base { above.running } else { self.len() });
        let period = if running > Discipline::many(latency, min_granularity) {
            running * min_granularity.0
        } else {
            latency.0
        };
        let load = (self.load + more).max(entity.weight);
        let part = u128::from(period) * u128::from(entity.weight) / u128::from(load);
        let part = part * u128::from(above.weight) / u128::from(above.load.max(1));
        if has_base { (part as u64).max(min_granularity.0) } else { part as u64 }
    }
}
