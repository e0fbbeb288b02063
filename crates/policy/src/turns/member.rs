//! A VM in the rotation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VcpuId, VmId};

/// A VM in the rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Which.
    pub vm: VmId,
    /// The pCPU of each of its vCPUs.
    pub seats: BTreeMap<VcpuId, PcpuId>,
    /// Where its one vCPU may sit, if it roams: in each row on another of these, if need be. Then `seats` says where it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roams: Option<PcpuSet>,
    /// The part of all rows that it is due to be in, 0…1.
    pub due: f64,
}

impl Member {
    /// The pCPUs that it sits on.
    pub fn pcpus(&self) -> PcpuSet {
        self.seats.values().copied().collect()
    }
}
