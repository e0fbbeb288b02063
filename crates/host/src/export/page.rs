//! The exporter's page: every metric with the series of the exported VMs.
//!
//! It is rendered once per interval; a scrape returns the last page.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use tandem_model::states::latency::Latency;
use tandem_model::{Nanos, State};

use super::accounts::{Accounts, CulpritKey};
use super::metric::{Description, Metric};

/// The totals, shared with the thread that counts.
#[derive(Clone, Debug)]
pub(super) struct Page(pub(super) Arc<Mutex<Accounts>>);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for metric in Metric::ALL {
            let description = metric.description();
            let unit = description.unit();
            let encoder = encoder.encode_descriptor(
                description.stem,
                description.help,
                unit.as_ref(),
                description.kind(),
            )?;
            samples(metric, &accounts, &mut Series { encoder, description })?;
        }
        Ok(())
    }
}

/// Encoder of the series of one metric.
struct Series<'a> {
    encoder: MetricEncoder<'a>,
    description: Description,
}

impl Series<'_> {
    /// Adds one series, with the values of its labels.
    fn put(&mut self, values: &[&str], value: f64) -> fmt::Result {
        debug_assert_eq!(values.len(), self.description.labels.len());
        let labels: Vec<(&str, &str)> =
            self.description.labels.iter().copied().zip(values.iter().copied()).collect();
        let is_counter = self.description.is_counter;
        debug_assert!(!self.description.is_histogram);
        // A metric without labels has no family.
        if labels.is_empty() {
            encode(&mut self.encoder, is_counter, value)
        } else {
            encode(&mut self.encoder.encode_family(&labels)?, is_counter, value)
        }
    }
}

impl Series<'_> {
    /// Adds a histogram with labels.
    fn put_histogram(&mut self, values: &[&str], latency: &Latency) -> fmt::Result {
        let names = self.description.labels.iter().copied();
        let labels: Vec<(&str, &str)> = names.zip(values.iter().copied()).collect();
        let mut encoder = self.encoder.encode_family(&labels)?;
        let (sum, count) = (seconds(latency.time), latency.count());
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets(latency), None)
    }
}

/// Upper bounds of the buckets, as powers of two of ns: 4 µs to 1 s in steps of four. All 32 would be too many series.
const POWERS: [usize; 10] = [12, 14, 16, 18, 20, 22, 24, 26, 28, 30];

/// Returns the buckets of a page: upper bound in seconds, and count.
fn buckets(latency: &Latency) -> Vec<(f64, u64)> {
    let mut below = 0;
    let ends = POWERS.map(|power| ((1u64 << power) as f64 / 1e9, latency.below(power)));
    let ends = ends.into_iter().chain([(f64::INFINITY, latency.count())]);
    ends.map(|(end, count)| (end, count - std::mem::replace(&mut below, count))).collect()
}

fn encode(encoder: &mut MetricEncoder<'_>, is_counter: bool, value: f64) -> fmt::Result {
    if is_counter {
        encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None)
    } else {
        encoder.encode_gauge(&value)
    }
}

/// Returns the name of a state in JSON.
fn label(state: State) -> &'static str {
    match state {
        State::Run => "run",
        State::Poll => "poll",
        State::Vmm => "vmm",
        State::Ready => "ready",
        State::Limited => "limited",
        State::Costop => "costop",
        State::Halted => "halted",
    }
}

fn seconds(time: Nanos) -> f64 {
    time.as_secs_f64()
}

fn samples(metric: Metric, accounts: &Accounts, series: &mut Series<'_>) -> fmt::Result {
    match metric {
        Metric::ExportVms => series.put(&[], accounts.told().count() as f64),
        Metric::ExportIntervals => series.put(&[], accounts.intervals as f64),
        Metric::ExportErrors => series.put(&[], accounts.errors as f64),
        Metric::ExportTook => series.put(&[], seconds(accounts.took)),
        Metric::ExportCpu => series.put(&[], seconds(accounts.cpu)),
        Metric::ExportLast => match accounts.last {
            Some(last) => series.put(&[], seconds(last)),
            None => Ok(()),
        },
        Metric::HostPcpus
        | Metric::HostUse
        | Metric::HostProcess
        | Metric::HostVms
        | Metric::HostVmsUnreadable
        | Metric::HostVmsLeftOut
        | Metric::HostVmsUnidentified
        | Metric::ExportVmsWithoutSeries
        | Metric::ExportNotMeasured
        | Metric::ExportNotSeen
        | Metric::ExportNotCounted
        | Metric::ExportSource
        | Metric::ExportInterval => of_host(metric, accounts, series),
        Metric::VmState
        | Metric::VcpuState
        | Metric::VmReadyWorstVcpu
        | Metric::VmReadyLastingVcpu
        | Metric::VmVcpus
        | Metric::VmRuns
        | Metric::VmWakeupLatency
        | Metric::VmCulprit
        | Metric::VmThread
        | Metric::VmFair
        | Metric::VmReceived
        | Metric::VmLag => of_vms(metric, accounts, series),
    }
}

fn of_host(metric: Metric, accounts: &Accounts, series: &mut Series<'_>) -> fmt::Result {
    let Some(host) = accounts.host() else {
        return Ok(());
    };
    match metric {
        Metric::HostPcpus => series.put(&[], host.pcpus as f64),
        Metric::HostUse => {
            let told = host.uses.iter();
            let mut told = told.filter(|(what, _)| host.measured.contains(what));
            told.try_for_each(|(what, time)| series.put(&[what], seconds(*time)))
        }
        Metric::HostProcess => {
            for (process, time) in host.processes.named() {
                let labels = ["process", &process.name, &process.cgroup];
                series.put(&labels, seconds(time))?;
            }
            match host.processes.others() {
                Some(time) => series.put(&["others", "others", ""], seconds(time)),
                None => Ok(()),
            }
        }
        Metric::HostVms => series.put(&[], host.found as f64),
        Metric::HostVmsUnreadable => series.put(&[], host.unreadable as f64),
        Metric::HostVmsLeftOut => series.put(&[], host.left_out as f64),
        Metric::HostVmsUnidentified => series.put(&[], host.unidentified as f64),
        Metric::ExportVmsWithoutSeries => series.put(&[], host.without_series as f64),
        Metric::ExportNotMeasured => {
            let mut missing = host.missing.iter();
            missing.try_for_each(|((what, want), part)| series.put(&[what, want], *part))
        }
        Metric::ExportNotSeen => {
            let mut not_seen = host.not_seen.iter();
            not_seen.try_for_each(|not| series.put(&[&not.event, &not.lacks, &not.because], 1.0))
        }
        Metric::ExportNotCounted => {
            let mut not_counted = host.not_counted.iter();
            not_counted.try_for_each(|(what, count)| series.put(&[what], *count as f64))
        }
        Metric::ExportSource => series.put(&[&host.source], 1.0),
        Metric::ExportInterval => series.put(&[], seconds(host.length)),
        _ => Ok(()),
    }
}

fn of_vms(metric: Metric, accounts: &Accounts, series: &mut Series<'_>) -> fmt::Result {
    let has_threads = |kind| {
        let host = accounts.host();
        host.is_some_and(|host| host.measured.contains(kind))
    };
    for (vm, now) in accounts.told() {
        let (name, pid) = (vm.name.as_str(), vm.pid.as_str());
        match metric {
            Metric::VmState => {
                for (state, time) in vm.states.measured() {
                    series.put(&[name, pid, label(state)], seconds(time))?;
                }
            }
            Metric::VcpuState => {
                for (vcpu, states) in &vm.vcpus {
                    let vcpu = vcpu.to_string();
                    for (state, time) in states.measured() {
                        series.put(&[name, pid, &vcpu, label(state)], seconds(time))?;
                    }
                }
            }
            Metric::VmReadyWorstVcpu => {
                if let Some(part) = now.worst_ready {
                    series.put(&[name, pid], part)?;
                }
            }
            Metric::VmReadyLastingVcpu => {
                if let Some(part) = now.lasting_ready {
                    series.put(&[name, pid], part)?;
                }
            }
            Metric::VmVcpus => series.put(&[name, pid], now.vcpus as f64)?,
            Metric::VmRuns => series.put(&[name, pid], vm.runs as f64)?,
            Metric::VmWakeupLatency if now.has_latency => {
                series.put_histogram(&[name, pid], &vm.latency)?;
            }
            Metric::VmCulprit => {
                let mut put = |culprit: &CulpritKey, time: Nanos| {
                    let CulpritKey { kind, name: whom, cgroup, evidence } = culprit;
                    let labels = [name, pid, kind, whom, cgroup, evidence];
                    series.put(&labels, seconds(time))
                };
                for (evidence, ranked) in &vm.culprits {
                    for (culprit, time) in ranked.named() {
                        put(culprit, time)?;
                    }
                    if let Some(time) = ranked.others() {
                        put(&CulpritKey::others(*evidence), time)?;
                    }
                }
            }
            Metric::VmThread => {
                let told = vm.threads.iter().filter(|(kind, _)| has_threads(kind));
                for (thread, time) in told {
                    series.put(&[name, pid, thread], seconds(*time))?;
                }
            }
            Metric::VmFair => series.put(&[name, pid], now.fair)?,
            Metric::VmReceived => series.put(&[name, pid], now.received)?,
            Metric::VmLag => series.put(&[name, pid], now.lag)?,
            _ => {}
        }
    }
    Ok(())
}
