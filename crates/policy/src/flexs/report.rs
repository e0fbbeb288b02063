//! Verdicts on vCPUs in a period, and their outcomes.

use std::fmt;

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

/// The reason, after "spins, but ".
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Left::Placement => "vCPUs are not to be moved: that needs --placement rebalance",
            Left::NoPlace => "it is not pinned to one pCPU, so that its place is not known",
            Left::Recent => "its VM, or another VM of its group, has swapped a short time ago",
            Left::Moving => "another policy moves vCPUs there",
            Left::New => "too little was seen of its VM since the fair window began",
        })
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

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::NoPlace => "it is not known where it is",
            Refusal::SamePcpu => "it is on the same pCPU",
            Refusal::WaitsTooLittle => "it does not wait for so much longer that it would gain",
            Refusal::Spins => "it spins, too",
            Refusal::Cpuset => "one of the two may not run on the other's pCPU",
            Refusal::NotLooked => "its pCPU was not among those looked at",
        })
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

/// The vCPU's counters, their meaning and their consequence, without its VM.
impl fmt::Display for SpinReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpinReport { vcpu, counted, verdict, extremes, outcome, .. } = self;
        let counts = counted.counts;
        write!(
            f,
            "vCPU {vcpu} by {}: {} instructions, {} branches, {} mispredicted",
            counted.source, counts.instructions, counts.branches, counts.mispredicted
        )?;
        if let (Some((bpi, bmpr)), Some((max_bpi, min_bmpr))) = (verdict.ratios(), extremes) {
            write!(
                f,
                ": {bpi} per instruction (most {max_bpi}), {bmpr} mispredicted (least {min_bmpr})"
            )?;
        }
        match outcome {
            SpinOutcome::Left(left) => write!(f, ": spins, but {left}"),
            SpinOutcome::Decided(SwapAction::GoOn { because }) => write!(f, ": {because}"),
            SpinOutcome::Decided(SwapAction::Swap { with, on, .. }) => write!(
                f,
                ": spins, and vCPU {with} waits with work on pCPU {on}: they change places"
            ),
        }
    }
}
