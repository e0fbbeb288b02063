//! Comparison of a recorded host with the simulation of its scenario: CPU time of each VM by state.
//!
//! The scenario has no wait times, so simulated waits show how well the scenario matches the host.
//! Figures are in pCPUs: time divided by wall time, summed over vCPUs.
//! `halted` includes time throttled by a quota, as in the scenario.
//! Background VMs are omitted, because they take their recorded time.

use tandem_model::Nanos;
use tandem_sim::Results;
use tandem_sim::results::VmResults;

use tandem_observe::recorded::{HostVm, RecordedHost};

/// Time of a VM's vCPUs by state, in pCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// On a pCPU.
    pub ran: f64,
    /// Waiting for a pCPU.
    pub waited: f64,
    /// Idle or throttled.
    pub halted: f64,
}

/// A recorded VM and its simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct VmComparison {
    /// The VM's name.
    pub vm: String,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// Recorded times.
    pub recorded: Shares,
    /// Simulated times.
    pub simulated: Shares,
}

/// Compares each VM of the record that was simulated.
pub fn compare(host: &RecordedHost, results: &Results) -> Vec<VmComparison> {
    let vms = host.vms.iter().filter(|vm| !vm.is_background);
    let of = vms.filter_map(|vm| {
        let simulated = results.vms.iter().find(|other| other.name == vm.name)?;
        Some(VmComparison {
            vm: vm.name.clone(),
            vcpus: vm.vcpus.len(),
            recorded: recorded(vm),
            simulated: self::simulated(simulated, results.measured),
        })
    });
    of.collect()
}

fn recorded(vm: &HostVm) -> Shares {
    let mut shares = Shares::default();
    for vcpu in &vm.vcpus {
        let demand = &vcpu.demand;
        let part = |time: Nanos| time.0 as f64 / demand.wall.0.max(1) as f64;
        shares.ran += part(demand.ran);
        shares.waited += part(demand.waited);
        shares.halted += part(demand.slept);
    }
    shares
}

fn simulated(vm: &VmResults, measured: Nanos) -> Shares {
    let mut shares = Shares::default();
    for vcpu in &vm.vcpus {
        let part = |time: Nanos| time.0 as f64 / measured.0.max(1) as f64;
        shares.ran += part(vcpu.ran.total());
        shares.waited += part(vcpu.steal);
        shares.halted += part(vcpu.halted);
    }
    shares
}
