//! Boots VMs together.
//!
//! Without an explicit backend, VMs use KVM, or plain threads with a note if KVM is unavailable.

use tandem_microvm::Backend;
use tandem_report::explain;

use crate::plan::VmPlan;
use crate::state_dir::StateDir;
use crate::vm_process::{VmError, VmProcess};

/// VMs that have booted.
#[derive(Debug)]
pub struct Booted {
    /// The VMs in the order of their plans.
    pub vms: Vec<VmProcess>,
    /// The backend that runs their vCPUs.
    pub backend: Backend,
    /// The reason for the fallback to threads, if any.
    pub note: Option<String>,
}

/// Boots VMs on the given backend; without one, on KVM, or on threads if KVM is unavailable.
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
