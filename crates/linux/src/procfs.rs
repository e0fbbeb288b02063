//! Where `/proc` and `/sys` are, so that everything that reads them can be tested on a folder.
//!
//! On a host the root is `/`. A test makes a temporary folder with the few files it needs and hands
//! that in. Nothing in this crate names `/proc` or `/sys` without going through here.
//!
//! Processes and cgroups vanish while they are looked at; [`is_gone`] tells that, which is never an
//! error, from the failures that are.

use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use crate::ids::Pid;
use crate::ids::Tid;

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
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV)
    )
}

/// A small text file. What is not UTF-8 (a command line may hold anything) is replaced.
pub fn read_text(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
