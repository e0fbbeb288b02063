//! Check that a result file can be written, before the work starts.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// Error of a file that cannot be written.
#[derive(Debug, Error)]
pub enum NotWritable {
    /// The path is a directory.
    #[error("{} is a directory; name a file", .0.display())]
    Directory(PathBuf),
    /// The file cannot be opened for writing.
    #[error("cannot write {}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// Checks that `path` can be written, without changing an existing file or leaving a new one.
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
    fn check_leaves_no_trace() {
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
