//! The event queue: an indexed four-ary heap over slots.
//!
//! Each possible event has its own slot, created when the world is built: one per pCPU for the end of its current work, one per timer.
//! Setting a slot's time moves it, so there are no stale events, no payloads and no allocation per event.
//! Events are ordered by (time, sequence): of two at the same time, the one set first comes first.
//!
//! Cost: logarithmic in the number of set slots, with base 4.
//! A node's four children are adjacent, and empty places hold the latest possible key, so sifting down needs no length check.

/// Slot of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// The root: the last place of the first four, so that the children of any node are an aligned block of four, see [`children`].
const ROOT: usize = 3;

/// Bits of the sequence number in a key.
/// When they overflow, the pending entries are renumbered in order.
const SEQUENCE_BITS: u32 = 22;

/// Maximum time of an event in ns, about 73 minutes; later times are clamped to it.
pub const LATEST: u64 = (1 << (64 - SEQUENCE_BITS)) - 1;

/// A key of time and sequence, which orders entries by one comparison, and the slot.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    slot: u32,
}

impl Entry {
    /// Entry of an empty place, later than all others.
    const NOTHING: Entry = Entry { key: u64::MAX, slot: NOWHERE };

    #[inline]
    fn time(self) -> u64 {
        self.key >> SEQUENCE_BITS
    }
}

/// The block of four places that holds the children of a node; its first place is 4 × this.
#[inline]
fn children(at: usize) -> usize {
    at - 2
}

/// The parent of a node other than the root.
#[inline]
fn parent(at: usize) -> usize {
    at / 4 + 2
}

/// Pending slots by (time, sequence).
#[derive(Clone, Debug, Default)]
pub struct EventQueue {
    /// Blocks of four places.
    heap: Vec<[Entry; 4]>,
    /// Nodes from [`ROOT`] on, a hollow one included.
    nodes: usize,
    position: Vec<u32>,
    sequence: u64,
    /// The root was popped and its place is still empty.
    /// An event mostly sets its own slot again, which then takes that place in one pass through the heap instead of two.
    hollow: bool,
}

impl EventQueue {
    /// Maximum number of slots: renumbering them must leave numbers for many more events.
    pub const MAX_SLOTS: usize = 1 << (SEQUENCE_BITS - 1);

    /// A queue with `slots` slots.
    pub fn new(slots: usize) -> EventQueue {
        assert!(slots <= EventQueue::MAX_SLOTS, "{slots} slots are too many");
        EventQueue {
            heap: Vec::with_capacity((ROOT + slots).div_ceil(4)),
            nodes: 0,
            position: vec![NOWHERE; slots],
            sequence: 0,
            hollow: false,
        }
    }

    /// Adds a slot.
    pub fn add_slot(&mut self) -> Slot {
        self.position.push(NOWHERE);
        Slot(self.position.len() as u32 - 1)
    }

    /// Number of set slots.
    pub fn len(&self) -> usize {
        self.nodes - usize::from(self.hollow)
    }

    /// Whether no slot is set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a slot is set.
    pub fn is_set(&self, slot: Slot) -> bool {
        self.position[slot.0 as usize] != NOWHERE
    }

    /// Sets or moves a slot to `time` in ns, after all other slots already set to that time.
    #[inline]
    pub fn set(&mut self, slot: Slot, time: u64) {
        if self.sequence >> SEQUENCE_BITS > 0 {
            self.renumber();
        }
        let entry = Entry { key: time.min(LATEST) << SEQUENCE_BITS | self.sequence, slot: slot.0 };
        self.sequence += 1;
        let at = self.position[slot.0 as usize];
        if self.hollow && at == NOWHERE {
            self.hollow = false;
            self.down(ROOT, entry);
        } else {
            self.insert_or_move(at, entry);
        }
    }

    /// Inserts an entry, or moves it from the place `at`.
    #[inline(never)]
    fn insert_or_move(&mut self, at: u32, entry: Entry) {
        if at == NOWHERE {
            let at = ROOT + self.nodes;
            self.nodes += 1;
            if at / 4 >= self.heap.len() {
                self.heap.resize(at / 4 + 1, [Entry::NOTHING; 4]);
            }
            self.up(at, entry);
            return;
        }
        let at = at as usize;
        if entry.key < self.at(at).key {
            self.up(at, entry);
        } else {
            self.down(at, entry);
        }
    }

    /// Renumbers the pending entries from 0 in order; the sorted entries are a heap.
    #[cold]
    #[inline(never)]
    fn renumber(&mut self) {
        self.close();
        if self.nodes == 0 {
            self.sequence = 0;
            return;
        }
        let pending = &mut self.heap.as_flattened_mut()[ROOT..ROOT + self.nodes];
        pending.sort_unstable_by_key(|entry| entry.key);
        for (sequence, entry) in pending.iter_mut().enumerate() {
            entry.key = entry.time() << SEQUENCE_BITS | sequence as u64;
            self.position[entry.slot as usize] = (ROOT + sequence) as u32;
        }
        self.sequence = self.nodes as u64;
    }

    /// Clears a slot, if it is set.
    #[inline]
    pub fn cancel(&mut self, slot: Slot) {
        let at = self.position[slot.0 as usize];
        if at == NOWHERE {
            return;
        }
        self.position[slot.0 as usize] = NOWHERE;
        self.fill(at as usize);
    }

    /// Fills the place of a popped entry.
    #[inline]
    fn close(&mut self) {
        if self.hollow {
            self.hollow = false;
            self.fill(ROOT);
        }
    }

    /// Removes the next event and clears its slot.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Slot)> {
        self.pop_until(LATEST)
    }

    /// Removes the next event if its time is at most `limit`, and clears its slot.
    #[inline]
    pub fn pop_until(&mut self, limit: u64) -> Option<(u64, Slot)> {
        self.close();
        if self.nodes == 0 {
            return None;
        }
        let root = &mut self.heap.first_mut()?[ROOT];
        let first = *root;
        if first.time() > limit {
            return None;
        }
        // No entry moves up past the empty root.
        root.key = 0;
        self.hollow = true;
        self.position[first.slot as usize] = NOWHERE;
        Some((first.time(), Slot(first.slot)))
    }

    /// Puts the last entry into the hole at `at`.
    #[inline]
    fn fill(&mut self, at: usize) {
        self.nodes -= 1;
        let end = ROOT + self.nodes;
        let last = std::mem::replace(&mut self.heap[end / 4][end % 4], Entry::NOTHING);
        if at == end {
            return;
        }
        if at > ROOT && last.key < self.at(parent(at)).key {
            self.up(at, last);
        } else {
            self.down(at, last);
        }
    }

    #[inline]
    fn at(&self, at: usize) -> &Entry {
        &self.heap[at / 4][at % 4]
    }

    /// Sifts an entry up from the place `at`.
    fn up(&mut self, mut at: usize, entry: Entry) {
        let heap = self.heap.as_flattened_mut();
        while at > ROOT {
            let above = heap[parent(at)];
            if above.key <= entry.key {
                break;
            }
            heap[at] = above;
            self.position[above.slot as usize] = at as u32;
            at = parent(at);
        }
        heap[at] = entry;
        self.position[entry.slot as usize] = at as u32;
    }

    /// Sifts an entry down from the place `at`.
    fn down(&mut self, mut at: usize, entry: Entry) {
        let heap = self.heap.as_mut_slice();
        while let Some(four) = heap.get(children(at)) {
            // Compares two pairs without data-dependent branches.
            let [a, b, c, d] = [four[0].key, four[1].key, four[2].key, four[3].key];
            let (left, first) = if b < a { (1, b) } else { (0, a) };
            let (right, second) = if d < c { (3, d) } else { (2, c) };
            let (least, key) = if second < first { (right, second) } else { (left, first) };
            if entry.key <= key {
                break;
            }
            let slot = four[least % 4].slot;
            heap.as_flattened_mut()[at] = Entry { key, slot };
            self.position[slot as usize] = at as u32;
            at = children(at) * 4 + least;
        }
        heap.as_flattened_mut()[at] = entry;
        self.position[entry.slot as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn simultaneous_events_keep_set_order() {
        let mut queue = EventQueue::new(4);
        for slot in [2, 0, 3, 1] {
            queue.set(Slot(slot), 7);
        }
        queue.set(Slot(0), 7);
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(_, s)| s.0).collect();
        assert_eq!(order, [2, 3, 1, 0], "setting a slot again moves it to the end");
    }

    proptest! {
        #[test]
        fn pops_match_sorted_list(
            steps in prop::collection::vec((0u32..40, prop::option::of(0u64..50)), 0..400),
            numbers_left in 0u64..400,
        ) {
            let mut queue = EventQueue::new(40);
            queue.sequence = (1 << SEQUENCE_BITS) - numbers_left;
            let mut model: Vec<(u64, u64, u32)> = Vec::new();
            for (sequence, (slot, time)) in steps.into_iter().enumerate() {
                model.retain(|&(_, _, s)| s != slot);
                match time {
                    Some(time) => {
                        queue.set(Slot(slot), time);
                        model.push((time, sequence as u64, slot));
                    }
                    None => queue.cancel(Slot(slot)),
                }
                if sequence % 7 == 0 {
                    model.sort_unstable();
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(queue.pop(), expected.map(|(t, _, s)| (t, Slot(s))));
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            model.sort_unstable();
            for (time, _, slot) in model {
                prop_assert_eq!(queue.pop(), Some((time, Slot(slot))));
            }
            prop_assert!(queue.is_empty());
        }
    }
}
