//! Users that changes of cgroups are charged to, so that no user takes up journal space that others need.
//!
//! Callers name the user of a cgroup before they change it ([`Actuator::charge_to`]).
//! The user applies to that cgroup, to those below it, and to the controllers enabled above it, until the cgroup is released.
//! Changes of a cgroup without a user only count in the journal's total.
//!
//! After a restart this applies to everything that the restore could not revert, such as busy groups.
//! Once a caller names the user of a cgroup, its leftovers are charged to that user.
//! Leftover controllers above it are charged to the first user that needs them.

use std::collections::HashMap;

use super::Actuator;
use crate::cgroup::CgroupPath;
use crate::ids::Pid;
use crate::journal::{Entry, Key, Record};

impl Actuator {
    /// The user of a process.
    /// The system takes precedence over the journal, whose process may have ended and passed on its pid.
    pub(super) fn user_of(&self, process: Pid) -> Option<u32> {
        let user = self.threads.user(process);
        user.or_else(|| self.journal.user_of(process))
    }

    /// Charges changes of this cgroup, which need not exist yet, to the user of this process.
    pub fn charge_to(&mut self, cgroup: &CgroupPath, process: Pid) {
        if let Some(user) = self.user_of(process) {
            self.charge_to_user(cgroup, user);
        }
    }

    /// Charges changes of `group` to the user that `cgroup` is charged to.
    pub fn charge_like(&mut self, group: &CgroupPath, cgroup: &CgroupPath) {
        if let Some(user) = self.charged_user(cgroup) {
            self.charge_to_user(group, user);
        }
    }

    fn charge_to_user(&mut self, cgroup: &CgroupPath, user: u32) {
        for key in self.take_left(cgroup) {
            self.journal.charge_to(&key, user);
        }
        self.owners.insert(place(cgroup).to_owned(), user);
    }

    /// Takes the leftovers of this cgroup and below, and of controllers enabled above for their sake.
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

    /// Charges leftovers of live threads to their users.
    /// Those of cgroups wait for the next user that the cgroup is charged to.
    pub(super) fn charge_leftovers(&mut self) {
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
            self.journal.charge_to(&key, user);
        }
    }

    /// Ends the charging of changes of this cgroup.
    pub fn stop_charging(&mut self, cgroup: &CgroupPath) {
        self.owners.remove(place(cgroup));
    }

    /// The user that changes of this cgroup are charged to, if any.
    pub fn charged_user(&self, cgroup: &CgroupPath) -> Option<u32> {
        let mut paths = cgroup.at_and_above();
        paths.find_map(|path| self.owners.get(path).copied())
    }
}

/// A cgroup's path as [`CgroupPath::at_and_above`] returns it.
fn place(cgroup: &CgroupPath) -> &str {
    cgroup.0.trim_end_matches('/')
}
