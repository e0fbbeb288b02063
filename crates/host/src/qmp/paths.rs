//! Finds QMP sockets by patterns.
//!
//! Tenants own the folders of sockets, and may create any number of files there.
//! A round along all patterns is therefore split into calls of at most [`MAX_ENTRIES`] entries.
//! A round reads at most [`MAX_ENTRIES_OF_FOLDER`] of one folder; the next round continues there.
//! With fewer entries, each call is a whole round.
//! Only sockets are returned, with their owner.

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

/// Maximum number of entries per call, plus or minus those of a folder.
pub const MAX_ENTRIES: usize = 4096;

/// Maximum number of entries of a folder per round.
pub const MAX_ENTRIES_OF_FOLDER: usize = 1024;

/// Maximum number of larger folders whose position is remembered.
const MAX_POSITIONS: usize = 1024;

/// Maximum length of a pattern, in bytes: that of a path (PATH_MAX of include/uapi/linux/limits.h).
const MAX_PATTERN: usize = 4096;

/// A path whose parts may be globs, as `/var/lib/libvirt/qemu/*/mon.sock`.
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
        // Each part may be a glob of its own.
        if pattern.len() > MAX_PATTERN {
            let length = pattern.len();
            return Err(wrong(format!(
                "{length} bytes are too many: at most {MAX_PATTERN}, as of a path"
            )));
        }
        let Some(path) = pattern.strip_prefix('/') else {
            return Err(wrong("it must be an absolute path".to_owned()));
        };
        let part = |part: &str| {
            if part.contains(['*', '?', '[', '{']) {
                compile(part, false).map(Part::Glob).map_err(wrong)
            } else {
                Ok(Part::Name(part.to_owned()))
            }
        };
        let parts = path.split('/').filter(|p| !p.is_empty()).map(part);
        Ok(SocketPattern { parts: parts.collect::<Result<_, _>>()? })
    }
}

/// A socket on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSocket {
    /// Its path.
    pub path: PathBuf,
    /// Owner of the socket, or of the link to it.
    pub user: u32,
}

impl FoundSocket {
    /// Returns the socket at a path, if root or the socket's owner owns all links in the path.
    pub fn at(path: PathBuf) -> Option<FoundSocket> {
        let user = OpenSocket::found(&path).ok()?.user();
        Some(FoundSocket { path, user })
    }
}

/// Result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// The sockets.
    pub sockets: Vec<FoundSocket>,
    /// Whether a round along all patterns ended.
    pub is_round_over: bool,
}

/// A search that walks along patterns in rounds.
#[derive(Clone, Debug)]
pub struct SocketWalk {
    patterns: Vec<SocketPattern>,
    root: PathBuf,
    /// Places that remain in this round, the next one last.
    places: Vec<Place>,
    /// Positions in folders that have more entries than a round takes.
    positions: BTreeMap<PathBuf, u64>,
}

/// A place to visit.
#[derive(Clone, Debug)]
struct Place {
    pattern: usize,
    /// Number of the pattern's parts that led to the path.
    part: usize,
    path: PathBuf,
}

/// Some entries of a folder.
#[derive(Default)]
struct Listed {
    paths: Vec<PathBuf>,
    looked_at: usize,
    /// Position to continue from, if entries remain.
    position: Option<u64>,
}

impl SocketWalk {
    /// Walks along these patterns below `root`.
    pub fn new(patterns: Vec<SocketPattern>, root: PathBuf) -> SocketWalk {
        SocketWalk { patterns, root, places: Vec::new(), positions: BTreeMap::new() }
    }

    /// Whether there are any patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Continues, at most to the end of a round. Unreadable folders count as empty.
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
        while looked_at < MAX_ENTRIES
            && let Some(place) = self.places.pop()
        {
            looked_at += self.visit(place, &mut walked.sockets);
        }
        walked.is_round_over = self.places.is_empty();
        walked
    }

    /// Visits one place and queues the places below it. Returns the number of entries read.
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
                if is_last {
                    sockets.extend(listed.paths.into_iter().filter_map(FoundSocket::at));
                } else {
                    self.places.extend(listed.paths.into_iter().map(below));
                }
                if let Some(position) = listed.position {
                    if self.positions.len() >= MAX_POSITIONS {
                        self.positions.pop_first();
                    }
                    self.positions.insert(place.path, position);
                }
                1 + listed.looked_at
            }
        }
    }
}

/// Returns the wanted entries of a folder from a position on, at most as many as a round takes.
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
        if listed.looked_at >= MAX_ENTRIES_OF_FOLDER {
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

    /// A socket without a listener.
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
        // A regular file, and a link to a socket.
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
        assert!(found(), "the user owns both");
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
        // Root's link leads to another user's link, which leads to root's socket.
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
    fn hostile_folders_do_not_delay_others() {
        let dir = tempfile::tempdir().unwrap();
        // More entries than a round takes of a folder, with one socket, next to the folder of a VM.
        for n in 0..3 * MAX_ENTRIES_OF_FOLDER {
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
    fn hostile_numbers_of_folders_take_several_calls() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MAX_ENTRIES_OF_FOLDER / 2 {
            let folder = dir.path().join(format!("vms/{n}"));
            fs::create_dir_all(&folder).unwrap();
            for file in 0..10 {
                fs::write(folder.join(file.to_string()), "").unwrap();
            }
        }
        let mut walk = walk("/vms/*/*", dir.path());
        let goes = (1..100).find(|_| walk.go_on().is_round_over).unwrap();
        // Each folder has two entries of its own and is one of another folder.
        let entries = MAX_ENTRIES_OF_FOLDER / 2 * (10 + 2 + 1 + 1);
        let least = entries / (MAX_ENTRIES + MAX_ENTRIES_OF_FOLDER);
        assert!(goes > least && goes <= entries.div_ceil(MAX_ENTRIES) + 1, "{goes}");
    }
}
