//! The modes of the demo: ways to divide one host among the same VMs.
//!
//! Each mode is entered and left again, and leaves nothing behind. Their names are part of the JSON
//! form and must not change.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;

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
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Mode> {
        match Mode::ALL.into_iter().find(|mode| mode.name() == name) {
            Some(mode) => Ok(mode),
            None => bail!(
                "'{name}' is no mode; the modes are {}",
                Mode::ALL.map(Mode::name).join(", ")
            ),
        }
    }
}

/// Reads `--modes`: names separated by commas, each at most once.
pub fn list(text: &str) -> anyhow::Result<Vec<Mode>> {
    let mut modes = Vec::new();
    for name in text.split(',') {
        let mode: Mode = name.trim().parse()?;
        if modes.contains(&mode) {
            bail!("--modes names '{mode}' twice; each mode is measured once");
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
