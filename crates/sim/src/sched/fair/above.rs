//! What a run queue has to know of its CPU where it is a group's.

/// Where a queue is: a CPU's own, or that of a group which shares the CPU with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// All that run or wait on the CPU, in whatever group.
    pub running: u32,
    /// What the group weighs.
    pub weight: u64,
    /// What all weigh that share the CPU with it, itself included.
    pub load: u64,
}

impl Above {
    /// The queue is the CPU's own, with so many that run or wait in it and its groups.
    pub fn none(running: u32) -> Above {
        Above { running, weight: 1, load: 1 }
    }
}
