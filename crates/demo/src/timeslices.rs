//! Run time, wait time and number of time slices of each vCPU thread, read 20 times per second at minimal cost.
//!
//! Source: the three numbers of `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst).
//! Each file is opened once and reread from its start: one system call per vCPU and tick, a few microseconds.
//! The sampler of the `linux` crate reads only the first two numbers, and opens a second file per vCPU for its state.
//!
//! The kernel adds a wait when it ends, and updates run time at clock ticks and context switches.
//! [`crate::windows`] computes figures from these accounts.

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

/// Size of the buffer: three numbers of 64 bits.
const BYTES: usize = 96;

/// A vCPU's account could not be read.
#[derive(Debug, Error)]
pub enum TimeslicesError {
    /// The file cannot be opened or read: the thread ended, or the kernel has no schedstat.
    #[error("cannot read {}; the VM ended, or the kernel has no CONFIG_SCHED_INFO", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is malformed.
    #[error("{} holds '{text}'; expected three numbers", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
    },
}

/// A vCPU's account since the start of its thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Run time.
    pub ran: Nanos,
    /// Time runnable but not running, counted at the end of each wait.
    pub waited: Nanos,
    /// Number of time slices.
    pub slices: u64,
}

/// The accounts of all vCPUs at one moment.
#[derive(Clone, Debug)]
pub struct Tick {
    /// Time of the reading.
    pub at: Instant,
    /// Per VM and vCPU.
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

    /// Reads all files.
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
    fn schedstat_is_parsed() {
        let account = Account { ran: Nanos(31_000_000), waited: Nanos(2_500_000), slices: 17 };
        assert_eq!(parse("31000000 2500000 17\n"), Some(account));
        assert_eq!(parse("31000000 2500000"), None);
        assert_eq!(parse("a b c"), None);
    }

    #[test]
    fn malformed_file_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nothing\n").unwrap();
        let open = (file.path().to_owned(), File::open(file.path()).unwrap());
        let error = account(&open).unwrap_err().to_string();
        assert!(error.ends_with("holds 'nothing'; expected three numbers"), "{error}");
    }
}
