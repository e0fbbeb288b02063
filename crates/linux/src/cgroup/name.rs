//! Checks of a cgroup's name, which must differ from the kernel's files, and of the length of its path.

use crate::cgroup::error::CgroupError;
use crate::cgroup::path::{CgroupPath, MAX_PATH_LENGTH};

/// Checks that a cgroup's path is short enough for the journal.
pub fn check_length(cgroup: &CgroupPath) -> Result<(), CgroupError> {
    match cgroup.0.len() {
        0..=MAX_PATH_LENGTH => Ok(()),
        bytes => Err(CgroupError::TooLong { begin: cgroup.0.chars().take(100).collect(), bytes }),
    }
}

/// Checks that `name` cannot collide with one of the kernel's files.
pub fn check_name(parent: &CgroupPath, name: &str) -> Result<(), CgroupError> {
    let taken = ["cgroup.", "cpu.", "cpuset.", "memory.", "io.", "pids."];
    let good = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && !taken.iter().any(|prefix| name.starts_with(prefix))
        && !["tasks", "notify_on_release", "release_agent"].contains(&name)
        && name.chars().all(|c| c != '/' && !c.is_control());
    if good {
        Ok(())
    } else {
        Err(CgroupError::BadName { parent: parent.clone(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    #[test]
    fn names_of_kernel_files_are_refused() {
        assert!(check_name(&path("/"), "tandem-12-web").is_ok());
        for name in ["", "..", "a/b", "cpu.shares", "cgroup.procs", "tasks", "a\nb"] {
            assert!(check_name(&path("/"), name).is_err(), "{name}");
        }
    }
}
