//! For whose VM a cgroup is changed: what is journaled of it counts for that user, so that nobody has room in the journal that others need.
//!
//! Whoever changes cgroups for a VM says so before ([`Actuator::count_for`]). It holds for that cgroup, for those below it, and for what those
//! above need for its sake, until it is given up. What is changed in a cgroup of which nobody said it counts in the sum of all alone.

use super::Actuator;
use crate::cgroup::CgroupPath;
use crate::ids::Pid;

impl Actuator {
    /// What is changed in this cgroup, which need not be there yet, is changed for a VM of this process. True if nobody said before for whom.
    pub fn count_for(&mut self, cgroup: &CgroupPath, process: Pid) -> bool {
        let known = self.journal.user_of(process);
        let user = known.or_else(|| self.threads.user(process));
        user.is_some_and(|user| self.owners.insert(place(cgroup).to_owned(), user).is_none())
    }

    /// What is changed in `group` is changed for whom `cgroup` is.
    pub fn count_with(&mut self, group: &CgroupPath, cgroup: &CgroupPath) {
        if let Some(user) = self.counted_for(cgroup) {
            self.owners.insert(place(group).to_owned(), user);
        }
    }

    /// Nothing is changed any more in this cgroup.
    pub fn stop_counting(&mut self, cgroup: &CgroupPath) {
        self.owners.remove(place(cgroup));
    }

    /// The user for whom this cgroup is changed, if that was said.
    pub fn counted_for(&self, cgroup: &CgroupPath) -> Option<u32> {
        let mut paths = cgroup.at_and_above();
        paths.find_map(|path| self.owners.get(path).copied())
    }
}

/// A cgroup as [`CgroupPath::at_and_above`] has it.
fn place(cgroup: &CgroupPath) -> &str {
    cgroup.0.trim_end_matches('/')
}
