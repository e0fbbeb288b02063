//! A recorded host beside the simulation of its scenario: where the time of each VM's vCPUs went in the one and in the other.
//!
//! The simulator is not told what vCPUs waited, so what it says of that, and of what they ran beside it, shows how far the scenario is from the host.
//! Figures are parts of the time summed over vCPUs: pCPUs. Halted holds what a quota kept a vCPU off its pCPU, as in the scenario. Background
//! is left out: it takes what it took.

use tandem_model::Nanos;
use tandem_sim::Results;
use tandem_sim::results::VmResults;

use tandem_observe::recorded::{HostVm, RecordedHost};

/// Where the time of a VM's vCPUs went, in pCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// On a pCPU, whatever for.
    pub ran: f64,
    /// Waiting for one.
    pub waited: f64,
    /// Off it with nothing to do, or throttled.
    pub halted: f64,
}

/// A VM as it was and as it is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// Its name.
    pub vm: String,
    /// How many vCPUs it has.
    pub vcpus: usize,
    /// As recorded.
    pub recorded: Shares,
    /// As simulated.
    pub simulated: Shares,
}

/// Each VM of the record that was simulated.
pub fn beside(host: &RecordedHost, results: &Results) -> Vec<Beside> {
    let vms = host.vms.iter().filter(|vm| !vm.is_background);
    let of = vms.filter_map(|vm| {
        let simulated = results.vms.iter().find(|other| other.name == vm.name)?;
        Some(Beside {
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
