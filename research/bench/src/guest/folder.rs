//! The temporary folder of a measurement, in memory if the machine has `/dev/shm`.
//!
//! It holds data sets, sources, sockets and a database; on a disk they would add noise.
//! The owner holds a lock in the folder while it lives, so a later measurement recognizes and removes the folders of killed ones.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, flock, mkdir};
use rustix::io::Errno;
use thiserror::Error;

const PREFIX: &str = "tandem-bench-guest-";
const LOCK: &str = "lock";

/// Error in creating the folder.
#[derive(Debug, Error)]
pub enum FolderError {
    /// Creating the folder failed.
    #[error("cannot make {}", path.display())]
    Make {
        /// The folder.
        path: PathBuf,
        /// OS error.
        source: Errno,
    },
    /// Creating its lock file failed.
    #[error("cannot create {}", path.display())]
    Create {
        /// The lock.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Taking its lock failed.
    #[error("cannot lock {}", path.display())]
    Lock {
        /// The lock.
        path: PathBuf,
        /// OS error.
        source: Errno,
    },
    /// All names are taken.
    #[error("{} is full of folders {PREFIX}{owner}-*", parent.display())]
    Full {
        /// Folder of the folders.
        parent: PathBuf,
        /// PID of this process.
        owner: u32,
    },
}

/// Error in copying a folder.
#[derive(Debug, Error)]
pub enum CopyError {
    /// Copying the folder failed.
    #[error("cannot copy {} to {}", from.display(), to.display())]
    Folder {
        /// Source.
        from: PathBuf,
        /// Destination.
        to: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Copying a file in it failed.
    #[error("cannot copy {}", path.display())]
    File {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

/// A temporary folder with a lock; removed on drop.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Creates a folder in `/dev/shm`, else in the temporary directory.
    pub fn new() -> Result<Folder, FolderError> {
        let shm = Path::new("/dev/shm");
        Folder::within(&if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() })
    }

    /// Creates a folder in `parent`, and removes those whose owners are gone.
    fn within(parent: &Path) -> Result<Folder, FolderError> {
        sweep(parent);
        let me = std::process::id();
        // Only tests create more than one per process.
        for number in 0..1000 {
            let path = parent.join(format!("{PREFIX}{me}-{number}"));
            match mkdir(&path, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(source) => return Err(FolderError::Make { path, source }),
            }
            let lock = path.join(LOCK);
            let file = match File::create(&lock) {
                Ok(file) => file,
                Err(source) => return Err(FolderError::Create { path: lock, source }),
            };
            if let Err(source) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
                return Err(FolderError::Lock { path: lock, source });
            }
            return Ok(Folder { path, _lock: file });
        }
        Err(FolderError::Full { parent: parent.to_owned(), owner: me })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next measurement retries.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes folders whose owners are gone, except those that cannot be removed, such as other users'.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if ours && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Copies a folder recursively; omits everything but files and folders.
pub fn copy(from: &Path, to: &Path) -> Result<(), CopyError> {
    let said = |source| CopyError::Folder { from: from.to_owned(), to: to.to_owned(), source };
    std::fs::create_dir_all(to).map_err(said)?;
    for entry in std::fs::read_dir(from).map_err(said)? {
        let entry = entry.map_err(said)?;
        let (here, there) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(said)?;
        if kind.is_dir() {
            copy(&here, &there)?;
        } else if kind.is_file() {
            std::fs::copy(&here, &there)
                .map_err(|source| CopyError::File { path: here, source })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_removes_only_abandoned_folders() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(format!("{PREFIX}1-0"));
        std::fs::create_dir_all(left.join("deep")).unwrap();
        std::fs::write(left.join(LOCK), "").unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        let first = Folder::within(dir.path()).unwrap();
        assert!(!left.exists());
        let second = Folder::within(dir.path()).unwrap();
        assert!(first.path().exists() && first.path() != second.path());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists() && dir.path().join("other").exists());
    }

    #[test]
    fn copy_is_recursive() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("a");
        std::fs::create_dir_all(from.join("b")).unwrap();
        std::fs::write(from.join("b/c"), "text").unwrap();
        let to = dir.path().join("copy");
        copy(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("b/c")).unwrap(), "text");
        assert!(copy(&dir.path().join("gone"), &to).is_err());
    }
}
