//! Where `/proc` and `/sys` are, so that everything that reads them can be tested on a folder.
//!
//! On a host the root is `/`. A test makes a temporary folder with the few files it needs and hands
//! that in. Nothing in this crate names `/proc` or `/sys` without going through here.
//!
//! Processes and cgroups vanish while they are looked at; [`is_gone`] tells that, which is never an
//! error, from the failures that are.

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
    /// This machine's own.
    pub fn host() -> ProcFs {
        ProcFs::at("/")
    }

    /// The tree below `root`, for tests.
    pub fn at(root: impl Into<PathBuf>) -> ProcFs {
        ProcFs { root: root.into() }
    }

    /// Where the absolute path `path` lies in this tree.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The name of this boot, which no other has.
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

/// Whether an error says that the process, thread or cgroup no longer exists: a vanished path
/// (ENOENT), a dead thread (ESRCH), or a removed cgroup whose file was still open (ENODEV).
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::ENODEV))
}

/// The first bytes of a file that its owner may make as long as it likes, `most` at most.
pub fn read_head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(most as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// The user that a process belongs to, its real one; `None` where that cannot be read. Who owns the process's folder in `/proc` says
/// nothing: of a process that may not be dumped that is root.
pub fn user_of(process: &Path) -> Option<u32> {
    let status = read_text(&process.join("status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// A small text file. What is not UTF-8 (a command line may hold anything) is replaced.
pub fn read_text(path: &Path) -> io::Result<String> {
    // A file of the kernel's says that it is empty, and then `fs::read` begins with a few bytes.
    let mut bytes = Vec::with_capacity(4096);
    let all = u64::MAX;
    fs::File::open(path)?.take(all).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_head_of_a_long_file_is_read() {
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
    fn the_real_user_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("status"), "Name:\tsu\nUid:\t1000\t0\t0\t0\n").unwrap();
        assert_eq!(user_of(dir.path()), Some(1000));
        fs::write(dir.path().join("status"), "Name:\tsu\n").unwrap();
        assert_eq!(user_of(dir.path()), None);
        let me = ProcFs::host().process(Pid(std::process::id()));
        assert_eq!(user_of(&me), Some(rustix::process::getuid().as_raw()));
    }
}
