//! Which QMP socket to ask when, and whose it is.
//!
//! A socket is told by a path or by a glob; whose it is becomes known by the threads that it names.
//! A process's own socket is asked when its vCPUs changed, a socket of nobody known ever less often,
//! and never more than a few in one scan, since each may use up its deadline in silence.
//!
//! Who may write to a folder of sockets may put any number there. So those who made sockets take turns, and so do the folders of each: root, who opens
//! sockets for VMs, and everybody who has a VM that waits to be asked about. All others together have one turn. What is kept is bounded, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::look::Look;
use crate::qmp::{FoundSocket, OpenSocket, QmpError, SocketPattern, SocketWalk};
use tandem_linux::thread::Pid;

/// The most sockets asked in one scan, so that a scan stays short when none answers.
const QMP_PER_SCAN: usize = 4;

/// The most sockets of which is known what they answered.
const MOST_KNOWN: usize = 8192;

/// Whose turn it is; `None`: of all who have no VM that waits.
pub(super) type Maker = Option<u32>;

/// The QMP sockets, and when they are to be asked.
pub(super) struct QmpSockets {
    walk: SocketWalk,
    by_pid: BTreeMap<Pid, PathBuf>,
    sockets: BTreeMap<PathBuf, Socket>,
    /// How often any was asked.
    turns: u64,
}

/// A socket that was asked, or that the operator named.
struct Socket {
    owner: Option<Pid>,
    look: Option<Look>,
    maker: Maker,
    /// At which turn it was asked last; 0: never.
    turn: u64,
}

/// A socket that is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueSocket {
    pub(super) path: PathBuf,
    maker: Maker,
}

impl QmpSockets {
    /// None is known yet.
    pub(super) fn new(
        patterns: Vec<SocketPattern>,
        by_pid: BTreeMap<Pid, PathBuf>,
        root: PathBuf,
    ) -> QmpSockets {
        QmpSockets {
            walk: SocketWalk::new(patterns, root),
            by_pid,
            sockets: BTreeMap::new(),
            turns: 0,
        }
    }

    /// Whether there is any to be asked at all.
    pub(super) fn is_used(&self) -> bool {
        !self.walk.is_empty() || !self.by_pid.is_empty()
    }

    /// The sockets to ask now: those of processes that want it, and those of nobody known yet.
    /// `wants` tells of a process whether it wants it, and nothing of one that holds no VM; `maker` whose turn a user's sockets have.
    pub(super) fn due(
        &mut self,
        now: Instant,
        wants: impl Fn(Pid) -> Option<bool>,
        maker: impl Fn(u32) -> Maker,
    ) -> Vec<DueSocket> {
        let walked = self.walk.go_on();
        if walked.is_round_over {
            let by_pid = &self.by_pid;
            let is_named = |path: &PathBuf| by_pid.values().any(|named| named == path);
            self.sockets
                .retain(|path, _| is_named(path) || FoundSocket::at(path.clone()).is_some());
        }
        // A socket may be taken over by the next VM of the same name.
        for socket in self.sockets.values_mut() {
            socket.owner = socket.owner.filter(|&pid| wants(pid).is_some());
        }
        for (&pid, path) in &self.by_pid {
            self.sockets.entry(path.clone()).or_default().owner = Some(pid);
        }
        // What is known is asked also where the walk is somewhere else.
        let is_wanted = |socket: &Socket| socket.owner.and_then(&wants) == Some(true);
        let known = self.sockets.iter().filter(|(_, socket)| is_wanted(socket));
        let known = known.filter_map(|(path, _)| FoundSocket::at(path.clone()));
        let found = known.chain(walked.sockets);
        let mut due: BTreeMap<PathBuf, Maker> =
            found.map(|socket| (socket.path, maker(socket.user))).collect();
        due.extend(self.by_pid.values().map(|path| (path.clone(), Some(0))));
        due.retain(|path, _| {
            self.sockets.get(path).is_none_or(|socket| {
                socket.owner.is_none_or(|pid| wants(pid) == Some(true))
                    && socket.look.is_none_or(|look| look.is_due(now))
            })
        });
        let due = due.into_iter();
        self.choose(due.map(|(path, maker)| DueSocket { path, maker }).collect())
    }

    /// Those whose turn it is: of who had none for the longest time, in the folder where none was asked for the longest time, the one that waits longest.
    fn choose(&self, mut due: Vec<DueSocket>) -> Vec<DueSocket> {
        let mut makers: BTreeMap<Maker, u64> = BTreeMap::new();
        let mut folders: BTreeMap<&Path, u64> = BTreeMap::new();
        for (path, socket) in self.sockets.iter().filter(|(_, socket)| socket.turn > 0) {
            let of_maker = makers.entry(socket.maker).or_default();
            *of_maker = socket.turn.max(*of_maker);
            let of_folder = folders.entry(folder_of(path)).or_default();
            *of_folder = socket.turn.max(*of_folder);
        }
        let mut folders: BTreeMap<PathBuf, u64> =
            folders.into_iter().map(|(folder, turn)| (folder.to_owned(), turn)).collect();
        let mut chosen = Vec::new();
        while chosen.len() < QMP_PER_SCAN {
            let waits = |at: &usize| {
                let DueSocket { path, maker } = due.get(*at)?;
                let look = self.sockets.get(path).and_then(|socket| socket.look);
                let turns = (makers.get(maker), folders.get(folder_of(path)));
                Some((turns, look.map(|look| look.next), path))
            };
            let Some(next) = (0..due.len()).min_by_key(waits) else {
                break;
            };
            let next = due.swap_remove(next);
            let turn = self.turns + 1 + chosen.len() as u64;
            makers.insert(next.maker, turn);
            folders.insert(folder_of(&next.path).to_owned(), turn);
            chosen.push(next);
        }
        chosen
    }

    /// Opens one that is due. Where the operator named its path, links lead where they may.
    pub(super) fn open(&self, due: &DueSocket) -> Result<OpenSocket, QmpError> {
        match self.by_pid.values().any(|named| *named == due.path) {
            true => OpenSocket::named(&due.path),
            false => OpenSocket::found(&due.path),
        }
    }

    /// Remembers whose a socket is. One that gave no useful answer is asked ever less often.
    pub(super) fn asked(&mut self, asked: DueSocket, owner: Option<Pid>, now: Instant) {
        self.turns += 1;
        let socket = self.sockets.entry(asked.path).or_default();
        socket.maker = asked.maker;
        socket.turn = self.turns;
        match owner {
            Some(pid) => {
                socket.owner = Some(pid);
                socket.look = None;
            }
            None => match &mut socket.look {
                Some(look) => look.again(now),
                None => socket.look = Some(Look::first(now)),
            },
        }
        if self.sockets.len() > MOST_KNOWN {
            let oldest = self.sockets.iter().min_by_key(|(_, socket)| socket.turn);
            let oldest = oldest.map(|(path, _)| path.clone());
            oldest.and_then(|path| self.sockets.remove(&path));
        }
    }
}

impl Default for Socket {
    /// Never asked, of nobody known, and named by the operator.
    fn default() -> Socket {
        Socket { owner: None, look: None, maker: Some(0), turn: 0 }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets() -> QmpSockets {
        QmpSockets::new(Vec::new(), BTreeMap::new(), PathBuf::from("/"))
    }

    fn due(path: &str, maker: Maker) -> DueSocket {
        DueSocket { path: PathBuf::from(path), maker }
    }

    /// In which scan a socket is asked, of these that stay silent.
    fn asked_in(sockets: &mut QmpSockets, all: &[DueSocket], wanted: &str) -> Option<usize> {
        let now = Instant::now();
        (0..10).find(|_| {
            // Those never asked, as if the others were not due.
            let is_new = |socket: &&DueSocket| !sockets.sockets.contains_key(&socket.path);
            let chosen = sockets.choose(all.iter().filter(is_new).cloned().collect());
            assert!(chosen.len() <= QMP_PER_SCAN);
            let is_there = chosen.iter().any(|socket| socket.path == Path::new(wanted));
            for socket in chosen {
                sockets.asked(socket, None, now);
            }
            is_there
        })
    }

    #[test]
    fn hostile_numbers_of_sockets_postpone_who_made_them_alone() {
        let flood = (0..1000).map(|n| due(&format!("/run/a/{n:04}.qmp"), Some(1000)));
        let mut all: Vec<DueSocket> = flood.collect();
        all.push(due("/run/a/web.qmp", Some(1001)));
        all.push(due("/run/z/db.qmp", Some(1000)));
        assert_eq!(asked_in(&mut sockets(), &all, "/run/a/web.qmp"), Some(0));
        assert_eq!(
            asked_in(&mut sockets(), &all, "/run/z/db.qmp"),
            Some(0),
            "another folder of the same user"
        );
        assert_eq!(asked_in(&mut sockets(), &all, "/run/a/0999.qmp"), None);
    }

    #[test]
    fn hostile_numbers_of_users_take_turns_and_those_without_vms_have_one() {
        // Many users with VMs, each with as many sockets as he likes.
        let flood = (0..12).flat_map(|user| {
            (0..100).map(move |n| due(&format!("/run/a/{user}-{n}.qmp"), Some(2000 + user)))
        });
        let mut all: Vec<DueSocket> = flood.collect();
        all.push(due("/run/z/web.qmp", Some(9999)));
        let scan = asked_in(&mut sockets(), &all, "/run/z/web.qmp");
        assert!(scan.is_some_and(|scan| scan < 4), "{scan:?}");
        // Any number of users without VMs.
        let mut all: Vec<DueSocket> =
            (0..1000).map(|n| due(&format!("/run/a/{n:04}.qmp"), None)).collect();
        all.push(due("/run/a/web.qmp", Some(9999)));
        assert_eq!(asked_in(&mut sockets(), &all, "/run/a/web.qmp"), Some(0));
    }

    #[test]
    fn hostile_numbers_of_silent_sockets_are_not_all_remembered() {
        let mut sockets = sockets();
        let now = Instant::now();
        for n in 0..MOST_KNOWN + 3 {
            sockets.asked(due(&format!("/run/{n}.qmp"), Some(1000)), None, now);
        }
        assert_eq!(sockets.sockets.len(), MOST_KNOWN);
        assert!(!sockets.sockets.contains_key(Path::new("/run/2.qmp")));
        assert!(sockets.sockets.contains_key(Path::new("/run/3.qmp")));
    }
}
