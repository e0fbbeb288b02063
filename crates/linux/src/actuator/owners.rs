//! For whose VM a cgroup is changed: what is journaled of it counts for that user, so that nobody has room in the journal that others need.
//!
//! Whoever changes cgroups for a VM says so before ([`Actuator::count_for`]). It holds for that cgroup, for those below it, and for what those
//! above need for its sake, until it is given up. What is changed in a cgroup of which nobody said it counts in the sum of all alone.
//!
//! After a restart that is so of all that the restore could not put back, such as groups that somebody is still in. Once it is said for whom a cgroup is
//! changed, what was left of it counts for him, too, and the controllers above it for the first who needs them.

use std::collections::HashMap;

use super::Actuator;
use crate::cgroup::CgroupPath;
use crate::ids::Pid;
use crate::journal::{Entry, Key, Record};

impl Actuator {
    /// Whose a process is. If it lives the system says so: an ended process that the journal knows may have had the same number.
    pub(super) fn user_of(&self, process: Pid) -> Option<u32> {
        let user = self.threads.user(process);
        user.or_else(|| self.journal.user_of(process))
    }

    /// What is changed in this cgroup, which need not be there yet, is changed for a VM of this process.
    pub fn count_for(&mut self, cgroup: &CgroupPath, process: Pid) {
        if let Some(user) = self.user_of(process) {
            self.count_for_user(cgroup, user);
        }
    }

    /// What is changed in `group` is changed for whom `cgroup` is.
    pub fn count_with(&mut self, group: &CgroupPath, cgroup: &CgroupPath) {
        if let Some(user) = self.counted_for(cgroup) {
            self.count_for_user(group, user);
        }
    }

    fn count_for_user(&mut self, cgroup: &CgroupPath, user: u32) {
        for key in self.take_left(cgroup) {
            self.journal.count_for(&key, user);
        }
        self.owners.insert(place(cgroup).to_owned(), user);
    }

    /// What a killed run left in this cgroup and below, and of controllers above for their sake.
    fn take_left(&mut self, cgroup: &CgroupPath) -> Vec<Key> {
        if self.left.is_empty() {
            return Vec::new();
        }
        let place = place(cgroup);
        let below = format!("{place}/");
        let within = self.left.range(below.clone()..);
        let within = within.take_while(|(path, _)| path.starts_with(&below));
        let within: Vec<String> = within.map(|(path, _)| path.clone()).collect();
        let within = within.into_iter().chain([place.to_owned()]);
        let mut taken: Vec<Key> =
            within.filter_map(|path| self.left.remove(&path)).flatten().collect();
        for above in cgroup.at_and_above() {
            if let Some(keys) = self.left.get_mut(above) {
                let is_made = |key: &Key| matches!(key, Key::Created(_));
                if !keys.iter().any(is_made) {
                    let is_controller = |key: &mut Key| matches!(key, Key::Enabled(..));
                    taken.extend(keys.extract_if(.., is_controller));
                }
            }
        }
        taken
    }

    /// What could not be put back on threads that live counts for whose they are; what could not be of cgroups, for whoever they are changed for next.
    pub(super) fn count_what_stayed(&mut self) {
        let mut users: HashMap<Pid, Option<u32>> = HashMap::new();
        let mut stayed: Vec<(Key, u32)> = Vec::new();
        for record in self.journal.records() {
            match record {
                Record::Enabled { cgroup, .. }
                | Record::Created { cgroup }
                | Record::Knob { cgroup, .. } => {
                    let place = place(cgroup).to_owned();
                    self.left.entry(place).or_default().push(record.key());
                }
                Record::Moved { thread, .. }
                | Record::Affinity { thread, .. }
                | Record::Nice { thread, .. }
                | Record::Slice { thread, .. } => {
                    if !self.threads.is_alive(thread) {
                        continue;
                    }
                    let user = users.entry(thread.pid);
                    let user = user.or_insert_with(|| self.threads.user(thread.pid));
                    stayed.extend(user.map(|user| (record.key(), user)));
                }
            }
        }
        for (key, user) in stayed {
            self.journal.count_for(&key, user);
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
