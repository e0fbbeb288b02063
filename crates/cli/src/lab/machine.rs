//! Machines that can be emulated: `lab/machines/NAME.toml`.
//!
//! A description says which emulator, how many pCPUs, how much memory, which clock, and what the
//! kernel is told of it. A machine runs a job: it boots a kernel with the payload, and gives back the
//! agent's lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use serde::Deserialize;

use super::bochs;
use super::emulator::Answers;
use super::experiment::toml_files;
use super::job::Job;
use super::qemu;

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

/// What a machine needs to boot, and what it is to do.
pub struct Boot<'a> {
    /// The lab's folder, where templates are.
    pub lab: &'a Path,
    /// The kernel's image.
    pub kernel: &'a Path,
    /// The initramfs.
    pub payload: &'a Path,
    /// Parameters on the kernel's command line besides the machine's own.
    pub parameters: &'a BTreeMap<String, String>,
    /// What to do.
    pub job: &'a Job,
    /// Where logs go.
    pub work: &'a Path,
    /// Longest time on the host.
    pub patience: Duration,
    /// Whether a saved machine may be used.
    pub snapshots: bool,
}

impl Machine {
    /// Reads the description of the machine `name`.
    pub fn read(lab: &Path, name: &str) -> anyhow::Result<Machine> {
        let path = folder(lab).join(name).with_extension("toml");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "there is no machine {name} ({}); the machines are {}",
                path.display(),
                names(lab)?.join(", ")
            ),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let machine: Machine =
            toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        if machine.emulator == Emulator::Bochs && machine.mhz.is_none() {
            bail!("{}: a Bochs machine needs mhz, its clock", path.display());
        }
        if machine.pcpus == 0 || machine.pcpus > 16 {
            bail!(
                "{}: pcpus = {}; give 1 to 16",
                path.display(),
                machine.pcpus
            );
        }
        if machine.spare_pcpus > 16 {
            bail!(
                "{}: spare_pcpus = {}; give 0 to 16",
                path.display(),
                machine.spare_pcpus
            );
        }
        if machine.emulator == Emulator::Bochs && machine.spare_pcpus > 0 {
            bail!(
                "{}: spare_pcpus is for QEMU; leave it out for a Bochs machine",
                path.display()
            );
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
        let more = parameters
            .iter()
            .map(|(name, value)| format!(" {name}={value}"));
        own.trim().to_owned() + &spare + &more.collect::<String>()
    }

    /// Says what is missing on this host to run it, with the Debian package that has it.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.emulator {
            Emulator::Qemu => qemu::check(),
            Emulator::Bochs => bochs::check(),
        }
    }

    /// Boots it and has the job done.
    pub fn run(&self, boot: &Boot) -> anyhow::Result<Answers> {
        match self.emulator {
            Emulator::Qemu => qemu::run(self, boot),
            Emulator::Bochs => bochs::run(self, boot),
        }
    }
}

fn folder(lab: &Path) -> PathBuf {
    lab.join("machines")
}

/// The names of all machines, sorted.
pub fn names(lab: &Path) -> anyhow::Result<Vec<String>> {
    toml_files(&folder(lab))
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
        let spared = Machine {
            spare_pcpus: 1,
            arguments: "quiet".into(),
            ..machine
        };
        assert_eq!(
            spared.command_line(&parameters),
            "quiet lab.cpus=1e kvm_intel.ple_window=512"
        );
    }
}
