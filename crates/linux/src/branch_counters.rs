//! What branches a vCPU's guest runs: instructions, branches and mispredicted ones, per vCPU thread and period.
//!
//! A source is behind the trait [`BranchCounters`], so that a policy can be tested with recorded counters and run where there is no PMU:
//!
//! - [`perf`]: the processor's counters by perf_event_open(2), one group per thread, the guest alone.
//! - [`microvm`]: synthetic ones for Tandem's own microVMs, made up from what their programs count of themselves.
//!
//! What is returned are differences since the last reading; only their ratios are meant to be used.

pub mod microvm;
pub mod perf;
pub mod source;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::procfs::ProcFs;

pub use source::{BranchCounters, CounterError};

/// Which source to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CounterChoice {
    /// The processor's.
    #[default]
    Hardware,
    /// Those of Tandem's own microVMs.
    Synthetic,
}

/// A name that no source has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is no source of counters: they are hardware and synthetic (Tandem's own microVMs only)"
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

/// Opens a source; the error says what is missing.
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
    fn sources_have_names() {
        for choice in [CounterChoice::Hardware, CounterChoice::Synthetic] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "perf".parse::<CounterChoice>().unwrap_err().to_string();
        assert!(error.contains("'perf'") && error.contains("hardware"));
    }
}
