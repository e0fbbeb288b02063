//! What vCPUs waited for, as far as no finding explains it yet, and from when on a wait is worth a finding.

use std::collections::BTreeMap;

use tandem_policy::Nanos;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::states::edges::EdgeKind;
use tandem_policy::states::edges::Edges;
use tandem_policy::states::edges::Party;

use super::finding::Severity;
use super::finding::ratio;
use super::patient::Patient;

/// RDY of a VM per vCPU from which it is worth a look: under 5 % is fine, by esxtop's rule of thumb.
pub(super) const READY: f64 = 0.05;

/// RDY of a single vCPU that is bad, by the same rule. One such vCPU is worth a finding whatever its siblings do.
pub(super) const READY_BAD: f64 = 0.10;

/// Who had what a vCPU waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// The VM's own vCPUs.
    Itself,
    /// Another thread of the VM.
    OwnThread(String),
    /// Another VM, its vCPUs or its other threads.
    Vm(VmId),
    /// Processes of the host.
    Process {
        name: String,
        cgroup: Option<String>,
    },
    /// A thread of the kernel.
    Kernel(String),
    /// Nobody that was seen.
    Unseen,
    /// Those that are not named one by one.
    Others,
}

fn who(victim: VmId, culprit: &Party) -> Who {
    match culprit {
        Party::Vcpu { vm, .. } | Party::Vm(vm) if *vm == victim => Who::Itself,
        Party::VmThread { vm, name } if *vm == victim => Who::OwnThread(name.clone()),
        Party::Vcpu { vm, .. } | Party::Vm(vm) | Party::VmThread { vm, .. } => Who::Vm(*vm),
        Party::Process { name, cgroup } => Who::Process {
            name: name.clone(),
            cgroup: cgroup.clone(),
        },
        Party::KernelThread(name) => Who::Kernel(name.clone()),
        Party::Unseen => Who::Unseen,
        Party::Others => Who::Others,
    }
}

/// The waits of all vCPUs for pCPUs.
#[derive(Debug, Default)]
pub(super) struct Waits {
    left: BTreeMap<(VmId, VcpuId), BTreeMap<Who, Nanos>>,
}

/// Waits that have something in common.
#[derive(Debug, Default)]
pub(super) struct Sum {
    /// All together.
    pub(super) total: Nanos,
    /// For whom, the longest first.
    pub(super) by: Vec<(Who, Nanos)>,
    /// The longest of a vCPU, as a part of its wall time.
    worst: f64,
}

impl Sum {
    /// How bad it is; `None` if it is not worth a finding.
    pub(super) fn severity(&self, patient: &Patient<'_>) -> Option<Severity> {
        let mean = patient.part(self.total);
        match (mean >= READY_BAD, mean >= READY || self.worst >= READY_BAD) {
            (true, _) => Some(Severity::Bad),
            (false, true) => Some(Severity::Notice),
            (false, false) => None,
        }
    }
}

impl Waits {
    pub(super) fn new(edges: &Edges) -> Waits {
        let mut waits = Waits::default();
        for edge in edges.iter().filter(|edge| edge.kind == EdgeKind::Pcpu) {
            if let Party::Vcpu { vm, vcpu } = edge.victim {
                let of_vcpu = waits.left.entry((*vm, *vcpu)).or_default();
                *of_vcpu.entry(who(*vm, edge.culprit)).or_default() += edge.time();
            }
        }
        waits
    }

    /// The sum of those waits of a VM of which `is_meant` says so.
    pub(super) fn sum(
        &self,
        patient: &Patient<'_>,
        is_meant: impl Fn(VcpuId, &Who) -> bool,
    ) -> Sum {
        let mut sum = Sum::default();
        let mut by: BTreeMap<Who, Nanos> = BTreeMap::new();
        for vcpu in &patient.vm.vcpus {
            let Some(left) = self.left.get(&(patient.id(), vcpu.vcpu)) else {
                continue;
            };
            let meant = left.iter().filter(|(who, _)| is_meant(vcpu.vcpu, who));
            let mut of_vcpu = Nanos::ZERO;
            for (who, time) in meant {
                *by.entry(who.clone()).or_default() += *time;
                of_vcpu += *time;
            }
            sum.total += of_vcpu;
            sum.worst = sum.worst.max(ratio(of_vcpu, vcpu.times.wall()));
        }
        sum.by = by.into_iter().collect();
        // Equals stay in the order of who they are.
        sum.by.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        sum
    }

    /// Takes out what a finding explains.
    pub(super) fn explain(
        &mut self,
        patient: &Patient<'_>,
        is_meant: impl Fn(VcpuId, &Who) -> bool,
    ) {
        for ((vm, vcpu), left) in &mut self.left {
            if *vm == patient.id() {
                left.retain(|who, _| !is_meant(*vcpu, who));
            }
        }
    }
}
