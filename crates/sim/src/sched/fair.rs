//! One CPU's fair run queue: CFS as of Linux 3.19 or EEVDF as of 6.12.

use serde::Serialize;
use tandem_policy::Nanos;

/// Which fair scheduler, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Completely Fair Scheduler, kernel/sched/fair.c of 3.19.
    Cfs {
        /// Every runnable entity runs once in this time, with few of them.
        latency: Nanos,
        /// The least time each then gets.
        min_granularity: Nanos,
        /// A woken entity preempts when it is behind by this much.
        wakeup_granularity: Nanos,
    },
    /// Earliest eligible virtual deadline first, kernel/sched/fair.c of 6.12.
    Eevdf {
        /// The slice of an entity without one of its own.
        base_slice: Nanos,
    },
}
