//! Status of a running daemon or agent, in `STATE_DIR/status.json`.
//!
//! The file is replaced atomically and removed at the end.
//! After kill -9 it stays, so its contents must show whether its writer still runs.
//! The writer defines the contents.

use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::replace::replace;

/// Maximum length of a status, in bytes.
const MAX_LENGTH: u64 = 64 << 20;

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
    /// The status file of this state directory; errors call its writer `writer`, such as `agent`.
    pub fn new(state_dir: &Path, writer: &'static str) -> StatusFile {
        StatusFile::named(state_dir, writer, "status.json")
    }

    /// A status file of another name.
    pub fn named(state_dir: &Path, writer: &'static str, file: &str) -> StatusFile {
        StatusFile { writer, path: state_dir.join(file) }
    }

    /// Publishes a status.
    pub fn write(&self, status: &impl Serialize) -> Result<(), StatusFileError> {
        let text = serde_json::to_string(status).map_err(io::Error::from);
        text.and_then(|text| replace(&self.path, &text))
            .map_err(|source| self.failed("write", source))
    }

    /// Reads the last published status; `None` without a file.
    pub fn read<T: DeserializeOwned>(&self) -> Result<Option<T>, StatusFileError> {
        match read(&self.path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| self.failed("read", error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    /// Removes the status, if there is one.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StatusFileError {
        StatusFileError { action, writer: self.writer, path: self.path.clone(), source }
    }
}

/// Reads a regular file only: a pipe would block, and a device may be endless.
fn read(path: &Path) -> io::Result<String> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file; remove it"));
    }
    let mut text = String::new();
    if file.take(MAX_LENGTH + 1).read_to_string(&mut text)? as u64 > MAX_LENGTH {
        Err(io::Error::other("it is longer than 64 MiB; remove it"))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_exists_until_removed() {
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
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        let file = StatusFile::new(dir.path(), "daemon");
        let put: [(&str, &dyn Fn()); 3] = [
            ("no file", &|| {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
            }),
            ("symbolic links", &|| {
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }),
            ("64 MiB", &|| {
                let long = std::fs::File::create(&path).unwrap();
                long.set_len(MAX_LENGTH + 1).unwrap();
            }),
        ];
        for (why, put) in put {
            put();
            let error = file.read::<Vec<u32>>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn errors_name_the_writer_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("status.json"), "{").unwrap();
        let file = StatusFile::new(dir.path(), "agent");
        let error = file.read::<Vec<u32>>().unwrap_err().to_string();
        assert!(error.starts_with("cannot read the agent's status "), "{error}");
        assert!(error.contains("status.json"), "{error}");
        let nowhere = StatusFile::new(&dir.path().join("none"), "daemon");
        let error = nowhere.write(&1).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the daemon's status "), "{error}");
    }
}
