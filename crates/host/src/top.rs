//! `tandem host top`: the time of every VM by state and culprit, interval after interval.
//!
//! VMs are discovered as in the daemon; the states and the edges are those of [`tandem_observe`].
//! Fair share and lag are of the same interval, by the weights of [`crate::status`].
//! All VMs are measured, since any may be a culprit.
//! The selected ones are shown, in descending order of RDY.
//!
//! [`TopInterval`] in JSON is an interface: `schema` is raised when a field changes its meaning or is removed; fields may be added.
//! Times are ns in the interval, for a VM summed over its vCPUs; `null` is "not measured".

pub(crate) mod figures;
pub mod screen;
pub mod text;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tandem_linux::printable::printable;
use tandem_model::states::edges::{Edge, EdgeKind, Edges, Evidence, Party};
use tandem_model::states::interval::{HostTotals, Missing, SourceName, ThreadTime, VmInterval};
use tandem_model::states::latency::Latency;
use tandem_model::states::programs::Programs;
use tandem_model::{Nanos, PcpuSet, VcpuId, VcpuTimes, VmId};
use tandem_observe::{Interval, Source};
use tandem_policy::Assessment;

use self::figures::worst_first;
use crate::discovery::{DiscoveryOptions, Scan, Vm};
use crate::export::metric::{Measured, VmFigures};
use crate::select::Selector;
use crate::told_apart::told_apart;
use crate::watch::{Look, LookError, assessed};

/// The version of the JSON documents.
pub const SCHEMA: u32 = 2;

/// Maximum number of culprits named per VM or vCPU.
const CULPRITS: usize = 3;

/// Kind of a culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CulpritKind {
    /// Another VM, or one of its vCPUs.
    Vm,
    /// The VM's own vCPUs.
    Itself,
    /// A thread of a VM other than a vCPU.
    VmThread,
    /// Host processes other than VMs, of one name in one cgroup.
    Process,
    /// A thread of the kernel.
    KernelThread,
    /// An unseen culprit.
    Unseen,
    /// All culprits that are not named.
    Others,
}

/// Culprit: it had the pCPUs that a VM waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// Its kind.
    pub kind: CulpritKind,
    /// Name of the VM, thread or process.
    pub name: String,
    /// The cgroup of a process, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Time waited for it, in ns.
    pub time: Nanos,
    /// Evidence for it.
    pub evidence: Evidence,
}

/// One vCPU over the interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopVcpu {
    /// Its number in the VM.
    pub index: VcpuId,
    /// Its thread.
    pub tid: u32,
    /// Its affinity.
    pub allowed: PcpuSet,
    /// Number of times that it was put on a pCPU.
    pub runs: u64,
    /// Its time by state.
    pub times: VcpuTimes,
    /// Its culprits, by descending time.
    pub culprits: Vec<Culprit>,
}

/// One VM over the interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopVm {
    /// Its name.
    pub name: String,
    /// Its name, with the PID if several VMs have the same name.
    #[serde(skip)]
    pub called: String,
    /// Its process.
    pub pid: u32,
    /// Kind of its VMM.
    pub vmm: String,
    /// Time of its vCPUs by state, summed.
    pub times: VcpuTimes,
    /// Its figures by weights.
    #[serde(flatten)]
    pub figures: VmFigures,
    /// Culprits of its vCPUs, by descending time.
    pub culprits: Vec<Culprit>,
    /// Its threads other than vCPUs, by descending run time.
    pub threads: Vec<ThreadTime>,
    /// Latency from wake-up to run; `None` if it is not measured.
    pub wakeup_latency: Option<WakeupLatency>,
    /// Its vCPUs.
    pub vcpus: Vec<TopVcpu>,
}

/// Latency of wake-ups, to a factor of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WakeupLatency {
    /// Number of wake-ups.
    pub count: u64,
    /// Sum of all latencies.
    pub time: Nanos,
    /// Upper bound of half of them; `None` without any, or from 2 s on.
    pub p50: Option<Nanos>,
    /// Upper bound of 99 % of them.
    pub p99: Option<Nanos>,
}

impl From<&Latency> for WakeupLatency {
    fn from(latency: &Latency) -> WakeupLatency {
        WakeupLatency {
            count: latency.count(),
            time: latency.time,
            p50: latency.quantile(0.5),
            p99: latency.quantile(0.99),
        }
    }
}

/// The figures of one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopInterval {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Start of the interval, in ns of CLOCK_MONOTONIC.
    pub start: Nanos,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// Source of the figures.
    pub source: SourceName,
    /// Measurements that are missing, with their requirement.
    pub missing: Vec<Missing>,
    /// Events missed and figures estimated by the BPF programs, one line each.
    pub notes: Vec<String>,
    /// VMs on the host, selected or not.
    pub found: usize,
    /// Number of processes with a VMM's name that could not be inspected.
    pub unreadable: usize,
    /// VMs beyond the limits per user and host.
    pub left_out: usize,
    /// Selected VMs without a known vCPU thread.
    pub unidentified: usize,
    /// The selected VMs that existed for the whole interval, in descending order of waits.
    pub vms: Vec<TopVm>,
    /// Totals of the host.
    pub host: HostTotals,
}

/// Number of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// On the host.
    pub all: usize,
    /// That are selected.
    pub selected: usize,
}

/// Observes the host repeatedly and changes nothing.
pub struct Top {
    look: Look,
    selector: Selector,
}

impl Top {
    /// Opens the source.
    pub fn open(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        selector: Selector,
        state_dir: &Path,
    ) -> Result<Top, LookError> {
        Ok(Top { look: Look::open(source, options, state_dir)?, selector })
    }

    /// Begins the first interval.
    pub fn begin(&mut self) -> Result<Found, LookError> {
        let vms = self.look.begin()?;
        let selected = vms.iter().filter(|vm| self.is_selected(vm)).count();
        Ok(Found { all: vms.len(), selected })
    }

    /// Returns the interval since the last call, or since the beginning.
    pub fn interval(&mut self) -> Result<TopInterval, LookError> {
        let (scan, interval) = self.look.interval()?;
        let weights = self.look.weights(&scan.vms);
        let accounts = assessed(&interval, &weights);
        Ok(shown(&scan, &interval, &accounts, |vm| self.is_selected(vm)))
    }

    fn is_selected(&self, vm: &Vm) -> bool {
        self.selector.matches(vm, self.look.controller.as_ref())
    }
}

/// Combines discovery, measurement and fair shares.
pub(crate) fn shown(
    scan: &Scan,
    interval: &Interval,
    accounts: &BTreeMap<VmId, Assessment>,
    is_selected: impl Fn(&Vm) -> bool,
) -> TopInterval {
    let length = interval.length;
    let by_id: BTreeMap<VmId, &Vm> = scan.vms.iter().map(|vm| (vm.id, vm)).collect();
    let of_vms = interval.edges.by_vm();
    let all = scan.vms.iter();
    let called = told_apart(all.map(|vm| (vm.id, vm.name.as_str(), vm.process.pid)));
    let mut vms = Vec::new();
    for measured in &interval.vms {
        let vm = by_id.get(&measured.vm).filter(|vm| is_selected(vm));
        let (Some(vm), Some(account)) = (vm, accounts.get(&measured.vm)) else {
            continue;
        };
        vms.push(TopVm {
            name: vm.name.clone(),
            called: called.get(&vm.id).unwrap_or(&vm.name).clone(),
            pid: vm.process.pid.0,
            vmm: vm.vmm.to_string(),
            times: measured.times().unwrap_or_default(),
            figures: VmFigures::of(&Measured { vm: measured, account, length }),
            culprits: culprits(&of_vms, &Party::Vm(vm.id), vm.id, &called),
            threads: measured.threads.clone(),
            wakeup_latency: interval
                .programs
                .as_ref()
                .and_then(|programs| programs.latency.get(&vm.id))
                .map(WakeupLatency::from),
            vcpus: vcpus(vm, measured, &interval.edges, &called),
        });
    }
    vms.sort_by(worst_first);
    TopInterval {
        schema: SCHEMA,
        start: interval.start,
        seconds: length.as_secs_f64(),
        source: interval.source,
        missing: interval.missing.clone(),
        notes: interval.programs.as_ref().map_or_else(Vec::new, Programs::notes),
        found: scan.vms.len(),
        unreadable: scan.unreadable_vmms,
        left_out: scan.left_out,
        unidentified: scan.vms.iter().filter(|vm| vm.vcpus.is_empty() && is_selected(vm)).count(),
        vms,
        host: interval.host.clone(),
    }
}

fn vcpus(
    vm: &Vm,
    measured: &VmInterval,
    edges: &Edges,
    called: &BTreeMap<VmId, String>,
) -> Vec<TopVcpu> {
    let shown = measured.vcpus.iter().map(|vcpu| {
        let thread = vm.vcpus.iter().find(|known| known.index == vcpu.vcpu);
        let itself = Party::Vcpu { vm: vm.id, vcpu: vcpu.vcpu };
        TopVcpu {
            index: vcpu.vcpu,
            tid: thread.map_or(0, |known| known.thread.tid.0),
            allowed: vcpu.allowed.clone(),
            runs: vcpu.runs,
            times: vcpu.times,
            culprits: culprits(edges, &itself, vm.id, called),
        }
    });
    shown.collect()
}

/// Returns the largest culprits of a victim in a VM.
fn culprits(
    edges: &Edges,
    victim: &Party,
    vm: VmId,
    called: &BTreeMap<VmId, String>,
) -> Vec<Culprit> {
    let name = |vm: &VmId| called.get(vm).map(String::as_str);
    let waits = edges.of(victim, EdgeKind::Pcpu);
    waits.take(CULPRITS).map(|edge| culprit(edge, vm, name)).collect()
}

/// Returns the culprit of an edge. `name` returns the name of a VM, or `None` if it has gone.
pub(crate) fn culprit<'a>(
    edge: Edge<'_>,
    victim: VmId,
    name: impl Fn(&VmId) -> Option<&'a str>,
) -> Culprit {
    let name_of = |vm: &VmId| name(vm).unwrap_or("a VM that is gone");
    let mut in_cgroup = None;
    let (kind, name) = match edge.culprit {
        Party::Vm(vm) if *vm == victim => (CulpritKind::Itself, "itself".to_owned()),
        Party::Vm(vm) => (CulpritKind::Vm, name_of(vm).to_owned()),
        Party::Vcpu { vm, vcpu } => {
            if *vm == victim {
                (CulpritKind::Itself, format!("own vCPU {vcpu}"))
            } else {
                (CulpritKind::Vm, format!("{} vCPU {vcpu}", name_of(vm)))
            }
        }
        Party::VmThread { vm, name } => (CulpritKind::VmThread, format!("{}: {name}", name_of(vm))),
        Party::Process { name, cgroup } => {
            in_cgroup = cgroup.clone();
            (CulpritKind::Process, name.clone())
        }
        Party::KernelThread(name) => (CulpritKind::KernelThread, format!("[{name}]")),
        Party::Unseen => (CulpritKind::Unseen, "not seen".to_owned()),
        Party::Others => (CulpritKind::Others, "others".to_owned()),
    };
    Culprit {
        kind,
        name: printable(&name).into_owned(),
        cgroup: in_cgroup.map(|cgroup| printable(&cgroup).into_owned()),
        time: edge.time(),
        evidence: edge.evidence,
    }
}

#[cfg(test)]
mod tests;
