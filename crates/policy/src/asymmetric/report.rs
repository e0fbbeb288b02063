//! What the policy `asymmetric` leaves as it is, and why: for a dry run, which says it beside what it would change.

use std::fmt;

/// Why nothing is changed for a VM in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// There is nobody to divide its time among.
    OneVcpu,
    /// In the idle class it runs what others leave, whatever its vCPUs want.
    IdleClass,
    /// Its vCPUs are groups beside the other VMs'.
    Apart,
    /// In turns all of its vCPUs run together.
    TakesTurns,
    /// For a while no vCPU used up what it has and wanted more.
    NobodyShort,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeftAlone::OneVcpu => "it has one vCPU",
            LeftAlone::IdleClass => "it is in the idle class",
            LeftAlone::Apart => "its vCPUs are apart",
            LeftAlone::TakesTurns => "it takes turns",
            LeftAlone::NobodyShort => "none of its vCPUs uses up what it is due and wants more",
        })
    }
}
