//! Configuration of a microVM: plain data, checked as a whole before the start.
//!
//! A VM's name is short because the kernel keeps 15 characters of a thread's name.
//! Each vCPU thread is named `NAME/vcpuN`, which identifies VM and vCPU.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::calibrate::Calibration;
use crate::ring::Ring;
use crate::workload::{ParameterError, Parameters, Workload};

/// Maximum number of vCPUs of a microVM.
pub const MAX_VCPUS: u32 = 64;

/// Maximum length of a name, so that `NAME/vcpu63` fits into the 15 characters of a thread's name.
pub const MAX_NAME: usize = 8;

/// Backend of the vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Real vCPUs of `/dev/kvm`.
    Kvm,
    /// Plain threads that run the same workload code, for hosts without KVM.
    Threads,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backend::Kvm => "kvm",
            Backend::Threads => "threads",
        })
    }
}

impl FromStr for Backend {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Backend, ConfigError> {
        match text {
            "kvm" => Ok(Backend::Kvm),
            "threads" => Ok(Backend::Threads),
            _ => Err(ConfigError::Backend(text.to_owned())),
        }
    }
}

/// A VM's name: 1 to [`MAX_NAME`] characters of `a-z`, `0-9`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct VmName(String);

impl VmName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the thread of vCPU `index`.
    pub fn thread_name(&self, index: u32) -> String {
        format!("{}/vcpu{index}", self.0)
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for VmName {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<VmName, ConfigError> {
        let valid = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(valid) {
            return Err(ConfigError::Name(name.to_owned()));
        }
        Ok(VmName(name.to_owned()))
    }
}

/// Reason why a configuration is invalid.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The name is empty, too long or has invalid characters.
    #[error(
        "'{0}' is not a VM name; write 1 to {MAX_NAME} characters of a-z, 0-9, _ and - \
         (threads are named NAME/vcpuN, and the kernel keeps 15 characters)"
    )]
    Name(String),
    /// Too few or too many vCPUs.
    #[error("a VM cannot have {0} vCPUs; give 1 to {MAX_VCPUS}")]
    Vcpus(u32),
    /// The workload needs more vCPUs.
    #[error("workload {workload} cannot run on {vcpus} vCPU; give at least {least}")]
    TooFewVcpus {
        /// The workload.
        workload: Workload,
        /// Requested number.
        vcpus: u32,
        /// Minimum number.
        least: u32,
    },
    /// A server whose serving phase has no request.
    #[error(
        "workload server has no request: every={every} is longer than serve={serve}; give serve at \
         least as much as every"
    )]
    NoRequest {
        /// Time from one request to the next, in microseconds.
        every: u64,
        /// Length of the serving phase, in microseconds.
        serve: u64,
    },
    /// No such backend.
    #[error("there is no backend '{0}'; write kvm or threads")]
    Backend(String),
    /// A workload or parameter is invalid.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
}

/// Configuration of a microVM.
///
/// ```
/// use tandem_microvm::MicrovmConfig;
/// use tandem_microvm::Workload;
///
/// let mut config = MicrovmConfig::new("vm0".parse()?, Workload::Burn);
/// config.vcpus = 4;
/// config.pins = vec![0, 1]; // vCPU 0 and 2 on pCPU 0, vCPU 1 and 3 on pCPU 1
/// config.parameters.set("work", "200k")?;
/// config.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MicrovmConfig {
    /// Its name.
    pub name: VmName,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// The workload with its parameters.
    pub parameters: Parameters,
    /// Seed of the random sizes.
    pub seed: u64,
    /// pCPUs that the vCPUs are pinned to, round-robin; empty: not pinned.
    pub pins: Vec<u32>,
    /// Backend of the vCPUs.
    pub backend: Backend,
    /// Privilege level of the workload (KVM backend).
    pub ring: Ring,
    /// Speed of the machine; `None`: measured at the start of the VM.
    /// VMs whose work is compared need the same calibration, or their items differ by the error of the measurement.
    pub calibration: Option<Calibration>,
}

impl MicrovmConfig {
    /// Returns a configuration of one vCPU with the default sizes of `workload`, seed 1, not pinned, on KVM at ring 3.
    pub fn new(name: VmName, workload: Workload) -> MicrovmConfig {
        MicrovmConfig {
            name,
            vcpus: 1,
            parameters: Parameters::defaults(workload),
            seed: 1,
            pins: Vec::new(),
            backend: Backend::Kvm,
            ring: Ring::User,
            calibration: None,
        }
    }

    /// Returns the workload.
    pub fn workload(&self) -> Workload {
        self.parameters.workload()
    }

    /// Returns the pCPU that vCPU `index` is pinned to, if any.
    pub fn pin(&self, index: u32) -> Option<u32> {
        match self.pins.len() {
            0 => None,
            pins => Some(self.pins[index as usize % pins]),
        }
    }

    /// Checks the configuration as a whole.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.vcpus == 0 || self.vcpus > MAX_VCPUS {
            return Err(ConfigError::Vcpus(self.vcpus));
        }
        let workload = self.workload();
        let least = workload.least_vcpus();
        if self.vcpus < least {
            return Err(ConfigError::TooFewVcpus { workload, vcpus: self.vcpus, least });
        }
        let value = |name| self.parameters.get(name);
        match (value("every"), value("serve")) {
            (Some(every), Some(serve)) if every > serve => {
                Err(ConfigError::NoRequest { every, serve })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_thread_names() {
        let name: VmName = "abcdefgh".parse().unwrap();
        assert_eq!(name.thread_name(MAX_VCPUS - 1).len(), 15);
        for bad in ["", "abcdefghi", "VM0", "a b", "a/b", "vé"] {
            let error = bad.parse::<VmName>().unwrap_err().to_string();
            assert!(error.contains("1 to 8 characters"), "{error}");
        }
    }

    #[test]
    fn vcpu_counts_are_checked() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Shootdown);
        for (vcpus, words) in [(0, "1 to 64"), (65, "1 to 64"), (1, "at least 2")] {
            config.vcpus = vcpus;
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        config.vcpus = 64;
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn server_without_requests_is_refused() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Server);
        assert_eq!(config.check(), Ok(()));
        config.parameters.set("serve", "4k").unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("every=5000 is longer than serve=4000; give serve"), "{error}");
        config.parameters.set("every", "4k").unwrap();
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn pins_are_round_robin() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Burn);
        assert_eq!(config.pin(3), None);
        config.pins = vec![4, 6];
        assert_eq!([0, 1, 2, 3].map(|i| config.pin(i)), [Some(4), Some(6), Some(4), Some(6)]);
    }
}
