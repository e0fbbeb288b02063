//! A balanced tree of entities, ordered by (virtual time, number) and augmented with the earliest deadline of each subtree.
//!
//! It has the role of the kernel's red-black tree.
//! In logarithmic time it finds the first entity by virtual time and (EEVDF) the eligible entity with the earliest deadline.
//! It is a treap (Seidel & Aragon, "Randomized Search Trees", 1996) with a hash of the entity's number as priority.
//! It needs no randomness and no rebalancing state.
//!
//! The nodes are in the entities, which the caller owns, so the tree allocates no memory.
//! An entity is in at most one tree at a time, and its key must not change while it is.

use super::entity::{Entity, Links, NIL};

/// A tree of entities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    root: u32,
    len: u32,
}

/// Heap priority of an entity: its hashed number (finalizer of MurmurHash3).
fn priority(id: u32) -> u32 {
    let mut x = id.wrapping_add(0x9e37_79b9);
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

fn key(entities: &[Entity], id: u32) -> (i64, u32) {
    (entities[id as usize].vruntime, id)
}

fn least(entities: &[Entity], id: u32) -> i64 {
    match id {
        NIL => i64::MAX,
        id => entities[id as usize].links.least,
    }
}

/// Updates a node's earliest deadline from its own and its children's.
fn update(entities: &mut [Entity], id: u32) {
    let Links { left, right, .. } = entities[id as usize].links;
    let below = least(entities, left).min(least(entities, right));
    let entity = &mut entities[id as usize];
    entity.links.least = below.min(entity.deadline);
}

/// Splits a subtree into the nodes before `at` and the others.
fn split(entities: &mut [Entity], node: u32, at: (i64, u32)) -> (u32, u32) {
    if node == NIL {
        return (NIL, NIL);
    }
    let Links { left, right, .. } = entities[node as usize].links;
    if key(entities, node) < at {
        let (before, after) = split(entities, right, at);
        entities[node as usize].links.right = before;
        update(entities, node);
        (node, after)
    } else {
        let (before, after) = split(entities, left, at);
        entities[node as usize].links.left = after;
        update(entities, node);
        (before, node)
    }
}

/// Merges two subtrees, all of the first before all of the second.
fn merge(entities: &mut [Entity], first: u32, second: u32) -> u32 {
    match (first, second) {
        (NIL, other) | (other, NIL) => other,
        _ if priority(first) > priority(second) => {
            let right = entities[first as usize].links.right;
            entities[first as usize].links.right = merge(entities, right, second);
            update(entities, first);
            first
        }
        _ => {
            let left = entities[second as usize].links.left;
            entities[second as usize].links.left = merge(entities, first, left);
            update(entities, second);
            second
        }
    }
}

fn insert(entities: &mut [Entity], node: u32, id: u32) -> u32 {
    if node == NIL || priority(id) > priority(node) {
        let at = key(entities, id);
        let (left, right) = split(entities, node, at);
        let links = &mut entities[id as usize].links;
        (links.left, links.right) = (left, right);
        update(entities, id);
        return id;
    }
    if key(entities, id) < key(entities, node) {
        let left = entities[node as usize].links.left;
        entities[node as usize].links.left = insert(entities, left, id);
    } else {
        let right = entities[node as usize].links.right;
        entities[node as usize].links.right = insert(entities, right, id);
    }
    update(entities, node);
    node
}

fn remove(entities: &mut [Entity], node: u32, id: u32) -> u32 {
    debug_assert_ne!(node, NIL, "entity {id} is not in the tree");
    if node == NIL {
        return NIL;
    }
    let Links { left, right, .. } = entities[node as usize].links;
    if node == id {
        return merge(entities, left, right);
    }
    if key(entities, id) < key(entities, node) {
        entities[node as usize].links.left = remove(entities, left, id);
    } else {
        entities[node as usize].links.right = remove(entities, right, id);
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

    pub fn insert(&mut self, entities: &mut [Entity], id: u32) {
        self.root = insert(entities, self.root, id);
        self.len += 1;
    }

    pub fn remove(&mut self, entities: &mut [Entity], id: u32) {
        self.root = remove(entities, self.root, id);
        self.len -= 1;
    }

    /// The entity with the least virtual time.
    pub fn first(&self, entities: &[Entity]) -> Option<u32> {
        let mut at = self.root;
        if at == NIL {
            return None;
        }
        while entities[at as usize].links.left != NIL {
            at = entities[at as usize].links.left;
        }
        Some(at)
    }

    /// The entity after `id`.
    pub fn after(&self, entities: &[Entity], id: u32) -> Option<u32> {
        let wanted = key(entities, id);
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            if key(entities, at) > wanted {
                found = Some(at);
                at = entities[at as usize].links.left;
            } else {
                at = entities[at as usize].links.right;
            }
        }
        found
    }

    /// The eligible entity with the earliest deadline, on a tie the one with less virtual time.
    /// Eligible must be all entities up to some virtual time.
    pub fn earliest(&self, entities: &[Entity], is_eligible: impl Fn(i64) -> bool) -> Option<u32> {
        let mut best: Option<(i64, u32)> = None;
        // A left subtree with the best deadline so far, searched at the end.
        let mut subtree = NIL;
        let mut at = self.root;
        while at != NIL {
            let entity = &entities[at as usize];
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
    pub fn iter<'a>(&self, entities: &'a [Entity]) -> impl Iterator<Item = u32> + use<'a> {
        let tree = *self;
        std::iter::successors(tree.first(entities), move |&id| tree.after(entities, id))
    }
}

/// The first entity of a subtree with the subtree's earliest deadline.
fn with_deadline(entities: &[Entity], mut at: u32, deadline: i64) -> u32 {
    loop {
        let entity = &entities[at as usize];
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
    use super::*;
    use proptest::prelude::*;

    fn entities(times: &[(i64, i64)]) -> Vec<Entity> {
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
            let mut list: Vec<u32> = Vec::new();
            for (index, limit) in steps {
                let id = index.index(entities.len()) as u32;
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
                    .filter(|&id| entities[id as usize].vruntime <= limit)
                    .min_by_key(|&id| (entities[id as usize].deadline, key(&entities, id)));
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
            tree.insert(&mut entities, id);
        }
        fn depth(entities: &[Entity], at: u32) -> u32 {
            match at {
                NIL => 0,
                at => {
                    let Links { left, right, .. } = entities[at as usize].links;
                    1 + depth(entities, left).max(depth(entities, right))
                }
            }
        }
        assert!(depth(&entities, tree.root) < 40);
    }
}
