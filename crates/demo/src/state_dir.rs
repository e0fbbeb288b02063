//! The state directory of an experiment: journals of its changes, logs of its children.
//!
//! A lock permits only one experiment at a time, because two would disturb each other.
//! The kernel releases the lock when the process ends.
//! Changes of an earlier experiment that was killed are reverted before the first measurement.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::put_back::{PutBackError, put_back};

/// Default state directory; like cgroups, it does not survive a reboot.
pub const DEFAULT: &str = "/run/tandem-demo";

/// Returns the default for a user; only root can write to [`DEFAULT`], and only root can change cgroups.
pub fn default_for(uid: u32) -> PathBuf {
    match uid {
        0 => PathBuf::from(DEFAULT),
        uid => std::env::temp_dir().join(format!("tandem-demo-{uid}")),
    }
}

/// The state directory could not be opened.
#[derive(Debug, Error)]
pub enum StateDirError {
    /// The directory or a file in it cannot be created.
    #[error("cannot use {}; choose another with --state-dir", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The directory is in use.
    #[error(
        "another experiment is running in {}; wait for it, or stop it",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The changes of a killed experiment could not be reverted.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
}

/// The locked directory.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    made: bool,
    _lock: File,
}

impl StateDir {
    /// Creates and locks the directory, and reverts the changes of a killed experiment.
    pub fn open(path: &Path) -> Result<StateDir, StateDirError> {
        let made = !path.exists();
        let unusable = |source| StateDirError::Unusable { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(unusable)?;
        let lock = File::create(path.join("experiment.lock")).map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(StateDirError::InUse { path: path.to_owned() });
            }
            Err(error) => return Err(unusable(error.into())),
        }
        let dir = StateDir { path: path.to_owned(), made, _lock: lock };
        for journals in [dir.groups(), dir.daemon()] {
            if journals.join("journal").exists() {
                put_back(&journals)?;
            }
        }
        Ok(dir)
    }

    /// Returns the directory of the journal of modes without the daemon.
    pub fn groups(&self) -> PathBuf {
        self.path.join("groups")
    }

    /// Returns the directory of the journal and log of the daemon.
    pub fn daemon(&self) -> PathBuf {
        self.path.join("daemon")
    }

    /// Returns the directory of the logs of the VMs.
    pub fn logs(&self) -> &Path {
        &self.path
    }

    /// Removes the directory after a success if this experiment created it.
    pub fn finish(self) {
        if self.made {
            // Remaining logs are harmless.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_experiment_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let first = StateDir::open(&path).unwrap();
        let error = StateDir::open(&path).unwrap_err().to_string();
        assert!(error.contains("another experiment is running in"), "{error}");
        first.finish();
        assert!(!path.exists());
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn existing_directory_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        StateDir::open(dir.path()).unwrap().finish();
        assert!(dir.path().exists());
    }

    #[test]
    fn unusable_path_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = StateDir::open(&file.path().join("x")).unwrap_err().to_string();
        assert!(error.contains("choose another with --state-dir"), "{error}");
    }
}
