//! The lock of a state directory: flock on its file `lock`, which holds the owner's pid.
//!
//! If that file cannot be created, the lock is on the directory itself.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::fs::{FlockOperation, flock};

use crate::disk::{Disk, HostDisk, How};
use crate::journal::error::JournalError;
use crate::journal::pending::is_pending;
use crate::journal::state_dir::check_file;

/// Maximum wait for a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_millis(250);

/// Whether a journal lists changes to restore and its directory is unlocked, because its writer is gone.
/// Returns false if the lock file cannot be opened.
pub fn is_abandoned(dir: &Path) -> bool {
    let is_free = |file: File| flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    is_pending(dir) && HostDisk.open(&dir.join("lock"), How::Read).is_ok_and(is_free)
}

/// Locks a state directory for the lifetime of the returned file, so that no other process restores from it and no daemon starts.
/// `None` if another process holds it throughout `timeout`, or if neither the lock file nor the directory can be opened.
pub fn hold(dir: &Path, timeout: Duration) -> Option<File> {
    let open = |path: &Path| HostDisk.open(path, How::Read);
    let file = open(&dir.join("lock")).or_else(|_| open(dir)).ok()?;
    locked(&HostDisk, &file, timeout).ok()?;
    Some(file)
}

/// Locks a file; retries until the timeout while another process holds it.
fn locked(disk: &dyn Disk, file: &File, timeout: Duration) -> io::Result<()> {
    let end = Instant::now() + timeout;
    loop {
        match disk.lock(file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// Takes the lock of a state directory.
pub(crate) fn lock(disk: &dyn Disk, dir: &Path) -> Result<File, JournalError> {
    let path = dir.join("lock");
    let failed = |action| {
        let path = path.clone();
        move |source: io::Error| JournalError::File { action, path, source }
    };
    // A full or read-only disk has no room for a lock file, but may hold a journal to restore from.
    let (file, is_writable) = match disk.open(&path, How::Write) {
        Ok(file) => (file, true),
        Err(why) => match disk.open(&path, How::Read) {
            Ok(file) => (file, false),
            Err(_) => match disk.open(dir, How::Read) {
                Ok(directory) => (directory, false),
                Err(_) => return Err(failed("open")(why)),
            },
        },
    };
    let metadata = file.metadata().map_err(failed("look at"))?;
    if !metadata.is_dir() {
        check_file(&path, &metadata)?;
    }
    // A child that a killed owner was starting holds the lock until it execs; its watchdog does until it has acted.
    match locked(disk, &file, LOCK_TIMEOUT) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let text = disk.read(&file).ok();
            let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
            return Err(JournalError::Locked {
                dir: dir.to_owned(),
                holder: text.and_then(|text| text.trim().parse().ok()),
            });
        }
        Err(error) => return Err(failed("lock")(error)),
    }
    if is_writable {
        // Only for the error of other processes, which otherwise cannot name the holder.
        let pid = format!("{}\n", std::process::id());
        let emptied = disk.set_len(&file, 0);
        let _ = emptied.and_then(|()| disk.write_at(&file, pid.as_bytes(), 0));
    }
    Ok(file)
}
