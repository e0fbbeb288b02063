//! Atomic replacement of files that others read at any time: status and metrics.
//!
//! The new text goes to a file next to the old one (`NAME.new`), which is then renamed over it.
//! A reader sees either text, never a part.
//! The file is not synced: after a crash of the machine it may be lost, like the process that it describes.
//! A file that already has the temporary name is removed and never opened.
//! In a directory that others may write to, it could be a link to another file, or a pipe without a reader.
//! Devices and pipes are not replaced.
//! The journal must survive a crash and has code of its own ([`crate::journal`]).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// Error text for a path that is not a regular file.
pub(crate) const NO_FILE: &str =
    "it is a device, a pipe or another thing that is no file; name a file";

/// Whether the path, or the target of a link there, exists and is not a regular file.
pub(crate) fn is_no_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file())
}

/// Replaces the file at `path` by this text.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    if is_no_file(path) {
        return Err(io::Error::other(NO_FILE));
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = File::create_new(&fresh)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // Free the room that the partial file takes on a full disk.
        let _ = fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn replacement_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        for text in ["a long text", "short"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("no/such"), "").is_err());
    }

    #[test]
    fn devices_and_pipes_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [&pipe, &link] {
            let error = replace(path, "x").unwrap_err().to_string();
            assert!(error.contains("name a file"), "{error}");
            assert!(!fs::symlink_metadata(path).unwrap().is_file());
        }
    }

    #[test]
    fn planted_links_and_pipes_are_removed_unopened() {
        let dir = tempfile::tempdir().unwrap();
        let (path, fresh) = (dir.path().join("metrics"), dir.path().join("metrics.new"));
        let victim = dir.path().join("victim");
        fs::write(&victim, "theirs").unwrap();
        std::os::unix::fs::symlink(&victim, &fresh).unwrap();
        replace(&path, "ours").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        rustix::fs::mkfifoat(rustix::fs::CWD, &fresh, Mode::RUSR | Mode::WUSR).unwrap();
        replace(&path, "again").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "again");
    }
}
