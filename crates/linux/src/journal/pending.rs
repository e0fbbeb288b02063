//! Whether a journal has something to put back.

use std::path::Path;
use std::{fs, io};

/// Whether there is a journal with something in it to put back, or may be: one that cannot be looked at is no empty one, and who
/// opens it is told why.
pub fn is_pending(dir: &Path) -> bool {
    match fs::metadata(dir.join("journal")) {
        Ok(metadata) => metadata.len() > 0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}
