//! What vCPUs waited for, as far as no finding explains it yet, and from when on a wait is worth a finding.
//!
//! Where a vCPU may run on several pCPUs, who took them is an estimate, and a part of its wait is then always said to be for its own VM.
//! Whoever explains such a vCPU's waits for others explains that part, too, but it does not count in the cost: so no wait is
//! explained twice, by whoever came first and by whoever finds the estimate left over.

use std::collections::BTreeMap;

use tandem_model::states::edges::{EdgeKind, Edges, Party};
use tandem_model::{Nanos, VcpuId, VmId};

use super::finding::{Severity, percent, ratio};
use super::patient::Patient;

/// RDY of a VM per vCPU from which it is worth a look: under 5 % is fine, by esxtop's rule of thumb.
pub(super) const READY: f64 = 0.05;

/// RDY of a single vCPU that is bad, by the same rule. One such vCPU is worth a finding whatever its siblings do.
pub(super) const READY_BAD: f64 = 0.10;

/// What counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Worth {
    /// What is worth a look: more than thresholds.
    #[default]
    Look,
    /// Anything.
    Anything,
}

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
    Process { name: String, cgroup: Option<String> },
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
        Party::Process { name, cgroup } => {
            Who::Process { name: name.clone(), cgroup: cgroup.clone() }
        }
        Party::KernelThread(name) => Who::Kernel(name.clone()),
        Party::Unseen => Who::Unseen,
        Party::Others => Who::Others,
    }
}

/// The waits of all vCPUs for pCPUs.
#[derive(Debug, Default)]
pub(super) struct Waits {
    left: BTreeMap<(VmId, VcpuId), BTreeMap<Who, Nanos>>,
    /// What was taken of each VM's waits so far.
    taken: BTreeMap<VmId, Nanos>,
    worth: Worth,
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
    /// What other findings explain of the VM's waits.
    elsewhere: Nanos,
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

    /// How much it is of the VM's time, and what other findings explain beside it.
    pub(super) fn ready(&self, patient: &Patient<'_>) -> String {
        let ready = format!("RDY {} of its time", percent(patient.part(self.total)));
        match self.elsewhere {
            Nanos::ZERO => ready,
            elsewhere => format!(
                "{ready}, what is left beside {} that other findings explain",
                percent(patient.part(elsewhere))
            ),
        }
    }
}

impl Waits {
    pub(super) fn new(edges: &Edges, worth: Worth) -> Waits {
        let mut waits = Waits { worth, ..Waits::default() };
        for edge in edges.iter().filter(|edge| edge.kind == EdgeKind::Pcpu) {
            if let Party::Vcpu { vm, vcpu } = edge.victim {
                let of_vcpu = waits.left.entry((*vm, *vcpu)).or_default();
                *of_vcpu.entry(who(*vm, edge.culprit)).or_default() += edge.time();
            }
        }
        waits
    }

    /// Takes what these vCPUs of a VM waited for those that are meant, if that is worth a finding, and with it what is estimated to be for the VM
    /// itself.
    pub(super) fn take(
        &mut self,
        patient: &Patient<'_>,
        of_vcpu: impl Fn(VcpuId) -> bool,
        is_meant: impl Fn(&Who) -> bool,
    ) -> Option<(Sum, Severity)> {
        let sum = self.sum(patient, &of_vcpu, &is_meant);
        let severity = match (sum.severity(patient), self.worth) {
            (None, Worth::Anything) => Severity::Notice,
            (severity, _) => severity?,
        };
        let mut taken = Nanos::ZERO;
        for vcpu in patient.vm.vcpus.iter().filter(|vcpu| of_vcpu(vcpu.vcpu)) {
            let is_estimate = vcpu.allowed.len() > 1;
            let Some(left) = self.left.get_mut(&(patient.id(), vcpu.vcpu)) else {
                continue;
            };
            left.retain(|who, time| {
                let is_taken = is_meant(who) || (*who == Who::Itself && is_estimate);
                if is_taken {
                    taken += *time;
                }
                !is_taken
            });
        }
        *self.taken.entry(patient.id()).or_default() += taken;
        Some((sum, severity))
    }

    /// What is left of what these vCPUs waited for those that are meant.
    fn sum(
        &self,
        patient: &Patient<'_>,
        of_vcpu: impl Fn(VcpuId) -> bool,
        is_meant: impl Fn(&Who) -> bool,
    ) -> Sum {
        let mut sum = Sum {
            elsewhere: self.taken.get(&patient.id()).copied().unwrap_or_default(),
            ..Sum::default()
        };
        let mut by: BTreeMap<Who, Nanos> = BTreeMap::new();
        for vcpu in patient.vm.vcpus.iter().filter(|vcpu| of_vcpu(vcpu.vcpu)) {
            let Some(left) = self.left.get(&(patient.id(), vcpu.vcpu)) else {
                continue;
            };
            let mut of_this = Nanos::ZERO;
            for (who, time) in left.iter().filter(|(who, _)| is_meant(who)) {
                *by.entry(who.clone()).or_default() += *time;
                of_this += *time;
            }
            sum.total += of_this;
            sum.worst = sum.worst.max(ratio(of_this, vcpu.times.wall()));
        }
        sum.by = by.into_iter().collect();
        // Equals stay in the order of who they are.
        sum.by.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        sum
    }
}
