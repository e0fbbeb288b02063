//! Figures as JSON files, indented and with a final newline, so that they are readable and have useful diffs.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

/// Figures with the version of their format (`docs/schemas`).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Versioned<'a, T> {
    /// The version.
    pub schema: u32,
    /// The figures, a structure.
    #[serde(flatten)]
    pub figures: &'a T,
}

/// Error in writing figures.
#[derive(Debug, Error)]
pub enum JsonError {
    /// The figures cannot be serialized.
    #[error("cannot write JSON")]
    Form(#[source] serde_json::Error),
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns the text of figures, without a final newline.
pub fn text(figures: &impl Serialize) -> Result<String, JsonError> {
    serde_json::to_string_pretty(figures).map_err(JsonError::Form)
}

/// Writes figures to a file.
pub fn write(path: &Path, figures: &impl Serialize) -> Result<(), JsonError> {
    let text = text(figures)? + "\n";
    std::fs::write(path, text).map_err(|source| JsonError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_ends_with_newline() {
        let path = std::env::temp_dir().join(format!("tandem-json-{}", std::process::id()));
        write(&path, &[1, 2]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "[\n  1,\n  2\n]\n");
    }

    #[test]
    fn write_error_names_file() {
        let error = write(Path::new("/nowhere/x.json"), &1).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /nowhere/x.json");
    }
}
