//! Reasons why the policy `asymmetric` leaves a VM as it is, shown next to its changes in a dry run.

use std::fmt;

/// Reason for leaving a VM as it is in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// It has one vCPU, so there is nothing to divide.
    OneVcpu,
    /// In the idle class it runs in left-over time, whatever its vCPUs demand.
    IdleClass,
    /// Each of its vCPUs is a group of its own, alongside the other VMs' groups.
    Apart,
    /// In its turns all of its vCPUs run together.
    TakesTurns,
    /// For a while no vCPU used up its allocation and wanted more.
    NoneShort,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeftAlone::OneVcpu => "it has one vCPU",
            LeftAlone::IdleClass => "it is in the idle class",
            LeftAlone::Apart => "its vCPUs are apart",
            LeftAlone::TakesTurns => "it takes turns",
            LeftAlone::NoneShort => "none of its vCPUs uses up its allocation and wants more",
        })
    }
}
