//! Sums of consecutive intervals, over minutes or hours.
//!
//! - The length is the sum of lengths; gaps between intervals do not count.
//! - A VM or vCPU that was present for part of the time has a wall time shorter than the sum.
//! - A state that is not measured in all intervals is not measured in the sum.
//!   Its time moves to the state that contains it, as in sums over vCPUs ([`VcpuTimes::sum`]), so times still sum to the wall time.
//! - Values other than times, such as affinity and runnability, are those of the last interval.
//! - An interval names only processes with much CPU time, so a process's sum covers the intervals that name it.
//!   Totals are exact.
//!
//! The sum does not depend on the grouping of intervals.
//! Intervals are added one at a time, so memory does not grow with their number.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::VcpuTimes;
use super::edges::{Amount, EdgeKind, EdgesBuilder, Evidence, Party};
use super::interval::{
    Column, Interval, Missing, ProcessTime, ThreadTime, VcpuInterval, VmInterval,
};
use crate::units::{Nanos, VcpuId, VmId};

/// Key of an edge: victim, culprit, kind and evidence, with parties by number.
type Edge = (usize, usize, EdgeKind, Evidence);

/// Sum of a VM: vCPUs in order of appearance, and times of its other threads.
#[derive(Clone, Debug, Default)]
struct VmSum {
    vcpus: Vec<VcpuInterval>,
    places: BTreeMap<VcpuId, usize>,
    threads: BTreeMap<String, Nanos>,
}

/// Adds intervals in order.
#[derive(Clone, Debug, Default)]
pub struct IntervalSum {
    /// Totals; the other fields hold the rest.
    whole: Option<Interval>,
    vms: Vec<(VmId, VmSum)>,
    places: BTreeMap<VmId, usize>,
    parties: BTreeMap<Party, usize>,
    edges: BTreeMap<Edge, Amount>,
    processes: BTreeMap<(String, u32, Option<String>), Nanos>,
    missing: BTreeMap<(Column, String), (usize, usize)>,
}

impl IntervalSum {
    /// Creates an empty sum.
    pub fn new() -> IntervalSum {
        IntervalSum::default()
    }

    /// Adds the next interval of the same host.
    pub fn add(&mut self, interval: &Interval) {
        self.add_totals(interval);
        for vm in &interval.vms {
            let place = *self.places.entry(vm.vm).or_insert_with(|| {
                self.vms.push((vm.vm, VmSum::default()));
                self.vms.len() - 1
            });
            self.vms[place].1.add(vm);
        }
        for edge in interval.edges.iter() {
            let key = (self.party(edge.victim), self.party(edge.culprit), edge.kind, edge.evidence);
            let sum = self.edges.entry(key);
            sum.and_modify(|sum| *sum = sum.plus(edge.amount)).or_insert(edge.amount);
        }
        for process in &interval.host.top_tasks {
            let key = (process.name.clone(), process.pid, process.cgroup.clone());
            *self.processes.entry(key).or_default() += process.time;
        }
        for missing in &interval.missing {
            let key = (missing.what, missing.want.clone());
            let now = (missing.vms, missing.of);
            let most = self.missing.entry(key).or_insert(now);
            // `of == 0` means the whole host, which exceeds any number of VMs.
            if most.1 != 0 && (now.1 == 0 || now > *most) {
                *most = now;
            }
        }
    }

    /// Returns the sum; `None` without intervals.
    pub fn finish(self) -> Option<Interval> {
        let mut whole = self.whole?;
        whole.vms = self
            .vms
            .into_iter()
            .map(|(vm, sum)| VmInterval { vm, vcpus: sum.vcpus, threads: threads(sum.threads) })
            .collect();
        let mut parties: Vec<(Party, usize)> = self.parties.into_iter().collect();
        parties.sort_unstable_by_key(|(_, number)| *number);
        let mut builder = EdgesBuilder::new();
        let ids: Vec<_> = parties.iter().map(|(party, _)| builder.party(party)).collect();
        for ((victim, culprit, kind, evidence), amount) in self.edges {
            builder.add(ids[victim], ids[culprit], kind, evidence, amount);
        }
        whole.edges = builder.all();
        whole.host.top_tasks = processes(self.processes);
        whole.missing = self
            .missing
            .into_iter()
            .map(|((what, want), (vms, of))| Missing { what, vms, of, want })
            .collect();
        Some(whole)
    }

    fn add_totals(&mut self, interval: &Interval) {
        let Some(sum) = &mut self.whole else {
            self.whole = Some(Interval {
                vms: Vec::new(),
                edges: EdgesBuilder::new().all(),
                missing: Vec::new(),
                ..interval.clone()
            });
            return;
        };
        sum.source = sum.source.min(interval.source);
        sum.start = sum.start.min(interval.start);
        sum.length += interval.length;
        // Information that some intervals lack is missing from the sum.
        sum.programs = match (sum.programs.take(), &interval.programs) {
            (Some(mut programs), Some(more)) => {
                programs.add(more);
                Some(programs)
            }
            _ => None,
        };
        let (host, more) = (&mut sum.host, &interval.host);
        host.pcpus = host.pcpus.max(more.pcpus);
        host.idle = host.idle.zip(more.idle).map(|(one, two)| one + two);
        host.vcpus += more.vcpus;
        host.vm_threads += more.vm_threads;
        host.tasks += more.tasks;
        host.kernel += more.kernel;
    }

    fn party(&mut self, party: &Party) -> usize {
        if let Some(number) = self.parties.get(party) {
            return *number;
        }
        let number = self.parties.len();
        self.parties.insert(party.clone(), number);
        number
    }
}

impl VmSum {
    fn add(&mut self, vm: &VmInterval) {
        for vcpu in &vm.vcpus {
            match self.places.get(&vcpu.vcpu) {
                Some(place) => add_vcpu(&mut self.vcpus[*place], vcpu),
                None => {
                    self.places.insert(vcpu.vcpu, self.vcpus.len());
                    self.vcpus.push(vcpu.clone());
                }
            }
        }
        for thread in &vm.threads {
            *self.threads.entry(thread.name.clone()).or_default() += thread.time;
        }
    }
}

fn add_vcpu(sum: &mut VcpuInterval, vcpu: &VcpuInterval) {
    sum.times = VcpuTimes::sum([&sum.times, &vcpu.times]).unwrap_or_default();
    sum.ran += vcpu.ran;
    sum.waited += vcpu.waited;
    sum.runs += vcpu.runs;
    sum.wakeups = sum.wakeups.zip(vcpu.wakeups).map(|(one, two)| one + two);
    sum.runnable = vcpu.runnable;
    sum.allowed = vcpu.allowed.clone();
}

/// Sorts threads by descending time.
fn threads(by_name: BTreeMap<String, Nanos>) -> Vec<ThreadTime> {
    let mut threads: Vec<ThreadTime> =
        by_name.into_iter().map(|(name, time)| ThreadTime { name, time }).collect();
    threads.sort_by_key(|thread| Reverse(thread.time));
    threads
}

/// Sorts processes by descending time.
fn processes(by_process: BTreeMap<(String, u32, Option<String>), Nanos>) -> Vec<ProcessTime> {
    let mut processes: Vec<ProcessTime> = by_process
        .into_iter()
        .map(|((name, pid, cgroup), time)| ProcessTime { name, pid, cgroup, time })
        .collect();
    processes.sort_by_key(|process| Reverse(process.time));
    processes
}

#[cfg(test)]
mod tests;
