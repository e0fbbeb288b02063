//! What may be different in a recorded host: another vCPU, a VM that is not there.

use tandem_model::{Nanos, PcpuSet};
use tandem_observe::recorded::{Demand, HostVcpu, HostVm, RecordedHost};
use thiserror::Error;

/// There is no such VM.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no VM is called '{name}'; there are {}", .names.join(", "))]
pub struct NoSuchVm {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub names: Vec<String>,
}

/// What if a VM had another vCPU? It does what the VM's others do on average, and may run where `pins` says; with `None`, anywhere.
pub fn add_vcpu(
    host: &mut RecordedHost,
    name: &str,
    pins: Option<PcpuSet>,
) -> Result<(), NoSuchVm> {
    let at = find(host, name)?;
    let vm = &mut host.vms[at];
    if let Some(all) = Demand::together(vm.vcpus.iter().map(|vcpu| &vcpu.demand)) {
        let count = vm.vcpus.len() as u64;
        let demand = Demand {
            wall: Nanos(all.wall.0 / count),
            ran: Nanos(all.ran.0 / count),
            slept: Nanos(all.slept.0 / count),
            waited: Nanos(all.waited.0 / count),
            cycles: (all.cycles / count).max(1),
            ..all
        };
        vm.vcpus.push(HostVcpu { demand, pins });
    }
    Ok(())
}

/// What if a VM were not there, nor its emulator's and I/O threads?
pub fn remove(host: &mut RecordedHost, name: &str) -> Result<(), NoSuchVm> {
    find(host, name)?;
    let is_its = |vm: &HostVm| vm.name == name || vm.threads_of.as_deref() == Some(name);
    host.vms.retain(|vm| !is_its(vm));
    Ok(())
}

fn find(host: &RecordedHost, name: &str) -> Result<usize, NoSuchVm> {
    let at = host.vms.iter().position(|vm| vm.name == name);
    at.ok_or_else(|| NoSuchVm {
        name: name.to_owned(),
        names: host.vms.iter().map(|vm| vm.name.clone()).collect(),
    })
}
