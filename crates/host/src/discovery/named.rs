//! Processes that may have vCPUs without KVM: only those that the operator named.
//!
//! Any process may call a thread `db-1/vcpu0` or `CPU 0/TCG`.
//! Such a name counts only in a process that holds KVM vCPUs or that the operator named:
//! by its PID (`4711`), its user (`uid:1000`) or its cgroup (`/vms/*`, a glob that includes descendants).

use std::path::Path;

use globset::GlobMatcher;
use thiserror::Error;

use crate::glob;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::procfs::read_text;
use tandem_linux::thread::Pid;

/// The valid forms.
const EXPECTED: &str = "a process (4711), a user (uid:1000), or a cgroup (/vms/*)";

/// A text that names no processes.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("'{text}' names no processes without KVM: {why}")]
pub struct NamedError {
    /// The text.
    pub text: String,
    /// The reason.
    pub why: String,
}

/// The processes whose thread names count without KVM.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    pids: Vec<Pid>,
    users: Vec<u32>,
    cgroups: Vec<GlobMatcher>,
}

/// Checks one text; the error states the valid forms.
pub fn check_named(text: &str) -> Result<(), NamedError> {
    Named::default().add(text)
}

impl Named {
    /// Parses the texts.
    pub(super) fn new(texts: &[String]) -> Result<Named, NamedError> {
        let mut named = Named::default();
        for text in texts {
            named.add(text)?;
        }
        Ok(named)
    }

    fn add(&mut self, text: &str) -> Result<(), NamedError> {
        let wrong = |why: &str| NamedError { text: text.to_owned(), why: why.to_owned() };
        if text.starts_with('/') {
            let glob = glob::for_cgroups(text).map_err(|why| wrong(&why))?;
            self.cgroups.push(glob);
        } else if let Some(user) = text.strip_prefix("uid:") {
            self.users.push(user.parse().map_err(|_| wrong(EXPECTED))?);
        } else {
            let pid = text.parse().map_err(|_| wrong(EXPECTED))?;
            self.pids.push(Pid(pid));
        }
        Ok(())
    }

    /// Whether a process matches; `folder` is its folder in `/proc`.
    pub(super) fn includes(&self, pid: Pid, user: Option<u32>, folder: &Path) -> bool {
        self.pids.contains(&pid)
            || user.is_some_and(|user| self.users.contains(&user))
            || (!self.cgroups.is_empty()
                && cgroup(folder).is_some_and(|cgroup| glob::is_within(&self.cgroups, &cgroup)))
    }
}

/// Returns a process's cgroup: in the v1 hierarchy of the cpu controller, or else in v2.
fn cgroup(folder: &Path) -> Option<CgroupPath> {
    let text = read_text(&folder.join("cgroup")).ok()?;
    let path_if = |is_it: fn(&str, &str) -> bool| {
        text.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            is_it(number, controllers).then(|| CgroupPath(path.to_owned()))
        })
    };
    path_if(|_, controllers| controllers.split(',').any(|listed| listed == "cpu"))
        .or_else(|| path_if(|number, controllers| number == "0" && controllers.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(texts: &[&str]) -> Named {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        Named::new(&texts).unwrap()
    }

    #[test]
    fn processes_are_named_by_number_user_or_place() {
        let dir = tempfile::tempdir().unwrap();
        let place = |text: &str| std::fs::write(dir.path().join("cgroup"), text).unwrap();
        let includes = |named: &Named| named.includes(Pid(7), Some(1000), dir.path());
        assert!(!includes(&named(&[])));
        assert!(includes(&named(&["8", "7"])) && !includes(&named(&["8"])));
        assert!(includes(&named(&["uid:1000"])) && !includes(&named(&["uid:0"])));
        let vms = named(&["/vms/*"]);
        assert!(!includes(&vms), "no cgroup is known");
        place("3:cpuset:/no\n2:cpu,cpuacct:/vms/a/b\n0::/no\n");
        assert!(includes(&vms));
        // Hierarchies other than the cpu controller's do not count.
        place("3:cpuset:/vms/a\n2:cpu,cpuacct:/user.slice\n0::/vms/a\n");
        assert!(!includes(&vms));
        place("0::/vms/a\n");
        assert!(includes(&vms));
        place("0::/vms\n");
        assert!(!includes(&vms));
    }

    #[test]
    fn invalid_texts_are_refused_with_valid_forms() {
        for text in ["", "-1", "db-*", "uid:", "uid:root", "uid:-1", "7 8"] {
            let error = check_named(text).unwrap_err().to_string();
            assert!(error.contains("uid:1000") && error.contains("/vms/*"), "{error}");
        }
        assert!(check_named("/vms/[").unwrap_err().why.contains("a glob"));
    }
}
