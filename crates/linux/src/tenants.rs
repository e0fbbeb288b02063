//! Who a process counts for where users are bounded: its user, or who was given that user's number.
//!
//! `/etc/subuid` gives users ranges of numbers for their containers (subuid(5), `NAME:FIRST:COUNT`), 65,536 as a rule, and newuidmap(1) lets them start
//! processes under each. Bounds by number alone would be so many times as large for them. So all numbers given to one name count as the first of them.
//! Those given to root are for the containers that root runs, 65,536 for each (systemd-nspawn(1), LXD): there each block counts as its first.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::procfs::read_head;

/// How many numbers a container of root's has.
const BLOCK: u32 = 1 << 16;

/// So much of the file is read.
const MOST_BYTES: usize = 1 << 20;

/// Whose a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its real user, if that could be read.
    pub uid: Option<u32>,
    /// Who it counts for where users are bounded.
    pub tenant: Option<u32>,
}

/// Which numbers count as which.
#[derive(Debug, Default)]
pub struct Tenants {
    path: PathBuf,
    /// What the file was like when it was read: inode, length, change in s and ns.
    seen: Option<(u64, u64, i64, i64)>,
    /// By their first numbers.
    ranges: Vec<Range>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: u32,
    last: u32,
    /// What all of it counts as; `None`: each block for itself.
    tenant: Option<u32>,
}

impl Tenants {
    /// As the file says; it need not be there.
    pub fn new(path: PathBuf) -> Tenants {
        let mut tenants = Tenants { path, ..Tenants::default() };
        tenants.refresh();
        tenants
    }

    /// Reads the file again if it was changed.
    pub fn refresh(&mut self) {
        let seen = fs::metadata(&self.path)
            .ok()
            .map(|file| (file.ino(), file.size(), file.ctime(), file.ctime_nsec()));
        if seen != self.seen {
            self.seen = seen;
            let text = read_head(&self.path, MOST_BYTES).unwrap_or_default();
            self.ranges = parse(&String::from_utf8_lossy(&text));
        }
    }

    /// Whose a process of this real user is.
    pub fn owner(&self, uid: Option<u32>) -> Owner {
        let tenant = uid.map(|uid| self.of(uid));
        Owner { uid, tenant }
    }

    /// Who a user's processes count for.
    pub fn of(&self, user: u32) -> u32 {
        let end = self.ranges.partition_point(|range| range.first <= user);
        let range = end.checked_sub(1).and_then(|at| self.ranges.get(at));
        match range.filter(|range| user <= range.last) {
            None => user,
            Some(range) => range.tenant.unwrap_or(user - (user - range.first) % BLOCK),
        }
    }
}

/// The ranges; lines that cannot be are passed over, as newuidmap does.
fn parse(text: &str) -> Vec<Range> {
    let mut firsts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut ranges = Vec::new();
    for line in text.lines() {
        let mut fields = line.trim().split(':');
        let (Some(name), Some(first), Some(count), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (Ok(first), Ok(count)) = (first.parse::<u32>(), count.parse::<u32>()) else {
            continue;
        };
        if count == 0 || first == 0 {
            continue;
        }
        let tenant = match name {
            "root" | "0" => None,
            _ => Some(*firsts.entry(name).or_insert(first)),
        };
        ranges.push(Range { first, last: first.saturating_add(count - 1), tenant });
    }
    ranges.sort_unstable();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_ranges_of_users_count_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("subuid");
        let mut tenants = Tenants::new(path.clone());
        assert_eq!(tenants.of(100_001), 100_001, "there is no file");
        let text = "alice:100000:65536\nbob:165536:65536\nroot:1000000:1000000\nalice:231072:1000\n\
                    # no line\nbroken:1\nx:y:1\nempty:5000:0\nall:0:4294967295\n";
        fs::write(&path, text).unwrap();
        tenants.refresh();
        for user in [100_000, 100_001, 165_535, 231_072, 232_071] {
            assert_eq!(tenants.of(user), 100_000, "{user} is alice's");
        }
        assert_eq!(tenants.of(165_536), 165_536);
        assert_eq!(tenants.of(200_000), 165_536);
        for user in [0, 1000, 5000, 99_999, 232_072, 2_000_000, u32::MAX] {
            assert_eq!(tenants.of(user), user, "{user} is given to nobody");
        }
        // Containers of root's are apart.
        assert_eq!(tenants.of(1_000_007), 1_000_000);
        assert_eq!(tenants.of(1_065_535), 1_000_000);
        assert_eq!(tenants.of(1_065_537), 1_065_536);
        // What is changed is read again.
        fs::write(&path, "carol:100000:10\n").unwrap();
        tenants.refresh();
        assert_eq!(tenants.of(100_009), 100_000);
        assert_eq!(tenants.of(165_537), 165_537);
    }
}
