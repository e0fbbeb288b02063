//! What the daemon counts, under its names and units in OpenMetrics.
//!
//! Where it goes is [`tandem_linux::exporter`]'s business.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use prometheus_client::registry::Unit;

/// Labels of a VM's series.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct VmLabels {
    /// The VM's name.
    pub vm: String,
    /// Its process id.
    pub pid: u32,
}

/// A gauge of a real number.
type Real = Gauge<f64, AtomicU64>;

/// Everything the daemon counts.
#[derive(Clone, Default)]
pub struct Metrics {
    /// VMs acted on.
    pub vms: Gauge,
    /// vCPU threads acted on.
    pub vcpus: Gauge,
    /// CPU received per VM.
    pub received: Family<VmLabels, Real>,
    /// Fair share per VM.
    pub fair: Family<VmLabels, Real>,
    /// Lag per VM.
    pub lag: Family<VmLabels, Real>,
    /// Real-time weight per VM.
    pub weight: Family<VmLabels, Real>,
    /// Accounting periods completed.
    pub periods: Counter,
    /// Periods that began late.
    pub late: Counter,
    /// Weights written.
    pub weights_written: Counter,
    /// vCPUs moved to another pCPU.
    pub vcpus_moved: Counter,
    /// Changes that the kernel refused.
    pub errors: Counter,
    /// Times from the first read of a decision to its last write.
    pub decision: DecisionTimes,
}

/// How long decisions took. The buckets surround the 5 ms that a decision may take.
#[derive(Clone, Debug)]
pub struct DecisionTimes(pub Histogram);

impl Default for DecisionTimes {
    fn default() -> DecisionTimes {
        let bounds = [0.000_5, 0.001, 0.002, 0.005, 0.010, 0.020, 0.050, 0.100];
        DecisionTimes(Histogram::new(bounds))
    }
}

impl Metrics {
    /// A registry with every metric under its name and unit.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("tandem");
        registry.register("vms", "VMs acted on", self.vms.clone());
        registry.register("vcpus", "vCPU threads acted on", self.vcpus.clone());
        let pcpus = || Unit::Other("pcpus".to_owned());
        let received = self.received.clone();
        registry.register_with_unit("vm_received", "CPU received, smoothed", pcpus(), received);
        registry.register_with_unit("vm_fair", "Fair share", pcpus(), self.fair.clone());
        let lag = "Part of the fair share that was not received";
        registry.register_with_unit("vm_lag", lag, Unit::Ratios, self.lag.clone());
        let weight = "Real-time weight, in the units of the cgroup's knob";
        registry.register("vm_weight", weight, self.weight.clone());
        registry.register(
            "periods",
            "Accounting periods completed",
            self.periods.clone(),
        );
        registry.register("periods_late", "Periods that began late", self.late.clone());
        registry.register(
            "weights_written",
            "Weights written",
            self.weights_written.clone(),
        );
        registry.register(
            "vcpus_moved",
            "vCPUs moved to another pCPU",
            self.vcpus_moved.clone(),
        );
        registry.register(
            "errors",
            "Changes that the kernel refused",
            self.errors.clone(),
        );
        registry.register_with_unit(
            "decision",
            "Time from the first read of a decision to its last write",
            Unit::Seconds,
            self.decision.0.clone(),
        );
        registry
    }

    /// Drops the series of a VM that is gone.
    pub fn forget(&self, labels: &VmLabels) {
        for family in [&self.received, &self.fair, &self.lag, &self.weight] {
            family.remove(labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::exporter::Exporter;

    use super::*;

    fn labels() -> VmLabels {
        VmLabels {
            vm: "db".to_owned(),
            pid: 7,
        }
    }

    #[test]
    fn the_page_is_open_metrics_with_units_and_an_end() {
        let metrics = Metrics::default();
        metrics.lag.get_or_create(&labels()).set(0.25);
        metrics.weights_written.inc();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        Exporter::open(metrics.registry(), None, Some(&path))
            .unwrap()
            .unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(
            page.contains("tandem_vm_lag_ratios{vm=\"db\",pid=\"7\"} 0.25"),
            "{page}"
        );
        assert!(page.contains("tandem_weights_written_total 1"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        metrics.forget(&labels());
        let exporter = Exporter::open(metrics.registry(), None, Some(&path))
            .unwrap()
            .unwrap();
        exporter.publish().unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("db"));
    }
}
