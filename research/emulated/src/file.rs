//! Errors of files, folders and programs, with the path.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Error of an action on a file, a folder or a program.
#[derive(Debug, Error)]
#[error("cannot {action} {path}: {source}")]
pub struct FileError {
    /// The action, such as `read`.
    pub action: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// OS error.
    pub source: io::Error,
}

impl FileError {
    /// Returns a function that converts an OS error of `action` on `path`.
    pub fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError { action, path: path.to_owned(), source }
    }
}
