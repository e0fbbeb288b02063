//! Waits that no finding explains so far, and the thresholds of a finding.
//!
//! For a vCPU that may run on several pCPUs, the culprits are estimates, and a part of its wait is always attributed to its own VM.
//! A cause that explains such a vCPU's waits for others takes that part too, but does not count it in its cost.
//! So no later cause explains the rest of the estimate again.

use std::collections::BTreeMap;

use tandem_model::states::edges::{EdgeKind, Edges, Party};
use tandem_model::{Nanos, VcpuId, VmId};

use super::finding::{Severity, percent, ratio};
use super::patient::Patient;

/// Minimum RDY per vCPU of a VM for a finding: under 5 % is fine, by esxtop's rule of thumb.
pub(super) const READY: f64 = 0.05;

/// RDY of a severe finding, by the same rule. A single vCPU above it suffices for a finding.
pub(super) const READY_BAD: f64 = 0.10;

/// The threshold of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Worth {
    /// Waits above the thresholds.
    #[default]
    Look,
    /// All waits.
    Anything,
}

/// The party that ran while a vCPU waited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Culprit {
    /// The VM's own vCPUs.
    Itself,
    /// Another thread of the VM.
    OwnThread(String),
    /// Another VM, its vCPUs or its other threads.
    Vm(VmId),
    /// Host processes.
    Process { name: String, cgroup: Option<String> },
    /// A kernel thread.
    Kernel(String),
    /// A party that no source saw.
    Unseen,
    /// Parties that are not listed individually.
    Others,
}

fn culprit_of(victim: VmId, party: &Party) -> Culprit {
    match party {
        Party::Vcpu { vm, .. } | Party::Vm(vm) if *vm == victim => Culprit::Itself,
        Party::VmThread { vm, name } if *vm == victim => Culprit::OwnThread(name.clone()),
        Party::Vcpu { vm, .. } | Party::Vm(vm) | Party::VmThread { vm, .. } => Culprit::Vm(*vm),
        Party::Process { name, cgroup } => {
            Culprit::Process { name: name.clone(), cgroup: cgroup.clone() }
        }
        Party::KernelThread(name) => Culprit::Kernel(name.clone()),
        Party::Unseen => Culprit::Unseen,
        Party::Others => Culprit::Others,
    }
}

/// The waits of all vCPUs for pCPUs.
#[derive(Debug, Default)]
pub(super) struct Waits {
    left: BTreeMap<(VmId, VcpuId), BTreeMap<Culprit, Nanos>>,
    /// Waits of each VM that findings took so far.
    taken: BTreeMap<VmId, Nanos>,
    worth: Worth,
}

/// A sum of waits of some vCPUs for some culprits.
#[derive(Debug, Default)]
pub(super) struct Sum {
    /// The total.
    pub(super) total: Nanos,
    /// By culprit, in descending order.
    pub(super) by: Vec<(Culprit, Nanos)>,
    /// The maximum of a vCPU, relative to its wall time.
    worst: f64,
    /// Waits of the VM that other findings explain.
    elsewhere: Nanos,
}

impl Sum {
    /// Returns the severity; `None` below the threshold of a finding.
    pub(super) fn severity(&self, patient: &Patient<'_>) -> Option<Severity> {
        let mean = patient.part(self.total);
        match (mean >= READY_BAD, mean >= READY || self.worst >= READY_BAD) {
            (true, _) => Some(Severity::Bad),
            (false, true) => Some(Severity::Notice),
            (false, false) => None,
        }
    }

    /// Formats the wait relative to the VM's time, and the part that other findings explain.
    pub(super) fn ready(&self, patient: &Patient<'_>) -> String {
        let ready = format!("RDY {} of its time", percent(patient.part(self.total)));
        match self.elsewhere {
            Nanos::ZERO => ready,
            elsewhere => format!(
                "{ready}, in addition to {} that other findings explain",
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
                *of_vcpu.entry(culprit_of(*vm, edge.culprit)).or_default() += edge.time();
            }
        }
        waits
    }

    /// Takes the waits of some vCPUs of a VM for the selected culprits, if they suffice for a finding. Takes the part attributed to the VM
    /// itself with it.
    pub(super) fn take(
        &mut self,
        patient: &Patient<'_>,
        of_vcpu: impl Fn(VcpuId) -> bool,
        is_included: impl Fn(&Culprit) -> bool,
    ) -> Option<(Sum, Severity)> {
        let sum = self.sum(patient, &of_vcpu, &is_included);
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
            left.retain(|culprit, time| {
                let is_taken = is_included(culprit) || (*culprit == Culprit::Itself && is_estimate);
                if is_taken {
                    taken += *time;
                }
                !is_taken
            });
        }
        *self.taken.entry(patient.id()).or_default() += taken;
        Some((sum, severity))
    }

    /// Sums the remaining waits of some vCPUs for the selected culprits.
    fn sum(
        &self,
        patient: &Patient<'_>,
        of_vcpu: impl Fn(VcpuId) -> bool,
        is_included: impl Fn(&Culprit) -> bool,
    ) -> Sum {
        let mut sum = Sum {
            elsewhere: self.taken.get(&patient.id()).copied().unwrap_or_default(),
            ..Sum::default()
        };
        let mut by: BTreeMap<Culprit, Nanos> = BTreeMap::new();
        for vcpu in patient.vm.vcpus.iter().filter(|vcpu| of_vcpu(vcpu.vcpu)) {
            let Some(left) = self.left.get(&(patient.id(), vcpu.vcpu)) else {
                continue;
            };
            let mut of_this = Nanos::ZERO;
            for (culprit, time) in left.iter().filter(|(culprit, _)| is_included(culprit)) {
                *by.entry(culprit.clone()).or_default() += *time;
                of_this += *time;
            }
            sum.total += of_this;
            sum.worst = sum.worst.max(ratio(of_this, vcpu.times.wall()));
        }
        sum.by = by.into_iter().collect();
        // The stable sort keeps equal times in the order of `Culprit`.
        sum.by.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        sum
    }
}
