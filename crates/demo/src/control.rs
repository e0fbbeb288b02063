//! What a microVM and its owner say to each other over stdin and stdout, a line each.
//!
//! The VM begins with a [`Ready`] line once it has booted. To each line on its stdin it answers with a
//! [`Snapshot`] of its counters; it stops when its stdin ends, and so never outlives its owner.
//! [`crate::vm_run`] is the VM's side, [`crate::vm_process`] the owner's.

use std::io;
use std::io::Write;

use serde::{Deserialize, Serialize};
use tandem_microvm::Backend;
use thiserror::Error;

pub use tandem_microvm::Snapshot;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Always true.
    pub ready: bool,
    /// The VM's process.
    pub pid: u32,
    /// What runs the vCPUs.
    pub backend: Backend,
    /// How fast the machine computes, for VMs whose work is compared.
    pub calibration: String,
    /// The vCPUs.
    pub vcpus: Vec<ReadyVcpu>,
}

/// A vCPU's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyVcpu {
    /// Its number in the VM.
    pub index: usize,
    /// Its thread.
    pub tid: u32,
}

/// Why a line was not said.
#[derive(Debug, Error)]
pub enum SayError {
    /// It has no form in JSON.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// Nobody listens.
    #[error("cannot write to stdout")]
    Write(#[source] io::Error),
}

/// Says a line, at once.
pub fn say(to: &mut dyn Write, value: &impl Serialize) -> Result<(), SayError> {
    let line = serde_json::to_string(value)?;
    writeln!(to, "{line}").and_then(|()| to.flush()).map_err(SayError::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_said() {
        let ready = Ready {
            ready: true,
            pid: 7,
            backend: Backend::Threads,
            calibration: "1:2".to_owned(),
            vcpus: vec![ReadyVcpu { index: 0, tid: 8 }],
        };
        let mut said = Vec::new();
        say(&mut said, &ready).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(
            said,
            "{\"ready\":true,\"pid\":7,\"backend\":\"threads\",\"calibration\":\"1:2\",\
             \"vcpus\":[{\"index\":0,\"tid\":8}]}\n"
        );
        assert_eq!(serde_json::from_str::<Ready>(&said).unwrap(), ready);
    }
}
