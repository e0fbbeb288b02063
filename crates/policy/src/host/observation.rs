//! Observation of a host at the end of an accounting period.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::knobs::{Knobs, WeightKnob};
use tandem_model::decision::{Decision, Target};
use tandem_model::observation::VmObservation;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// Each pCPU's idle time: since boot, or within a period.
pub type IdleTimes = BTreeMap<PcpuId, Nanos>;

/// A host at the end of a period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostObservation {
    /// Nominal length of the period, to which all times here are scaled.
    pub period: Nanos,
    /// Time since the last observation, if that is not `period`: longer if the periods before needed no decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed: Option<Nanos>,
    /// Each pCPU's idle time in the period.
    pub idle: IdleTimes,
    /// The knobs of the host.
    pub knobs: Knobs,
    /// The VMs that policies may look at, sorted by VM.
    pub vms: Vec<VmObservation>,
}

impl HostObservation {
    /// Creates a host with every knob, for tests of policies alone.
    pub fn with_any_knobs(
        period: Nanos,
        mut vms: Vec<VmObservation>,
        idle: IdleTimes,
    ) -> HostObservation {
        vms.sort_by_key(|observed| observed.vm);
        HostObservation { period, elapsed: None, idle, knobs: Knobs::all(WeightKnob::ANY), vms }
    }

    /// Time since the last observation.
    pub fn elapsed(&self) -> Nanos {
        self.elapsed.unwrap_or(self.period)
    }

    /// Returns the observation of a VM.
    pub fn vm(&self, vm: VmId) -> Option<&VmObservation> {
        match self.vms.binary_search_by_key(&vm, |observed| observed.vm) {
            Ok(at) => self.vms.get(at),
            // It is missing, or the VMs are not sorted after all.
            Err(_) => self.vms.iter().find(|observed| observed.vm == vm),
        }
    }

    /// Whether the decision asks for the current settings.
    /// A decision about a missing VM or vCPU counts as well, because there is nothing to change.
    pub fn is_in_force(&self, decision: &Decision) -> bool {
        let Some(vm) = self.vm(decision.vm()) else {
            return true;
        };
        let vcpu = match decision.vcpu() {
            None => None,
            Some(vcpu) => match vm.vcpu(vcpu) {
                None => return true,
                Some(vcpu) => Some(vcpu),
            },
        };
        match (decision, vcpu) {
            (Decision::SetWeight { target, weight, .. }, vcpu) => match (target, vcpu) {
                (Target::Vcpu(..), Some(vcpu)) => vcpu.in_force.weight == Some(*weight),
                _ => vm.in_force.weight == self.knobs.weight.written(vm, *weight),
            },
            (Decision::SetIdle { target, idle, .. }, vcpu) => match (target, vcpu) {
                (Target::Vcpu(..), Some(vcpu)) => vcpu.in_force.idle == *idle,
                _ => vm.in_force.idle == *idle,
            },
            (Decision::SetNice { nice, .. }, Some(vcpu)) => vcpu.in_force.nice == *nice,
            (Decision::SetSlice { slice, .. }, Some(vcpu)) => vcpu.in_force.slice == *slice,
            (Decision::SetAffinity { pcpus, .. }, Some(vcpu)) => vcpu.allowed == *pcpus,
            (Decision::Divide { portions, .. }, None) => is_divided(vm, portions),
            (_, None) | (Decision::Divide { .. }, Some(_)) => true,
        }
    }
}

/// Whether a VM's vCPUs are apart in these portions, or together if there are none.
/// A VM that cannot be divided counts as well.
fn is_divided(vm: &VmObservation, portions: &[(VcpuId, f64)]) -> bool {
    if !vm.divisible && !vm.is_apart() {
        return true;
    }
    vm.vcpus.iter().all(|vcpu| {
        let asked = portions.iter().find(|(id, _)| *id == vcpu.vcpu);
        vcpu.in_force.portion == asked.map(|(_, portion)| *portion)
    })
}
