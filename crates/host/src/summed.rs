//! Lines of the log about what tenants do: some of each user, and how many more there were.
//!
//! Whoever may set weights can set them of thousands of VMs in each look, and journald drops lines where one service writes too many: then those
//! about others would be missing. So of each user there are [`MOST`] lines in an update, and one that says how many are left out; users
//! beyond the first [`MOST_USERS`] have one share together.

use std::collections::BTreeMap;

use crate::managed::Note;

/// So many lines of a user are written in an update.
const MOST: usize = 8;

/// So many users have a share of their own in an update.
const MOST_USERS: usize = 16;

/// What was written in this update of whom: the user's number, or `None` for those beyond.
#[derive(Debug, Default)]
pub(crate) struct Summed {
    lines: BTreeMap<Option<u32>, usize>,
}

impl Summed {
    /// What there is to say of this user's: what is written goes to `notes`.
    pub(crate) fn say(&mut self, user: u32, said: Vec<Note>, notes: &mut Vec<Note>) {
        if said.is_empty() {
            return;
        }
        let has_own = self.lines.contains_key(&Some(user)) || self.lines.len() < MOST_USERS;
        let lines = self.lines.entry(has_own.then_some(user)).or_default();
        for note in said {
            if *lines < MOST {
                notes.push(note);
            }
            *lines += 1;
        }
    }

    /// The update ends: says how much was left out.
    pub(crate) fn end(&mut self, notes: &mut Vec<Note>) {
        for (user, lines) in std::mem::take(&mut self.lines) {
            if lines > MOST {
                let whose = match user {
                    Some(user) => format!("in cgroups of user {user}"),
                    None => "in cgroups of other users".to_owned(),
                };
                let more = lines - MOST;
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
    fn who_sets_thousands_of_weights_has_few_lines_and_others_theirs() {
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
            assert_eq!(lines.iter().filter(|l| l.starts_with("1000: ")).count(), MOST);
            let left_out = [
                "and 6978 more like these of VMs in cgroups of other users",
                "and 1016 more like these of VMs in cgroups of user 1000",
            ];
            assert_eq!(lines[lines.len() - 2..], left_out);
            assert_eq!(lines.len(), MOST + 1 + (MOST_USERS - 2) + MOST + 2);
        }
    }
}
