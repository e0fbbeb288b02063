//! Which names a cgroup can have beside the kernel's own files, and how long its path may be.

use crate::cgroup::error::CgroupError;
use crate::cgroup::path::{CgroupPath, LONGEST};

/// Whether a cgroup's path is short enough for the journal.
pub fn check_length(cgroup: &CgroupPath) -> Result<(), CgroupError> {
    match cgroup.0.len() {
        0..=LONGEST => Ok(()),
        bytes => Err(CgroupError::TooLong { begin: cgroup.0.chars().take(100).collect(), bytes }),
    }
}

/// Whether `name` may become a cgroup beside the kernel's own files.
pub fn check_name(parent: &CgroupPath, name: &str) -> Result<(), CgroupError> {
    let taken = ["cgroup.", "cpu.", "cpuset.", "memory.", "io.", "pids."];
    let good = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && !taken.iter().any(|prefix| name.starts_with(prefix))
        && !["tasks", "notify_on_release", "release_agent"].contains(&name)
        && name.chars().all(|c| c != '/' && !c.is_control());
    match good {
        true => Ok(()),
        false => Err(CgroupError::BadName { parent: parent.clone(), name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    #[test]
    fn names_that_would_hide_a_kernel_file_are_refused() {
        assert!(check_name(&path("/"), "tandem-12-web").is_ok());
        for name in ["", "..", "a/b", "cpu.shares", "cgroup.procs", "tasks", "a\nb"] {
            assert!(check_name(&path("/"), name).is_err(), "{name}");
        }
    }
}
