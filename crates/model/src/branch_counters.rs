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

/// Report of a vCPU's own program, as ground truth for verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Truth {
    /// It only waited in a loop.
    Spun,
    /// It computed at least part of the time.
    Worked,
}

/// Counters of a vCPU since its last accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The counts. Only their ratios matter.
    pub counts: BranchCounts,
    /// Their source.
    pub source: CounterSource,
    /// The program's own report; synthetic counters only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truth: Option<Truth>,
}
