//! Verdicts on vCPUs in a period, and their outcomes.

use serde::{Deserialize, Serialize};

use super::{Ratio, SwapAction, Verdict};
use tandem_model::branch_counters::Counted;
use tandem_model::units::{VcpuId, VmId};

/// Reason for leaving a spinning vCPU in place without searching for a sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Affinities must not be changed.
    Placement,
    /// It may run on several pCPUs, and its current pCPU is unknown.
    NoPlace,
    /// Its VM or its accounting group has swapped recently.
    Recent,
    /// Another policy moves vCPUs of its accounting group.
    Moving,
    /// A fair window has just begun, so not all of its VM's vCPUs could be compared.
    New,
}

impl Left {
    /// The reason as text, after "spins, but ".
    pub fn in_words(self) -> &'static str {
        match self {
            Left::Placement => "vCPUs are not to be moved: that needs --placement rebalance",
            Left::NoPlace => "it is not pinned to one pCPU, so that its place is not known",
            Left::Recent => "its VM, or another VM of its group, has swapped a short time ago",
            Left::Moving => "another policy moves vCPUs there",
            Left::New => "too little was seen of its VM since the fair window began",
        }
    }
}

/// Reason for rejecting a sibling as a candidate for a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Its pCPU is unknown.
    NoPlace,
    /// It is on the same pCPU, so a swap would not help.
    SamePcpu,
    /// It does not wait, or not long enough for a swap to pay off.
    WaitsTooLittle,
    /// It spins, too.
    Spins,
    /// One of the two may not run on the other's pCPU, by its cpuset or the operator's settings.
    Cpuset,
    /// Its pCPU was not among those searched.
    NotLooked,
}

impl Refusal {
    /// The reason as text.
    pub fn in_words(self) -> &'static str {
        match self {
            Refusal::NoPlace => "it is not known where it is",
            Refusal::SamePcpu => "it is on the same pCPU",
            Refusal::WaitsTooLittle => "it does not wait for so much longer that it would gain",
            Refusal::Spins => "it spins, too",
            Refusal::Cpuset => "one of the two may not run on the other's pCPU",
            Refusal::NotLooked => "its pCPU was not among those looked at",
        }
    }
}

/// Outcome of an accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpinOutcome {
    /// FlexS decided.
    Decided(SwapAction),
    /// It spins, and no sibling was searched for.
    Left(Left),
}

/// Verdict on a vCPU in a period, and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpinReport {
    /// Its VM.
    pub vm: VmId,
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Its counts.
    pub counted: Counted,
    /// The verdict on them.
    pub verdict: Verdict,
    /// The largest branches ÷ instructions and smallest mispredicted ÷ branches of its VM in this fair window.
    pub extremes: Option<(Ratio, Ratio)>,
    /// The outcome.
    pub outcome: SpinOutcome,
    /// Siblings that were rejected in a failed search, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(VcpuId, Refusal)>,
}
