//! What the counters of vCPUs told in a period, and what came of it.

use serde::{Deserialize, Serialize};

use super::{Ratio, SwapAction, Verdict};
use tandem_model::branch_counters::Counted;
use tandem_model::units::{VcpuId, VmId};

/// Why a vCPU that spins was left where it is before anybody looked for a sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Affinities are not to be changed.
    Placement,
    /// It may run on several pCPUs, and where it runs is not known.
    NoPlace,
    /// Its VM or its accounting group has swapped a short time ago.
    Recent,
    /// Another policy moves vCPUs of its accounting group.
    Moving,
    /// A fair window has just begun: not all of its VM's vCPUs could be compared.
    New,
}

impl Left {
    /// In words, after "spins, but ".
    pub fn in_words(self) -> &'static str {
        match self {
            Left::Placement => "vCPUs are not to be moved: that needs --placement rebalance",
            Left::NoPlace => "it is not pinned to one pCPU, so that its place is not known",
            Left::Recent => "its VM, or another beside it, has swapped a short time ago",
            Left::Moving => "another policy moves vCPUs there",
            Left::New => "too little was seen of its VM since the fair window began",
        }
    }
}

/// Why a sibling was no candidate for a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Where it is, is not known.
    NoPlace,
    /// It is on the same pCPU: no swap would help.
    SamePcpu,
    /// It does not wait, or not for so much longer that the swap would gain anything.
    WaitsTooLittle,
    /// It spins, too.
    Spins,
    /// One of the two may not run where the other is: its cpuset, or what the operator set, keeps it from there.
    Cpuset,
    /// Its pCPU was not among those chosen.
    NotLooked,
}

impl Refusal {
    /// In words.
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

/// What came of an accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpinOutcome {
    /// FlexS decided.
    Decided(SwapAction),
    /// It spins, and nobody looked for a sibling.
    Left(Left),
}

/// What the counters of a vCPU told in a period, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpinReport {
    /// Whose.
    pub vm: VmId,
    /// Which of its vCPUs.
    pub vcpu: VcpuId,
    /// What was counted.
    pub counted: Counted,
    /// What that says.
    pub verdict: Verdict,
    /// The largest branches ÷ instructions and smallest mispredicted ÷ branches of its VM in this fair window.
    pub extremes: Option<(Ratio, Ratio)>,
    /// What came of it.
    pub outcome: SpinOutcome,
    /// Where a sibling was looked for in vain: why each was no candidate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(VcpuId, Refusal)>,
}
