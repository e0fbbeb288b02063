//! Position of a run queue in the hierarchy of its CPU.

/// Position of a queue: a CPU's own, or that of a group that shares the CPU with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// Runnable entities on the CPU, in all groups.
    pub running: u32,
    /// Weight of the group.
    pub weight: u64,
    /// Sum of the weights of all groups on the CPU.
    pub load: u64,
}

impl Above {
    /// The CPU's own queue, with `running` runnable entities in it and its groups.
    pub fn none(running: u32) -> Above {
        Above { running, weight: 1, load: 1 }
    }
}
