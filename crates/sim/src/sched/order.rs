//! The runnable entities of one CPU in the order of (virtual time, number): a row while they are few, otherwise a tree.
//!
//! Up to [`MAX_ROW`] entities are in a sorted array with copies of their keys.
//! Insertion and removal move the later entries, and the earliest eligible deadline is found by a linear scan.
//! That costs a third of a tree, whose search jumps through memory.
//!
//! More entities are in a balanced tree (see `tree`), so that the cost stays logarithmic.
//! The tree stays until it is empty, so that a queue with a length around the limit does not switch all the time.
//!
//! The results of both are the same.
//! An entity's virtual time and deadline must not change while it is in here.
//! The row never shrinks its allocation.

use super::entity::{Entities, Entity, NIL};
use super::ids::EntityId;
use super::tree::Tree;

/// Maximum number of entities in a row.
const MAX_ROW: usize = 32;

/// An entity in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowEntry {
    vruntime: i64,
    deadline: i64,
    id: EntityId,
}

/// Entities in order.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Empty while there is a tree.
    row: Vec<RowEntry>,
    tree: Tree,
}

impl Order {
    /// An order without entities.
    pub const EMPTY: Order = Order { row: Vec::new(), tree: Tree::EMPTY };

    /// Number of entities.
    #[inline]
    pub fn len(&self) -> u32 {
        self.row.len() as u32 + self.tree.len()
    }

    /// Inserts an entity.
    #[inline]
    pub fn insert(&mut self, entities: &mut Entities, id: EntityId) {
        if self.row.len() < MAX_ROW && self.tree.len() == 0 {
            let Entity { vruntime, deadline, .. } = entities[id];
            let is_before = |other: &RowEntry| (other.vruntime, other.id) < (vruntime, id);
            let at = self.row.partition_point(is_before);
            let place = RowEntry { vruntime, deadline, id };
            self.row.insert(at, place);
        } else {
            self.insert_into_tree(entities, id);
        }
    }

    #[cold]
    fn insert_into_tree(&mut self, entities: &mut Entities, id: EntityId) {
        for place in self.row.drain(..) {
            self.tree.insert(entities, place.id);
        }
        self.tree.insert(entities, id);
    }

    /// Removes an entity that is in here.
    #[inline]
    pub fn remove(&mut self, entities: &mut Entities, id: EntityId) {
        match self.row.iter().position(|place| place.id == id) {
            Some(at) => {
                self.row.remove(at);
            }
            None => self.tree.remove(entities, id),
        }
    }

    /// The entity with the least virtual time.
    #[inline]
    pub fn first(&self, entities: &Entities) -> Option<EntityId> {
        match self.row.first() {
            Some(place) => Some(place.id),
            None => self.tree.first(entities),
        }
    }

    /// The entity after `id`, which is in here.
    pub fn after(&self, entities: &Entities, id: EntityId) -> Option<EntityId> {
        match self.row.iter().position(|place| place.id == id) {
            Some(at) => self.row.get(at + 1).map(|place| place.id),
            None => self.tree.after(entities, id),
        }
    }

    /// The eligible entity with the earliest deadline, on a tie the one with less virtual time.
    /// Eligible must be all entities up to some virtual time.
    pub fn earliest(
        &self,
        entities: &Entities,
        is_eligible: impl Fn(i64) -> bool,
    ) -> Option<EntityId> {
        if self.row.is_empty() {
            return self.tree.earliest(entities, is_eligible);
        }
        let eligible = self.row.partition_point(|place| is_eligible(place.vruntime));
        let (mut best, mut deadline) = (NIL, i64::MAX);
        for place in &self.row[..eligible] {
            if place.deadline < deadline || best == NIL {
                (best, deadline) = (place.id, place.deadline);
            }
        }
        (best != NIL).then_some(best)
    }

    /// The entities in order.
    pub fn iter<'a>(&'a self, entities: &'a Entities) -> impl Iterator<Item = EntityId> + 'a {
        let row = self.row.iter().map(|place| place.id);
        row.chain(self.tree.iter(entities))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entities(times: &[(i64, i64)]) -> Entities {
        let entity = |&(vruntime, deadline): &(i64, i64)| {
            let mut entity = Entity::new(1024);
            (entity.vruntime, entity.deadline) = (vruntime, deadline);
            entity
        };
        times.iter().map(entity).collect()
    }

    proptest! {
        // Sometimes more entities than a row holds.
        #[test]
        fn row_matches_tree(
            times in prop::collection::vec((0i64..40, 0i64..60), 1..100),
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..45), 1..300),
        ) {
            let mut entities = entities(&times);
            let mut in_tree = entities.clone();
            let (mut order, mut tree) = (Order::EMPTY, Tree::EMPTY);
            let mut ids: Vec<EntityId> = Vec::new();
            for (index, limit) in steps {
                let id = EntityId(index.index(times.len()) as u32);
                if ids.contains(&id) {
                    order.remove(&mut entities, id);
                    tree.remove(&mut in_tree, id);
                    ids.retain(|&other| other != id);
                } else {
                    order.insert(&mut entities, id);
                    tree.insert(&mut in_tree, id);
                    ids.push(id);
                }
                let expected: Vec<EntityId> = tree.iter(&in_tree).collect();
                prop_assert_eq!(order.iter(&entities).collect::<Vec<_>>(), expected.clone());
                prop_assert_eq!(order.len() as usize, expected.len());
                prop_assert_eq!(order.first(&entities), expected.first().copied());
                for (&one, next) in expected.iter().zip(expected.iter().skip(1)) {
                    prop_assert_eq!(order.after(&entities, one), Some(*next));
                }
                if let Some(&last) = expected.last() {
                    prop_assert_eq!(order.after(&entities, last), None);
                }
                let up_to = |time: i64| time <= limit;
                prop_assert_eq!(order.earliest(&entities, up_to), tree.earliest(&in_tree, up_to));
            }
        }
    }

    #[test]
    fn full_row_moves_into_tree() {
        let most = MAX_ROW as u32;
        let times: Vec<(i64, i64)> = (0..i64::from(most) + 1).map(|n| (n % 7, n)).collect();
        let mut entities = entities(&times);
        let mut order = Order::EMPTY;
        for id in 0..most {
            order.insert(&mut entities, EntityId(id));
        }
        assert_eq!((order.row.len(), order.tree.len()), (MAX_ROW, 0));
        order.insert(&mut entities, EntityId(most));
        assert_eq!((order.row.len(), order.tree.len()), (0, most + 1));
        for id in 0..most {
            order.remove(&mut entities, EntityId(id));
        }
        assert_eq!((order.row.len(), order.tree.len()), (0, 1));
        order.remove(&mut entities, EntityId(most));
        order.insert(&mut entities, EntityId(0));
        assert_eq!((order.row.len(), order.tree.len()), (1, 0));
    }
}
