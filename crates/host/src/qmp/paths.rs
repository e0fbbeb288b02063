//! Where QMP sockets may be, and which are there now.
//!
//! Folders of sockets belong to those who run VMMs, and these may put as many files there as they like. So a round along all patterns is made some
//! entries at a time: [`MOST_ENTRIES`] in one go, and of one folder no more than [`MOST_OF_FOLDER`] in a round; the next round goes on
//! there where this one ended. Where there is less, each go is a whole round. Only sockets are told, with who made them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::GlobMatcher;
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::error::QmpError;
use super::opened::OpenSocket;
use crate::glob::compile;

/// The most entries that are looked at in one go, give or take those of a folder.
pub const MOST_ENTRIES: usize = 4096;

/// The most entries of a folder in a round.
pub const MOST_OF_FOLDER: usize = 1024;

/// Of so many folders that hold more it is known where to go on.
const MOST_POSITIONS: usize = 1024;

/// The longest pattern, in bytes: no path is longer (PATH_MAX of include/uapi/linux/limits.h).
const LONGEST: usize = 4096;

/// Where QMP sockets may be: a path whose parts may be globs, as `/var/lib/libvirt/qemu/*/mon.sock`.
#[derive(Clone, Debug)]
pub struct SocketPattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Name(String),
    Glob(GlobMatcher),
}

impl SocketPattern {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<SocketPattern, QmpError> {
        let wrong =
            |why: String| QmpError::Pattern { pattern: pattern.chars().take(200).collect(), why };
        // Each of its parts may be a glob of its own.
        if pattern.len() > LONGEST {
            let length = pattern.len();
            return Err(wrong(format!(
                "{length} bytes are too many: at most {LONGEST}, as of a path"
            )));
        }
        let Some(path) = pattern.strip_prefix('/') else {
            return Err(wrong("it must be an absolute path".to_owned()));
        };
        let part = |part: &str| match part.contains(['*', '?', '[', '{']) {
            false => Ok(Part::Name(part.to_owned())),
            true => compile(part, false).map(Part::Glob).map_err(wrong),
        };
        let parts = path.split('/').filter(|p| !p.is_empty()).map(part);
        Ok(SocketPattern { parts: parts.collect::<Result<_, _>>()? })
    }
}

/// A socket that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSocket {
    /// Where.
    pub path: PathBuf,
    /// Who made it, or the link to it.
    pub user: u32,
}

impl FoundSocket {
    /// What is at a path, if that is a socket, and links there are root's or of who owns it. Others' could lead to what is none of theirs.
    pub fn at(path: PathBuf) -> Option<FoundSocket> {
        let user = OpenSocket::found(&path).ok()?.user();
        Some(FoundSocket { path, user })
    }
}

/// What came of going on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// The sockets.
    pub sockets: Vec<FoundSocket>,
    /// Whether a round along all patterns ended with it.
    pub is_round_over: bool,
}

/// A round along patterns after the other.
#[derive(Clone, Debug)]
pub struct SocketWalk {
    patterns: Vec<SocketPattern>,
    root: PathBuf,
    /// Where this round has still to go, the last of these next.
    places: Vec<Place>,
    /// Where to go on in folders that have more than a round takes.
    positions: BTreeMap<PathBuf, u64>,
}

/// What has to be looked at.
#[derive(Clone, Debug)]
struct Place {
    pattern: usize,
    /// How many of the pattern's parts led to the path.
    part: usize,
    path: PathBuf,
}

/// Some entries of a folder.
#[derive(Default)]
struct Listed {
    paths: Vec<PathBuf>,
    looked_at: usize,
    /// Where to go on, if that is not all.
    position: Option<u64>,
}

impl SocketWalk {
    /// Along these patterns below `root`.
    pub fn new(patterns: Vec<SocketPattern>, root: PathBuf) -> SocketWalk {
        SocketWalk { patterns, root, places: Vec::new(), positions: BTreeMap::new() }
    }

    /// Whether there are any patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Goes on, to the end of a round at most. Folders that cannot be read hold none.
    pub fn go_on(&mut self) -> Walked {
        if self.places.is_empty() {
            let roots = (0..self.patterns.len()).map(|pattern| Place {
                pattern,
                part: 0,
                path: self.root.clone(),
            });
            self.places.extend(roots);
        }
        let mut walked = Walked::default();
        let mut looked_at = 0;
        while looked_at < MOST_ENTRIES
            && let Some(place) = self.places.pop()
        {
            looked_at += self.visit(place, &mut walked.sockets);
        }
        walked.is_round_over = self.places.is_empty();
        walked
    }

    /// Looks at one place; what is below it comes next. Returns how many entries that were.
    fn visit(&mut self, place: Place, sockets: &mut Vec<FoundSocket>) -> usize {
        let Some(pattern) = self.patterns.get(place.pattern) else {
            return 1;
        };
        let below = |path: PathBuf| Place { pattern: place.pattern, part: place.part + 1, path };
        match pattern.parts.get(place.part) {
            None => {
                sockets.extend(FoundSocket::at(place.path));
                1
            }
            Some(Part::Name(name)) => {
                self.places.push(below(place.path.join(name)));
                1
            }
            Some(Part::Glob(glob)) => {
                let is_last = place.part + 1 == pattern.parts.len();
                let may_be = |kind: FileType| match kind {
                    FileType::Symlink | FileType::Unknown => true,
                    FileType::Socket => is_last,
                    FileType::Directory => !is_last,
                    _ => false,
                };
                let from = self.positions.remove(&place.path).unwrap_or(0);
                let is_wanted = |name: &OsStr, kind| may_be(kind) && glob.is_match(Path::new(name));
                let listed = list(&place.path, from, is_wanted).unwrap_or_default();
                match is_last {
                    true => sockets.extend(listed.paths.into_iter().filter_map(FoundSocket::at)),
                    false => self.places.extend(listed.paths.into_iter().map(below)),
                }
                if let Some(position) = listed.position {
                    if self.positions.len() >= MOST_POSITIONS {
                        self.positions.pop_first();
                    }
                    self.positions.insert(place.path, position);
                }
                1 + listed.looked_at
            }
        }
    }
}

/// The wanted entries of a folder from a position on, of as many as a round takes.
fn list(
    folder: &Path,
    from: u64,
    is_wanted: impl Fn(&OsStr, FileType) -> bool,
) -> Result<Listed, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(folder, flags, Mode::empty())?;
    if from != 0 {
        rustix::fs::seek(&dir, SeekFrom::Start(from))?;
    }
    let mut entries = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&dir, &mut entries);
    let mut listed = Listed::default();
    while let Some(Ok(entry)) = entries.next() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        listed.looked_at += 1;
        if name != "." && name != ".." && is_wanted(name, entry.file_type()) {
            listed.paths.push(folder.join(name));
        }
        if listed.looked_at >= MOST_OF_FOLDER {
            listed.position = Some(entry.next_entry_cookie());
            break;
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::process::getuid;

    use super::*;

    /// A socket that nobody listens at any more.
    fn socket(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(UnixListener::bind(path).unwrap());
    }

    fn walk(pattern: &str, root: &Path) -> SocketWalk {
        SocketWalk::new(vec![SocketPattern::new(pattern).unwrap()], root.to_owned())
    }

    #[test]
    fn patterns_expand_part_by_part() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["q/a/mon.sock", "q/b/mon.sock", "q/b/other", "q/c.qmp"] {
            socket(&dir.path().join(path));
        }
        // No sockets, and a link to one.
        fs::write(dir.path().join("q/file.qmp"), "").unwrap();
        fs::create_dir(dir.path().join("q/folder.qmp")).unwrap();
        symlink("b/other", dir.path().join("q/link.qmp")).unwrap();
        let expand = |pattern: &str| {
            let walked = walk(pattern, dir.path()).go_on();
            assert!(walked.is_round_over);
            let paths = walked.sockets.iter().map(|socket| &socket.path);
            let names = paths.map(|path| path.strip_prefix(dir.path()).unwrap());
            let names = names.map(|path| path.display().to_string());
            names.collect::<BTreeSet<_>>().into_iter().collect()
        };
        let expand = |pattern: &str| -> Vec<String> { expand(pattern) };
        assert_eq!(expand("/q/*/mon.sock"), ["q/a/mon.sock", "q/b/mon.sock"]);
        assert_eq!(expand("/q/*.qmp"), ["q/c.qmp", "q/link.qmp"]);
        assert_eq!(expand("/q/b/other"), ["q/b/other"]);
        assert!(expand("/q/file.qmp").is_empty());
        assert!(expand("/none/*").is_empty());
        for pattern in ["q/*.qmp", "/q/[.qmp"] {
            let error = SocketPattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains(pattern), "{error}");
        }
    }

    #[test]
    fn hostile_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        socket(&dir.path().join("q/console"));
        let link = dir.path().join("q/link.qmp");
        symlink("console", &link).unwrap();
        let found = || FoundSocket::at(link.clone()).is_some();
        assert!(found(), "who owns both");
        if !getuid().is_root() {
            return;
        }
        let owned = |path: &str, uid| lchown(dir.path().join(path), Some(uid), None).unwrap();
        owned("q/link.qmp", 1000);
        assert!(!found(), "another's link to what is root's");
        owned("q/console", 1000);
        assert!(found());
        owned("q/link.qmp", 0);
        assert!(found(), "root's link");
        owned("q/link.qmp", 1001);
        assert!(!found());
        // Behind root's link is another's, to what is root's.
        owned("q/console", 0);
        symlink("q/link.qmp", dir.path().join("first")).unwrap();
        let at = |path: &str| FoundSocket::at(dir.path().join(path)).map(|found| found.user);
        assert_eq!(at("first"), None);
        owned("q/console", 1001);
        assert_eq!(at("first"), Some(0));
        assert_eq!(at("q/console"), Some(1001));
    }

    #[test]
    fn hostile_links_to_folders_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        socket(&dir.path().join("roots/mon.sock"));
        fs::create_dir(dir.path().join("q")).unwrap();
        symlink(dir.path().join("roots"), dir.path().join("q/vm")).unwrap();
        symlink("../q/vm/../roots", dir.path().join("q/other")).unwrap();
        let found = |pattern: &str| {
            let walked = walk(pattern, dir.path()).go_on();
            let users = walked.sockets.iter().map(|socket| socket.user);
            users.collect::<Vec<_>>()
        };
        let me = getuid().as_raw();
        assert_eq!(found("/q/*/mon.sock"), [me, me]);
        if !getuid().is_root() {
            return;
        }
        let owned = |path: &str, uid| lchown(dir.path().join(path), Some(uid), None).unwrap();
        owned("q/vm", 1000);
        assert!(found("/q/*/mon.sock").is_empty(), "another's link in each");
        owned("roots/mon.sock", 1000);
        assert_eq!(found("/q/*/mon.sock"), [1000, 1000]);
    }

    #[test]
    fn hostile_links_without_end_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        socket(&dir.path().join("mon.sock"));
        symlink("round", dir.path().join("round")).unwrap();
        symlink("./".repeat(2_000) + "mon.sock", dir.path().join("long")).unwrap();
        symlink("./././mon.sock", dir.path().join("short")).unwrap();
        let at = |path: &str| FoundSocket::at(dir.path().join(path)).is_some();
        assert_eq!(["round", "long", "short"].map(at), [false, false, true]);
    }

    #[test]
    fn hostile_folders_are_looked_through_piece_by_piece_and_others_in_each_round() {
        let dir = tempfile::tempdir().unwrap();
        // More than a round takes of a folder, a socket among them, and beside it a VM's folder.
        for n in 0..3 * MOST_OF_FOLDER {
            let name = format!("vms/flood/{n}.qmp");
            fs::create_dir_all(dir.path().join("vms/flood")).unwrap();
            fs::write(dir.path().join(name), "").unwrap();
        }
        socket(&dir.path().join("vms/flood/real.qmp"));
        socket(&dir.path().join("vms/web/web.qmp"));
        let mut walk = walk("/vms/*/*.qmp", dir.path());
        let mut seen = BTreeSet::new();
        for round in 0..5 {
            let walked = walk.go_on();
            assert!(walked.is_round_over, "round {round}");
            let names = walked.sockets.iter().map(|socket| socket.path.file_name());
            let names: Vec<_> = names.map(|name| name.unwrap().to_owned()).collect();
            assert!(names.iter().any(|name| name == "web.qmp"), "round {round}");
            seen.extend(names);
        }
        assert_eq!(seen.len(), 2, "all of it was looked at: {seen:?}");
    }

    #[test]
    fn hostile_numbers_of_folders_are_looked_through_over_several_goes() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MOST_OF_FOLDER / 2 {
            let folder = dir.path().join(format!("vms/{n}"));
            fs::create_dir_all(&folder).unwrap();
            for file in 0..10 {
                fs::write(folder.join(file.to_string()), "").unwrap();
            }
        }
        let mut walk = walk("/vms/*/*", dir.path());
        let goes = (1..100).find(|_| walk.go_on().is_round_over).unwrap();
        // Each folder has its own two entries, and its name is one of another's.
        let entries = MOST_OF_FOLDER / 2 * (10 + 2 + 1 + 1);
        let least = entries / (MOST_ENTRIES + MOST_OF_FOLDER);
        assert!(goes > least && goes <= entries.div_ceil(MOST_ENTRIES) + 1, "{goes}");
    }
}
