//! Which VMs a daemon looks after, told to other daemons of the host: two must never act on the same VM, whatever their
//! state directories are.
//!
//! All of them open the same file (`/run/tandem/vms.lock`), and each holds a record lock (fcntl, of the open file description) on
//! the byte at the number of each process whose VMs it looks after. The kernel lets go of them when the daemon ends, however it
//! ends. So one file is enough for any number of VMs, and nothing has to be cleaned up. Nobody but root can open it.
//!
//! Who only looks at the host asks whether a byte is locked ([`ClaimsReader`]), which takes nothing and keeps nobody waiting. The kernel does not
//! tell by whom.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::disk::{Disk, HostDisk, How};
use crate::ids::Pid;
use crate::journal::JournalError;
use crate::state_dir::{check_dir, check_file};

/// Where all daemons of a host tell.
pub const HOST_CLAIMS: &str = "/run/tandem/vms.lock";

/// The VMs of one daemon.
#[derive(Debug)]
pub struct Claims {
    file: File,
    /// How many VMs of each process.
    held: BTreeMap<Pid, usize>,
}

impl Claims {
    /// None yet.
    pub fn open(path: &Path) -> Result<Claims, JournalError> {
        let failed = |source| JournalError::File { action: "open", path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            // Where it cannot be made, it may be there.
            let _ = HostDisk.make_dir(dir);
            check_dir(dir)?;
        }
        let file = HostDisk.open(path, How::Write).map_err(failed)?;
        check_file(path, &file.metadata().map_err(failed)?)?;
        Ok(Claims { file, held: BTreeMap::new() })
    }

    /// Takes a VM of this process on; false: another daemon looks after it.
    pub fn claim(&mut self, pid: Pid) -> io::Result<bool> {
        if !self.held.contains_key(&pid) && !self.set(pid, libc::F_WRLCK)? {
            return Ok(false);
        }
        *self.held.entry(pid).or_default() += 1;
        Ok(true)
    }

    /// Lets a VM of this process go.
    pub fn release(&mut self, pid: Pid) {
        let Some(count) = self.held.get_mut(&pid) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.held.remove(&pid);
            // It ends with the daemon at the latest.
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

/// Asks which VMs daemons look after, and claims none.
#[derive(Debug)]
pub struct ClaimsReader {
    file: File,
}

impl ClaimsReader {
    /// `None`: there is no such file, so no daemon has looked after a VM since the host was started.
    pub fn open(path: &Path) -> io::Result<Option<ClaimsReader>> {
        match HostDisk.open(path, How::Read) {
            Ok(file) => Ok(Some(ClaimsReader { file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a daemon looks after VMs of this process.
    pub fn is_claimed(&self, pid: Pid) -> io::Result<bool> {
        // A lock to read would be in the way of a claim as one to write would, and may be asked about with a file open to read.
        let mut lock = byte_of(pid, libc::F_RDLCK);
        // SAFETY: the pointer is to a flock that outlives the call; the kernel reads it, and writes a whole one there.
        let outcome =
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        match outcome {
            0 => Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The byte of a process, to be locked in this way.
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
    fn a_vm_has_one_daemon_at_a_time() {
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
    fn who_looks_knows_which_vms_have_a_daemon_and_takes_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vms.lock");
        assert!(ClaimsReader::open(&path).unwrap().is_none());
        let mut daemon = Claims::open(&path).unwrap();
        let reader = ClaimsReader::open(&path).unwrap().unwrap();
        assert!(!reader.is_claimed(Pid(4711)).unwrap());
        assert!(daemon.claim(Pid(4711)).unwrap());
        assert!(reader.is_claimed(Pid(4711)).unwrap());
        assert!(!reader.is_claimed(Pid(4712)).unwrap());
        assert!(daemon.claim(Pid(4712)).unwrap(), "nobody is in its way");
        drop(daemon);
        assert!(!reader.is_claimed(Pid(4711)).unwrap(), "it has ended");
    }
}
