//! The modes of the demo: ways to divide one host among the same VMs.
//!
//! Leaving a mode reverts all of its changes.
//! The names of modes are part of the JSON form and must not change.

use std::fmt;
use std::str::FromStr;

use tandem_report::experiment::STOCK;
use thiserror::Error;

/// An invalid list of modes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModeError {
    /// The name is unknown.
    #[error("'{0}' is no mode; the modes are {known}; stock is another name of equal-weights", known = Mode::ALL.map(Mode::name).join(", "))]
    Unknown(String),
    /// A mode occurs twice.
    #[error("--modes names '{0}' twice; each mode is measured once")]
    Twice(Mode),
}

/// One way to divide the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No cgroups per VM: the scheduler treats each vCPU thread separately.
    AsIs,
    /// A cgroup per VM with its weight, as libvirt and clouds do; also called "stock".
    EqualWeights,
    /// As [`Mode::EqualWeights`], with a CFS quota at the fair share.
    HardCap,
    /// As [`Mode::EqualWeights`], with vCPU i pinned to pCPU i mod P.
    Pinning,
    /// No cgroups; the vCPU threads of all VMs except the first have a nice value of [`NEIGHBOUR_NICE`].
    Nice,
    /// As [`Mode::EqualWeights`], with the vCPU threads of all VMs except the first in SCHED_BATCH.
    Batch,
    /// The daemon manages the VMs.
    Tandem,
    /// As [`Mode::Tandem`], with the policy `asymmetric` added.
    Asymmetric,
    /// As [`Mode::Tandem`], with the policy `flexs` added, on synthetic counters of the VMs.
    Flexs,
}

/// Nice value of neighbours in mode `nice`: a third of the default weight, which leaves three quarters to an equal VM.
pub const NEIGHBOUR_NICE: i8 = 5;

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 9] = [
        Mode::AsIs,
        Mode::EqualWeights,
        Mode::HardCap,
        Mode::Pinning,
        Mode::Nice,
        Mode::Batch,
        Mode::Tandem,
        Mode::Asymmetric,
        Mode::Flexs,
    ];

    /// Default modes of a demo of pinned VMs, in their order.
    pub const DEMO: [Mode; 4] = [Mode::AsIs, Mode::EqualWeights, Mode::HardCap, Mode::Tandem];

    /// Returns the name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::AsIs => "as-is",
            Mode::EqualWeights => STOCK,
            Mode::HardCap => "hard-cap",
            Mode::Pinning => "pinning",
            Mode::Nice => "nice",
            Mode::Batch => "batch",
            Mode::Tandem => "tandem",
            Mode::Asymmetric => "asymmetric",
            Mode::Flexs => "flexs",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(name: &str) -> Result<Mode, ModeError> {
        let name = if name == "stock" { STOCK } else { name };
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| ModeError::Unknown(name.to_owned()))
    }
}

/// Parses `--modes`: distinct names separated by commas.
pub fn list(text: &str) -> Result<Vec<Mode>, ModeError> {
    let mut modes = Vec::new();
    for name in text.split(',') {
        let mode: Mode = name.trim().parse()?;
        if modes.contains(&mode) {
            return Err(ModeError::Twice(mode));
        }
        modes.push(mode);
    }
    Ok(modes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse::<Mode>().unwrap(), mode);
        }
        assert_eq!(list("stock").unwrap(), [Mode::EqualWeights]);
        assert_eq!(list("tandem, as-is").unwrap(), [Mode::Tandem, Mode::AsIs]);
    }

    #[test]
    fn unknown_name_lists_the_modes() {
        let error = list("as-is,fair").unwrap_err().to_string();
        assert_eq!(
            error,
            "'fair' is no mode; the modes are as-is, equal-weights, hard-cap, pinning, nice, batch, tandem, asymmetric, flexs; stock is \
             another name of equal-weights"
        );
        assert!(list("").unwrap_err().to_string().contains("'' is no mode"));
        assert!(list("tandem,tandem").unwrap_err().to_string().contains("twice"));
    }
}
