//! What a policy sees of a VM in one accounting period: what its vCPUs ran, how long they waited,
//! and where they may run.
//!
//! The same numbers exist on a live host (`/proc/PID/task/TID/schedstat`, affinity masks) and in a
//! simulator. Nothing here is a rate: all times are within one period of a length that is given
//! beside them.

use serde::Deserialize;
use serde::Serialize;

use crate::accounting_group::components;
use crate::pcpu_set::PcpuSet;
use crate::units::Nanos;
use crate::units::VmId;
use crate::units::Weight;

/// One vCPU in one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuObservation {
    /// The pCPUs it may run on.
    pub allowed: PcpuSet,
    /// CPU time received.
    pub ran: Nanos,
    /// Time runnable without running (steal time, as the guest sees it).
    pub waited: Nanos,
    /// Whether it was runnable when the period ended. Kernels count a wait only once it is over, so
    /// a vCPU that never ran in the period shows no wait at all; this tells it from a sleeper.
    pub runnable: bool,
}

impl VcpuObservation {
    /// Time in the period during which the vCPU could have used a pCPU, at most the period.
    pub fn could_run(&self, period: Nanos) -> Nanos {
        let seen = self.ran + self.waited;
        if seen == Nanos::ZERO && self.runnable {
            period
        } else {
            seen.min(period)
        }
    }
}

/// One VM in one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmObservation {
    /// Which VM.
    pub vm: VmId,
    /// Its configured weight w_i.
    pub weight: Weight,
    /// Its vCPUs, in the order of their numbers.
    pub vcpus: Vec<VcpuObservation>,
}

impl VmObservation {
    /// CPU time received by all vCPUs, S_i.
    pub fn received(&self) -> Nanos {
        self.vcpus.iter().map(|vcpu| vcpu.ran).sum()
    }

    /// Sum over the vCPUs of the time in which each could have run.
    pub fn could_run(&self, period: Nanos) -> Nanos {
        self.vcpus.iter().map(|vcpu| vcpu.could_run(period)).sum()
    }

    /// A lower bound of the time in which at least one vCPU could have run: the longest of them.
    pub fn backlogged(&self, period: Nanos) -> Nanos {
        self.vcpus
            .iter()
            .map(|vcpu| vcpu.could_run(period))
            .max()
            .unwrap_or(Nanos::ZERO)
    }

    /// The union of the pCPUs that its vCPUs may use.
    pub fn allowed(&self) -> PcpuSet {
        let mut union = PcpuSet::default();
        for vcpu in &self.vcpus {
            union.extend(&vcpu.allowed);
        }
        union
    }

    /// The most CPU time the VM can use in `period`, n_i × T: one pCPU for each vCPU, and no more
    /// pCPUs than the vCPUs may use. vCPUs that share pCPUs are counted together, so four vCPUs
    /// pinned two by two on two pCPUs peak at two.
    pub fn peak(&self, period: Nanos) -> Nanos {
        let sets: Vec<&PcpuSet> = self.vcpus.iter().map(|vcpu| &vcpu.allowed).collect();
        let usable: usize = components(&sets)
            .iter()
            .map(|component| component.members.len().min(component.pcpus.len()))
            .sum();
        Nanos(period.0 * usable as u64)
    }
}
