//! Scripts of the lab that build a file and print its path.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use thiserror::Error;

use crate::file::FileError;

/// Error of a script.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The script did not start.
    #[error(transparent)]
    File(#[from] FileError),
    /// The script failed.
    #[error("{script} failed ({status}): {last}")]
    Failed {
        /// Path of the script.
        script: PathBuf,
        /// Exit status.
        status: ExitStatus,
        /// Its last line.
        last: String,
    },
    /// The script printed nothing.
    #[error("{0} printed no path")]
    Silent(PathBuf),
}

/// Runs a script and returns the path in its last line on stdout. The script inherits stderr.
pub fn printed_path(script: &Path, arguments: &[&str]) -> Result<PathBuf, ScriptError> {
    let output = Command::new(script)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(FileError::of("run", script))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().next_back().unwrap_or_default();
    if !output.status.success() {
        return Err(ScriptError::Failed {
            script: script.to_owned(),
            status: output.status,
            last: last.to_owned(),
        });
    }
    if last.is_empty() {
        return Err(ScriptError::Silent(script.to_owned()));
    }
    Ok(PathBuf::from(last))
}
