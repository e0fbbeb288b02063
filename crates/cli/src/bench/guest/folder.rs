//! The folder that a measurement works in, in memory where the machine has `/dev/shm`, and gone at its
//! end.
//!
//! Data sets, sources, sockets and a database live there: none of them is worth keeping, and a disk
//! would add noise of its own. The folder holds a lock as long as its owner lives, so that a later
//! measurement can tell what a killed one left behind, and removes it.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use rustix::fs::FlockOperation;
use rustix::fs::Mode;
use rustix::fs::flock;
use rustix::fs::mkdir;

const PREFIX: &str = "tandem-bench-guest-";
const LOCK: &str = "lock";

/// The folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// A new folder where this machine best has it.
    pub fn new() -> anyhow::Result<Folder> {
        let shm = Path::new("/dev/shm");
        Folder::within(&match shm.is_dir() {
            true => shm.to_owned(),
            false => std::env::temp_dir(),
        })
    }

    /// A new folder in `parent`; removes those there whose owner is gone.
    fn within(parent: &Path) -> anyhow::Result<Folder> {
        sweep(parent);
        let me = std::process::id();
        // More than one in a process happens in tests only.
        for number in 0..1000 {
            let path = parent.join(format!("{PREFIX}{me}-{number}"));
            match mkdir(&path, Mode::RWXU) {
                Ok(()) => {}
                Err(rustix::io::Errno::EXIST) => continue,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
            let lock = path.join(LOCK);
            let file =
                File::create(&lock).with_context(|| format!("cannot create {}", lock.display()))?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)
                .with_context(|| format!("cannot lock {}", lock.display()))?;
            return Ok(Folder { path, _lock: file });
        }
        anyhow::bail!("{} is full of folders {PREFIX}{me}-*", parent.display())
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
pub fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let said = || format!("cannot copy {} to {}", from.display(), to.display());
    std::fs::create_dir_all(to).with_context(said)?;
    for entry in std::fs::read_dir(from).with_context(said)? {
        let entry = entry.with_context(said)?;
        let (here, there) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().with_context(said)?;
        if kind.is_dir() {
            copy(&here, &there)?;
        } else if kind.is_file() {
            std::fs::copy(&here, &there)
                .with_context(|| format!("cannot copy {}", here.display()))?;
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
