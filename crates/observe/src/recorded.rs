//! Converts a recorded host to a scenario, to simulate it with another vCPU, fewer neighbours or another policy.
//!
//! ```text
//! intervals of a record ──► Recorded ──► RecordedHost ──► what-ifs ──► TOML ──► simulator
//! ```
//!
//! Each vCPU becomes a [`Pattern`]: it runs and sleeps for certain lengths, in a closed loop of work. Waits for pCPUs
//! are not part of the pattern, since the simulator determines them: a vCPU that waited for half the
//! time has the run and sleep times per wake-up without these waits. The mean lengths are the times in the states divided by the number of wake-ups.
//! A record without wake-ups has the number of runs instead, which is larger if vCPUs were preempted.
//!
//! vCPUs with regular wake-ups are assumed to be woken by a clock: their period is fixed and does not shift by
//! waits. Wake-ups are regular if their number varies between intervals much less than with random sleeps.
//!
//! All other use of pCPUs (host processes, the kernel, other threads of VMs, and time in no account) becomes
//! background: VMs that no policy manages.
//!
//! A VM that was restarted is in the scenario once, as it was since its last start; its earlier activity is omitted, with a remark.
//!
//! Properties that a record lacks are listed at the top of the scenario, and not invented: dependencies between vCPUs of a guest, the variation
//! of bursts, the behaviour of a VM with another vCPU, and the hierarchy of VMs' cgroups (each VM has one here). Halt
//! polling takes a pCPU and counts as running; throttling by a quota counts as sleeping.

pub mod application;
mod pattern;
mod scenario;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::states::interval::{HostTotals, Interval, VmInterval};
use tandem_model::states::sum::IntervalSum;
use tandem_model::{Nanos, PcpuId, PcpuSet, VcpuId, VmId, Weight};
use thiserror::Error;

use pattern::Regularity;
pub use pattern::{Demand, Pattern};
pub use scenario::{HostVcpu, HostVm, Knob, RecordedHost};

/// Minimum background, in thousandths of a pCPU, that becomes a VM of its own.
const LITTLE: u64 = 5;

/// Minimum time in no account, in thousandths of the pCPUs, that is trusted, since idle time is counted in ticks of 10 ms.
const UNSEEN: u64 = 10;

/// Cycle of background load, since wake-ups of host processes are not recorded.
const BACKGROUND_CYCLE: Nanos = Nanos::from_millis(10);

/// Maximum length of a VM's name in a scenario, with room for a distinguishing suffix.
const MAX_NAME: usize = 56;

/// Error of the conversion to a scenario.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordedError {
    /// No interval.
    #[error(
        "there is no interval at that time; tandem host replay --list says what the record holds"
    )]
    Empty,
    /// No number of pCPUs.
    #[error("the record does not say how many pCPUs the host has: its idle time was not measured")]
    NoPcpus,
    /// No VM.
    #[error("no VM was measured at that time; tandem host replay --list says when there were VMs")]
    NoVm,
}

/// Collects the intervals of a record, in order.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    sum: IntervalSum,
    intervals: u64,
    names: BTreeMap<VmId, (String, Option<Weight>)>,
    regularity: BTreeMap<(VmId, VcpuId), Regularity>,
    /// Begin and end of each VM's presence.
    seen: BTreeMap<VmId, (Nanos, Nanos)>,
    topology: Option<Topology>,
}

/// Shared caches and cores of pCPUs; empty if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The pCPUs of each last-level cache.
    pub caches: Vec<PcpuSet>,
    /// The pCPUs of each core.
    pub cores: Vec<PcpuSet>,
}

impl Recorded {
    /// Creates an empty collection.
    pub fn new() -> Recorded {
        Recorded::default()
    }

    /// Sets a VM's name, and its configured weight if known. The last call counts.
    pub fn name(&mut self, vm: VmId, name: &str, weight: Option<Weight>) {
        self.names.insert(vm, (name.to_owned(), weight));
    }

    /// Sets the topology. The last call counts.
    pub fn topology(&mut self, topology: Topology) {
        self.topology = Some(topology);
    }

    /// Adds an interval.
    pub fn add(&mut self, interval: &Interval) {
        self.intervals += 1;
        self.sum.add(interval);
        let end = interval.start + interval.length;
        for vm in &interval.vms {
            if !vm.vcpus.is_empty() {
                let seen = self.seen.entry(vm.vm).or_insert((interval.start, end));
                *seen = (seen.0.min(interval.start), seen.1.max(end));
            }
            for vcpu in &vm.vcpus {
                let regularity = self.regularity.entry((vm.vm, vcpu.vcpu)).or_default();
                regularity.add(vcpu.wakeups, vcpu.times.wall());
            }
        }
    }

    /// Returns the number of earlier VMs with the same name, and whether a later one exists.
    fn starts(&self, vm: VmId) -> (usize, bool) {
        let of = |vm| Some((&self.names.get(&vm)?.0, *self.seen.get(&vm)?));
        let Some((name, (first, last))) = of(vm) else {
            return (0, false);
        };
        let others = self.seen.keys().filter(|other| **other != vm);
        let same = others.filter_map(|other| of(*other).filter(|(other, _)| *other == name));
        let (mut before, mut is_followed) = (0, false);
        for (_, (other_first, other_last)) in same {
            before += usize::from(other_last <= first);
            is_followed |= other_first >= last;
        }
        (before, is_followed)
    }

    /// Returns the average host; `from` describes its origin in a line.
    pub fn host(self, from: &str) -> Result<RecordedHost, RecordedError> {
        let vms = self.seen.keys();
        let starts: BTreeMap<VmId, (usize, bool)> = vms.map(|vm| (*vm, self.starts(*vm))).collect();
        let starts = |vm: VmId| starts.get(&vm).copied().unwrap_or_default();
        let sum = self.sum.finish().ok_or(RecordedError::Empty)?;
        let pcpus = u32::try_from(sum.host.pcpus).unwrap_or(u32::MAX);
        if pcpus == 0 {
            return Err(RecordedError::NoPcpus);
        }
        // A VM that was restarted is included once.
        let is_last = |vm: &&VmInterval| !vm.vcpus.is_empty() && !starts(vm.vm).1;
        let measured: Vec<&VmInterval> = sum.vms.iter().filter(is_last).collect();
        if measured.is_empty() {
            return Err(RecordedError::NoVm);
        }
        let weights = self.names.values().filter_map(|(_, weight)| *weight);
        let knob = Knob::of(weights);
        let topology = self.topology.clone().unwrap_or_default();
        let places = Places::of(pcpus, &measured, &topology.caches);
        let mut names = Names::default();
        let mut vms = Vec::with_capacity(measured.len());
        let mut threads = Vec::new();
        for vm in measured {
            let known = self.names.get(&vm.vm);
            let own = known.map_or_else(|| format!("vm{}", vm.vm.0), |(name, _)| name.clone());
            let name = names.unique(&own);
            let time: Nanos = vm.threads.iter().map(|thread| thread.time).sum();
            threads.push((format!("{name}-threads"), time, Some(name.clone())));
            let weight = known.and_then(|(_, weight)| *weight);
            let regular = |vcpu: VcpuId| {
                let regularity = self.regularity.get(&(vm.vm, vcpu));
                regularity.is_some_and(Regularity::is_regular)
            };
            vms.push(HostVm {
                name,
                weight: weight.map_or(Knob::USUAL, |weight| knob.usual(weight)),
                vcpus: vcpus(vm, &places, regular),
                is_background: false,
                threads_of: None,
                remarks: remarks(vm, sum.length, weight, starts(vm.vm).0),
            });
        }
        let processes = processes(&sum.host, sum.length).into_iter();
        let processes = processes.map(|(name, time)| (name, time, None));
        for (name, time, threads_of) in threads.into_iter().chain(processes) {
            if parts(time, sum.length) >= LITTLE {
                let name = names.unique(&name);
                let background =
                    HostVm::background(name, time, sum.length, pcpus, BACKGROUND_CYCLE);
                vms.push(HostVm { threads_of, ..background });
            }
        }
        let mut remarks = places.remarks();
        remarks.extend(topology.remarks(places.pcpus_per_llc.is_some()));
        Ok(RecordedHost {
            about: format!(
                "{from}: {} intervals, {:.0} s",
                self.intervals,
                sum.length.as_secs_f64()
            ),
            pcpus,
            pcpus_per_llc: places.pcpus_per_llc,
            knob,
            vms,
            remarks,
            ..RecordedHost::default()
        })
    }
}

impl Topology {
    /// Returns remarks for the reader of the scenario.
    fn remarks(&self, has_caches: bool) -> Vec<String> {
        let mut remarks = Vec::new();
        if !has_caches {
            let remark = if self.caches.is_empty() {
                "the record does not tell which pCPUs share a cache: all of them here"
            } else {
                "the caches of the host are not alike, or not of the pCPUs that were online: all pCPUs share one here"
            };
            remarks.push(remark.to_owned());
        }
        match self.cores.iter().map(PcpuSet::len).max() {
            None => remarks.push(
                "the record does not tell which pCPUs share a core: none here".to_owned(),
            ),
            Some(0 | 1) => {}
            Some(threads) => remarks.push(format!(
                "up to {threads} pCPUs share a core (SMT): here each is a core of its own, so leaving a sibling idle gains less here than there"
            )),
        }
        remarks
    }
}

/// Returns a time in thousandths of another.
fn parts(time: Nanos, of: Nanos) -> u64 {
    time.0.saturating_mul(1_000) / of.0.max(1)
}

/// Returns a VM's measured vCPUs by number.
fn vcpus(vm: &VmInterval, places: &Places, regular: impl Fn(VcpuId) -> bool) -> Vec<HostVcpu> {
    let mut vcpus: Vec<_> = vm.vcpus.iter().collect();
    vcpus.sort_by_key(|vcpu| vcpu.vcpu);
    let vcpus = vcpus.into_iter().map(|vcpu| HostVcpu {
        demand: Demand::of(vcpu, regular(vcpu.vcpu)),
        pins: places.of_vcpu(&vcpu.allowed),
    });
    vcpus.collect()
}

/// Returns remarks on a VM for the reader of the scenario.
fn remarks(vm: &VmInterval, length: Nanos, weight: Option<Weight>, starts: usize) -> Vec<String> {
    let mut remarks = Vec::new();
    if starts > 0 {
        remarks.push(format!(
            "it was started anew {starts} times: this is what it did since the last start, and what it did before is left out"
        ));
    }
    let wall = vm.vcpus.iter().map(|vcpu| vcpu.times.wall()).max();
    let there = parts(wall.unwrap_or_default(), length);
    if there < 950 {
        remarks.push(format!(
            "it was there for {} % of the time; here it is there all the time",
            there / 10
        ));
    }
    if vm.vcpus.iter().any(|vcpu| vcpu.wakeups.is_none()) {
        remarks.push(
            "its wake-ups were not recorded: bursts are between preemptions, too, so they may be shorter than they were"
                .to_owned(),
        );
    }
    if vm.vcpus.iter().any(|vcpu| Demand::of(vcpu, false).is_starved()) {
        remarks.push(
            "a vCPU of it waited for pCPUs nearly all the time: its run time is too short to tell how it sleeps, and it is taken to compute without a pause"
                .to_owned(),
        );
    }
    if weight.is_none() {
        remarks.push("its weight is not known: the usual one".to_owned());
    }
    remarks
}

/// Returns the use of pCPUs by named processes, and by the rest of the host other than VMs.
fn processes(host: &HostTotals, length: Nanos) -> Vec<(String, Nanos)> {
    let mut by_name: BTreeMap<String, Nanos> = BTreeMap::new();
    let mut rest = host.tasks + host.kernel;
    for process in &host.top_tasks {
        if parts(process.time, length) >= LITTLE {
            *by_name.entry(format!("host-{}", process.name)).or_default() += process.time;
            rest = rest.saturating_sub(process.time);
        }
    }
    let unseen = host.unseen(length).unwrap_or_default();
    if parts(unseen, length) >= UNSEEN.saturating_mul(host.pcpus as u64) {
        rest += unseen;
    }
    let mut all: Vec<_> = by_name.into_iter().collect();
    all.push(("host-others".to_owned(), rest));
    all
}

/// Unique valid names for scenarios.
#[derive(Debug, Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn unique(&mut self, name: &str) -> String {
        let is_possible = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
        let possible: String =
            name.chars().take(MAX_NAME).map(|c| if is_possible(c) { c } else { '-' }).collect();
        let possible = if possible.is_empty() { "vm".to_owned() } else { possible };
        let numbered = (2u64..).map(|n| format!("{possible}-{n}"));
        let free =
            std::iter::once(possible.clone()).chain(numbered).find(|name| !self.0.contains(name));
        let name = free.unwrap_or(possible);
        self.0.insert(name.clone());
        name
    }
}

/// Maps pCPUs of the host to those of the scenario, 0 … n − 1.
#[derive(Debug)]
struct Places {
    pcpus: u32,
    /// The scenario's number of each pCPU that a vCPU is bound to; empty: unchanged.
    numbers: BTreeMap<PcpuId, u32>,
    /// Number of consecutive pCPUs that share a last-level cache; `None` if unknown, or if caches differ.
    pcpus_per_llc: Option<u32>,
}

impl Places {
    fn of(pcpus: u32, vms: &[&VmInterval], caches: &[PcpuSet]) -> Places {
        let by_cache: Vec<PcpuId> = caches.iter().flat_map(PcpuSet::iter).collect();
        let distinct: BTreeSet<PcpuId> = by_cache.iter().copied().collect();
        let size = caches.first().map_or(0, PcpuSet::len);
        let is_known = distinct.len() == pcpus as usize
            && by_cache.len() == distinct.len()
            && caches.iter().all(|cache| cache.len() == size);
        if is_known {
            // In the scenario, the pCPUs of a cache are consecutive.
            return Places {
                pcpus,
                numbers: by_cache.into_iter().zip(0..).collect(),
                pcpus_per_llc: Some(size as u32),
            };
        }
        let vcpus = vms.iter().flat_map(|vm| &vm.vcpus);
        let bound = vcpus.filter(|vcpu| is_bound(&vcpu.allowed, pcpus));
        let used: BTreeSet<PcpuId> = bound.flat_map(|vcpu| vcpu.allowed.iter()).collect();
        let keeps = used.last().is_none_or(|last| last.0 < pcpus);
        let numbers = if keeps {
            BTreeMap::new()
        } else {
            // Numbers repeat if some of these pCPUs were online for a part of the time only.
            used.into_iter().zip((0..pcpus).cycle()).collect()
        };
        Places { pcpus, numbers, pcpus_per_llc: None }
    }

    /// Returns the affinity of a vCPU in the scenario; `None`: all pCPUs.
    fn of_vcpu(&self, allowed: &PcpuSet) -> Option<PcpuSet> {
        is_bound(allowed, self.pcpus).then(|| {
            let number = |pcpu: PcpuId| PcpuId(self.numbers.get(&pcpu).copied().unwrap_or(pcpu.0));
            allowed.iter().map(number).collect()
        })
    }

    fn remarks(&self) -> Vec<String> {
        let renamed = self.numbers.iter().filter(|(was, is)| was.0 != **is);
        let renamed: Vec<String> = renamed.map(|(was, is)| format!("{} is {is}", was.0)).collect();
        if renamed.is_empty() {
            Vec::new()
        } else {
            vec![format!("pCPUs have other numbers here: {}", renamed.join(", "))]
        }
    }
}

/// Whether a vCPU is confined to some pCPUs. An unknown affinity is no confinement.
fn is_bound(allowed: &PcpuSet, pcpus: u32) -> bool {
    !allowed.is_empty() && allowed.len() < pcpus as usize
}
