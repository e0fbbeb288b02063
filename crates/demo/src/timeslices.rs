//! What each vCPU thread ran, waited, and how often it ran, read twenty times a second at the least cost there is.
//!
//! Source: the three numbers of `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst). The files are opened
//! once and read again from their start: one system call per vCPU and tick, a few microseconds. The host crate's sampler reads the
//! first two numbers, and for every vCPU opens a second file for its state, which is not needed here.
//!
//! The kernel adds to the wait when it is over, and brings the time that a vCPU ran up to date at clock ticks and switches.
//! [`crate::windows`] makes figures of these.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tandem_linux::ProcFs;
use tandem_model::Nanos;
use thiserror::Error;

use crate::vm_process::VmProcess;

/// Time between two readings.
pub const TICK: Duration = Duration::from_millis(50);

/// Room for three numbers of 64 bits.
const BYTES: usize = 96;

/// Why a vCPU's account could not be read.
#[derive(Debug, Error)]
pub enum TimeslicesError {
    /// The file cannot be opened or read: the thread ended, or the kernel keeps no such account.
    #[error("cannot read {}; the VM ended, or the kernel has no CONFIG_SCHED_INFO", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} holds '{text}'; expected three numbers", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
}

/// A vCPU's account since its thread started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Time on a pCPU.
    pub ran: Nanos,
    /// Time runnable without running, counted when a wait is over.
    pub waited: Nanos,
    /// Times that it got a pCPU.
    pub slices: u64,
}

/// All vCPUs at one moment.
#[derive(Clone, Debug)]
pub struct Tick {
    /// When.
    pub at: Instant,
    /// Per VM, per vCPU.
    pub vms: Vec<Vec<Account>>,
}

/// The open files of all vCPUs.
#[derive(Debug)]
pub struct Timeslices {
    vms: Vec<Vec<(PathBuf, File)>>,
}

impl Timeslices {
    /// Opens a file for each vCPU of `vms`.
    pub fn open(vms: &[VmProcess]) -> Result<Timeslices, TimeslicesError> {
        let procfs = ProcFs::host();
        let open = |vm: &VmProcess| {
            let files = vm.threads().iter().map(|thread| {
                let path = procfs.task(thread.pid, thread.tid).join("schedstat");
                match File::open(&path) {
                    Ok(file) => Ok((path, file)),
                    Err(source) => Err(TimeslicesError::Read { path, source }),
                }
            });
            files.collect::<Result<_, _>>()
        };
        Ok(Timeslices { vms: vms.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Reads all of them.
    pub fn read(&self) -> Result<Tick, TimeslicesError> {
        let at = Instant::now();
        let vms =
            self.vms.iter().map(|vm| vm.iter().map(account).collect()).collect::<Result<_, _>>()?;
        Ok(Tick { at, vms })
    }
}

fn account((path, file): &(PathBuf, File)) -> Result<Account, TimeslicesError> {
    let mut buffer = [0; BYTES];
    let bytes = file
        .read_at(&mut buffer, 0)
        .map_err(|source| TimeslicesError::Read { path: path.clone(), source })?;
    let text = String::from_utf8_lossy(&buffer[..bytes]);
    parse(&text).ok_or_else(|| TimeslicesError::Malformed {
        path: path.clone(),
        text: text.trim_end().to_owned(),
    })
}

fn parse(text: &str) -> Option<Account> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(Account { ran: Nanos(next()?), waited: Nanos(next()?), slices: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_numbers_are_read_in_their_order() {
        let account = Account { ran: Nanos(31_000_000), waited: Nanos(2_500_000), slices: 17 };
        assert_eq!(parse("31000000 2500000 17\n"), Some(account));
        assert_eq!(parse("31000000 2500000"), None);
        assert_eq!(parse("a b c"), None);
    }

    #[test]
    fn a_file_that_is_something_else_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nothing\n").unwrap();
        let open = (file.path().to_owned(), File::open(file.path()).unwrap());
        let error = account(&open).unwrap_err().to_string();
        assert!(error.ends_with("holds 'nothing'; expected three numbers"), "{error}");
    }
}
