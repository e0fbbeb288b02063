//! Privilege level of the guest's workload.
//!
//! The default is ring 3, where hypervisors without hardware support run the workload at native speed.
//! Ring 0 is for observing pause-loop exiting on hosts with VT-x.
//! The processor counts PAUSEs only at CPL 0 (Intel SDM volume 3C, 26.1.3), where an operating system's spin locks execute them.
//! KVM then yields the pCPU only to vCPUs that were preempted at CPL 0.
//! The workload's code is the same at both; at ring 0 its gates and interrupts stay on one stack.
//!
//! It does not affect the threads backend, which is always at CPL 3 of the host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Privilege level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Ring {
    /// CPL 0, as an operating system's kernel.
    Kernel,
    /// CPL 3, as a program.
    #[default]
    User,
}

/// An invalid level for workloads.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("'{0}' is not a ring for a workload; write 0 (as a kernel) or 3 (as a program)")]
pub struct NotARing(String);

impl From<Ring> for u8 {
    fn from(ring: Ring) -> u8 {
        match ring {
            Ring::Kernel => 0,
            Ring::User => 3,
        }
    }
}

impl TryFrom<u8> for Ring {
    type Error = NotARing;

    fn try_from(level: u8) -> Result<Ring, NotARing> {
        match level {
            0 => Ok(Ring::Kernel),
            3 => Ok(Ring::User),
            other => Err(NotARing(other.to_string())),
        }
    }
}

impl FromStr for Ring {
    type Err = NotARing;

    fn from_str(text: &str) -> Result<Ring, NotARing> {
        let level: u8 = text.parse().map_err(|_| NotARing(text.to_owned()))?;
        Ring::try_from(level)
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u8::from(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rings_0_and_3_are_valid() {
        assert_eq!("0".parse(), Ok(Ring::Kernel));
        assert_eq!("3".parse(), Ok(Ring::User));
        for bad in ["1", "2", "", "user", "300"] {
            let error = bad.parse::<Ring>().unwrap_err().to_string();
            assert!(error.contains("0 (as a kernel) or 3"), "{error}");
        }
        let json = serde_json::to_string(&Ring::Kernel).unwrap();
        assert_eq!(json, "0");
        assert_eq!(serde_json::from_str::<Ring>("3").unwrap(), Ring::User);
        assert!(serde_json::from_str::<Ring>("1").is_err());
    }
}
