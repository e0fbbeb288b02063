//! The system calls of the journal, one method each, so that tests can inject a failure into any of them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::{fmt, io};

use rustix::fs::{FlockOperation, flock};

/// How to open a file.
/// None of the modes follows a symbolic link or blocks on a pipe; new files have mode 0600.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// For reading an existing file or directory.
    Read,
    /// For reading and writing; creates a missing file.
    Write,
    /// For reading and writing, truncated; creates a missing file.
    Fresh,
}

/// The file operations of a journal.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a directory and those above it; it may exist.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a file.
    fn open(&self, path: &Path, how: How) -> io::Result<File>;

    /// Reads a file to its end.
    fn read(&self, file: &File) -> io::Result<Vec<u8>>;

    /// Writes all of these bytes at this offset.
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Truncates a file.
    fn set_len(&self, file: &File, length: u64) -> io::Result<()>;

    /// Makes a file's contents durable.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Renames a file over another.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes the lock of a file, without waiting.
    fn lock(&self, file: &File) -> io::Result<()>;
}

/// The disks of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDisk;

impl Disk for HostDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)
    }

    fn open(&self, path: &Path, how: How) -> io::Result<File> {
        let writes = how != How::Read;
        OpenOptions::new()
            .read(true)
            .write(writes)
            .create(writes)
            .truncate(how == How::Fresh)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
    }

    fn read(&self, mut file: &File) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn set_len(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn lock(&self, file: &File) -> io::Result<()> {
        Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
    }
}
