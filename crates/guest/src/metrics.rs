//! The agent's metrics in OpenMetrics text, published like those of the host daemon.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Metrics of the agent.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// vCPUs that the workload may use.
    pub active: Gauge,
    /// Retention: for how long an idle vCPU is kept awake, s.
    pub retention: Gauge<f64, AtomicU64>,
    /// Part of the vCPUs' time that the host took.
    pub stolen: Gauge<f64, AtomicU64>,
    /// Idle time that retention burnt, useful or not, s.
    pub retention_burnt: Counter<f64, AtomicU64>,
    /// CPU time of the agent itself, s.
    pub agent: Counter<f64, AtomicU64>,
    /// Periods completed.
    pub periods: Counter,
    /// Decisions that changed something.
    pub changes: Counter,
    /// Changes that the kernel refused.
    pub errors: Counter,
    /// Threads that got a vCPU of their own, by when.
    pub bound: Family<Found, Counter>,
}

/// When a thread was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Found {
    /// `birth` or `period`.
    pub at: &'static str,
}

impl Metrics {
    /// A registry with every metric under its name and unit.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("tandem_guest");
        registry.register("vcpus_active", "vCPUs that the workload may use", self.active.clone());
        let retention = "Retention: for how long an idle vCPU is kept awake";
        registry.register_with_unit("retention", retention, Unit::Seconds, self.retention.clone());
        let stolen = "Part of the vCPUs' time that the host took";
        registry.register_with_unit("stolen", stolen, Unit::Ratios, self.stolen.clone());
        registry.register_with_unit(
            "retention_burnt",
            "Idle time that retention burnt",
            Unit::Seconds,
            self.retention_burnt.clone(),
        );
        let agent = "CPU time of the agent itself";
        registry.register_with_unit("cpu", agent, Unit::Seconds, self.agent.clone());
        registry.register("periods", "Periods completed", self.periods.clone());
        registry.register("changes", "Decisions that changed something", self.changes.clone());
        registry.register("errors", "Changes that the kernel refused", self.errors.clone());
        registry.register(
            "threads_bound",
            "Threads that got a vCPU of their own, as they were born or at the next period",
            self.bound.clone(),
        );
        registry
    }
}
