//! Errors of files, folders and programs that name which it was.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Something could not be done with a file, a folder or a program.
#[derive(Debug, Error)]
#[error("cannot {action} {path}: {source}")]
pub struct FileError {
    /// What was tried, such as `read`.
    pub action: &'static str,
    /// With which file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    /// The error of trying `action` with `path`, once the system has said why.
    pub fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError { action, path: path.to_owned(), source }
    }
}
