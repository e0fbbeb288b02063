//! Branch counters of a vCPU's guest: instructions, branches and branch misses, per vCPU thread and period.
//!
//! The trait [`BranchCounters`] hides the source, so that policies can be tested with recorded counters and run without a PMU:
//!
//! - [`perf`]: the processor's counters through perf_event_open(2), one group per thread, guest only.
//! - [`microvm`]: synthetic counters of Tandem's own microVMs, derived from counts of their programs.
//!
//! Sources return differences since the last reading; only their ratios are meaningful.

pub mod microvm;
pub mod perf;
pub mod source;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::procfs::ProcFs;

pub use source::{BranchCounters, CounterError};

/// The source of branch counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CounterChoice {
    /// The processor's counters.
    #[default]
    Hardware,
    /// Counters of Tandem's own microVMs.
    Synthetic,
}

/// Error for an unknown source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a source of counters; use hardware or synthetic (Tandem's own microVMs only)"
)]
pub struct UnknownCounters(String);

impl FromStr for CounterChoice {
    type Err = UnknownCounters;

    fn from_str(text: &str) -> Result<CounterChoice, UnknownCounters> {
        match text {
            "hardware" => Ok(CounterChoice::Hardware),
            "synthetic" => Ok(CounterChoice::Synthetic),
            other => Err(UnknownCounters(other.to_owned())),
        }
    }
}

impl fmt::Display for CounterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CounterChoice::Hardware => "hardware",
            CounterChoice::Synthetic => "synthetic",
        })
    }
}

/// Opens a source; the error names the missing prerequisite.
pub fn open(
    choice: CounterChoice,
    procfs: ProcFs,
) -> Result<Box<dyn BranchCounters>, CounterError> {
    Ok(match choice {
        CounterChoice::Hardware => Box::new(perf::PerfCounters::open(procfs)?),
        CounterChoice::Synthetic => Box::new(microvm::MicrovmCounters::new(procfs)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_names_round_trip() {
        for choice in [CounterChoice::Hardware, CounterChoice::Synthetic] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "perf".parse::<CounterChoice>().unwrap_err().to_string();
        assert!(error.contains("'perf'") && error.contains("hardware"));
    }
}
