//! Machines that can be emulated: `research/lab/machines/NAME.toml`.
//!
//! A description says which emulator, how many pCPUs, how much memory, which clock, and what the
//! kernel is told of it. What runs it: [`mod@crate::emulators`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::description;
use crate::description::DescriptionError;

/// Why a machine cannot be used.
#[derive(Debug, Error)]
pub enum MachineError {
    /// Its description cannot be read.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// Bochs counts cycles, so that it must know how many make a second.
    #[error("{0}: a Bochs machine needs mhz, its clock")]
    NoClock(PathBuf),
    /// So many pCPUs cannot be emulated.
    #[error("{path}: pcpus = {pcpus}; give 1 to 16")]
    Pcpus {
        /// Which description.
        path: PathBuf,
        /// What it says.
        pcpus: u32,
    },
    /// So many further pCPUs cannot be emulated.
    #[error("{path}: spare_pcpus = {spare_pcpus}; give 0 to 16")]
    SparePcpus {
        /// Which description.
        path: PathBuf,
        /// What it says.
        spare_pcpus: u32,
    },
    /// All pCPUs of a Bochs machine run VMs.
    #[error("{0}: spare_pcpus is for QEMU; leave it out for a Bochs machine")]
    SpareInBochs(PathBuf),
}

/// A description.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is good for, in a line.
    pub title: String,
    /// What runs it.
    pub emulator: Emulator,
    /// Its pCPUs, as far as VMs run on them.
    pub pcpus: u32,
    /// pCPUs besides, those with the lowest numbers, on which no VM runs.
    #[serde(default)]
    pub spare_pcpus: u32,
    /// Its memory.
    pub memory_mib: u32,
    /// Clock of a pCPU in MHz, where the emulator has one.
    pub mhz: Option<u32>,
    /// What the kernel is told, with `{khz}` and `{lpj}` from the clock.
    pub arguments: String,
}

/// What runs a machine.
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

    /// The kernel's command line.
    pub fn command_line(&self, parameters: &BTreeMap<String, String>) -> String {
        // lpj: the kernel's delay loop by the TSC, per tick of 4 ms.
        let khz = u64::from(self.mhz.unwrap_or_default()) * 1000;
        let own = self
            .arguments
            .replace("{khz}", &khz.to_string())
            .replace("{lpj}", &(khz * 4).to_string());
        // For init, which lets nothing run on the others.
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

/// The names of all machines, sorted.
pub fn names(lab: &Path) -> Result<Vec<String>, DescriptionError> {
    description::names(&folder(lab))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_follows_the_clock() {
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
