//! Emulated machines (`research/lab/machines/NAME.toml`).
//!
//! A description has the emulator, pCPUs, memory, clock and the kernel's command line.
//! [`mod@crate::emulators`] runs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::description;
use crate::description::DescriptionError;

/// Error of a machine.
#[derive(Debug, Error)]
pub enum MachineError {
    /// Reading the description failed.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// A Bochs machine has no clock, which Bochs needs to convert cycles to seconds.
    #[error("{0}: a Bochs machine needs mhz, its clock")]
    NoClock(PathBuf),
    /// The number of pCPUs is out of range.
    #[error("{path}: pcpus = {pcpus}; give 1 to 16")]
    Pcpus {
        /// Path of the description.
        path: PathBuf,
        /// The number.
        pcpus: u32,
    },
    /// The number of spare pCPUs is out of range.
    #[error("{path}: spare_pcpus = {spare_pcpus}; give 0 to 16")]
    SparePcpus {
        /// Path of the description.
        path: PathBuf,
        /// The number.
        spare_pcpus: u32,
    },
    /// A Bochs machine has spare pCPUs.
    #[error("{0}: spare_pcpus is for QEMU; leave it out for a Bochs machine")]
    SpareInBochs(PathBuf),
}

/// A machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Purpose in one line.
    pub title: String,
    /// The emulator.
    pub emulator: Emulator,
    /// pCPUs for VMs.
    pub pcpus: u32,
    /// Additional pCPUs with the lowest numbers, on which no VM runs.
    #[serde(default)]
    pub spare_pcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Clock of a pCPU in MHz, if the emulator has one.
    pub mhz: Option<u32>,
    /// Command line of the kernel, with `{khz}` and `{lpj}` from the clock.
    pub arguments: String,
}

/// Emulator of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Emulator {
    /// QEMU's TCG.
    Qemu,
    /// Bochs.
    Bochs,
}

impl Machine {
    /// Reads the description of the machine `name`.
    pub fn read(lab: &Path, name: &str) -> Result<Machine, MachineError> {
        let path = folder(lab).join(name).with_extension("toml");
        let machine: Machine = description::read("machine", name, &path, &folder(lab))?;
        let bochs = machine.emulator == Emulator::Bochs;
        if bochs && machine.mhz.is_none() {
            return Err(MachineError::NoClock(path));
        }
        if machine.pcpus == 0 || machine.pcpus > 16 {
            let pcpus = machine.pcpus;
            return Err(MachineError::Pcpus { path, pcpus });
        }
        if machine.spare_pcpus > 16 {
            let spare_pcpus = machine.spare_pcpus;
            return Err(MachineError::SparePcpus { path, spare_pcpus });
        }
        if bochs && machine.spare_pcpus > 0 {
            return Err(MachineError::SpareInBochs(path));
        }
        Ok(machine)
    }

    /// Returns the kernel's command line.
    pub fn command_line(&self, parameters: &BTreeMap<String, String>) -> String {
        // lpj: TSC cycles of the kernel's delay loop per tick of 4 ms.
        let khz = u64::from(self.mhz.unwrap_or_default()) * 1000;
        let own = self
            .arguments
            .replace("{khz}", &khz.to_string())
            .replace("{lpj}", &(khz * 4).to_string());
        // init runs all programs on these pCPUs only.
        let spare = match self.spare_pcpus {
            0 => String::new(),
            spare => format!(" lab.cpus={:x}", ((1u64 << self.pcpus) - 1) << spare),
        };
        let more = parameters.iter().map(|(name, value)| format!(" {name}={value}"));
        own.trim().to_owned() + &spare + &more.collect::<String>()
    }
}

fn folder(lab: &Path) -> PathBuf {
    lab.join("machines")
}

/// Returns the sorted names of all machines.
pub fn names(lab: &Path) -> Result<Vec<String>, DescriptionError> {
    description::names(&folder(lab))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_follows_clock() {
        let machine = Machine {
            title: String::new(),
            emulator: Emulator::Bochs,
            pcpus: 4,
            spare_pcpus: 0,
            memory_mib: 512,
            mhz: Some(1000),
            arguments: "tsc_early_khz={khz} lpj={lpj}".into(),
        };
        let parameters = BTreeMap::from([("kvm_intel.ple_window".into(), "512".into())]);
        assert_eq!(
            machine.command_line(&parameters),
            "tsc_early_khz=1000000 lpj=4000000 kvm_intel.ple_window=512"
        );
        let spared = Machine { spare_pcpus: 1, arguments: "quiet".into(), ..machine };
        assert_eq!(spared.command_line(&parameters), "quiet lab.cpus=1e kvm_intel.ple_window=512");
    }
}
