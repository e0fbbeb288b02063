//! Who could take turns.

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{VcpuId, VmId};

/// A VM that never sleeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub vm: VmId,
    /// What it is due, in pCPUs.
    pub due: f64,
    /// By what its part of the rows is multiplied, because it receives more or less than that part gives.
    pub correction: f64,
    /// Its vCPUs that never sleep, and where each may run.
    pub vcpus: Vec<(VcpuId, PcpuSet)>,
}
