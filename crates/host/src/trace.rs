//! `tandem host record --trace`: some seconds of this host in full, switch by switch.
//!
//! The VMs present at the start are traced; a later one counts as a process of the host.

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_linux::interrupt::Interrupt;
use tandem_linux::procfs::ProcFs;
use tandem_model::VmId;
use tandem_model::states::trace::HostTrace;
use tandem_observe::bpf::BpfError;
use tandem_observe::trace::{TraceOptions, Tracer};
use thiserror::Error;

use crate::discovery::{Discovery, DiscoveryError, DiscoveryOptions};
use crate::told_apart::told_apart;
use crate::watch::watched;

/// Why there is no trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The processes cannot be listed.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// BPF is unavailable.
    #[error("a trace needs BPF programs: {0}; without --trace, the kernel's accounts are recorded")]
    Bpf(#[from] BpfError),
}

/// Result of a trace.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The host, switch by switch.
    pub trace: HostTrace,
    /// Unique names of the VMs.
    pub names: BTreeMap<VmId, String>,
}

impl Traced {
    /// Returns remarks on the trace.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.trace.lost > 0 {
            remarks.push(format!(
                "{} events were lost because the buffer was full, and are missing in the trace; trace for a shorter time",
                self.trace.lost
            ));
        }
        let unseen = self.trace.vcpus.iter().filter(|vcpu| vcpu.did.is_empty());
        let unseen = unseen.count();
        if unseen > 0 {
            remarks
                .push(format!("{unseen} vCPUs have no events: they neither slept nor left a pCPU"));
        }
        remarks
    }
}

/// Traces for `length`, or until a signal.
pub fn trace(
    options: DiscoveryOptions,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<Traced, TraceError> {
    let tracer = Tracer::open(ProcFs::host(), TraceOptions::default())?;
    let vms = Discovery::new(options, ProcFs::host())?.scan()?.vms;
    let trace = tracer.trace(&watched(&vms), length, || interrupt.check().is_err())?;
    Ok(Traced {
        trace,
        names: told_apart(vms.iter().map(|vm| (vm.id, vm.name.as_str(), vm.process.pid))),
    })
}
