//! The folder that a measurement works in, in memory where the machine has `/dev/shm`, and gone at its
//! end.
//!
//! Data sets, sources, sockets and a database live there: none of them is worth keeping, and a disk
//! would add noise of its own. The folder holds a lock as long as its owner lives, so that a later
//! measurement can tell what a killed one left behind, and removes it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, flock, mkdir};
use rustix::io::Errno;
use thiserror::Error;

const PREFIX: &str = "tandem-bench-guest-";
const LOCK: &str = "lock";

/// Why there is no folder to work in.
#[derive(Debug, Error)]
pub enum FolderError {
    /// It cannot be made.
    #[error("cannot make {}", path.display())]
    Make {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// Its lock cannot be made.
    #[error("cannot create {}", path.display())]
    Create {
        /// The lock.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its lock cannot be taken.
    #[error("cannot lock {}", path.display())]
    Lock {
        /// The lock.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// All names are taken.
    #[error("{} is full of folders {PREFIX}{owner}-*", parent.display())]
    Full {
        /// Where.
        parent: PathBuf,
        /// This process.
        owner: u32,
    },
}

/// Why a folder was not copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// The folder.
    #[error("cannot copy {} to {}", from.display(), to.display())]
    Folder {
        /// Which.
        from: PathBuf,
        /// Where to.
        to: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file in it.
    #[error("cannot copy {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// A new folder where this machine best has it.
    pub fn new() -> Result<Folder, FolderError> {
        let shm = Path::new("/dev/shm");
        Folder::within(&if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() })
    }

    /// A new folder in `parent`; removes those there whose owner is gone.
    fn within(parent: &Path) -> Result<Folder, FolderError> {
        sweep(parent);
        let me = std::process::id();
        // More than one in a process happens in tests only.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next measurement tries again.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes folders of owners that are gone. What cannot be removed, such as another user's, stays.
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

/// Copies a folder with all in it that is a file or a folder.
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
    fn what_a_killed_owner_left_is_removed_and_what_is_in_use_stays() {
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
    fn a_copy_has_everything() {
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
