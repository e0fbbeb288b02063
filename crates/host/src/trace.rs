//! `tandem host record --trace`: some seconds of this host in full, switch by switch.
//!
//! All VMs that are there at the begin are traced; one that comes later is a process of the host among others.

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
    /// Processes cannot be looked through.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// There are no programs.
    #[error("a trace needs BPF programs: {0}; without --trace, what accounts tell is recorded")]
    Bpf(#[from] BpfError),
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The host, switch by switch.
    pub trace: HostTrace,
    /// The names of the VMs, with the process where several have the same.
    pub names: BTreeMap<VmId, String>,
}

impl Traced {
    /// What is to be said of it.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.trace.lost > 0 {
            remarks.push(format!(
                "{} events were lost for want of room: where they are missing nothing is shown; trace for a shorter time",
                self.trace.lost
            ));
        }
        let unseen = self.trace.vcpus.iter().filter(|vcpu| vcpu.did.is_empty());
        let unseen = unseen.count();
        if unseen > 0 {
            remarks.push(format!(
                "of {unseen} vCPUs nothing was seen: they neither slept nor left a pCPU"
            ));
        }
        remarks
    }
}

/// Traces for so long, or until a signal.
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
