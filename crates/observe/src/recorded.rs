//! A recorded host as a scenario: what would happen if it had another vCPU here, fewer neighbours there, another policy?
//!
//! ```text
//! intervals of a record ──► Recorded ──► RecordedHost ──► what-ifs ──► TOML ──► simulator
//! ```
//!
//! Each vCPU becomes a [`Pattern`]: it runs for so long and sleeps for so long, in a closed loop of work. What it waited for pCPUs
//! is no part of its pattern, since waits are what the simulator is to say anew: a vCPU that was kept off its pCPU half the
//! time wants what it ran and slept per wake-up, without the waits. The mean lengths are from the times in the states and the number of wake-ups; a
//! record without wake-ups has the number of runs in their place, which is larger where vCPUs were preempted.
//!
//! Who is woken as regularly as a clock is taken to be woken by one: its period stands on the clock and does not slip by
//! its waits. Regular means that the number of wake-ups differs between intervals by much less than it would if sleeps were random.
//!
//! What takes pCPUs beside VMs' vCPUs (processes of the host, its kernel, other threads of VMs, what nobody was seen to use) is
//! background: VMs on which no policy acts.
//!
//! A VM that was started anew is in the scenario once, as it was since its last start; what it did before is left out, and said.
//!
//! What a record does not tell stands at the top of the scenario, and is not made up: who waits for whom within a guest, how
//! bursts vary, what a VM would do with another vCPU, and how VMs' cgroups lie within each other (each VM has one here). Halt
//! polling takes a pCPU and is a part of running; a quota's throttling is a part of sleeping.

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

/// Background below this part of a pCPU, in thousandths, is not worth a VM of its own.
const LITTLE: u64 = 5;

/// Idle time is counted in ticks of 10 ms, so what nobody was seen to use is believed from this part of the pCPUs on, in thousandths.
const UNSEEN: u64 = 10;

/// Background runs and sleeps in turns of this length: how often processes of the host are woken is not recorded.
const BACKGROUND_CYCLE: Nanos = Nanos::from_millis(10);

/// The longest name of a VM in a scenario, with room for what tells it from another of that name.
const LONGEST_NAME: usize = 56;

/// Why a record makes no scenario.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordedError {
    /// Nothing to make it from.
    #[error(
        "there is no interval at that time; tandem host replay --list says what the record holds"
    )]
    Empty,
    /// No machine.
    #[error("the record does not say how many pCPUs the host has: its idle time was not measured")]
    NoPcpus,
    /// Nobody to simulate.
    #[error("no VM was measured at that time; tandem host replay --list says when there were VMs")]
    NoVm,
}

/// Takes in the intervals of a record, in their order.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    sum: IntervalSum,
    intervals: u64,
    names: BTreeMap<VmId, (String, Option<Weight>)>,
    regularity: BTreeMap<(VmId, VcpuId), Regularity>,
    /// From when to when each VM was seen.
    seen: BTreeMap<VmId, (Nanos, Nanos)>,
    topology: Option<Topology>,
}

/// Which pCPUs of a host share what; empty where that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The pCPUs of each last-level cache.
    pub caches: Vec<PcpuSet>,
    /// The pCPUs of each core.
    pub cores: Vec<PcpuSet>,
}

impl Recorded {
    /// Nothing yet.
    pub fn new() -> Recorded {
        Recorded::default()
    }

    /// What a VM is called, and its configured weight, where that is known. The last that is said counts.
    pub fn name(&mut self, vm: VmId, name: &str, weight: Option<Weight>) {
        self.names.insert(vm, (name.to_owned(), weight));
    }

    /// Which pCPUs share what. The last that is said counts.
    pub fn topology(&mut self, topology: Topology) {
        self.topology = Some(topology);
    }

    /// Takes in an interval.
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

    /// How many VMs of that name were there before this one, one after the other; and whether one came after it.
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

    /// The host as it was on average; `from` says what it was made from, in a line.
    pub fn host(self, from: &str) -> Result<RecordedHost, RecordedError> {
        let vms = self.seen.keys();
        let starts: BTreeMap<VmId, (usize, bool)> = vms.map(|vm| (*vm, self.starts(*vm))).collect();
        let starts = |vm: VmId| starts.get(&vm).copied().unwrap_or_default();
        let sum = self.sum.finish().ok_or(RecordedError::Empty)?;
        let pcpus = u32::try_from(sum.host.pcpus).unwrap_or(u32::MAX);
        if pcpus == 0 {
            return Err(RecordedError::NoPcpus);
        }
        // One that was started anew is there once.
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
    /// What a reader must know.
    fn remarks(&self, has_caches: bool) -> Vec<String> {
        let mut remarks = Vec::new();
        if !has_caches {
            remarks.push(match self.caches.is_empty() {
                true => "the record does not tell which pCPUs share a cache: all of them here".to_owned(),
                false => "the caches of the host are not alike, or not of the pCPUs that were online: all pCPUs share one here".to_owned(),
            });
        }
        match self.cores.iter().map(PcpuSet::len).max() {
            None => remarks.push(
                "the record does not tell which pCPUs share a core: none here".to_owned(),
            ),
            Some(0 | 1) => {}
            Some(threads) => remarks.push(format!(
                "up to {threads} pCPUs share a core (SMT): here each is a core of its own, so what leaves a sibling idle gains less here than there"
            )),
        }
        remarks
    }
}

/// A time in thousandths of another.
fn parts(time: Nanos, of: Nanos) -> u64 {
    time.0.saturating_mul(1_000) / of.0.max(1)
}

/// A VM's vCPUs by number, those that were measured.
fn vcpus(vm: &VmInterval, places: &Places, regular: impl Fn(VcpuId) -> bool) -> Vec<HostVcpu> {
    let mut vcpus: Vec<_> = vm.vcpus.iter().collect();
    vcpus.sort_by_key(|vcpu| vcpu.vcpu);
    let vcpus = vcpus.into_iter().map(|vcpu| HostVcpu {
        demand: Demand::of(vcpu, regular(vcpu.vcpu)),
        pins: places.of_vcpu(&vcpu.allowed),
    });
    vcpus.collect()
}

/// What a reader must know of a VM.
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
            "a vCPU of it waited for pCPUs nearly all the time: what it got is too little to tell how it sleeps, and it is taken to compute without a pause"
                .to_owned(),
        );
    }
    if weight.is_none() {
        remarks.push("its weight is not known: the usual one".to_owned());
    }
    remarks
}

/// What took pCPUs on the host beside VMs: those processes that are named, and all the rest.
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

/// Names as scenarios may have them, none twice.
#[derive(Debug, Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn unique(&mut self, name: &str) -> String {
        let is_possible = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
        let possible: String =
            name.chars().take(LONGEST_NAME).map(|c| if is_possible(c) { c } else { '-' }).collect();
        let possible = if possible.is_empty() { "vm".to_owned() } else { possible };
        let numbered = (2u64..).map(|n| format!("{possible}-{n}"));
        let free =
            std::iter::once(possible.clone()).chain(numbered).find(|name| !self.0.contains(name));
        let name = free.unwrap_or(possible);
        self.0.insert(name.clone());
        name
    }
}

/// pCPUs of the host as those of the scenario, which are 0 … n − 1.
#[derive(Debug)]
struct Places {
    pcpus: u32,
    /// The scenario's number of each pCPU that somebody is bound to; empty: they keep theirs.
    numbers: BTreeMap<PcpuId, u32>,
    /// How many pCPUs share a last-level cache, each the next so many; `None` where that is not known, or caches are not alike.
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
            // In the scenario the pCPUs of a cache follow each other.
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
        let numbers = match keeps {
            true => BTreeMap::new(),
            // More than there are were not online all the time.
            false => used.into_iter().zip((0..pcpus).cycle()).collect(),
        };
        Places { pcpus, numbers, pcpus_per_llc: None }
    }

    /// Where a vCPU may run; `None`: anywhere.
    fn of_vcpu(&self, allowed: &PcpuSet) -> Option<PcpuSet> {
        is_bound(allowed, self.pcpus).then(|| {
            let number = |pcpu: PcpuId| PcpuId(self.numbers.get(&pcpu).copied().unwrap_or(pcpu.0));
            allowed.iter().map(number).collect()
        })
    }

    fn remarks(&self) -> Vec<String> {
        let renamed = self.numbers.iter().filter(|(was, is)| was.0 != **is);
        let renamed: Vec<String> = renamed.map(|(was, is)| format!("{} is {is}", was.0)).collect();
        match renamed.is_empty() {
            true => Vec::new(),
            false => vec![format!("pCPUs have other numbers here: {}", renamed.join(", "))],
        }
    }
}

/// Whether a vCPU may not run on all pCPUs. Where it may run is not always known, which is no bound.
fn is_bound(allowed: &PcpuSet, pcpus: u32) -> bool {
    !allowed.is_empty() && allowed.len() < pcpus as usize
}
