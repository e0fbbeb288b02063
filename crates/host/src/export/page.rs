//! The exporter's page: every metric with the series of the exported VMs.
//!
//! It is rendered once per interval; a scrape returns the last page.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use tandem_model::Nanos;
use tandem_model::states::latency::Latency;

use super::accounts::{Accounts, CulpritKey, HostAccount, Now, VmAccount, word};
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
            metric.samples().put(&accounts, &mut Series { encoder, description })?;
        }
        Ok(())
    }
}

/// Encoder of the series of one metric.
pub(super) struct Series<'a> {
    encoder: MetricEncoder<'a>,
    description: Description,
}

impl Series<'_> {
    /// Adds one series, with the values of its labels.
    pub(super) fn put(&mut self, values: &[&str], value: f64) -> fmt::Result {
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

fn seconds(time: Nanos) -> f64 {
    time.as_secs_f64()
}

/// Origin of a metric's samples.
#[derive(Clone, Copy)]
pub(super) enum Samples {
    /// A value without labels.
    One(fn(&Accounts) -> Option<f64>),
    /// A value of the host, if the last interval could be read.
    Host(fn(&HostAccount) -> f64),
    /// Series of the host.
    HostSeries(fn(&HostAccount, &mut Series<'_>) -> fmt::Result),
    /// A value of each VM; `None` if it is not measured.
    Vm(fn(&VmAccount, &Now) -> Option<f64>),
    /// Series of each VM.
    VmSeries(fn(&VmAccount, &Now, &mut Series<'_>) -> fmt::Result),
}

impl Samples {
    fn put(self, accounts: &Accounts, series: &mut Series<'_>) -> fmt::Result {
        let mut vms = accounts.told();
        match self {
            Samples::One(get) => get(accounts).map_or(Ok(()), |value| series.put(&[], value)),
            Samples::Host(get) => accounts.host().map_or(Ok(()), |host| series.put(&[], get(host))),
            Samples::HostSeries(put) => accounts.host().map_or(Ok(()), |host| put(host, series)),
            Samples::Vm(get) => vms.try_for_each(|(vm, now)| match get(vm, now) {
                Some(value) => series.put(&[&vm.name, &vm.pid], value),
                None => Ok(()),
            }),
            Samples::VmSeries(put) => vms.try_for_each(|(vm, now)| put(vm, now, series)),
        }
    }
}

pub(super) fn states(vm: &VmAccount, _: &Now, series: &mut Series<'_>) -> fmt::Result {
    let mut measured = vm.states.measured();
    measured
        .try_for_each(|(state, time)| series.put(&[&vm.name, &vm.pid, &word(state)], seconds(time)))
}

pub(super) fn vcpu_states(vm: &VmAccount, _: &Now, series: &mut Series<'_>) -> fmt::Result {
    for (vcpu, states) in &vm.vcpus {
        let vcpu = vcpu.to_string();
        for (state, time) in states.measured() {
            series.put(&[&vm.name, &vm.pid, &vcpu, &word(state)], seconds(time))?;
        }
    }
    Ok(())
}

pub(super) fn wakeup_latency(vm: &VmAccount, now: &Now, series: &mut Series<'_>) -> fmt::Result {
    if now.has_latency {
        series.put_histogram(&[&vm.name, &vm.pid], &vm.latency)?;
    }
    Ok(())
}

pub(super) fn culprits(vm: &VmAccount, _: &Now, series: &mut Series<'_>) -> fmt::Result {
    let mut put = |culprit: &CulpritKey, time: Nanos| {
        let CulpritKey { kind, name, cgroup, evidence } = culprit;
        series.put(&[&vm.name, &vm.pid, kind, name, cgroup, evidence], seconds(time))
    };
    for (evidence, ranked) in &vm.culprits {
        for (culprit, time) in ranked.named() {
            put(culprit, time)?;
        }
        if let Some(time) = ranked.others() {
            put(&CulpritKey::others(*evidence), time)?;
        }
    }
    Ok(())
}

pub(super) fn threads(vm: &VmAccount, now: &Now, series: &mut Series<'_>) -> fmt::Result {
    let mut threads = vm.threads.iter().filter(|_| now.has_threads);
    threads.try_for_each(|(kind, time)| series.put(&[&vm.name, &vm.pid, kind], seconds(*time)))
}

pub(super) fn uses(host: &HostAccount, series: &mut Series<'_>) -> fmt::Result {
    let mut uses = host.uses.iter().filter(|(what, _)| host.measured.contains(what));
    uses.try_for_each(|(what, time)| series.put(&[what], seconds(*time)))
}

pub(super) fn processes(host: &HostAccount, series: &mut Series<'_>) -> fmt::Result {
    for (process, time) in host.processes.named() {
        series.put(&["process", &process.name, &process.cgroup], seconds(time))?;
    }
    match host.processes.others() {
        Some(time) => series.put(&["others", "others", ""], seconds(time)),
        None => Ok(()),
    }
}

pub(super) fn not_measured(host: &HostAccount, series: &mut Series<'_>) -> fmt::Result {
    let mut missing = host.missing.iter();
    missing.try_for_each(|((what, want), part)| series.put(&[what, want], *part))
}

pub(super) fn not_seen(host: &HostAccount, series: &mut Series<'_>) -> fmt::Result {
    let mut not_seen = host.not_seen.iter();
    not_seen.try_for_each(|not| series.put(&[&not.event, &not.lacks, &not.because], 1.0))
}

pub(super) fn not_counted(host: &HostAccount, series: &mut Series<'_>) -> fmt::Result {
    let mut not_counted = host.not_counted.iter();
    not_counted.try_for_each(|(what, count)| series.put(&[what], *count as f64))
}
