//! The exchange of places in a swap, and the limit of ordinary work stealing.
//!
//! Source: Rao & Zhou, PPoPP 2014, section 4.2.
//! Two siblings exchange pCPU, position in the run queue and weight: each takes the other's place as it is.
//! So the total weight on each pCPU stays the same, and other VMs there are not affected.
//! Each pCPU keeps its number of vCPUs of each VM: siblings with pCPUs of their own never come to share one.
//!
//! Positions count from 0, the running vCPU. These are pure functions over the places that the caller passes.
//! Affinity is checked where the sibling is chosen (see [`super::FlexS`]).

use serde::Serialize;
use thiserror::Error;

use super::VcpuKey;
use tandem_model::units::{PcpuId, VmId, Weight};

/// Place and weight of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VcpuPlace {
    /// The vCPU.
    pub vcpu: VcpuKey,
    /// Its pCPU.
    pub pcpu: PcpuId,
    /// Its weight there.
    pub weight: Weight,
    /// Its position in the pCPU's run queue; 0 runs.
    pub position: u32,
}

/// Reason why two vCPUs cannot swap.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SwapError {
    /// It has no place.
    #[error("{0} is on no pCPU: expected one that runs or waits")]
    NotPlaced(VcpuKey),
    /// They belong to different VMs: a swap could put siblings on one pCPU.
    #[error("{0} and {1} are of different VMs: expected two of the same")]
    NotSiblings(VcpuKey, VcpuKey),
    /// They are on the same pCPU, or are the same: a swap gains nothing.
    #[error("{0} and {1} are both on pCPU {2}: expected two on different pCPUs")]
    SamePcpu(VcpuKey, VcpuKey, PcpuId),
}

/// Returns the places of `a` and `b` after a swap, in this order.
///
/// Returns an error if they are not siblings, one has no place, or both are on one pCPU.
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
