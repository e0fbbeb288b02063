//! The line protocol between a microVM and its owner, over stdin and stdout.
//!
//! The VM prints a [`Ready`] line when it has booted.
//! It answers each line on its stdin with a [`Snapshot`] of its counters.
//! It stops when its stdin ends, so it never outlives its owner.
//! [`crate::vm_run`] implements the VM's side, [`crate::vm_process`] the owner's.

use std::io;
use std::io::Write;

use serde::{Deserialize, Serialize};
use tandem_microvm::Backend;
use thiserror::Error;

pub use tandem_microvm::Snapshot;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Always `true`.
    pub ready: bool,
    /// Process id of the VM.
    pub pid: u32,
    /// The backend that runs the vCPUs.
    pub backend: Backend,
    /// Calibration of the computing speed, for VMs whose work is compared.
    pub calibration: String,
    /// The vCPUs.
    pub vcpus: Vec<ReadyVcpu>,
}

/// A vCPU's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyVcpu {
    /// The vCPU's index in the VM.
    pub index: usize,
    /// Its thread id.
    pub tid: u32,
}

/// A line could not be sent.
#[derive(Debug, Error)]
pub enum SayError {
    /// The value cannot be serialized.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// The owner closed the pipe.
    #[error("cannot write to stdout")]
    Write(#[source] io::Error),
}

/// Writes a value as one line and flushes it.
pub fn say(to: &mut dyn Write, value: &impl Serialize) -> Result<(), SayError> {
    let line = serde_json::to_string(value)?;
    writeln!(to, "{line}").and_then(|()| to.flush()).map_err(SayError::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_line_round_trips() {
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
