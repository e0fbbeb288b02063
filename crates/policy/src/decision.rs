//! What a policy wants changed, and why.
//!
//! A decision is plain data: a host adapter applies it, a dry run prints it, a test compares it.

use std::fmt;

use serde::Serialize;

use crate::pcpu_set::PcpuSet;
use crate::units::PcpuId;
use crate::units::VmId;
use crate::units::Weight;

/// One change to the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Decision {
    /// Give a VM this weight.
    SetWeight {
        /// Which VM.
        vm: VmId,
        /// Its real-time weight r_i from now on.
        weight: Weight,
        /// Why.
        because: Because,
    },
    /// Let a vCPU run on these pCPUs only.
    SetAffinity {
        /// Which VM.
        vm: VmId,
        /// Which of its vCPUs: the position in the VM's observation.
        vcpu: usize,
        /// Where it may run from now on.
        pcpus: PcpuSet,
        /// Why.
        because: Because,
    },
}

/// The reason of a decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Because {
    /// The VM received less (positive) or more (negative) than its fair share.
    Lag {
        /// (fair − received) ÷ fair, smoothed.
        lag: f64,
        /// Fair share, in pCPUs.
        fair: f64,
        /// Received, in pCPUs.
        received: f64,
    },
    /// Others' weights changed, and the sum of the group's weights is kept.
    KeepSum,
    /// pCPU time is left over: there is nothing to divide.
    WorkConserving {
        /// Idle pCPUs of the accounting group, smoothed.
        idle: f64,
    },
    /// The VM slept: it starts anew at its configured weight.
    Asleep,
    /// The fair window ended and the VM had not used its share throughout.
    FairWindow,
    /// Its pins leave VMs no way to their fair shares, whatever the weights.
    PinsInfeasible {
        /// The pCPU that too many are pinned to.
        from: PcpuId,
        /// CPU time per period that becomes possible to divide fairly, in pCPUs.
        gain: f64,
    },
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Lag {
                lag,
                fair,
                received,
            } => write!(
                f,
                "lag {:+.1} %: received {received:.3} pCPUs of a fair {fair:.3}",
                lag * 100.0
            ),
            Because::KeepSum => f.write_str("keeps the group's sum of weights"),
            Because::WorkConserving { idle } => {
                write!(
                    f,
                    "{idle:.2} pCPUs idle: nothing to divide, back to the configured weight"
                )
            }
            Because::Asleep => f.write_str("asleep: back to the configured weight"),
            Because::FairWindow => {
                f.write_str("fair window over, share not used up: back to the configured weight")
            }
            Because::PinsInfeasible { from, gain } => write!(
                f,
                "the pins on pCPU {from} leave no fair division; moving it frees {gain:.2} pCPUs"
            ),
        }
    }
}
