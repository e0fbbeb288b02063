//! The table of figures: metrics of `tandem host export`, columns and JSON fields of `tandem host top`.
//!
//! `figures!` takes one entry per figure, in the order of the exporter's page.
//! Text, screen, sort keys, legend and help of `top`, its JSON, `replay` and the page derive from it.
//! `scripts/references` reads this file: the page `docs/reference/metrics.md` and the fields of `top --json` derive from it, too.
//!
//! Names of metrics begin with `tandem_` and end in their unit, counters also in `_total`.
//! A daemon metric of the same name has the same meaning, but is smoothed; this one is that of the last interval.
//! Non-goal: figures that the sources of an interval measure are declared in `tandem_model`, which records store.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use serde::Serialize;
use tandem_model::states::interval::VmInterval;
use tandem_model::{Nanos, State};
use tandem_policy::Assessment;

use super::page;
use super::page::Samples;
use crate::top::figures::{Figure, Value, of_vm, state};

/// Prefix of each name.
pub const PREFIX: &str = "tandem";

/// Labels of a VM's series, as in the daemon.
const VM: &[&str] = &["vm", "pid"];

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

/// Measurement of a VM from which its figures derive.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Its times.
    pub vm: &'a VmInterval,
    /// Its fair share and received time.
    pub account: &'a Assessment,
    /// Length of the interval.
    pub length: Nanos,
}

impl Measured<'_> {
    /// Returns a time as a mean number of pCPUs.
    fn pcpus(&self, time: Nanos) -> f64 {
        time.0 as f64 / self.length.0.max(1) as f64
    }
}

/// Declares the types of the table. Figures of a VM have a field, its value, a column and a metric; `columns` are those of a metric with a label.
macro_rules! figures {
    (
        $(
            $(#[columns($($state:expr),* $(,)?)])?
            Metric::$before:ident => $before_is:expr, $before_samples:expr;
        )*
        $(#[doc = $doc:literal])*
        pub struct VmFigures {
            $(
                $(#[doc = $field_doc:literal])*
                #[value($value:expr)]
                #[column(heading = $heading:literal, sort = $sort:expr, format = $format:ident, help = $help:literal)]
                #[metric(Metric::$figure:ident => $figure_is:expr)]
                pub $field:ident: f64,
            )*
        }
        $(Metric::$after:ident => $after_is:expr, $after_samples:expr;)*
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
        pub struct VmFigures {
            $($(#[doc = $field_doc])* pub $field: f64,)*
        }

        impl VmFigures {
            /// Returns the figures of a measured VM.
            pub fn of(measured: &Measured<'_>) -> VmFigures {
                let value = |get: fn(&Measured<'_>) -> f64| get(measured);
                VmFigures { $($field: value($value),)* }
            }
        }

        /// The columns of `top`, in display order.
        pub(crate) static FIGURES: &[Figure] = &[
            $($($($state,)*)?)*
            $(of_vm($heading, $sort, Value::$format(|vm| vm.figures.$field), $help),)*
        ];

        /// A metric of the exporter.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "descriptions have their help")]
        pub enum Metric {
            $($before,)* $($figure,)* $($after,)*
        }

        impl Metric {
            /// All metrics, in the order of the page.
            pub const ALL: &[Metric] =
                &[$(Metric::$before,)* $(Metric::$figure,)* $(Metric::$after,)*];

            /// Returns the description of the metric.
            pub fn description(self) -> Description {
                match self {
                    $(Metric::$before => $before_is,)*
                    $(Metric::$figure => $figure_is,)*
                    $(Metric::$after => $after_is,)*
                }
            }

            pub(super) fn samples(self) -> Samples {
                match self {
                    $(Metric::$before => $before_samples,)*
                    $(Metric::$figure => Samples::Vm(|_, now| Some(now.figures.$field)),)*
                    $(Metric::$after => $after_samples,)*
                }
            }
        }
    };
}

figures! {
    #[columns(
        state(State::Run, "RUN", "guest code runs on a pCPU", "guest"),
        state(State::Poll, "POLL", "the host polls for an interrupt after the guest halted", "polling"),
        state(State::Vmm, "VMM", "the host works for the guest: exits, emulation", "exits"),
        state(
            State::Ready,
            "RDY",
            "runnable, waits for a pCPU: from 5 % on worth a look, from 10 % on bad",
            "waits (5 fair, 10 bad)",
        ).sorted_by('r'),
        state(State::Limited, "LIM", "held back by a quota", "quota").sorted_by('l'),
        state(State::Costop, "CSTP", "waits only because a sibling does not run", "").optional(),
        state(State::Halted, "HALT", "halted", "idle"),
    )]
    Metric::VmState => counter(
        "vm_state",
        "seconds",
        &["vm", "pid", "state"],
        "Time of the VM's vCPUs by state: run, poll, vmm, ready (runnable, waits for a pCPU), limited (throttled by a quota), \
         costop, halted; their sum is wall time times vCPUs; a state that is not measured is absent and its time in another",
    ), Samples::VmSeries(page::states);
    Metric::VcpuState => counter(
        "vcpu_state",
        "seconds",
        &["vm", "pid", "vcpu", "state"],
        "Time of one vCPU by state, as in tandem_vm_state_seconds; only with --vcpus",
    ), Samples::VmSeries(page::vcpu_states);
    Metric::VmReadyWorstVcpu => gauge(
        "vm_ready_worst_vcpu",
        Some("ratios"),
        VM,
        "Part of the last interval that the vCPU which waits most was runnable without a pCPU, 0 to 1",
    ), Samples::Vm(|_, now| now.worst_ready);
    Metric::VmReadyLastingVcpu => gauge(
        "vm_ready_lasting_vcpu",
        Some("ratios"),
        VM,
        "Part of the last minutes that the vCPU with the most ready time was runnable without a pCPU, 0 to 1; time five minutes ago counts a third",
    ), Samples::Vm(|_, now| now.lasting_ready);
    Metric::VmVcpus => gauge(
        "vm_vcpus",
        None,
        VM,
        "vCPUs of the VM that could be read in the last interval",
    ), Samples::Vm(|_, now| Some(now.vcpus as f64));
    Metric::VmRuns => counter_without_unit(
        "vm_runs",
        VM,
        "How often the VM's vCPUs were put on a pCPU; ready seconds per run are the mean wait",
    ), Samples::Vm(|vm, _| Some(vm.runs as f64));
    Metric::VmWakeupLatency => histogram(
        "vm_wakeup_latency",
        "seconds",
        VM,
        "Time from wake-up to run of the VM's vCPUs; only with --source bpf",
    ), Samples::VmSeries(page::wakeup_latency);
    Metric::VmCulprit => counter(
        "vm_culprit",
        "seconds",
        &["vm", "pid", "kind", "culprit", "cgroup", "evidence"],
        "Time that the VM's vCPUs waited for pCPUs that this culprit used; kind others sums the culprits without a name here",
    ), Samples::VmSeries(page::culprits);
    Metric::VmThread => counter(
        "vm_thread",
        "seconds",
        &["vm", "pid", "thread"],
        "CPU time of the VM's threads that are no vCPUs: vhost, and emulator (all others, I/O threads too)",
    ), Samples::VmSeries(page::threads);

/// Figures of a VM by weights.
pub struct VmFigures {
    /// Fair share, in pCPUs.
    #[value(|vm| vm.pcpus(vm.account.fair))]
    #[column(heading = "due", sort = None, format = Pcpus, help = "fair share by weight, in pCPUs")]
    #[metric(Metric::VmFair => gauge("vm_fair", Some("pcpus"), VM, "Due: the fair share by weights of what the VM could use"))]
    pub due: f64,
    /// Received time, in pCPUs.
    #[value(|vm| vm.pcpus(vm.account.received))]
    #[column(heading = "recv", sort = Some('c'), format = Pcpus, help = "received time, in pCPUs")]
    #[metric(Metric::VmReceived => gauge("vm_received", Some("pcpus"), VM, "CPU received"))]
    pub received: f64,
    /// (due − received) ÷ due.
    #[value(|vm| vm.account.lag)]
    #[column(heading = "lag%", sort = Some('g'), format = Percent, help = "part of its fair share that it lacks")]
    #[metric(Metric::VmLag => gauge("vm_lag", Some("ratios"), VM, "Part of the fair share that was not received"))]
    pub lag: f64,
}

    Metric::HostPcpus => gauge("host_pcpus", None, &[], "pCPUs that are online"),
        Samples::Host(|host| host.pcpus as f64);
    Metric::HostUse => counter(
        "host_use",
        "seconds",
        &["use"],
        "Where the host's pCPUs were: vcpus, emulator and vhost (the other threads of all VMs), tasks (processes that are no VMs), \
         kernel (its threads), idle, unseen (tasks that ended, interrupts, steal)",
    ), Samples::HostSeries(page::uses);
    Metric::HostProcess => counter(
        "host_process",
        "seconds",
        &["kind", "name", "cgroup"],
        "CPU time of host processes other than VMs, by name and cgroup (kind process); kind others sums the rest, with --no-process-names all",
    ), Samples::HostSeries(page::processes);
    Metric::HostVms => gauge("host_vms", None, &[], "VMs on the host, selected or not"),
        Samples::Host(|host| host.found as f64);
    Metric::HostVmsUnreadable => gauge(
        "host_vms_unreadable",
        None,
        &[],
        "Processes that are VMMs by their names and could not be looked into; root can",
    ), Samples::Host(|host| host.unreadable as f64);
    Metric::HostVmsLeftOut => gauge(
        "host_vms_left_out",
        None,
        &[],
        "VMs that are left alone because their user or the host has as many as there may be",
    ), Samples::Host(|host| host.left_out as f64);
    Metric::HostVmsUnidentified => gauge(
        "host_vms_unidentified",
        None,
        &[],
        "Selected VMs of which no vCPU thread is known; a QMP socket or a thread pattern helps",
    ), Samples::Host(|host| host.unidentified as f64);
    Metric::ExportVms => gauge("export_vms", None, &[], "VMs that have series on this page"),
        Samples::One(|all| Some(all.told().count() as f64));
    Metric::ExportVmsWithoutSeries => gauge(
        "export_vms_without_series",
        None,
        &[],
        "Selected VMs that have no series on this page, because 2,048 others have",
    ), Samples::Host(|host| host.without_series as f64);
    Metric::ExportNotMeasured => gauge(
        "export_not_measured",
        Some("ratios"),
        &["what", "want"],
        "Part of the VMs without this measurement, 0 to 1, and its missing requirement; absent if all VMs have it",
    ), Samples::HostSeries(page::not_measured);
    Metric::ExportNotSeen => gauge(
        "export_not_seen",
        None,
        &["event", "lacks", "because"],
        "Always 1; a kernel event that the programs miss, the figures that lack it, and the reason; only with --source bpf",
    ), Samples::HostSeries(page::not_seen);
    Metric::ExportNotCounted => counter_without_unit(
        "export_not_counted",
        &["what"],
        "Waits, edges, links and events that were seen and not counted; only with --source bpf",
    ), Samples::HostSeries(page::not_counted);
    Metric::ExportSource => gauge(
        "export_source",
        None,
        &["source"],
        "Always 1; the label says where the figures are from",
    ), Samples::HostSeries(|host, series| series.put(&[&host.source], 1.0));
    Metric::ExportIntervals => counter_without_unit("export_intervals", &[], "Intervals that were read"),
        Samples::One(|all| Some(all.intervals as f64));
    Metric::ExportErrors => counter_without_unit(
        "export_errors",
        &[],
        "Intervals that could not be read; there are no VMs on the page until one can",
    ), Samples::One(|all| Some(all.errors as f64));
    Metric::ExportInterval => gauge("export_interval", Some("seconds"), &[], "Length of the last interval"),
        Samples::Host(|host| host.length.as_secs_f64());
    Metric::ExportLast => gauge(
        "export_last_timestamp",
        Some("seconds"),
        &[],
        "When the last interval that could be read ended, in seconds since 1970",
    ), Samples::One(|all| Some(all.last?.as_secs_f64()));
    Metric::ExportTook => gauge(
        "export_took",
        Some("seconds"),
        &[],
        "How long reading the last interval took",
    ), Samples::One(|all| Some(all.took.as_secs_f64()));
    Metric::ExportCpu => counter("export_cpu", "seconds", &[], "CPU time of the exporter"),
        Samples::One(|all| Some(all.cpu.as_secs_f64()));
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

/// Returns the unit with this name.
pub(crate) fn unit_of(unit: &str) -> Unit {
    match unit {
        "seconds" => Unit::Seconds,
        "ratios" => Unit::Ratios,
        other => Unit::Other(other.to_owned()),
    }
}

impl Description {
    /// Returns the name of its samples; those of a histogram add `_bucket`, `_sum` or `_count`.
    pub fn name(&self) -> String {
        let unit = self.unit.map_or_else(String::new, |unit| format!("_{unit}"));
        let total = if self.is_counter { "_total" } else { "" };
        format!("{PREFIX}_{}{unit}{total}", self.stem)
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        self.unit.map(unit_of)
    }

    pub(super) fn kind(&self) -> MetricType {
        match (self.is_counter, self.is_histogram) {
            (true, _) => MetricType::Counter,
            (false, true) => MetricType::Histogram,
            (false, false) => MetricType::Gauge,
        }
    }
}
