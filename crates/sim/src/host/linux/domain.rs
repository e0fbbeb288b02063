//! Scheduling domains of a Linux host: how often a busy pCPU compares its load with others'.
//!
//! As in sd_init of kernel/sched/topology.c: every `busy_factor` ms for each pCPU of the domain, which is the least interval there. The kernel
//! doubles it once where nothing was to be moved, and lets one pCPU look for all of its cache; both are left out. Up to Linux 3.15 the interval
//! within a cache was 64 to 256 ms whatever its size.

use tandem_model::Nanos;

use crate::host::Shape;

/// A scheduling domain: the pCPUs among which a busy one compares loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// Those that share its last-level cache.
    Cache,
    /// All.
    Machine,
}

impl Domain {
    pub(super) const ALL: [Domain; 2] = [Domain::Cache, Domain::Machine];

    /// Where all pCPUs share a cache there is one domain (sd_degenerate).
    pub(super) fn is_redundant(self, shape: &Shape) -> bool {
        self == Domain::Machine && shape.pcpus_per_llc >= shape.pcpus
    }

    /// Between two comparisons of a busy pCPU's load, ns: sd_weight × busy_factor ms (sd_init, get_sd_balance_interval).
    pub(super) fn interval(self, shape: &Shape) -> u64 {
        let pcpus = match self {
            Domain::Cache => shape.pcpus_per_llc.clamp(1, shape.pcpus.max(1)),
            Domain::Machine => shape.pcpus,
        };
        Nanos::from_millis(u64::from(pcpus) * u64::from(shape.busy_factor)).0
    }
}

/// The intervals of all domains, ns.
pub(super) fn intervals(shape: &Shape) -> [u64; 2] {
    Domain::ALL.map(|domain| domain.interval(shape))
}
