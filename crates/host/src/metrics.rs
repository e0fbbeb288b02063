//! Metrics of the daemon, with their names and units in OpenMetrics, declared once in `metrics!`.
//!
//! `scripts/references` reads this file for `docs/reference/metrics.md`.
//! [`tandem_linux::exporter`] publishes them.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use tandem_model::Nanos;
use tandem_model::decision::Swap;
use tandem_policy::flexs::Verdict;
use tandem_policy::host::flexs::SpinReport;

use crate::export::metric::unit_of;
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

/// Declares the metrics of the daemon: field, name without prefix and unit, unit, and help.
/// Those of a VM have its labels; the others have a type.
macro_rules! metrics {
    (
        of_vm { $($vm:ident = $vm_name:literal, $vm_unit:expr, $vm_help:literal;)* }
        others { $($field:ident: $type:ty = $name:literal, $unit:expr, $help:literal;)* }
    ) => {
        /// All metrics of the daemon.
        #[derive(Clone, Default)]
        pub struct Metrics {
            $(#[doc = $vm_help] pub $vm: Family<VmLabels, Real>,)*
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Metrics {
            /// A registry with every metric under its name and unit.
            pub fn registry(&self) -> Registry {
                let mut registry = Registry::with_prefix("tandem");
                $(register(&mut registry, $vm_name, $vm_unit, $vm_help, &self.$vm);)*
                $(register(&mut registry, $name, $unit, $help, &self.$field);)*
                registry
            }

            /// Removes the series of a VM that has ended.
            pub fn forget(&self, labels: &VmLabels) {
                $(self.$vm.remove(labels);)*
            }
        }
    };
}

metrics! {
    of_vm {
        received = "vm_received", Some("pcpus"), "CPU received, smoothed";
        fair = "vm_fair", Some("pcpus"), "Due: the fair share by weights of what the VM could use";
        lag = "vm_lag", Some("ratios"), "Part of the fair share that was not received";
        weight = "vm_weight", None, "Real-time weight, in the units of the cgroup's knob";
        takes_turns = "vm_turns", None, "Whether the VM takes turns: 1 or 0";
        apart = "vm_apart", None, "Whether each of the VM's vCPUs has a group of its own: 1 or 0";
        wait = "vm_wait", Some("milliseconds"), "Mean wait for a pCPU per run, over the last second";
    }
    others {
        vms: Gauge = "vms", None, "VMs acted on";
        vcpus: Gauge = "vcpus", None, "vCPU threads acted on";
        without_series: Gauge = "vms_without_series", None, "VMs acted on that have no series of their own: there are too many";
        turns: Counter = "turns", None, "Turns begun";
        turns_late: Counter = "turns_late", None, "Turns that began more than 1 ms late";
        turns_took: Counter<f64, AtomicU64> = "turns_took", Some("seconds"), "Time that beginning turns took";
        turn_lateness: Lateness = "turn_lateness", Some("seconds"), "How late turns began";
        flexs_judged: Counter = "flexs_judged", None, "Periods of a vCPU that the policy flexs judged";
        flexs_spun: Counter = "flexs_spun", None, "Periods in which a vCPU spun, by its branch counters";
        flexs_swaps: Counter = "flexs_swaps", None, "vCPUs that spun and changed places with a sibling";
        periods: Counter = "periods", None, "Accounting periods completed";
        periods_late: Counter = "periods_late", None, "Periods that began late";
        longest_gap: Real = "period_gap_longest", Some("seconds"), "Longest time from the begin of an accounting period to that of the next";
        weights_written: Counter = "weights_written", None, "Weights written";
        vcpus_moved: Counter = "vcpus_moved", None, "vCPUs moved to another pCPU";
        errors: Counter = "errors", None, "Changes that the kernel refused";
        decision: DecisionTimes = "decision", Some("seconds"), "Time from the first read of a decision to its last write";
    }
}

fn register(
    registry: &mut Registry,
    name: &str,
    unit: Option<&'static str>,
    help: &str,
    metric: &(impl Metric + Clone),
) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit_of(unit), metric.clone()),
        None => registry.register(name, help, metric.clone()),
    }
}

impl Metrics {
    /// Sets the totals of turns since the daemon's start.
    pub fn set_turns(&self, stats: &TurnStats) {
        let mut known = self.turn_lateness.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |now: Nanos, then: Nanos| now.saturating_sub(then).as_secs_f64();
        self.turns.inc_by(stats.turns.saturating_sub(known.turns));
        self.turns_late.inc_by(stats.late.saturating_sub(known.late));
        self.turns_took.inc_by(since(stats.took, known.took));
        *known = stats.clone();
    }

    /// Adds a period's reports of the policy `flexs`, and the swaps that were made.
    pub(crate) fn count_spins(&self, reports: &[SpinReport], made: &[Swap]) {
        let of = |is: fn(&Verdict) -> bool| {
            let reports = reports.iter().filter(|report| is(&report.verdict));
            reports.count() as u64
        };
        self.flexs_judged.inc_by(of(Verdict::says_something));
        self.flexs_spun.inc_by(of(|verdict| verdict.busy_waiting));
        self.flexs_swaps.inc_by(made.len() as u64);
    }
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

impl EncodeMetric for DecisionTimes {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }
}

/// A histogram with the classes of [`TurnStats`], which counts it.
#[derive(Clone, Debug, Default)]
pub struct Lateness(Arc<Mutex<TurnStats>>);

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
        metrics.set_turns(&stats);
        // Equal totals add nothing.
        metrics.set_turns(&stats);
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
