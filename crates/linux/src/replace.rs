//! Files that are replaced whole, for readers that come at any moment: status and metrics.
//!
//! The new text goes to a file of its own beside the old one (`NAME.new`) and takes its name. A reader sees either,
//! never a part. It is not forced to the disk: after a crash of the machine it may be gone, as what it tells of is.
//! The journal, which has to survive that, writes for itself ([`crate::journal`]).

use std::fs;
use std::io;
use std::path::Path;

/// Gives the file at `path` this text.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
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
}
