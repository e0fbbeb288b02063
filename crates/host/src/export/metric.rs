//! Metrics of `tandem host export`: names, units, labels and help texts.
//!
//! `scripts/references` generates `docs/reference/metrics.md` from these declarations.
//! Names begin with `tandem_` and end in their unit, counters also in `_total`.
//! A daemon metric of the same name has the same meaning, but is smoothed; this one is that of the last interval.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Prefix of each name.
pub const PREFIX: &str = "tandem";

/// Labels of a VM's series, as in the daemon.
const VM: &[&str] = &["vm", "pid"];

/// A metric of the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Time of a VM's vCPUs by state.
    VmState,
    /// Time of a vCPU by state.
    VcpuState,
    /// RDY share of the vCPU that waits most.
    VmReadyWorstVcpu,
    /// The same share over the last minutes, of the vCPU that waited most in them.
    VmReadyLastingVcpu,
    /// vCPUs that could be read.
    VmVcpus,
    /// Number of times that vCPUs were put on a pCPU.
    VmRuns,
    /// Time from wake-up to run.
    VmWakeupLatency,
    /// Time that a VM waited, by culprit.
    VmCulprit,
    /// CPU time of a VM's other threads.
    VmThread,
    /// Fair share.
    VmFair,
    /// Received.
    VmReceived,
    /// Lag.
    VmLag,
    /// Online pCPUs.
    HostPcpus,
    /// Use of the host's pCPUs.
    HostUse,
    /// Processes other than VMs.
    HostProcess,
    /// Discovered VMs.
    HostVms,
    /// VMs that cannot be inspected.
    HostVmsUnreadable,
    /// VMs beyond the limits.
    HostVmsLeftOut,
    /// VMs without known vCPU threads.
    HostVmsUnidentified,
    /// VMs on this page.
    ExportVms,
    /// Selected VMs without series.
    ExportVmsWithoutSeries,
    /// Part of the VMs without a measurement.
    ExportNotMeasured,
    /// Events that are not seen.
    ExportNotSeen,
    /// Events that could not be counted.
    ExportNotCounted,
    /// Source of the figures.
    ExportSource,
    /// Intervals that were read.
    ExportIntervals,
    /// Intervals that could not be read.
    ExportErrors,
    /// Length of the last interval.
    ExportInterval,
    /// End of the last interval.
    ExportLast,
    /// Time taken to read the last interval.
    ExportTook,
    /// CPU time of the exporter.
    ExportCpu,
}

/// Description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Name without prefix, unit and `_total`.
    pub stem: &'static str,
    /// Unit, which the name ends in.
    pub unit: Option<&'static str>,
    /// Whether it only grows.
    pub is_counter: bool,
    /// Whether it is a histogram, which excludes a counter.
    pub is_histogram: bool,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Help text: one sentence without its full stop.
    pub help: &'static str,
}

impl Metric {
    /// All metrics, in the order of the page.
    pub const ALL: [Metric; 31] = [
        Metric::VmState,
        Metric::VcpuState,
        Metric::VmReadyWorstVcpu,
        Metric::VmReadyLastingVcpu,
        Metric::VmVcpus,
        Metric::VmRuns,
        Metric::VmWakeupLatency,
        Metric::VmCulprit,
        Metric::VmThread,
        Metric::VmFair,
        Metric::VmReceived,
        Metric::VmLag,
        Metric::HostPcpus,
        Metric::HostUse,
        Metric::HostProcess,
        Metric::HostVms,
        Metric::HostVmsUnreadable,
        Metric::HostVmsLeftOut,
        Metric::HostVmsUnidentified,
        Metric::ExportVms,
        Metric::ExportVmsWithoutSeries,
        Metric::ExportNotMeasured,
        Metric::ExportNotSeen,
        Metric::ExportNotCounted,
        Metric::ExportSource,
        Metric::ExportIntervals,
        Metric::ExportErrors,
        Metric::ExportInterval,
        Metric::ExportLast,
        Metric::ExportTook,
        Metric::ExportCpu,
    ];

    /// Returns the description of the metric.
    pub fn description(self) -> Description {
        match self {
            Metric::VmState => counter(
                "vm_state",
                "seconds",
                &["vm", "pid", "state"],
                "Time of the VM's vCPUs by state: run, poll, vmm, ready (runnable, waits for a pCPU), limited (throttled by a quota), \
                 costop, halted; their sum is wall time times vCPUs; a state that is not measured is absent and its time in another",
            ),
            Metric::VcpuState => counter(
                "vcpu_state",
                "seconds",
                &["vm", "pid", "vcpu", "state"],
                "Time of one vCPU by state, as in tandem_vm_state_seconds; only with --vcpus",
            ),
            Metric::VmReadyWorstVcpu => gauge(
                "vm_ready_worst_vcpu",
                Some("ratios"),
                VM,
                "Part of the last interval that the vCPU which waits most was runnable without a pCPU, 0 to 1",
            ),
            Metric::VmReadyLastingVcpu => gauge(
                "vm_ready_lasting_vcpu",
                Some("ratios"),
                VM,
                "Part of the last minutes that the vCPU with the most ready time was runnable without a pCPU, 0 to 1; time five minutes ago counts a third",
            ),
            Metric::VmVcpus => gauge(
                "vm_vcpus",
                None,
                VM,
                "vCPUs of the VM that could be read in the last interval",
            ),
            Metric::VmRuns => counter_without_unit(
                "vm_runs",
                VM,
                "How often the VM's vCPUs were put on a pCPU; ready seconds per run are the mean wait",
            ),
            Metric::VmWakeupLatency => histogram(
                "vm_wakeup_latency",
                "seconds",
                VM,
                "Time from wake-up to run of the VM's vCPUs; only with --source bpf",
            ),
            Metric::VmCulprit => counter(
                "vm_culprit",
                "seconds",
                &["vm", "pid", "kind", "culprit", "cgroup", "evidence"],
                "Time that the VM's vCPUs waited for pCPUs that this culprit used; kind others sums the culprits without a name here",
            ),
            Metric::VmThread => counter(
                "vm_thread",
                "seconds",
                &["vm", "pid", "thread"],
                "CPU time of the VM's threads that are no vCPUs: vhost, and emulator (all others, I/O threads too)",
            ),
            Metric::VmFair => gauge(
                "vm_fair",
                Some("pcpus"),
                VM,
                "Due: the fair share by weights of what the VM could use",
            ),
            Metric::VmReceived => gauge("vm_received", Some("pcpus"), VM, "CPU received"),
            Metric::VmLag => {
                gauge("vm_lag", Some("ratios"), VM, "Part of the fair share that was not received")
            }
            Metric::HostPcpus => gauge("host_pcpus", None, &[], "pCPUs that are online"),
            Metric::HostUse => counter(
                "host_use",
                "seconds",
                &["use"],
                "Where the host's pCPUs were: vcpus, emulator and vhost (the other threads of all VMs), tasks (processes that are no VMs), \
                 kernel (its threads), idle, unseen (tasks that ended, interrupts, steal)",
            ),
            Metric::HostProcess => counter(
                "host_process",
                "seconds",
                &["kind", "name", "cgroup"],
                "CPU time of host processes other than VMs, by name and cgroup (kind process); kind others sums the rest, with --no-process-names all",
            ),
            Metric::HostVms => gauge("host_vms", None, &[], "VMs on the host, selected or not"),
            Metric::HostVmsUnreadable => gauge(
                "host_vms_unreadable",
                None,
                &[],
                "Processes that are VMMs by their names and could not be looked into; root can",
            ),
            Metric::HostVmsLeftOut => gauge(
                "host_vms_left_out",
                None,
                &[],
                "VMs that are left alone because their user or the host has as many as there may be",
            ),
            Metric::HostVmsUnidentified => gauge(
                "host_vms_unidentified",
                None,
                &[],
                "Selected VMs of which no vCPU thread is known; a QMP socket or a thread pattern helps",
            ),
            Metric::ExportVms => {
                gauge("export_vms", None, &[], "VMs that have series on this page")
            }
            Metric::ExportVmsWithoutSeries => gauge(
                "export_vms_without_series",
                None,
                &[],
                "Selected VMs that have no series on this page, because 2,048 others have",
            ),
            Metric::ExportNotMeasured => gauge(
                "export_not_measured",
                Some("ratios"),
                &["what", "want"],
                "Part of the VMs without this measurement, 0 to 1, and its missing requirement; absent if all VMs have it",
            ),
            Metric::ExportNotSeen => gauge(
                "export_not_seen",
                None,
                &["event", "lacks", "because"],
                "Always 1; a kernel event that the programs miss, the figures that lack it, and the reason; only with --source bpf",
            ),
            Metric::ExportNotCounted => counter_without_unit(
                "export_not_counted",
                &["what"],
                "Waits, edges, links and events that were seen and not counted; only with --source bpf",
            ),
            Metric::ExportSource => gauge(
                "export_source",
                None,
                &["source"],
                "Always 1; the label says where the figures are from",
            ),
            Metric::ExportIntervals => {
                counter_without_unit("export_intervals", &[], "Intervals that were read")
            }
            Metric::ExportErrors => counter_without_unit(
                "export_errors",
                &[],
                "Intervals that could not be read; there are no VMs on the page until one can",
            ),
            Metric::ExportInterval => {
                gauge("export_interval", Some("seconds"), &[], "Length of the last interval")
            }
            Metric::ExportLast => gauge(
                "export_last_timestamp",
                Some("seconds"),
                &[],
                "When the last interval that could be read ended, in seconds since 1970",
            ),
            Metric::ExportTook => gauge(
                "export_took",
                Some("seconds"),
                &[],
                "How long reading the last interval took",
            ),
            Metric::ExportCpu => counter("export_cpu", "seconds", &[], "CPU time of the exporter"),
        }
    }
}

fn gauge(
    stem: &'static str,
    unit: Option<&'static str>,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description { stem, unit, is_counter: false, is_histogram: false, labels, help }
}

fn counter(
    stem: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description { is_counter: true, ..gauge(stem, Some(unit), labels, help) }
}

fn histogram(
    stem: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description { is_histogram: true, ..gauge(stem, Some(unit), labels, help) }
}

fn counter_without_unit(
    stem: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description { is_counter: true, ..gauge(stem, None, labels, help) }
}

impl Description {
    /// Returns the name of its samples; those of a histogram add `_bucket`, `_sum` or `_count`.
    pub fn name(&self) -> String {
        let unit = self.unit.map_or_else(String::new, |unit| format!("_{unit}"));
        let total = if self.is_counter { "_total" } else { "" };
        format!("{PREFIX}_{}{unit}{total}", self.stem)
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        self.unit.map(|unit| match unit {
            "seconds" => Unit::Seconds,
            "ratios" => Unit::Ratios,
            other => Unit::Other(other.to_owned()),
        })
    }

    pub(super) fn kind(&self) -> MetricType {
        match (self.is_counter, self.is_histogram) {
            (true, _) => MetricType::Counter,
            (false, true) => MetricType::Histogram,
            (false, false) => MetricType::Gauge,
        }
    }
}
