//! Metrics of the daemon, with their names and units in OpenMetrics.
//!
//! [`tandem_linux::exporter`] publishes them.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tandem_model::Nanos;
use tandem_model::decision::Swap;
use tandem_policy::flexs::Verdict;
use tandem_policy::host::flexs::SpinReport;

use crate::turns::TurnStats;
use crate::turns::stats::BOUNDS_US;

/// Maximum number of VMs with series, seven each, which bounds the page and the memory of the process.
pub const MAX_VMS: usize = 2048;

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

/// All metrics of the daemon.
#[derive(Clone, Default)]
pub struct Metrics {
    /// VMs acted on.
    pub vms: Gauge,
    /// vCPU threads acted on.
    pub vcpus: Gauge,
    /// VMs acted on that have no series, because [`MAX_VMS`] others have.
    pub without_series: Gauge,
    /// CPU received per VM.
    pub received: Family<VmLabels, Real>,
    /// Fair share per VM, in pCPUs.
    pub fair: Family<VmLabels, Real>,
    /// Lag per VM.
    pub lag: Family<VmLabels, Real>,
    /// Real-time weight per VM.
    pub weight: Family<VmLabels, Real>,
    /// Whether a VM takes turns: 1 or 0.
    pub takes_turns: Family<VmLabels, Real>,
    /// Whether each of a VM's vCPUs has a cgroup of its own: 1 or 0.
    pub apart: Family<VmLabels, Real>,
    /// Mean wait for a pCPU per run and VM, over the last second, in ms; absent for VMs that did not run.
    pub wait: Family<VmLabels, Real>,
    /// Punctuality of the turns.
    pub turns: TurnMetrics,
    /// Findings of the branch counters.
    pub spins: SpinMetrics,
    /// Accounting periods completed.
    pub periods: Counter,
    /// Periods that began late.
    pub late: Counter,
    /// Longest time between the begins of two periods, in seconds.
    pub longest_gap: Real,
    /// Weights written.
    pub weights_written: Counter,
    /// vCPUs moved to another pCPU.
    pub vcpus_moved: Counter,
    /// Changes that the kernel refused.
    pub errors: Counter,
    /// Times from the first read of a decision to its last write.
    pub decision: DecisionTimes,
}

/// Duration of decisions. The buckets surround the limit of 5 ms.
#[derive(Clone, Debug)]
pub struct DecisionTimes(pub Histogram);

impl Default for DecisionTimes {
    fn default() -> DecisionTimes {
        let bounds = [0.000_5, 0.001, 0.002, 0.005, 0.010, 0.020, 0.050, 0.100];
        DecisionTimes(Histogram::new(bounds))
    }
}

/// Punctuality of the turns.
#[derive(Clone, Debug, Default)]
pub struct TurnMetrics {
    /// Turns begun.
    begun: Counter,
    /// Turns that began more than 1 ms late.
    late: Counter,
    /// Time spent on beginning turns, in seconds.
    took: Counter<f64, AtomicU64>,
    lateness: Lateness,
}

impl TurnMetrics {
    /// Sets the totals since the daemon's start.
    pub fn set(&self, stats: &TurnStats) {
        let mut known = self.lateness.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |now: Nanos, then: Nanos| now.saturating_sub(then).as_secs_f64();
        self.begun.inc_by(stats.turns.saturating_sub(known.turns));
        self.late.inc_by(stats.late.saturating_sub(known.late));
        self.took.inc_by(since(stats.took, known.took));
        *known = stats.clone();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("turns", "Turns begun", self.begun.clone());
        let late = "Turns that began more than 1 ms late";
        registry.register("turns_late", late, self.late.clone());
        let took = "Time that beginning turns took";
        registry.register_with_unit("turns_took", took, Unit::Seconds, self.took.clone());
        let lateness = "How late turns began";
        registry.register_with_unit(
            "turn_lateness",
            lateness,
            Unit::Seconds,
            self.lateness.clone(),
        );
    }
}

/// Findings and actions of the policy `flexs`.
#[derive(Clone, Debug, Default)]
pub struct SpinMetrics {
    judged: Counter,
    spun: Counter,
    swaps: Counter,
}

impl SpinMetrics {
    /// Adds a period's reports, and the swaps that were made.
    pub(crate) fn count(&self, reports: &[SpinReport], made: &[Swap]) {
        let of = |is: fn(&Verdict) -> bool| {
            let reports = reports.iter().filter(|report| is(&report.verdict));
            reports.count() as u64
        };
        self.judged.inc_by(of(Verdict::says_something));
        self.spun.inc_by(of(|verdict| verdict.busy_waiting));
        self.swaps.inc_by(made.len() as u64);
    }

    fn register(&self, registry: &mut Registry) {
        let judged = "Periods of a vCPU that the policy flexs judged";
        registry.register("flexs_judged", judged, self.judged.clone());
        let spun = "Periods in which a vCPU spun, by its branch counters";
        registry.register("flexs_spun", spun, self.spun.clone());
        let swaps = "vCPUs that spun and changed places with a sibling";
        registry.register("flexs_swaps", swaps, self.swaps.clone());
    }
}

/// A histogram with the classes of [`TurnStats`], which counts it.
#[derive(Clone, Debug, Default)]
struct Lateness(Arc<Mutex<TurnStats>>);

impl EncodeMetric for Lateness {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
        let buckets: Vec<(f64, u64)> =
            bounds.chain([f64::INFINITY]).zip(stats.lateness.iter().copied()).collect();
        let sum = stats.late_by.as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, stats.turns, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl Metrics {
    /// A registry with every metric under its name and unit.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("tandem");
        registry.register("vms", "VMs acted on", self.vms.clone());
        registry.register("vcpus", "vCPU threads acted on", self.vcpus.clone());
        let without_series = "VMs acted on that have no series of their own: there are too many";
        registry.register("vms_without_series", without_series, self.without_series.clone());
        let pcpus = || Unit::Other("pcpus".to_owned());
        let received = self.received.clone();
        registry.register_with_unit("vm_received", "CPU received, smoothed", pcpus(), received);
        let fair = "Due: the fair share by weights of what the VM could use";
        registry.register_with_unit("vm_fair", fair, pcpus(), self.fair.clone());
        let lag = "Part of the fair share that was not received";
        registry.register_with_unit("vm_lag", lag, Unit::Ratios, self.lag.clone());
        let weight = "Real-time weight, in the units of the cgroup's knob";
        registry.register("vm_weight", weight, self.weight.clone());
        let takes_turns = "Whether the VM takes turns: 1 or 0";
        registry.register("vm_turns", takes_turns, self.takes_turns.clone());
        let apart = "Whether each of the VM's vCPUs has a group of its own: 1 or 0";
        registry.register("vm_apart", apart, self.apart.clone());
        let ms = Unit::Other("milliseconds".to_owned());
        let wait = "Mean wait for a pCPU per run, over the last second";
        registry.register_with_unit("vm_wait", wait, ms, self.wait.clone());
        self.turns.register(&mut registry);
        self.spins.register(&mut registry);
        registry.register("periods", "Accounting periods completed", self.periods.clone());
        registry.register("periods_late", "Periods that began late", self.late.clone());
        let gap = "Longest time from the begin of an accounting period to that of the next";
        registry.register_with_unit(
            "period_gap_longest",
            gap,
            Unit::Seconds,
            self.longest_gap.clone(),
        );
        registry.register("weights_written", "Weights written", self.weights_written.clone());
        registry.register("vcpus_moved", "vCPUs moved to another pCPU", self.vcpus_moved.clone());
        registry.register("errors", "Changes that the kernel refused", self.errors.clone());
        registry.register_with_unit(
            "decision",
            "Time from the first read of a decision to its last write",
            Unit::Seconds,
            self.decision.0.clone(),
        );
        registry
    }

    /// Removes the series of a VM that has ended.
    pub fn forget(&self, labels: &VmLabels) {
        for family in [
            &self.received,
            &self.fair,
            &self.lag,
            &self.weight,
            &self.takes_turns,
            &self.apart,
            &self.wait,
        ] {
            family.remove(labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::exporter::Exporter;

    use super::*;

    fn labels() -> VmLabels {
        VmLabels { vm: "db".to_owned(), pid: 7 }
    }

    #[test]
    fn turns_are_counts_and_a_histogram() {
        let mut stats = TurnStats {
            turns: 3,
            late: 1,
            late_by: Nanos::from_millis(31),
            took: Nanos::from_millis(2),
            ..TurnStats::default()
        };
        stats.lateness[0] = 2;
        stats.lateness[BOUNDS_US.len()] = 1;
        let metrics = Metrics::default();
        metrics.turns.set(&stats);
        // Equal totals add nothing.
        metrics.turns.set(&stats);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        Exporter::open(metrics.registry(), None, Some(&path)).unwrap().unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        for line in [
            "tandem_turns_total 3",
            "tandem_turns_late_total 1",
            "tandem_turns_took_seconds_total 0.002",
            "tandem_turn_lateness_seconds_sum 0.031",
            "tandem_turn_lateness_seconds_count 3",
            "tandem_turn_lateness_seconds_bucket{le=\"0.00002\"} 2",
            "tandem_turn_lateness_seconds_bucket{le=\"0.02\"} 2",
            "tandem_turn_lateness_seconds_bucket{le=\"+Inf\"} 3",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    #[test]
    fn page_is_open_metrics_with_units() {
        let metrics = Metrics::default();
        metrics.lag.get_or_create(&labels()).set(0.25);
        metrics.apart.get_or_create(&labels()).set(1.0);
        metrics.weights_written.inc();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        Exporter::open(metrics.registry(), None, Some(&path)).unwrap().unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains("tandem_vm_lag_ratios{vm=\"db\",pid=\"7\"} 0.25"), "{page}");
        let apart = "tandem_vm_apart{vm=\"db\",pid=\"7\"} 1.0";
        assert!(page.contains(apart), "{page}");
        assert!(page.contains("tandem_weights_written_total 1"), "{page}");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let reference = std::fs::read_to_string(file).unwrap();
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            let row = format!("| `{name}` | {kind} |");
            assert!(reference.contains(&row), "run make references: {row}");
        }
        assert!(page.ends_with("# EOF\n"), "{page}");
        metrics.forget(&labels());
        let exporter = Exporter::open(metrics.registry(), None, Some(&path)).unwrap().unwrap();
        exporter.publish().unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("db"));
    }
}
