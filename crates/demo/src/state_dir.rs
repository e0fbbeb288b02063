//! The directory an experiment works in: journals of what it changed, logs of its children.
//!
//! One experiment at a time: two would measure each other. The lock is held for as long as the
//! experiment lasts and ends with the process, however that ends. What an earlier experiment that was
//! killed has left behind is put back before anything is measured.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::put_back::{PutBackError, put_back};

/// Where experiments work unless told otherwise: gone after a reboot, as cgroups are.
pub const DEFAULT: &str = "/run/tandem-demo";

/// The default for a user who may not write there; such a user may not change cgroups either.
pub fn default_for(uid: u32) -> PathBuf {
    match uid {
        0 => PathBuf::from(DEFAULT),
        uid => std::env::temp_dir().join(format!("tandem-demo-{uid}")),
    }
}

/// Why an experiment has no directory to work in.
#[derive(Debug, Error)]
pub enum StateDirError {
    /// It cannot be made, or nothing in it.
    #[error("cannot use {}; choose another with --state-dir", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is in use.
    #[error(
        "another experiment is running in {}; wait for it, or stop it",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// What a killed experiment left could not be put back.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
}

/// The directory, locked.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    made: bool,
    _lock: File,
}

impl StateDir {
    /// Makes the directory, locks it, and puts back what a killed experiment left.
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

    /// Journal of the modes that work by cgroups alone.
    pub fn groups(&self) -> PathBuf {
        self.path.join("groups")
    }

    /// Journal and log of the daemon.
    pub fn daemon(&self) -> PathBuf {
        self.path.join("daemon")
    }

    /// Logs of the VMs.
    pub fn logs(&self) -> &Path {
        &self.path
    }

    /// Ends well: removes the directory if it was not there before.
    pub fn finish(self) {
        if self.made {
            // Left-over logs harm nobody.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_experiments_do_not_share_a_directory() {
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
    fn a_directory_that_was_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        StateDir::open(dir.path()).unwrap().finish();
        assert!(dir.path().exists());
    }

    #[test]
    fn an_unusable_path_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = StateDir::open(&file.path().join("x")).unwrap_err().to_string();
        assert!(error.contains("choose another with --state-dir"), "{error}");
    }
}
