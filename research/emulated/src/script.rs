//! The lab's scripts that build something and print where it is.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use thiserror::Error;

use crate::file::FileError;

/// Why a script gave no path.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// It did not start.
    #[error(transparent)]
    File(#[from] FileError),
    /// It failed.
    #[error("{script} failed ({status}): {last}")]
    Failed {
        /// Which.
        script: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// Its last line.
        last: String,
    },
    /// It printed nothing.
    #[error("{0} printed no path")]
    Silent(PathBuf),
}

/// Runs a script whose last line on stdout is a path. What it says on stderr is shown.
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
