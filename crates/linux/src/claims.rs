//! Claims on VMs among the daemons of a host: two must never act on the same VM, whatever their state directories are.
//!
//! All daemons open the same file (`/run/tandem/vms.lock`).
//! Each holds a record lock (fcntl, of the open file description) on the byte whose offset is the pid of a claimed process.
//! The kernel drops the locks when the daemon ends, however it ends.
//! One file is therefore enough for any number of VMs and needs no cleanup; only root can open it.
//!
//! Read-only commands test whether a byte is locked ([`ClaimsReader`]), which takes no lock and delays no daemon.
//! For open-file-description locks the kernel does not report the holder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::disk::{Disk, HostDisk, How};
use crate::ids::Pid;
use crate::journal::JournalError;
use crate::journal::state_dir::{check_dir, check_file};

/// The claims file that all daemons of a host share.
pub const HOST_CLAIMS: &str = "/run/tandem/vms.lock";

/// The VMs that one daemon claims.
#[derive(Debug)]
pub struct Claims {
    file: File,
    /// Number of claimed VMs per process.
    held: BTreeMap<Pid, usize>,
}

impl Claims {
    /// Opens the claims file, without any claim.
    pub fn open(path: &Path) -> Result<Claims, JournalError> {
        let failed = |source| JournalError::File { action: "open", path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            // If this fails, the directory may exist.
            let _ = HostDisk.make_dir(dir);
            check_dir(dir)?;
        }
        let file = HostDisk.open(path, How::Write).map_err(failed)?;
        check_file(path, &file.metadata().map_err(failed)?)?;
        Ok(Claims { file, held: BTreeMap::new() })
    }

    /// Claims a VM of this process; returns false if another daemon has claimed it.
    pub fn claim(&mut self, pid: Pid) -> io::Result<bool> {
        if !self.held.contains_key(&pid) && !self.set(pid, libc::F_WRLCK)? {
            return Ok(false);
        }
        *self.held.entry(pid).or_default() += 1;
        Ok(true)
    }

    /// Releases the claim on a VM of this process.
    pub fn release(&mut self, pid: Pid) {
        let Some(count) = self.held.get_mut(&pid) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.held.remove(&pid);
            // The lock ends with the daemon at the latest.
            let _ = self.set(pid, libc::F_UNLCK);
        }
    }

    fn set(&self, pid: Pid, kind: libc::c_int) -> io::Result<bool> {
        let lock = byte_of(pid, kind);
        // SAFETY: the pointer is to a flock that outlives the call; the kernel only reads it.
        let outcome =
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        if outcome == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            error => Err(error),
        }
    }
}

/// Reads the claims of all daemons without claiming VMs.
#[derive(Debug)]
pub struct ClaimsReader {
    file: File,
}

impl ClaimsReader {
    /// Opens the claims file; `None` if it is missing, because no daemon has managed a VM since boot.
    pub fn open(path: &Path) -> io::Result<Option<ClaimsReader>> {
        match HostDisk.open(path, How::Read) {
            Ok(file) => Ok(Some(ClaimsReader { file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a daemon has claimed VMs of this process.
    pub fn is_claimed(&self, pid: Pid) -> io::Result<bool> {
        // A read lock conflicts with a claim as a write lock does, and can be tested on a file that is open for reading only.
        let mut lock = byte_of(pid, libc::F_RDLCK);
        // SAFETY: the pointer is to a flock that outlives the call; the kernel reads it and writes a complete one back.
        let outcome =
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        match outcome {
            0 => Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A lock of this kind on the byte of a process.
fn byte_of(pid: Pid, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(pid.0),
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_daemon_cannot_claim_the_vm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vms.lock");
        let mut first = Claims::open(&path).unwrap();
        let mut second = Claims::open(&path).unwrap();
        assert!(first.claim(Pid(4711)).unwrap());
        assert!(!second.claim(Pid(4711)).unwrap());
        assert!(second.claim(Pid(4712)).unwrap(), "another VM");
        // Two VMs of one process.
        assert!(first.claim(Pid(4711)).unwrap());
        first.release(Pid(4711));
        assert!(!second.claim(Pid(4711)).unwrap());
        first.release(Pid(4711));
        assert!(second.claim(Pid(4711)).unwrap());
        drop(second);
        assert!(first.claim(Pid(4711)).unwrap(), "it has ended");
    }

    #[test]
    fn reader_sees_claims_without_blocking_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vms.lock");
        assert!(ClaimsReader::open(&path).unwrap().is_none());
        let mut daemon = Claims::open(&path).unwrap();
        let reader = ClaimsReader::open(&path).unwrap().unwrap();
        assert!(!reader.is_claimed(Pid(4711)).unwrap());
        assert!(daemon.claim(Pid(4711)).unwrap());
        assert!(reader.is_claimed(Pid(4711)).unwrap());
        assert!(!reader.is_claimed(Pid(4712)).unwrap());
        assert!(daemon.claim(Pid(4712)).unwrap(), "the reader holds no lock");
        drop(daemon);
        assert!(!reader.is_claimed(Pid(4711)).unwrap(), "it has ended");
    }
}
