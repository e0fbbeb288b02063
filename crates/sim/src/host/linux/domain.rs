//! Scheduling domains of a Linux host: the pCPUs among which loads are compared, and the intervals of these comparisons.
//!
//! A pCPU has a domain for each level of the topology that adds pCPUs (build_sched_domains, sd_degenerate in kernel/sched/topology.c):
//!
//! | level | kernel |
//! |---|---|
//! | core | SMT |
//! | last-level cache | MC |
//! | node | PKG |
//! | socket, machine | NUMA |
//!
//! Hosts without a described topology have the last-level cache and the machine only.
//!
//! The interval is `busy_factor` ms times the pCPUs of the domain, the minimum interval of sd_init (kernel/sched/topology.c).
//! Left out: the kernel doubles it once if there was no move, and lets one pCPU balance for its whole cache.
//! Up to Linux 3.15 the interval within a cache was 64 to 256 ms, independent of its size.

use tandem_model::{Level, Nanos, PcpuSet};

use crate::host::Shape;

/// A scheduling domain of every pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    /// The level at which its pCPUs meet.
    pub level: Level,
    /// Interval between two comparisons of a busy pCPU's load in ns: sd_weight × busy_factor ms (sd_init, get_sd_balance_interval).
    pub interval: u64,
    /// The same for a pCPU that is idle or runs only the idle class: sd_weight ms.
    pub idle_interval: u64,
}

impl Domain {
    /// The domains of a host, from the innermost to the outermost.
    pub(super) fn all(shape: &Shape) -> Vec<Domain> {
        let levels: &[Level] = if shape.follows_topology {
            &[Level::Core, Level::Cache, Level::Node, Level::Socket, Level::Machine]
        } else {
            &[Level::Cache, Level::Machine]
        };
        let mut domains = Vec::new();
        let mut inner = 1;
        for &level in levels {
            let groups = shape.topology.groups(level);
            let weight = groups.iter().map(PcpuSet::len).max().unwrap_or(0);
            if weight > inner {
                let idle_interval = Nanos::from_millis(weight as u64).0;
                let interval = idle_interval * u64::from(shape.busy_factor);
                domains.push(Domain { level, interval, idle_interval });
                inner = weight;
            }
        }
        domains
    }
}
