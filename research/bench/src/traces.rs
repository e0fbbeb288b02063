//! What the daemon holds and leaves, moment by moment, and whether that grows.
//!
//! While VMs come and go at a steady rate, what the daemon holds goes up and down with them. What grows shows when the first quarter of the time is held
//! against the last: by the mean, and by the most. The quarters are those of the time in which VMs started; nothing is judged here.

use std::io;
use std::path::{Path, PathBuf};

use crate::usage::{Usage, UsageError, files_kept_open};
use serde::Serialize;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::{ProcFs, cgroup};
use thiserror::Error;

use tandem_demo::daemon_process::DaemonProcess;

/// Fewer samples than that in a quarter say nothing.
const FEWEST: usize = 5;

/// The daemon and its traces at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traces {
    /// What it uses.
    pub daemon: Usage,
    /// Files that the daemon keeps open; those it reads at the moment are not among them.
    pub open_files: usize,
    /// Cgroups of Tandem's.
    pub cgroups: usize,
    /// Size of its journal.
    pub journal_bytes: u64,
}

/// Why the traces are not known.
#[derive(Debug, Error)]
pub enum TracesError {
    /// What the daemon uses could not be read.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// There are no cgroups to count.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// The daemon's journal could not be measured.
    #[error("cannot look at {}", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Traces {
    /// Those of this moment, of VMs whose names begin so; it takes a sixth of a second, to tell files that are kept open from others.
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

/// The traces while VMs come and go.
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

/// A figure over a part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quarter {
    /// Its mean.
    pub mean: f64,
    /// The most.
    pub most: f64,
}

/// A figure in the first and in the last quarter of the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quarters {
    /// What it is.
    pub figure: &'static str,
    /// Its unit; empty for numbers.
    pub unit: &'static str,
    /// In the first quarter.
    pub first: Quarter,
    /// In the last quarter.
    pub last: Quarter,
}

/// Each figure in the first and in the last quarter. `None` where there are too few samples to say.
pub fn quarters(samples: &[Sample]) -> Option<Vec<Quarters>> {
    let end = samples.last()?.seconds;
    let within = |from: f64, to: f64| -> Vec<Sample> {
        let inside = |sample: &&Sample| (from..=to).contains(&sample.seconds);
        samples.iter().filter(inside).copied().collect()
    };
    let (first, last) = (within(0.0, end / 4.0), within(end * 3.0 / 4.0, end));
    if first.len() < FEWEST || last.len() < FEWEST {
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

/// How many cgroups of Tandem's there are for VMs whose names begin so, and below those.
pub fn cgroups(names: &str) -> Result<usize, CgroupError> {
    let ours = format!("tandem-{names}");
    Ok(count(cgroup::open(&ProcFs::host())?.mount(), &ours))
}

/// Folders whose names begin so, and those below them. They come and go while we look; what is gone does not count.
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
    fn what_grows_shows_in_the_last_quarter() {
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
    fn few_samples_say_nothing() {
        assert_eq!(quarters(&[]), None);
        let samples: Vec<Sample> = (0..12).map(|n| sample(f64::from(n), 1, 1)).collect();
        assert_eq!(quarters(&samples), None);
    }

    #[test]
    fn tandems_cgroups_of_these_vms_are_counted_at_any_depth() {
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
