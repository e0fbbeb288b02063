//! Branch counters of a vCPU and their source.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts of a vCPU since its last accounting, from its performance counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchCounts {
    /// Instructions retired.
    pub instructions: u64,
    /// Branch instructions retired, of these.
    pub branches: u64,
    /// Branches that were mispredicted, of these.
    pub mispredicted: u64,
}

/// The source of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CounterSource {
    /// The processor's performance counters.
    Hardware,
    /// Made up from what a guest's program counts of itself.
    Synthetic,
}

impl fmt::Display for CounterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CounterSource::Hardware => "hardware counters",
            CounterSource::Synthetic => "synthetic counters",
        })
    }
}

/// What a vCPU's program says of itself: what verdicts can be held against, where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Truth {
    /// It waited in a loop, and did nothing else.
    Spun,
    /// It computed, at least for a part of the time.
    Worked,
}

/// What a vCPU did since it was last counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The counts. Only their ratios matter.
    pub counts: BranchCounts,
    /// Where they come from.
    pub source: CounterSource,
    /// What its program says that it did; synthetic counters alone have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truth: Option<Truth>,
}
