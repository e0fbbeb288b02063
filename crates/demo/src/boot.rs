//! VMs booted together, on KVM if there is KVM; who did not ask for KVM gets plain threads in its place, and a note.

use tandem_microvm::Backend;
use tandem_report::explain;

use crate::plan::VmPlan;
use crate::state_dir::StateDir;
use crate::vm_process::{VmError, VmProcess};

/// VMs that have booted.
#[derive(Debug)]
pub struct Booted {
    /// In the order of their plans.
    pub vms: Vec<VmProcess>,
    /// What runs their vCPUs.
    pub backend: Backend,
    /// That it is not KVM, and why.
    pub note: Option<String>,
}

/// Boots VMs on the backend that was asked for; without one, on KVM or, where there is no KVM, on threads.
pub fn boot(
    vms: &[VmPlan],
    backend: Option<Backend>,
    seed: u64,
    dir: &StateDir,
) -> Result<Booted, VmError> {
    let wanted = backend.unwrap_or(Backend::Kvm);
    match (start(vms, wanted, seed, dir), backend) {
        (Ok(vms), _) => Ok(Booted { vms, backend: wanted, note: None }),
        (Err(error), Some(_)) => Err(error),
        (Err(error), None) => Ok(Booted {
            vms: start(vms, Backend::Threads, seed, dir)?,
            backend: Backend::Threads,
            note: Some(format!(
                "KVM could not be used, so the workloads ran on plain threads: {}.",
                explain(&error)
            )),
        }),
    }
}

fn start(
    vms: &[VmPlan],
    backend: Backend,
    seed: u64,
    dir: &StateDir,
) -> Result<Vec<VmProcess>, VmError> {
    let mut started = Vec::with_capacity(vms.len());
    for (i, vm) in vms.iter().enumerate() {
        started.push(VmProcess::start(vm, backend, seed + i as u64, dir.logs())?);
    }
    for vm in &mut started {
        vm.ready()?;
    }
    Ok(started)
}
