//! A balanced tree of entities, ordered by (virtual time, number) and augmented with the earliest deadline of each subtree.
//!
//! It has the role of the kernel's red-black tree.
//! In logarithmic time it finds the first entity by virtual time and (EEVDF) the eligible entity with the earliest deadline.
//! It is a treap (Seidel & Aragon, "Randomized Search Trees", 1996) with a hash of the entity's number as priority.
//! It needs no randomness and no rebalancing state.
//!
//! The nodes are in the entities, which the caller owns, so the tree allocates no memory.
//! An entity is in at most one tree at a time, and its key must not change while it is.

use super::entity::{Entities, Links, NIL};
use super::ids::EntityId;

/// A tree of entities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    root: EntityId,
    len: u32,
}

/// Heap priority of an entity: its hashed number (finalizer of MurmurHash3).
fn priority(id: EntityId) -> u32 {
    let mut x = id.0.wrapping_add(0x9e37_79b9);
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

fn key(entities: &Entities, id: EntityId) -> (i64, EntityId) {
    (entities[id].vruntime, id)
}

fn least(entities: &Entities, id: EntityId) -> i64 {
    match id {
        NIL => i64::MAX,
        id => entities[id].links.least,
    }
}

/// Updates a node's earliest deadline from its own and its children's.
fn update(entities: &mut Entities, id: EntityId) {
    let Links { left, right, .. } = entities[id].links;
    let below = least(entities, left).min(least(entities, right));
    let entity = &mut entities[id];
    entity.links.least = below.min(entity.deadline);
}

/// Splits a subtree into the nodes before `at` and the others.
fn split(entities: &mut Entities, node: EntityId, at: (i64, EntityId)) -> (EntityId, EntityId) {
    if node == NIL {
        return (NIL, NIL);
    }
    let Links { left, right, .. } = entities[node].links;
    if key(entities, node) < at {
        let (before, after) = split(entities, right, at);
        entities[node].links.right = before;
        update(entities, node);
        (node, after)
    } else {
        let (before, after) = split(entities, left, at);
        entities[node].links.left = after;
        update(entities, node);
        (before, node)
    }
}

/// Merges two subtrees, all of the first before all of the second.
fn merge(entities: &mut Entities, first: EntityId, second: EntityId) -> EntityId {
    match (first, second) {
        (NIL, other) | (other, NIL) => other,
        _ if priority(first) > priority(second) => {
            let right = entities[first].links.right;
            entities[first].links.right = merge(entities, right, second);
            update(entities, first);
            first
        }
        _ => {
            let left = entities[second].links.left;
            entities[second].links.left = merge(entities, first, left);
            update(entities, second);
            second
        }
    }
}

fn insert(entities: &mut Entities, node: EntityId, id: EntityId) -> EntityId {
    if node == NIL || priority(id) > priority(node) {
        let at = key(entities, id);
        let (left, right) = split(entities, node, at);
        let links = &mut entities[id].links;
        (links.left, links.right) = (left, right);
        update(entities, id);
        return id;
    }
    if key(entities, id) < key(entities, node) {
        let left = entities[node].links.left;
        entities[node].links.left = insert(entities, left, id);
    } else {
        let right = entities[node].links.right;
        entities[node].links.right = insert(entities, right, id);
    }
    update(entities, node);
    node
}

fn remove(entities: &mut Entities, node: EntityId, id: EntityId) -> EntityId {
    debug_assert_ne!(node, NIL, "entity {id:?} is not in the tree");
    if node == NIL {
        return NIL;
    }
    let Links { left, right, .. } = entities[node].links;
    if node == id {
        return merge(entities, left, right);
    }
    if key(entities, id) < key(entities, node) {
        entities[node].links.left = remove(entities, left, id);
    } else {
        entities[node].links.right = remove(entities, right, id);
    }
    update(entities, node);
    node
}

impl Tree {
    pub const EMPTY: Tree = Tree { root: NIL, len: 0 };

    /// Number of entities.
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn insert(&mut self, entities: &mut Entities, id: EntityId) {
        self.root = insert(entities, self.root, id);
        self.len += 1;
    }

    pub fn remove(&mut self, entities: &mut Entities, id: EntityId) {
        self.root = remove(entities, self.root, id);
        self.len -= 1;
    }

    /// The entity with the least virtual time.
    pub fn first(&self, entities: &Entities) -> Option<EntityId> {
        let mut at = self.root;
        if at == NIL {
            return None;
        }
        while entities[at].links.left != NIL {
            at = entities[at].links.left;
        }
        Some(at)
    }

    /// The entity after `id`.
    pub fn after(&self, entities: &Entities, id: EntityId) -> Option<EntityId> {
        let wanted = key(entities, id);
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            if key(entities, at) > wanted {
                found = Some(at);
                at = entities[at].links.left;
            } else {
                at = entities[at].links.right;
            }
        }
        found
    }

    /// The eligible entity with the earliest deadline, on a tie the one with less virtual time.
    /// Eligible must be all entities up to some virtual time.
    pub fn earliest(
        &self,
        entities: &Entities,
        is_eligible: impl Fn(i64) -> bool,
    ) -> Option<EntityId> {
        let mut best: Option<(i64, EntityId)> = None;
        // A left subtree with the best deadline so far, searched at the end.
        let mut subtree = NIL;
        let mut at = self.root;
        while at != NIL {
            let entity = &entities[at];
            if !is_eligible(entity.vruntime) {
                at = entity.links.left;
                continue;
            }
            // The left subtree is eligible, too, and comes before this entity.
            let left = least(entities, entity.links.left);
            let is_better = best.is_none_or(|(deadline, _)| left < deadline);
            if is_better && left <= entity.deadline && entity.links.left != NIL {
                best = Some((left, NIL));
                subtree = entity.links.left;
            }
            if best.is_none_or(|(deadline, _)| entity.deadline < deadline) {
                best = Some((entity.deadline, at));
            }
            at = entity.links.right;
        }
        match best? {
            (deadline, NIL) => Some(with_deadline(entities, subtree, deadline)),
            (_, id) => Some(id),
        }
    }

    /// The entities in order.
    pub fn iter<'a>(&self, entities: &'a Entities) -> impl Iterator<Item = EntityId> + use<'a> {
        let tree = *self;
        std::iter::successors(tree.first(entities), move |&id| tree.after(entities, id))
    }
}

/// The first entity of a subtree with the subtree's earliest deadline.
fn with_deadline(entities: &Entities, mut at: EntityId, deadline: i64) -> EntityId {
    loop {
        let entity = &entities[at];
        if least(entities, entity.links.left) == deadline {
            at = entity.links.left;
        } else if entity.deadline == deadline || entity.links.right == NIL {
            return at;
        } else {
            at = entity.links.right;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entity::Entity;
    use super::*;
    use proptest::prelude::*;

    fn entities(times: &[(i64, i64)]) -> Entities {
        times
            .iter()
            .map(|&(vruntime, deadline)| {
                let mut entity = Entity::new(1024);
                (entity.vruntime, entity.deadline) = (vruntime, deadline);
                entity
            })
            .collect()
    }

    proptest! {
        #[test]
        fn tree_matches_sorted_list(
            times in prop::collection::vec((0i64..40, 0i64..60), 1..40),
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..45), 1..120),
        ) {
            let mut entities = entities(&times);
            let mut tree = Tree::EMPTY;
            let mut list: Vec<EntityId> = Vec::new();
            for (index, limit) in steps {
                let id = EntityId(index.index(times.len()) as u32);
                if list.contains(&id) {
                    tree.remove(&mut entities, id);
                    list.retain(|&other| other != id);
                } else {
                    tree.insert(&mut entities, id);
                    list.push(id);
                    list.sort_by_key(|&id| key(&entities, id));
                }
                prop_assert_eq!(tree.len() as usize, list.len());
                prop_assert_eq!(tree.first(&entities), list.first().copied());
                prop_assert_eq!(tree.iter(&entities).collect::<Vec<_>>(), list.clone());
                let wanted = list
                    .iter()
                    .copied()
                    .filter(|&id| entities[id].vruntime <= limit)
                    .min_by_key(|&id| (entities[id].deadline, key(&entities, id)));
                prop_assert_eq!(tree.earliest(&entities, |time| time <= limit), wanted);
            }
        }
    }

    #[test]
    fn sorted_inserts_stay_balanced() {
        let times: Vec<(i64, i64)> = (0..1000).map(|n| (n, -n)).collect();
        let mut entities = entities(&times);
        let mut tree = Tree::EMPTY;
        for id in 0..1000 {
            tree.insert(&mut entities, EntityId(id));
        }
        fn depth(entities: &Entities, at: EntityId) -> u32 {
            match at {
                NIL => 0,
                at => {
                    let Links { left, right, .. } = entities[at].links;
                    1 + depth(entities, left).max(depth(entities, right))
                }
            }
        }
        assert!(depth(&entities, tree.root) < 40);
    }
}
