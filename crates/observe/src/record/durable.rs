//! What must be on the disk before something else is done: a power cut must not leave a later file without the earlier.
//!
//! A file's bytes are synced by the file, its name by its folder (fsync(2)).

use std::fs::File;
use std::path::Path;

use super::RecordError;

/// Returns when the bytes of a file are on the disk.
pub(super) fn file(file: &File, path: &Path) -> Result<(), RecordError> {
    file.sync_all().map_err(RecordError::io("write", path))?;
    #[cfg(test)]
    synced::note(path);
    Ok(())
}

/// Returns when the names in a folder are on the disk.
pub(super) fn folder(path: &Path) -> Result<(), RecordError> {
    let opened = File::open(path).map_err(RecordError::io("read", path))?;
    file(&opened, path)
}

/// What was synced by this thread, for tests: nothing else tells.
#[cfg(test)]
pub(super) mod synced {
    use std::cell::RefCell;
    use std::path::{Path, PathBuf};

    thread_local! {
        static PATHS: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note(path: &Path) {
        PATHS.with_borrow_mut(|paths| paths.push(path.to_owned()));
    }

    /// All since the last call, in order.
    pub fn take() -> Vec<PathBuf> {
        PATHS.take()
    }
}
