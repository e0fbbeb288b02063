//! The lock of a state directory: of its file `lock`, which says who holds it, or, where that cannot be made, of the directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::fs::{FlockOperation, flock};

use crate::disk::{Disk, HostDisk, How};
use crate::journal::error::JournalError;
use crate::journal::pending::is_pending;
use crate::state_dir::check_file;

/// So long is waited for a lock that somebody holds.
const PATIENCE: Duration = Duration::from_millis(250);

/// Whether a journal has something to put back and nobody holds its directory: whoever wrote it is gone. Where that cannot be told it is not said.
pub fn is_abandoned(dir: &Path) -> bool {
    let is_free = |file: File| flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    is_pending(dir) && HostDisk.open(&dir.join("lock"), How::Read).is_ok_and(is_free)
}

/// A state directory that nobody else holds for as long as this lives: nobody restores meanwhile, and no daemon begins. `None`: somebody has held it
/// for as long as `patience`, or it cannot be told, for nothing there can be opened.
pub fn hold(dir: &Path, patience: Duration) -> Option<File> {
    let open = |path: &Path| HostDisk.open(path, How::Read);
    let file = open(&dir.join("lock")).or_else(|_| open(dir)).ok()?;
    locked(&HostDisk, &file, patience).ok()?;
    Some(file)
}

/// Locks a file that somebody may hold for a moment.
fn locked(disk: &dyn Disk, file: &File, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    loop {
        match disk.lock(file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// Takes it.
pub(crate) fn lock(disk: &dyn Disk, dir: &Path) -> Result<File, JournalError> {
    let path = dir.join("lock");
    let failed = |action| {
        let path = path.clone();
        move |source: io::Error| JournalError::File { action, path, source }
    };
    // A full or read-only disk has no room for a lock, but may hold a journal that has to be put back.
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
    // A process that its killed owner was just starting holds it for a moment more, until it runs its own program; its watchdog does until it has acted.
    match locked(disk, &file, PATIENCE) {
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
        // Only for those who are refused; without it they are told of another process.
        let pid = format!("{}\n", std::process::id());
        let emptied = disk.set_len(&file, 0);
        let _ = emptied.and_then(|()| disk.write_at(&file, pid.as_bytes(), 0));
    }
    Ok(file)
}
