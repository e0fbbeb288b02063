//! Whether a journal lists changes to restore.

use std::path::Path;
use std::{fs, io};

/// Whether there is, or may be, a journal that is not empty.
/// One whose metadata cannot be read counts as pending, so that opening it reports the error.
pub fn is_pending(dir: &Path) -> bool {
    match fs::metadata(dir.join("journal")) {
        Ok(metadata) => metadata.len() > 0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
