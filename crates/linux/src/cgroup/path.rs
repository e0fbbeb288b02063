//! Identity of cgroups: a path within a hierarchy, and an ID that distinguishes a cgroup from a later one at the same path.
//!
//! A [`CgroupPath`] is a path within the hierarchy of the controller, as in `/proc/PID/cgroup`: it begins with `/`, the root.
//! A [`CgroupId`] is the inode number of the cgroup's folder.
//! [`Version`] is the kernel interface of the hierarchy.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kernel interface of the cpu controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// `cpu.shares`, threads listed in `tasks`.
    V1,
    /// `cpu.weight`, vCPU threads in threaded cgroups.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

/// A cgroup's path within the cpu controller's hierarchy; `/` is the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupPath(pub String);

/// Maximum length of the path of a cgroup that Tandem changes, in bytes.
/// The kernel allows 4,095, but the journal holds the path once per vCPU.
pub const MAX_PATH_LENGTH: usize = 512;

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CgroupPath {
    /// The root of the hierarchy.
    pub fn root() -> CgroupPath {
        CgroupPath("/".to_owned())
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// The last part of the path; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The cgroup above; `None` above the root.
    pub fn parent(&self) -> Option<CgroupPath> {
        let (above, name) = self.0.rsplit_once('/')?;
        match (above, name) {
            ("", "") => None,
            ("", _) => Some(CgroupPath::root()),
            _ => Some(CgroupPath(above.to_owned())),
        }
    }

    /// The cgroup `name` below this one.
    pub fn child(&self, name: &str) -> CgroupPath {
        CgroupPath(format!("{}/{name}", self.0.trim_end_matches('/')))
    }

    /// Whether this is `other` or below it.
    pub fn is_within(&self, other: &CgroupPath) -> bool {
        match self.0.strip_prefix(other.0.trim_end_matches('/')) {
            Some(rest) => rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }

    /// This path and those of the cgroups above, without trailing slashes: the root's, which comes last, is empty.
    pub(crate) fn at_and_above(&self) -> impl Iterator<Item = &str> {
        let first = Some(self.0.trim_end_matches('/'));
        std::iter::successors(first, |below| below.rsplit_once('/').map(|(above, _)| above))
    }

    /// All cgroups above this one, from the root down.
    pub fn ancestors(&self) -> Vec<CgroupPath> {
        let mut above: Vec<CgroupPath> =
            std::iter::successors(self.parent(), CgroupPath::parent).collect();
        above.reverse();
        above
    }
}

/// ID of a cgroup while the machine is up: its folder's inode number.
/// A cgroup that is removed and recreated under the same path has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// The users that may change a cgroup.
///
/// Delegation of a cgroup gives away its folder and some of its files, but not its knobs (Documentation/admin-guide/cgroup-v2.rst,
/// "Delegation"): its own settings stay root's, and everything below belongs to the new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// User that owns the folder and may create cgroups in it.
    pub folder: u32,
    /// User that owns the file of its weight, if it has one.
    pub weight: Option<u32>,
}

impl Owners {
    /// Root owns all of it.
    pub const ROOT: Owners = Owners { folder: 0, weight: Some(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath(text.to_owned())
    }

    #[test]
    fn parents_children_and_ancestors() {
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(path("/")));
        assert_eq!(path("/").parent(), None);
        assert_eq!(path("/").child("a"), path("/a"));
        assert_eq!(path("/a").child("b"), path("/a/b"));
        assert_eq!(path("/a/b").ancestors(), [path("/"), path("/a")]);
        let above = |of: &str| path(of).at_and_above().map(path).collect::<Vec<_>>();
        assert_eq!(above("/a/b"), ["/a/b", "/a", ""].map(path));
        assert_eq!(above("/"), [path("")]);
        assert!(path("/a/b").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/")));
        assert!(!path("/ab").is_within(&path("/a")));
        assert_eq!(path("/a/vm.scope").name(), "vm.scope");
    }
}
