//! Syncing of files to disk in the required order: a power cut must not leave a later file without the earlier one.
//!
//! A file's bytes are synced by the file, its name by its folder (fsync(2)).

use std::fs::File;
use std::path::Path;

use super::RecordError;

/// Syncs the bytes of a file.
pub(super) fn file(file: &File, path: &Path) -> Result<(), RecordError> {
    file.sync_all().map_err(RecordError::io("write", path))?;
    #[cfg(test)]
    synced::note(path);
    Ok(())
}

/// Syncs the names in a folder.
pub(super) fn folder(path: &Path) -> Result<(), RecordError> {
    let opened = File::open(path).map_err(RecordError::io("read", path))?;
    file(&opened, path)
}

/// Paths synced by this thread, for tests.
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

    /// Returns all paths since the last call, in order.
    pub fn take() -> Vec<PathBuf> {
        PATHS.take()
    }
}
