//! Whether a file could be written, asked before the work whose results are to be in it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// Why it could not.
#[derive(Debug, Error)]
pub enum NotWritable {
    /// It is no file.
    #[error("{} is a directory; name a file", .0.display())]
    Directory(PathBuf),
    /// The system refuses it.
    #[error("cannot write {}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

/// Fails where `path` could not be written; changes no file that is there, and leaves none that was not.
pub fn check_writable(path: &Path) -> Result<(), NotWritable> {
    if path.is_dir() {
        return Err(NotWritable::Directory(path.to_owned()));
    }
    let refused = |cause| NotWritable::Refused { path: path.to_owned(), cause };
    let is_new = fs::symlink_metadata(path).is_err();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(refused)?;
    if is_new { fs::remove_file(path).map_err(refused) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_and_nothing_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        fs::write(&old, "kept").unwrap();
        check_writable(&new).unwrap();
        check_writable(&old).unwrap();
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).unwrap(), "kept");
        let refused = check_writable(&folder.path().join("no/file"));
        assert!(matches!(refused, Err(NotWritable::Refused { .. })));
        let folder = check_writable(folder.path());
        assert!(matches!(folder, Err(NotWritable::Directory(_))));
    }
}
