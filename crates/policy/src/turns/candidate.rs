//! Candidates for the rotation.

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{VcpuId, VmId};

/// A VM that never sleeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The VM.
    pub vm: VmId,
    /// Its fair share, in pCPUs.
    pub due: f64,
    /// Factor on its share of the rows, for a VM that receives more or less than that share gives.
    pub correction: f64,
    /// Its vCPUs that never sleep, and the pCPUs where each may run.
    pub vcpus: Vec<(VcpuId, PcpuSet)>,
}
