//! What a running daemon or agent says of itself, in `STATE_DIR/status.json`.
//!
//! The file is replaced whole, so that a reader never sees half of it, and taken away at the end. After kill -9 it
//! stays; whether its writer still runs its contents have to tell. What is in it is the writer's own business.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::replace::replace;

/// The status could not be written or read.
#[derive(Debug, Error)]
#[error("cannot {action} the {writer}'s status {path}: {source}")]
pub struct StatusFileError {
    action: &'static str,
    writer: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The status file of one state directory.
#[derive(Clone, Debug)]
pub struct StatusFile {
    writer: &'static str,
    path: PathBuf,
}

impl StatusFile {
    /// Of this state directory; errors call who writes it `writer`, such as `agent`.
    pub fn new(state_dir: &Path, writer: &'static str) -> StatusFile {
        StatusFile {
            writer,
            path: state_dir.join("status.json"),
        }
    }

    /// Publishes a status.
    pub fn write(&self, status: &impl Serialize) -> Result<(), StatusFileError> {
        let text = serde_json::to_string(status).map_err(io::Error::from);
        text.and_then(|text| replace(&self.path, &text))
            .map_err(|source| self.failed("write", source))
    }

    /// What was published last; `None` without a file.
    pub fn read<T: DeserializeOwned>(&self) -> Result<Option<T>, StatusFileError> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| self.failed("read", error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    /// Takes the status away; nobody minds if there was none.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StatusFileError {
        StatusFileError {
            action,
            writer: self.writer,
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_there_from_its_first_write_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = StatusFile::new(dir.path(), "agent");
        assert_eq!(file.read::<Vec<u32>>().unwrap(), None);
        for status in [vec![1, 2, 3], vec![4]] {
            file.write(&status).unwrap();
            assert_eq!(file.read().unwrap(), Some(status));
        }
        file.remove();
        file.remove();
        assert_eq!(file.read::<Vec<u32>>().unwrap(), None);
    }

    #[test]
    fn errors_name_the_writer_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("status.json"), "{").unwrap();
        let file = StatusFile::new(dir.path(), "agent");
        let error = file.read::<Vec<u32>>().unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read the agent's status "),
            "{error}"
        );
        assert!(error.contains("status.json"), "{error}");
        let nowhere = StatusFile::new(&dir.path().join("none"), "daemon");
        let error = nowhere.write(&1).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot write the daemon's status "),
            "{error}"
        );
    }
}
