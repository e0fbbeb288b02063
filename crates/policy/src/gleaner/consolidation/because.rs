//! Reasons for the number of vCPUs that consolidation chose, printed in dry runs and compared in tests.
//!
//! The names of quantities are the paper's: l_comp, l_idle and g_comp are ns, ρ and η factors.

use std::fmt;

use serde::Serialize;

/// Reason for the number of vCPUs that the workload may use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Because {
    /// It does too little to be judged.
    Asleep,
    /// Only one vCPU is left.
    OnlyOne,
    /// Condition 1 does not hold: the other vCPUs have no room.
    NoRoom {
        /// l_comp, ns.
        computes: f64,
        /// ρ × (N − 1) × l_idle, ns.
        room: f64,
    },
    /// Condition 2 does not hold: its pieces of work are too long.
    TooCoarse {
        /// g_comp, ns.
        grain: f64,
        /// min(η × l_idle, least time slice), ns.
        fits: f64,
    },
    /// Both conditions hold, but not long enough yet.
    Confirming,
    /// Both conditions hold: vCPUs are removed.
    Fits,
    /// It waits for locks for much of its time: vCPUs are removed.
    Contended {
        /// Fraction of its time, 0 … 1.
        part: f64,
    },
    /// A step was taken; its effect is not known yet.
    Settling,
    /// The same, and more periods are needed.
    Judging,
    /// The last step did no harm.
    Kept {
        /// Progress with it, relative to before.
        ratio: f64,
    },
    /// The last step did harm: the vCPUs are back.
    Lost {
        /// Progress with it, relative to before.
        ratio: f64,
    },
    /// A step did harm recently, and there was no major change since.
    Resting,
    /// The workload is another one: all vCPUs are back.
    MajorChange,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: &f64| {
            if ns.is_finite() { format!("{:.1} us", ns / 1e3) } else { "all the time".to_owned() }
        };
        match self {
            Because::Asleep => f.write_str("the workload sleeps"),
            Because::OnlyOne => f.write_str("one vCPU is the least"),
            Because::NoRoom { computes, room } => write!(
                f,
                "the work does not fit on fewer vCPUs: it computes {} between two idle periods, {} would fit",
                us(computes),
                us(room)
            ),
            Because::TooCoarse { grain, fits } => write!(
                f,
                "its pieces of work are too long: {} between two switches, {} would fit",
                us(grain),
                us(fits)
            ),
            Because::Confirming => f.write_str("it would fit on one vCPU less, if that lasts"),
            Because::Fits => f.write_str("it fits on one vCPU less"),
            Because::Contended { part } => write!(
                f,
                "it waits for locks for {:.0} % of its time, which a vCPU less may spare it",
                part * 100.0
            ),
            Because::Settling | Because::Judging => {
                f.write_str("the effect of the last step is not known yet")
            }
            Because::Kept { ratio } => write!(f, "the last step did no harm ({ratio:.2} x)"),
            Because::Lost { ratio } => write!(f, "the last step did harm ({ratio:.2} x)"),
            Because::Resting => f.write_str("one vCPU less did harm lately"),
            Because::MajorChange => f.write_str("the workload changed"),
        }
    }
}
