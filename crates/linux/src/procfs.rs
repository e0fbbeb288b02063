//! Root of `/proc` and `/sys`, so that tests can replace them by a folder.
//!
//! On a host the root is `/`; a test passes a temporary folder with the files that it needs.
//! All code of this crate finds `/proc` and `/sys` through this module.
//!
//! Processes and cgroups may vanish while they are read.
//! [`is_gone`] distinguishes that, which is never an error, from failures.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::ids::{Pid, Tid};

/// The file system tree that holds `/proc` and `/sys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcFs {
    root: PathBuf,
}

impl Default for ProcFs {
    fn default() -> ProcFs {
        ProcFs::host()
    }
}

impl ProcFs {
    /// The tree of this host.
    pub fn host() -> ProcFs {
        ProcFs::at("/")
    }

    /// The tree below `root`, for tests.
    pub fn at(root: impl Into<PathBuf>) -> ProcFs {
        ProcFs { root: root.into() }
    }

    /// Maps the absolute path `path` into this tree.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The unique ID of this boot.
    pub fn boot_id(&self) -> io::Result<String> {
        let text = fs::read_to_string(self.resolve("/proc/sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }

    /// `/proc/PID`.
    pub fn process(&self, pid: Pid) -> PathBuf {
        self.root.join(format!("proc/{pid}"))
    }

    /// `/proc/PID/task/TID`.
    pub fn task(&self, pid: Pid, tid: Tid) -> PathBuf {
        self.root.join(format!("proc/{pid}/task/{tid}"))
    }
}

/// Whether an error means that the process, thread or cgroup no longer exists: a vanished path (ENOENT),
/// a dead thread (ESRCH), or a removed cgroup with a file still open (ENODEV).
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::ENODEV))
}

/// Reads at most the first `most` bytes of a file of unbounded length.
pub fn read_head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(most as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// The real user of a process; `None` if it cannot be read.
/// The owner of the process's folder in `/proc` is no substitute: root owns that of an undumpable process.
pub fn user_of(process: &Path) -> Option<u32> {
    let status = read_text(&process.join("status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// Reads a small text file and replaces invalid UTF-8, which a command line may contain.
pub fn read_text(path: &Path) -> io::Result<String> {
    // Files in `/proc` report a size of 0, for which `fs::read` would begin with a tiny buffer.
    let mut bytes = Vec::with_capacity(4096);
    let all = u64::MAX;
    fs::File::open(path)?.take(all).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_head_bounds_a_long_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cmdline");
        fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        let head = read_head(&path, 4096).unwrap();
        assert_eq!(head.len(), 4096);
        assert!(head.capacity() <= 3 * 4096, "{}", head.capacity());
        fs::write(&path, "ab").unwrap();
        assert_eq!(read_head(&path, 4096).unwrap(), b"ab");
    }

    #[test]
    fn user_of_returns_the_real_user() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("status"), "Name:\tsu\nUid:\t1000\t0\t0\t0\n").unwrap();
        assert_eq!(user_of(dir.path()), Some(1000));
        fs::write(dir.path().join("status"), "Name:\tsu\n").unwrap();
        assert_eq!(user_of(dir.path()), None);
        let me = ProcFs::host().process(Pid(std::process::id()));
        assert_eq!(user_of(&me), Some(rustix::process::getuid().as_raw()));
    }
}
