//! Changes of a recorded host: another vCPU, or a VM removed.

use tandem_model::{Nanos, PcpuSet};
use tandem_observe::recorded::{Demand, HostVcpu, HostVm, RecordedHost};
use thiserror::Error;

/// The VM does not exist.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no VM is called '{name}'; there are {}", .names.join(", "))]
pub struct NoSuchVm {
    /// The requested name.
    pub name: String,
    /// Names of the VMs.
    pub names: Vec<String>,
}

/// Adds a vCPU to a VM, with the average demand of the VM's others.
///
/// `pins` are its permitted pCPUs; `None`: all.
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

/// Removes a VM with its emulator and I/O threads.
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
