//! What the measured time of VMs means by their weights: the same for all that say what VMs are due.
//!
//! All VMs of the host are measured and assessed, selected or not: pCPUs that an unselected VM is due are not there for the others,
//! and any VM may be a culprit.

use std::collections::BTreeMap;

use tandem_observe::Interval;
use tandem_observe::WatchedVcpu;
use tandem_observe::WatchedVm;
use tandem_policy::Assessment;
use tandem_policy::State;
use tandem_policy::VcpuObservation;
use tandem_policy::VmId;
use tandem_policy::VmObservation;
use tandem_policy::Weight;
use tandem_policy::states::interval::VcpuInterval;

use crate::discovery::Vm;
use crate::weights::Weights;

/// VMs as a source of observation knows them.
pub(crate) fn watched(vms: &[Vm]) -> Vec<WatchedVm> {
    let vcpus = |vm: &Vm| {
        let vcpus = vm.vcpus.iter().map(|vcpu| WatchedVcpu {
            vcpu: vcpu.index,
            thread: vcpu.thread,
        });
        vcpus.collect()
    };
    let watched = vms.iter().map(|vm| WatchedVm {
        vm: vm.id,
        process: vm.process,
        vcpus: vcpus(vm),
    });
    watched.collect()
}

/// What each VM is due and received in the interval, level by level; one without a weight counts with 1.
pub(crate) fn assessed(interval: &Interval, weights: &Weights) -> BTreeMap<VmId, Assessment> {
    let observed: Vec<VmObservation> = interval
        .vms
        .iter()
        .map(|vm| {
            let weight = weights
                .get(&vm.vm)
                .copied()
                .unwrap_or(Weight::constant(1.0));
            VmObservation {
                levels: weights.levels(vm.vm).to_vec(),
                ..VmObservation::new(vm.vm, weight, vm.vcpus.iter().map(observation).collect())
            }
        })
        .collect();
    let assessments = tandem_policy::assess(interval.length, &observed);
    let ids = interval.vms.iter().map(|vm| vm.vm);
    ids.zip(assessments).collect()
}

fn observation(vcpu: &VcpuInterval) -> VcpuObservation {
    let limited = vcpu.times.get(State::Limited).unwrap_or_default();
    VcpuObservation {
        ran: vcpu.ran,
        // What a quota keeps it off it could not have had, whatever the others do.
        waited: vcpu.waited.saturating_sub(limited),
        limited,
        runnable: vcpu.runnable,
        ..VcpuObservation::new(vcpu.vcpu, vcpu.allowed.clone())
    }
}
