//! Samples of the daemon's resources and of its traces on the host, to detect leaks.
//!
//! While VMs come and go at a steady rate, the daemon's resources rise and fall with them.
//! A leak shows in the comparison of the first quarter of the time with the last, by mean and maximum.
//! The time is that in which VMs started.

use std::io;
use std::path::{Path, PathBuf};

use crate::usage::{Usage, UsageError, files_kept_open};
use serde::Serialize;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::{ProcFs, cgroup};
use thiserror::Error;

use tandem_demo::daemon_process::DaemonProcess;

/// Minimum number of samples in a quarter.
const MIN_SAMPLES: usize = 5;

/// Resources and traces of the daemon at one time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traces {
    /// Resources of the daemon.
    pub daemon: Usage,
    /// Files that the daemon keeps open, without those that it is just reading.
    pub open_files: usize,
    /// Tandem's cgroups.
    pub cgroups: usize,
    /// Size of its journal.
    pub journal_bytes: u64,
}

/// Error in reading traces.
#[derive(Debug, Error)]
pub enum TracesError {
    /// Reading the daemon's resources failed.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The host has no cgroups.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// Reading the size of the daemon's journal failed.
    #[error("cannot look at {}", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

impl Traces {
    /// Reads the traces of VMs whose names begin with `names`.
    /// Takes about 150 ms, to tell files that are kept open from others.
    pub fn read(daemon: &DaemonProcess, names: &str) -> Result<Traces, TracesError> {
        let journal = daemon.journal();
        let journal_bytes = std::fs::metadata(&journal)
            .map_err(|source| TracesError::Journal { path: journal, source })?
            .len();
        Ok(Traces {
            daemon: Usage::read(daemon.pid())?,
            open_files: files_kept_open(daemon.pid())?,
            cgroups: cgroups(names)?,
            journal_bytes,
        })
    }
}

/// A sample while VMs come and go.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Seconds since the first start.
    pub seconds: f64,
    /// VMs started so far.
    pub starts: u32,
    /// The traces.
    #[serde(flatten)]
    pub traces: Traces,
}

/// A figure over a quarter of the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quarter {
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub most: f64,
}

/// A figure in the first and in the last quarter of the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quarters {
    /// Name of the figure.
    pub figure: &'static str,
    /// Unit; empty for counts.
    pub unit: &'static str,
    /// In the first quarter.
    pub first: Quarter,
    /// In the last quarter.
    pub last: Quarter,
}

/// Returns each figure in the first and in the last quarter; `None` if there are too few samples.
pub fn quarters(samples: &[Sample]) -> Option<Vec<Quarters>> {
    let end = samples.last()?.seconds;
    let within = |from: f64, to: f64| -> Vec<Sample> {
        let inside = |sample: &&Sample| (from..=to).contains(&sample.seconds);
        samples.iter().filter(inside).copied().collect()
    };
    let (first, last) = (within(0.0, end / 4.0), within(end * 3.0 / 4.0, end));
    if first.len() < MIN_SAMPLES || last.len() < MIN_SAMPLES {
        return None;
    }
    type Figure = (&'static str, &'static str, fn(&Traces) -> f64);
    let figures: [Figure; 6] = [
        ("daemon open files", "", |t| t.open_files as f64),
        ("daemon descriptors", "", |t| t.daemon.fds as f64),
        ("daemon memory", "KiB", |t| t.daemon.rss_kib as f64),
        ("daemon threads", "", |t| t.daemon.threads as f64),
        ("Tandem's cgroups", "", |t| t.cgroups as f64),
        ("journal", "bytes", |t| t.journal_bytes as f64),
    ];
    let of = |samples: &[Sample], figure: fn(&Traces) -> f64| {
        let values = || samples.iter().map(|sample| figure(&sample.traces));
        Quarter {
            mean: values().sum::<f64>() / samples.len() as f64,
            most: values().fold(0.0, f64::max),
        }
    };
    let quarters = figures.map(|(figure, unit, read)| Quarters {
        figure,
        unit,
        first: of(&first, read),
        last: of(&last, read),
    });
    Some(quarters.to_vec())
}

/// Counts Tandem's cgroups for VMs whose names begin with `names`, and the cgroups below them.
pub fn cgroups(names: &str) -> Result<usize, CgroupError> {
    let ours = format!("tandem-{names}");
    Ok(count(cgroup::open(&ProcFs::host())?.mount(), &ours))
}

/// Counts folders whose names begin with `ours`, and all folders below them. Folders that vanish meanwhile do not count.
fn count(folder: &Path, ours: &str) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let folders = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| match entry.file_name().to_string_lossy() {
            name if name.starts_with(ours) => 1 + count(&entry.path(), ""),
            _ => count(&entry.path(), ours),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, rss_kib: u64, cgroups: usize) -> Sample {
        Sample {
            seconds,
            starts: 0,
            traces: Traces {
                daemon: Usage {
                    cpu_seconds: 0.0,
                    rss_kib,
                    peak_rss_kib: rss_kib,
                    fds: 12,
                    threads: 2,
                },
                open_files: 10,
                cgroups,
                journal_bytes: 100,
            },
        }
    }

    #[test]
    fn growth_shows_in_the_last_quarter() {
        let samples: Vec<Sample> = (0..=100u32)
            .map(|n| sample(f64::from(n), 5_000 + u64::from(n), (n % 2) as usize * 4))
            .collect();
        let quarters = quarters(&samples).unwrap();
        let of = |figure: &str| quarters.iter().find(|q| q.figure == figure).unwrap();
        let memory = of("daemon memory");
        assert_eq!((memory.first.mean, memory.first.most), (5012.5, 5025.0));
        assert_eq!((memory.last.mean, memory.last.most), (5087.5, 5100.0));
        let groups = of("Tandem's cgroups");
        assert_eq!((groups.first.most, groups.last.most), (4.0, 4.0));
        assert_eq!(of("journal").first, of("journal").last);
    }

    #[test]
    fn few_samples_have_no_quarters() {
        assert_eq!(quarters(&[]), None);
        let samples: Vec<Sample> = (0..12).map(|n| sample(f64::from(n), 1, 1)).collect();
        assert_eq!(quarters(&samples), None);
    }

    #[test]
    fn cgroups_are_counted_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for path in [
            "tandem-a0-1",
            "tandem-a0-1/vcpu0",
            "machine/tandem-a1-2",
            "machine/tandem-b0-3",
            "machine/other",
        ] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        std::fs::write(dir.path().join("tandem-a.txt"), "").unwrap();
        assert_eq!(count(dir.path(), "tandem-a"), 3);
        assert_eq!(count(&dir.path().join("gone"), "tandem-a"), 0);
    }
}
