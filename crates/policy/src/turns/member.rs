//! A member of the rotation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VcpuId, VmId};

/// A VM in the rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// The VM.
    pub vm: VmId,
    /// The slot of each vCPU: its pCPU.
    pub seats: BTreeMap<VcpuId, PcpuId>,
    /// The pCPUs over which its only vCPU roams, possibly to another one in each row. `seats` then holds the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roams: Option<PcpuSet>,
    /// Its share of all rows, 0…1.
    pub due: f64,
}

impl Member {
    /// The pCPUs of its slots.
    pub fn pcpus(&self) -> PcpuSet {
        self.seats.values().copied().collect()
    }
}
