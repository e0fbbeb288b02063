//! Reads the workload files of a comparison, and rejects workloads that cannot be compared.

use std::io;
use std::path::{Path, PathBuf};

use tandem_sim::workload::parse;
use thiserror::Error;

use super::cpus::CPUS;
use super::groups::{Case, GroupsError};
use super::real::RealError;
use super::{groups, real};

/// Error of workload files.
#[derive(Debug, Error)]
pub enum WorkloadsError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The paths contain no workloads.
    #[error("there are no workloads (*.toml) in {0:?}")]
    None(Vec<PathBuf>),
    /// A workload or group is invalid.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// A workload does not fit the number of CPUs.
    #[error("{path}: {message}")]
    Size {
        /// The path.
        path: PathBuf,
        /// The cause.
        message: String,
    },
    /// A workload has no counterpart in user space.
    #[error("{path} cannot be compared: {source}")]
    Refused {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: RealError,
    },
}

/// Reads workload files, and those in folders in order of their names.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Case>, WorkloadsError> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut found: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable(path))? {
            let file = entry.map_err(unreadable(path))?.path();
            if file.extension().is_some_and(|extension| extension == "toml") {
                found.push(file);
            }
        }
        found.sort();
        files.extend(found);
    }
    if files.is_empty() {
        return Err(WorkloadsError::None(paths.to_vec()));
    }
    files.iter().map(|file| one(file)).collect()
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> WorkloadsError {
    move |source| WorkloadsError::Read { path: path.to_owned(), source }
}

fn one(file: &Path) -> Result<Case, WorkloadsError> {
    let text = std::fs::read_to_string(file).map_err(unreadable(file))?;
    let case = groups::from_text(&file.to_string_lossy(), &text)?;
    for workload in case.workloads() {
        parse::fits(workload, CPUS, CPUS)
            .map_err(|message| WorkloadsError::Size { path: file.to_owned(), message })?;
        real::check(workload)
            .map_err(|source| WorkloadsError::Refused { path: file.to_owned(), source })?;
    }
    Ok(case)
}
