//! Virtual time of an entity whose weight changes (reweight_entity).

use super::{Discipline, Entity, FINE, FairQueue, Reweight};

impl FairQueue {
    /// Sets the weight, in parts of 1 ÷ [`FINE`], of an entity that is current or queued here, or not runnable at all.
    ///
    /// Lag in time is kept, so its virtual time is rescaled; with [`Reweight::Placed`] it is inflated.
    /// Under CFS the virtual time stays.
    pub fn set_weight(&mut self, entities: &mut [Entity], id: u32, weight: u64, runnable: bool) {
        let weight = weight.max(2 * FINE);
        let before = entities[id as usize].weight;
        if before == weight {
            return;
        }
        let is_delayed = entities[id as usize].delayed;
        let runnable = runnable || is_delayed;
        if runnable {
            self.update(entities);
        }
        let (average, limit) = if self.is_eevdf() {
            (self.average(entities), self.max_lag(&entities[id as usize]))
        } else {
            (0, 0)
        };
        let queued = runnable && self.current != id;
        if queued {
            self.unlink(entities, id);
        }
        if runnable {
            self.load = self.load - before + weight;
        }
        let rescaled =
            |time: i64| (i128::from(time) * i128::from(before) / i128::from(weight)) as i64;
        let entity = &mut entities[id as usize];
        entity.weight = weight;
        if let Discipline::Eevdf { reweight, .. } = self.discipline {
            entity.lag = rescaled(entity.lag);
            entity.distance = rescaled(entity.distance);
            if runnable {
                let distance = rescaled(entity.deadline - entity.vruntime);
                let lag = average - entity.vruntime;
                let vruntime = match reweight {
                    Reweight::Kept => average - rescaled(lag),
                    Reweight::Placed => {
                        self.placed_vruntime(entities, id, rescaled(lag.clamp(-limit, limit)))
                    }
                };
                let entity = &mut entities[id as usize];
                entity.vruntime = vruntime;
                entity.deadline = vruntime + distance;
            }
        }
        if queued {
            self.link(entities, id);
        } else if runnable {
            self.seen = entities[id as usize].vruntime;
        }
    }

    /// Virtual time at which place_entity of 6.13 puts a reweighted entity with this lag, which is already unlinked.
    ///
    /// The inflation by (W + w) ÷ W compensates the shift of V when the entity joins the others, whose weight is W.
    /// A waiting entity is not in V here, so that is right.
    /// The current entity already is in V and W, with its new weight.
    /// It is therefore counted twice, and its lag grows by w ÷ W each time.
    fn placed_vruntime(&self, entities: &[Entity], id: u32, lag: i64) -> i64 {
        let Entity { weight, vruntime, .. } = entities[id as usize];
        // A lone entity, current or not, has no lag.
        let is_alone = self.load <= weight;
        let (mut moment, mut load) = self.sums(entities);
        let weight = i128::from(weight);
        if self.kept == id {
            // Still the current entity in the kernel.
            moment += weight * i128::from(vruntime);
            load += weight;
        }
        if is_alone || load == 0 {
            return self.average(entities);
        }
        let lag = i128::from(lag) * (load + weight) / load;
        moment.div_euclid(load) as i64 - lag as i64
    }
}
