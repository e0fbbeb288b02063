//! What a process uses: CPU time, memory, open files. Sources: `/proc/PID/task/*/schedstat`,
//! `/proc/PID/status`, `/proc/PID/fd`.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tandem_host::ProcFs;
use tandem_host::sampler::Sampler;
use tandem_host::thread::Pid;
use tandem_host::thread::ThreadRef;
use tandem_host::thread::Tid;
use tandem_policy::Nanos;

/// A process at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Usage {
    /// CPU time of all threads it has now since they started, in seconds.
    pub cpu_seconds: f64,
    /// Memory that is in RAM now, in KiB.
    pub rss_kib: u64,
    /// The most memory that was ever in RAM, in KiB.
    pub peak_rss_kib: u64,
    /// Open files.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
}

impl Usage {
    /// Reads what `pid` uses now.
    pub fn read(pid: Pid) -> anyhow::Result<Usage> {
        let procfs = ProcFs::host();
        let folder = procfs.process(pid);
        let mut sampler = Sampler::new(ProcFs::host());
        let mut cpu = Nanos::ZERO;
        let mut threads = 0;
        for tid in numbers(&folder.join("task"))? {
            let ran = ThreadRef::read(&procfs, pid, Tid(tid))
                .map_err(anyhow::Error::from)
                .and_then(|thread| Ok(sampler.sample(&thread)?.ran));
            match ran {
                Ok(ran) => (cpu, threads) = (cpu + ran, threads + 1),
                // It ended since the folder was read.
                Err(_) if !folder.join(format!("task/{tid}")).exists() && folder.exists() => {}
                Err(error) => return Err(error),
            }
        }
        let path = folder.join("status");
        let status = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let kib = |key: &str| {
            kib(&status, key).with_context(|| format!("{} has no {key}", path.display()))
        };
        Ok(Usage {
            cpu_seconds: cpu.as_secs_f64(),
            rss_kib: kib("VmRSS")?,
            peak_rss_kib: kib("VmHWM")?,
            fds: numbers(&folder.join("fd"))?.len(),
            threads,
        })
    }
}

/// The entries of a folder whose entries are numbers.
fn numbers(folder: &Path) -> anyhow::Result<Vec<u32>> {
    let read = || format!("cannot read {}", folder.display());
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(read)? {
        let name = entry.with_context(read)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}

fn kib(status: &str, key: &str) -> Option<u64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::read(Pid(std::process::id())).unwrap();
        assert!(usage.rss_kib > 0 && usage.peak_rss_kib >= usage.rss_kib);
        assert!(usage.fds >= 3 && usage.threads >= 1);
    }

    #[test]
    fn the_kernels_format_is_read() {
        let status = "Name:\tx\nVmHWM:\t    5120 kB\nVmRSS:\t 4096 kB\n";
        assert_eq!(kib(status, "VmRSS"), Some(4096));
        assert_eq!(kib(status, "VmSwap"), None);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(Usage::read(Pid(u32::MAX)).is_err());
    }
}
