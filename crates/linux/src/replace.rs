//! Files that are replaced whole, for readers that come at any moment: status and metrics.
//!
//! The new text goes to a file of its own beside the old one (`NAME.new`) and takes its name. A reader sees either,
//! never a part. It is not forced to the disk: after a crash of the machine it may be gone, as what it tells of is.
//! Whatever stands there under that name is taken away first and never opened: in a directory that others may write to it could be a
//! link to somebody's file, or a pipe that nobody reads. What is no file (a device, a pipe) is not replaced.
//! The journal, which has to survive that, writes for itself ([`crate::journal`]).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// What is wrong with such a path.
pub(crate) const NO_FILE: &str =
    "it is a device, a pipe or another thing that is no file; name a file";

/// Whether something else than a file is there, or where a link there leads.
pub(crate) fn is_no_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file())
}

/// Gives the file at `path` this text.
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
        // A full disk has no room for a part of it.
        let _ = fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn the_old_file_is_replaced_and_nothing_is_left_beside_it() {
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
    fn devices_and_pipes_stay() {
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
    fn what_others_put_there_is_neither_followed_nor_waited_for() {
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
