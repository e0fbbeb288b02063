//! The system calls under the journal, one method each, so that a test can have any of them fail.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::{fmt, io};

use rustix::fs::{FlockOperation, flock};

/// How a file is opened. None of them follows a symbolic link or waits for whoever is at the other end of a pipe, and what is made
/// is for nobody else to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// To read, if it is there. A directory too.
    Read,
    /// To read and write; made if need be.
    Write,
    /// To read and write, empty.
    Fresh,
}

/// Where journals are kept.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a directory and those above it; one that is there is fine.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a file.
    fn open(&self, path: &Path, how: How) -> io::Result<File>;

    /// Reads a file to its end.
    fn read(&self, file: &File) -> io::Result<Vec<u8>>;

    /// Writes all of these bytes from here on.
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Cuts a file off.
    fn set_len(&self, file: &File, length: u64) -> io::Result<()>;

    /// Has a file's contents on the disk.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Gives a file another's name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes the lock of a file, without waiting.
    fn lock(&self, file: &File) -> io::Result<()>;
}

/// This machine's.
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
