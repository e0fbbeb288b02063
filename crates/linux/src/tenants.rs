//! The user that a process counts for in limits per user: its own, or the one that its user ID was delegated to.
//!
//! `/etc/subuid` delegates ranges of user IDs to users for their containers (subuid(5), `NAME:FIRST:COUNT`), usually 65,536.
//! newuidmap(1) lets users start processes under each ID, so limits by ID alone would multiply.
//! All IDs of one name therefore count as the first of them.
//! Root's IDs are for the containers that root runs, 65,536 each (systemd-nspawn(1), LXD); each block counts as its first ID.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::procfs::read_head;

/// Number of user IDs of a container of root's.
const BLOCK: u32 = 1 << 16;

/// Maximum length of the file that is read, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The users of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The real user, if it could be read.
    pub uid: Option<u32>,
    /// The user that the process counts for in limits per user.
    pub tenant: Option<u32>,
}

/// Map from user IDs to the users that they count as.
#[derive(Debug, Default)]
pub struct Tenants {
    path: PathBuf,
    /// Metadata of the file when it was read: inode, length, change time in s and ns.
    seen: Option<(u64, u64, i64, i64)>,
    /// Sorted by first ID.
    ranges: Vec<Range>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: u32,
    last: u32,
    /// User ID that the whole range counts as; `None` if each block counts as its own.
    tenant: Option<u32>,
}

impl Tenants {
    /// Reads the file, which may be missing.
    pub fn new(path: PathBuf) -> Tenants {
        let mut tenants = Tenants { path, ..Tenants::default() };
        tenants.refresh();
        tenants
    }

    /// Rereads the file if it has changed.
    pub fn refresh(&mut self) {
        let seen = fs::metadata(&self.path)
            .ok()
            .map(|file| (file.ino(), file.size(), file.ctime(), file.ctime_nsec()));
        if seen != self.seen {
            self.seen = seen;
            let text = read_head(&self.path, MAX_BYTES).unwrap_or_default();
            self.ranges = parse(&String::from_utf8_lossy(&text));
        }
    }

    /// The users of a process of this real user.
    pub fn owner(&self, uid: Option<u32>) -> Owner {
        let tenant = uid.map(|uid| self.of(uid));
        Owner { uid, tenant }
    }

    /// The user that this user's processes count for.
    pub fn of(&self, user: u32) -> u32 {
        let end = self.ranges.partition_point(|range| range.first <= user);
        let range = end.checked_sub(1).and_then(|at| self.ranges.get(at));
        match range.filter(|range| user <= range.last) {
            None => user,
            Some(range) => range.tenant.unwrap_or(user - (user - range.first) % BLOCK),
        }
    }
}

/// Parses the ranges; skips invalid lines, like newuidmap.
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
    fn hostile_ranges_count_as_one_user() {
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
            assert_eq!(tenants.of(user), user, "{user} is not delegated");
        }
        // Containers of root's count separately.
        assert_eq!(tenants.of(1_000_007), 1_000_000);
        assert_eq!(tenants.of(1_065_535), 1_000_000);
        assert_eq!(tenants.of(1_065_537), 1_065_536);
        // A changed file is reread.
        fs::write(&path, "carol:100000:10\n").unwrap();
        tenants.refresh();
        assert_eq!(tenants.of(100_009), 100_000);
        assert_eq!(tenants.of(165_537), 165_537);
    }
}
