//! What a swap exchanges, and what ordinary stealing may take.
//!
//! Source: Rao & Zhou, PPoPP 2014, section 4.2. Two siblings exchange pCPU, position in the run queue and
//! weight: each takes the other's place as it is. So the weight on each pCPU stays what it was (the other
//! VMs there notice nothing), and each pCPU holds as many vCPUs of each VM as before: siblings that had
//! pCPUs of their own never come to share one.
//!
//! Positions count from 0, the vCPU that runs. Pure functions over the places that the caller passes;
//! affinity is checked where the sibling is chosen (see [`super::FlexS`]).

use serde::Serialize;
use thiserror::Error;

use super::VcpuKey;
use tandem_model::units::{PcpuId, VmId, Weight};

/// Where a vCPU is, and with what weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VcpuPlace {
    /// Who.
    pub vcpu: VcpuKey,
    /// On which pCPU.
    pub pcpu: PcpuId,
    /// Its weight there.
    pub weight: Weight,
    /// Its position in the pCPU's run queue; 0 runs.
    pub position: u32,
}

/// Why two vCPUs cannot swap.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SwapError {
    /// It has no place.
    #[error("{0} is on no pCPU: expected one that runs or waits")]
    NotPlaced(VcpuKey),
    /// They belong to different VMs: a swap could put siblings on one pCPU.
    #[error("{0} and {1} are of different VMs: expected two of the same")]
    NotSiblings(VcpuKey, VcpuKey),
    /// They are on the same pCPU, or are the same: nothing would be gained.
    #[error("{0} and {1} are both on pCPU {2}: expected two on different pCPUs")]
    SamePcpu(VcpuKey, VcpuKey, PcpuId),
}

/// The places of `a` and `b` after they swapped, in this order.
///
/// Errors where they are not siblings, one has no place, or both are on one pCPU.
pub fn swap_plan(
    places: &[VcpuPlace],
    a: VcpuKey,
    b: VcpuKey,
) -> Result<[VcpuPlace; 2], SwapError> {
    let place = |vcpu| {
        let found = places.iter().find(|place| place.vcpu == vcpu);
        found.copied().ok_or(SwapError::NotPlaced(vcpu))
    };
    let (of_a, of_b) = (place(a)?, place(b)?);
    if a.vm != b.vm {
        return Err(SwapError::NotSiblings(a, b));
    }
    if of_a.pcpu == of_b.pcpu {
        return Err(SwapError::SamePcpu(a, b, of_a.pcpu));
    }
    Ok([VcpuPlace { vcpu: a, ..of_b }, VcpuPlace { vcpu: b, ..of_a }])
}

/// Whether a pCPU may take a waiting vCPU of `vm` from another one: only if none of the VM is there yet.
///
/// `there` are the VMs of the vCPUs that run or wait on the pCPU that steals.
pub fn may_steal(vm: VmId, there: impl IntoIterator<Item = VmId>) -> bool {
    there.into_iter().all(|other| other != vm)
}
