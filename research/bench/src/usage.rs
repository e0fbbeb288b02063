//! Resources of a process: CPU time, memory, open files.
//!
//! Sources: `/proc/PID/task/*/schedstat`, `/proc/PID/status`, `/proc/PID/fd`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tandem_model::Nanos;
use thiserror::Error;

use tandem_linux::ProcFs;
use tandem_linux::sampler::{SampleError, Sampler};
use tandem_linux::thread::{Pid, ThreadRef, Tid};

/// Error in reading a process's resources.
#[derive(Debug, Error)]
pub enum UsageError {
    /// Reading a folder or file of the process failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// A file lacks a figure.
    #[error("{} has no {key}", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
        /// The figure.
        key: &'static str,
    },
    /// Reading a thread's time failed.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl UsageError {
    fn reading(path: &Path) -> impl Fn(io::Error) -> UsageError {
        move |source| UsageError::Read { path: path.to_owned(), source }
    }
}

/// Resources of a process at one time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Usage {
    /// CPU time of its current threads since their start, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory, in KiB.
    pub rss_kib: u64,
    /// Peak resident memory, in KiB.
    pub peak_rss_kib: u64,
    /// Open descriptors, including briefly open ones.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
}

impl Usage {
    /// Reads the resources of `pid`.
    pub fn read(pid: Pid) -> Result<Usage, UsageError> {
        let procfs = ProcFs::host();
        let folder = procfs.process(pid);
        let mut sampler = Sampler::new(ProcFs::host());
        let mut cpu = Nanos::ZERO;
        let mut threads = 0;
        for tid in numbers(&folder.join("task"))? {
            let ran = ThreadRef::read(&procfs, pid, Tid(tid))
                .map_err(SampleError::from)
                .and_then(|thread| Ok(sampler.sample(&thread)?.ran));
            match ran {
                Ok(ran) => (cpu, threads) = (cpu + ran, threads + 1),
                // The thread ended meanwhile.
                Err(_) if !folder.join(format!("task/{tid}")).exists() && folder.exists() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let path = folder.join("status");
        let status = std::fs::read_to_string(&path).map_err(UsageError::reading(&path))?;
        let kib =
            |key| kib(&status, key).ok_or_else(|| UsageError::Absent { path: path.clone(), key });
        Ok(Usage {
            cpu_seconds: cpu.as_secs_f64(),
            rss_kib: kib("VmRSS")?,
            peak_rss_kib: kib("VmHWM")?,
            fds: numbers(&folder.join("fd"))?.len(),
            threads,
        })
    }
}

/// Number of readings in [`files_kept_open`].
const LOOKS: u32 = 10;

/// Time between two readings.
const BETWEEN_LOOKS: Duration = Duration::from_millis(17);

/// Counts the files that `pid` keeps open: descriptors of the same file in all of several readings.
/// Files that are opened, read and closed again do not count.
pub fn files_kept_open(pid: Pid) -> Result<usize, UsageError> {
    let folder = ProcFs::host().process(pid).join("fd");
    let look = || -> Result<BTreeSet<(u32, PathBuf)>, UsageError> {
        let open = numbers(&folder)?.into_iter().filter_map(|number| {
            // The file may be closed meanwhile.
            let file = std::fs::read_link(folder.join(number.to_string())).ok()?;
            Some((number, file))
        });
        Ok(open.collect())
    };
    let mut kept = look()?;
    for _ in 1..LOOKS {
        std::thread::sleep(BETWEEN_LOOKS);
        let now = look()?;
        kept.retain(|file| now.contains(file));
    }
    Ok(kept.len())
}

/// Returns the numeric entries of a folder.
fn numbers(folder: &Path) -> Result<Vec<u32>, UsageError> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(UsageError::reading(folder))? {
        let name = entry.map_err(UsageError::reading(folder))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}

fn kib(status: &str, key: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_usage() {
        let usage = Usage::read(Pid(std::process::id())).unwrap();
        assert!(usage.rss_kib > 0 && usage.peak_rss_kib >= usage.rss_kib);
        assert!(usage.fds >= 3 && usage.threads >= 1);
    }

    #[test]
    fn briefly_open_file_is_not_kept() {
        let kept_by = |script: &str| {
            let mut process = std::process::Command::new("sh")
                .args(["-c", script])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = [0];
            let output = process.stdout.as_mut().unwrap();
            std::io::Read::read_exact(output, &mut ready).unwrap();
            let kept = files_kept_open(Pid(process.id()));
            process.kill().unwrap();
            process.wait().unwrap();
            kept.unwrap()
        };
        let idle = kept_by("echo; while :; do :; done");
        assert!(idle >= 3, "standard input, output and errors: {idle}");
        assert_eq!(kept_by("echo; while :; do : 9</proc/self/status; done"), idle);
        assert_eq!(kept_by("exec 9</proc/self/status; echo; while :; do :; done"), idle + 1);
    }

    #[test]
    fn status_lines_are_parsed() {
        let status = "Name:\tx\nVmHWM:\t    5120 kB\nVmRSS:\t 4096 kB\n";
        assert_eq!(kib(status, "VmRSS"), Some(4096));
        assert_eq!(kib(status, "VmSwap"), None);
    }

    #[test]
    fn missing_process_is_an_error() {
        assert!(Usage::read(Pid(u32::MAX)).is_err());
    }
}
