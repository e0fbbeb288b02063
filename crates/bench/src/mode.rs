//! The modes of the demo: ways to divide one host among the same VMs.
//!
//! Each mode is entered and left again, and leaves nothing behind. Their names are part of the JSON
//! form and must not change.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Why a list of modes is not one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModeError {
    /// No mode has the name.
    #[error("'{0}' is no mode; the modes are {known}", known = Mode::ALL.map(Mode::name).join(", "))]
    Unknown(String),
    /// One is named twice.
    #[error("--modes names '{0}' twice; each mode is measured once")]
    Twice(Mode),
}

/// One way to divide the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No cgroups of the VMs' own: every vCPU thread for itself.
    AsIs,
    /// A cgroup per VM with the VM's weight: what clouds do, and what "stock" means here.
    EqualWeights,
    /// The same, and a CFS quota at the fair share.
    HardCap,
    /// The daemon beside the VMs.
    Tandem,
}

impl Mode {
    /// All modes, in the order in which they are measured unless told otherwise.
    pub const ALL: [Mode; 4] = [Mode::AsIs, Mode::EqualWeights, Mode::HardCap, Mode::Tandem];

    /// The name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::AsIs => "as-is",
            Mode::EqualWeights => "equal-weights",
            Mode::HardCap => "hard-cap",
            Mode::Tandem => "tandem",
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
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| ModeError::Unknown(name.to_owned()))
    }
}

/// Reads `--modes`: names separated by commas, each at most once.
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
        assert_eq!(list("tandem, as-is").unwrap(), [Mode::Tandem, Mode::AsIs]);
    }

    #[test]
    fn unknown_names_list_what_there_is() {
        let error = list("as-is,fair").unwrap_err().to_string();
        assert_eq!(
            error,
            "'fair' is no mode; the modes are as-is, equal-weights, hard-cap, tandem"
        );
        assert!(list("").unwrap_err().to_string().contains("'' is no mode"));
        assert!(
            list("tandem,tandem")
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
    }
}
