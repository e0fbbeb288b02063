//! What becomes of an entity's virtual time when its weight changes (reweight_entity).

use super::{Discipline, Entity, FINE, FairQueue, Reweight};

impl FairQueue {
    /// Another weight in parts of 1 ÷ [`FINE`], for an entity that is current or queued here, or not runnable at all.
    ///
    /// Lag is kept: what it is owed in time does not change with what a unit of it is worth
    /// (reweight_entity; for CFS the virtual time stays). With [`Reweight::Placed`] it is inflated.
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
        let (average, limit) = match self.is_eevdf() {
            true => (self.average(entities), self.most_lag(&entities[id as usize])),
            false => (0, 0),
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
                        self.placed_anew(entities, id, rescaled(lag.clamp(-limit, limit)))
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

    /// Where place_entity of 6.13 puts an entity with another weight and this lag, which is out of the order by now.
    ///
    /// Its inflation by (W + w) ÷ W makes up for what V moves by when the entity comes to the others, who weigh W. One that waits
    /// is out of V here, so that is right. The current one is in it, with its new weight: it comes nobody, V and W count it
    /// twice, and its lag grows by w ÷ W each time.
    fn placed_anew(&self, entities: &[Entity], id: u32, lag: i64) -> i64 {
        let Entity { weight, vruntime, .. } = entities[id as usize];
        // Alone, the current one included: nobody to lag behind.
        let is_alone = self.load <= weight;
        let (mut moment, mut load) = self.sums(entities);
        let weight = i128::from(weight);
        if self.kept == id {
            // The current one to the kernel.
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
