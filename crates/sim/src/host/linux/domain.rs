//! Scheduling domains of a Linux host: the intervals at which a busy pCPU compares its load with others.
//!
//! The interval is `busy_factor` ms times the pCPUs of the domain, the minimum interval of sd_init (kernel/sched/topology.c).
//! Left out: the kernel doubles it once if there was no move, and lets one pCPU balance for its whole cache.
//! Up to Linux 3.15 the interval within a cache was 64 to 256 ms, independent of its size.

use tandem_model::Nanos;

use crate::host::Shape;

/// A scheduling domain: the pCPUs among which a busy one compares loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// The pCPUs that share its last-level cache.
    Cache,
    /// All pCPUs.
    Machine,
}

impl Domain {
    pub(super) const ALL: [Domain; 2] = [Domain::Cache, Domain::Machine];

    /// If all pCPUs share a cache, there is a single domain (sd_degenerate).
    pub(super) fn is_redundant(self, shape: &Shape) -> bool {
        self == Domain::Machine && shape.pcpus_per_llc >= shape.pcpus
    }

    /// Interval between two comparisons of a busy pCPU's load in ns: sd_weight × busy_factor ms (sd_init, get_sd_balance_interval).
    pub(super) fn interval(self, shape: &Shape) -> u64 {
        let pcpus = match self {
            Domain::Cache => shape.pcpus_per_llc.clamp(1, shape.pcpus.max(1)),
            Domain::Machine => shape.pcpus,
        };
        Nanos::from_millis(u64::from(pcpus) * u64::from(shape.busy_factor)).0
    }
}
