//! Log lines about tenants' actions: a limited number per user, and the number of further ones.
//!
//! A tenant can change the weights of thousands of VMs before each scan, and journald drops lines of a service that writes too many.
//! Lines about other tenants would then be missing.
//! Each update therefore logs at most [`MAX_LINES`] lines per user, and one with the number left out.
//! Users beyond the first [`MAX_USERS`] share one quota.

use std::collections::BTreeMap;

use crate::managed::Note;

/// Maximum number of lines of a user per update.
const MAX_LINES: usize = 8;

/// Maximum number of users with a quota of their own per update.
const MAX_USERS: usize = 16;

/// Number of lines in this update by uid, or `None` for users beyond the maximum.
#[derive(Debug, Default)]
pub(crate) struct Summed {
    lines: BTreeMap<Option<u32>, usize>,
}

impl Summed {
    /// Adds a user's lines to `notes`, up to the maximum.
    pub(crate) fn say(&mut self, user: u32, said: Vec<Note>, notes: &mut Vec<Note>) {
        if said.is_empty() {
            return;
        }
        let has_own = self.lines.contains_key(&Some(user)) || self.lines.len() < MAX_USERS;
        let lines = self.lines.entry(has_own.then_some(user)).or_default();
        for note in said {
            if *lines < MAX_LINES {
                notes.push(note);
            }
            *lines += 1;
        }
    }

    /// Ends the update, and reports the number of lines left out.
    pub(crate) fn end(&mut self, notes: &mut Vec<Note>) {
        for (user, lines) in std::mem::take(&mut self.lines) {
            if lines > MAX_LINES {
                let whose = match user {
                    Some(user) => format!("in cgroups of user {user}"),
                    None => "in cgroups of other users".to_owned(),
                };
                let more = lines - MAX_LINES;
                notes.push(Note(format!("and {more} more like these of VMs {whose}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: u32, count: usize) -> Vec<Note> {
        (0..count).map(|n| Note(format!("{user}: {n}"))).collect()
    }

    #[test]
    fn many_lines_of_a_user_are_limited() {
        let mut summed = Summed::default();
        for _ in 0..2 {
            let mut notes = Vec::new();
            for _ in 0..512 {
                summed.say(1000, of(1000, 2), &mut notes);
            }
            summed.say(0, of(0, 1), &mut notes);
            for user in 2000..9000 {
                summed.say(user, of(user, 1), &mut notes);
            }
            summed.end(&mut notes);
            let lines: Vec<&str> = notes.iter().map(|note| note.0.as_str()).collect();
            assert!(lines.contains(&"0: 0"));
            assert_eq!(lines.iter().filter(|l| l.starts_with("1000: ")).count(), MAX_LINES);
            let left_out = [
                "and 6978 more like these of VMs in cgroups of other users",
                "and 1016 more like these of VMs in cgroups of user 1000",
            ];
            assert_eq!(lines[lines.len() - 2..], left_out);
            assert_eq!(lines.len(), MAX_LINES + 1 + (MAX_USERS - 2) + MAX_LINES + 2);
        }
    }
}
