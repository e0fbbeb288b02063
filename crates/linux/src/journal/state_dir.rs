//! Write permissions of a state directory: only root and the caller may be able to write to it.
//!
//! Root acts on the journal: a cgroup gets the weight that it lists.
//! The directory, its files and every directory above must therefore belong to root or the caller, and not be writable by others.
//! A directory above may be sticky (`/tmp`), because others cannot rename its entries.
//! The same rules apply to each link in the path and to the directories above its target: the owner of a link can redirect it at any time.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use crate::journal::error::JournalError;

const GROUP: u32 = 0o020;
const OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Maximum number of links in a path (MAXSYMLINKS of include/linux/namei.h).
const MAX_LINKS: u32 = 40;

/// Checks that no other user can have written to this directory or replaced it; returns its path without links.
pub(crate) fn check_dir(dir: &Path) -> Result<PathBuf, JournalError> {
    walk(dir, false)
}

/// Checks every part of a path; `is_above` if the state directory is yet to be created in it.
fn walk(dir: &Path, is_above: bool) -> Result<PathBuf, JournalError> {
    let looking =
        |source: io::Error| JournalError::File { action: "look at", path: dir.to_owned(), source };
    let untrusted = |path: &Path, what| JournalError::Untrusted { path: path.to_owned(), what };
    // Remaining parts, the next one last.
    let mut rest = parts(&std::path::absolute(dir).map_err(looking)?);
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    loop {
        let metadata = fs::metadata(&real).map_err(looking)?;
        let is_sticky = (is_above || !rest.is_empty()) && metadata.mode() & STICKY != 0;
        if let Some(what) = distrust(&metadata, is_sticky) {
            return Err(untrusted(&real, what));
        }
        let Some(part) = rest.pop() else {
            return Ok(real);
        };
        if part == ".." {
            real.pop();
            continue;
        }
        real.push(part);
        let metadata = fs::symlink_metadata(&real).map_err(looking)?;
        if !metadata.is_symlink() {
            continue;
        }
        // The mode of a link grants everybody write access, to no effect: only its owner counts.
        if let Some(what) = distrust(&metadata, true) {
            return Err(untrusted(&real, format!("{what}, and is a link")));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(looking(rustix::io::Errno::LOOP.into()));
        }
        let target = fs::read_link(&real).map_err(looking)?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        } else {
            real.pop();
        }
        rest.extend(parts(&target));
    }
}

/// Checks that a journal can be kept in this directory; if it does not exist, checks the nearest existing one above.
///
/// # Errors
///
/// If another user may write there.
pub fn check_state_dir(dir: &Path) -> Result<(), JournalError> {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    match whole.ancestors().find(|dir| dir.exists()) {
        Some(existing) => walk(existing, existing != whole).map(drop),
        None => Ok(()),
    }
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// Like [`check_dir`], for an open file.
pub(crate) fn check_file(path: &Path, metadata: &Metadata) -> Result<(), JournalError> {
    let path = path.to_owned();
    if !metadata.is_file() {
        return Err(JournalError::NoFile { path });
    }
    match distrust(metadata, false) {
        None => Ok(()),
        Some(what) => Err(JournalError::Untrusted { path, what }),
    }
}

/// Why the owner or mode is not trusted, if so.
fn distrust(metadata: &Metadata, is_sticky: bool) -> Option<String> {
    let me = rustix::process::geteuid().as_raw();
    let my_group = rustix::process::getegid().as_raw();
    let (owner, group, mode) = (metadata.uid(), metadata.gid(), metadata.mode());
    if owner != 0 && owner != me {
        return Some(format!("it belongs to user {owner}"));
    }
    if is_sticky {
        return None;
    }
    if mode & OTHERS != 0 {
        return Some(format!("everybody may write to it (mode {:04o})", mode & 0o7777));
    }
    let is_foreign_group = group != 0 && group != my_group;
    (mode & GROUP != 0 && is_foreign_group)
        .then(|| format!("group {group} may write to it (mode {:04o})", mode & 0o7777))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn writable_by_others_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("state");
        fs::create_dir(&below).unwrap();
        check_dir(&below).unwrap();
        fs::set_permissions(&below, Permissions::from_mode(0o777)).unwrap();
        let error = check_dir(&below).unwrap_err().to_string();
        assert!(error.contains("everybody may write to it"), "{error}");
        // Others could rename it in the directory above.
        fs::set_permissions(&below, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let error = check_dir(&below).unwrap_err().to_string();
        assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        check_dir(&below).unwrap();
        check_state_dir(&below).unwrap();
        check_state_dir(&dir.path().join("missing/too")).unwrap();
        assert!(check_state_dir(dir.path()).is_err());
    }

    #[test]
    fn other_owner_is_not_trusted() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: chown needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("journal");
        fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
        let error = check_file(&file, &fs::metadata(&file).unwrap()).unwrap_err();
        assert!(error.to_string().contains("user 1000"), "{error}");
        std::os::unix::fs::chown(dir.path(), Some(1000), None).unwrap();
        let error = check_dir(dir.path()).unwrap_err();
        assert!(error.to_string().contains("user 1000"), "{error}");
    }

    #[test]
    fn only_trusted_links_are_followed() {
        use std::os::unix::fs::{lchown, symlink};
        let dir = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(dir.path()).unwrap();
        let (state, open) = (place.join("state"), place.join("open"));
        fs::create_dir(&state).unwrap();
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        let absolute = open.join("absolute");
        symlink(&state, &absolute).unwrap();
        symlink("../open", state.join("up")).unwrap();
        assert_eq!(check_dir(&absolute).unwrap(), state);
        let round = state.join("up/absolute/../state");
        assert_eq!(check_dir(&round).unwrap(), state);
        symlink("loop", place.join("loop")).unwrap();
        assert!(check_dir(&place.join("loop")).is_err());
        // Others could replace the link in its folder.
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(check_dir(&absolute).is_err() && check_dir(&round).is_err());
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        if !rustix::process::geteuid().is_root() {
            println!("skipped: chown of a link needs root");
            return;
        }
        lchown(&absolute, Some(1000), None).unwrap();
        for path in [&absolute, &round] {
            let error = check_dir(path).unwrap_err().to_string();
            assert!(error.contains("user 1000, and is a link"), "{error}");
        }
    }
}
