//! Swaps of two vCPUs: code shared by the policies that make them.
//!
//! A swap is two changes of affinity in one round, each journaled by the host as any other.
//! A vCPU that may run on several pCPUs is pinned for one period, which moves it, and may roam again after that.
//! While another policy moves a VM in the same round, the new positions are not known.

use std::collections::BTreeSet;

use super::observation::HostObservation;
use tandem_model::decision::{Because, Decision, Knob};
use tandem_model::observation::VcpuObservation;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// A vCPU that waited for longer than this part of the period is ready to run.
pub(super) const READY: f64 = 0.1;

/// Time for which a vCPU wanted to run and could not, ns. A wait in progress counts as none in the kernel's accounts.
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

/// Moves by which two vCPUs exchange their pCPUs; `because` receives the source and target of each.
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

/// vCPUs that were moved in the last period and may roam again, with their affinities.
#[derive(Debug, Default)]
pub(super) struct Nudged(Vec<(VmId, VcpuId, PcpuSet)>);

impl Nudged {
    /// Records the decisions' vCPUs that may run on several pCPUs.
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

    /// Restores their affinities. VMs in turns have slots instead, and get the affinity that the
    /// operator allowed afterwards.
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
