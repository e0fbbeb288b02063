//! Two vCPUs change places: what policies that swap have in common.
//!
//! A swap is two changes of affinity in one round, each journaled by the host as any other. A vCPU that may run on several pCPUs is pinned for
//! one period, which moves it, and may roam again after that. While another policy moves a VM in the same round nobody knows who will be where.

use std::collections::BTreeSet;

use super::observation::HostObservation;
use tandem_model::decision::{Because, Decision, Knob};
use tandem_model::observation::VcpuObservation;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// A vCPU that waited for longer than this part of the period is ready to run.
pub(super) const READY: f64 = 0.1;

/// For how long a vCPU wanted to run and could not, ns. A wait that is not over counts as none in the kernel's accounts.
pub(super) fn waited(period: Nanos, vcpu: &VcpuObservation) -> f64 {
    vcpu.wanted_in_vain(period).0 as f64
}

/// Whether a vCPU wanted to run and could not.
pub(super) fn is_ready(period: Nanos, vcpu: &VcpuObservation) -> bool {
    waited(period, vcpu) > READY * period.0 as f64
}

/// The VMs that other policies move in this round.
pub(super) fn moving(host: &HostObservation, decisions: &[Decision]) -> BTreeSet<VmId> {
    let moves = decisions
        .iter()
        .filter(|decision| decision.knob() == Knob::Affinity && !host.is_in_force(decision));
    moves.map(Decision::vm).collect()
}

/// A vCPU on its pCPU.
pub(super) type Place = (VmId, VcpuId, PcpuId);

/// The moves by which two vCPUs exchange their pCPUs; `because` is given from where to where each goes.
pub(super) fn exchange(
    one: Place,
    other: Place,
    because: impl Fn(PcpuId, PcpuId) -> Because,
) -> [Decision; 2] {
    [(one, other.2), (other, one.2)].map(|((vm, vcpu, from), to)| Decision::SetAffinity {
        vm,
        vcpu,
        pcpus: PcpuSet::from_iter([to]),
        because: because(from, to),
    })
}

/// vCPUs that were moved in the last period and may roam again, with where.
#[derive(Debug, Default)]
pub(super) struct Nudged(Vec<(VmId, VcpuId, PcpuSet)>);

impl Nudged {
    /// Keeps those of the decisions' vCPUs that may run on several pCPUs.
    pub(super) fn note(&mut self, host: &HostObservation, decisions: &[Decision]) {
        for decision in decisions {
            if let (Knob::Affinity, vm, Some(vcpu)) =
                (decision.knob(), decision.vm(), decision.vcpu())
                && let Some(observed) = host.vm(vm).and_then(|vm| vm.vcpu(vcpu))
                && observed.allowed.len() > 1
            {
                self.0.push((vm, vcpu, observed.allowed.clone()));
            }
        }
    }

    /// Lets them go where they may. One of a VM that takes turns has a seat, and after them it is let go where the operator allowed.
    pub(super) fn release(&mut self, takes_turns: impl Fn(VmId) -> bool) -> Vec<Decision> {
        let nudged = std::mem::take(&mut self.0).into_iter();
        let nudged = nudged.filter(|(vm, ..)| !takes_turns(*vm));
        let roams = nudged.map(|(vm, vcpu, pcpus)| Decision::SetAffinity {
            vm,
            vcpu,
            pcpus,
            because: Because::MayRoam,
        });
        roams.collect()
    }
}
