//! The schedule of QMP queries, and the owners of the sockets.
//!
//! The operator names sockets by path or by glob; the threads that a socket names identify its process.
//! A socket of a known process is queried when the vCPUs of that process change, others at growing intervals.
//! A scan queries only a few sockets, since each may exhaust its deadline in silence.
//!
//! Any user with write access to a folder of sockets may create any number of them.
//! Only sockets of root and of users with a VM that waits for a query are queried, and these users take turns.
//! The number of remembered sockets is limited, too.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use super::look::Look;
use crate::qmp::{FoundSocket, OpenSocket, QmpError, SocketPattern, SocketWalk};
use tandem_linux::thread::Pid;

/// Maximum number of sockets queried per scan, so that a scan stays short if none answers.
const MAX_QUERIES_PER_SCAN: usize = 4;

/// Maximum number of sockets whose last answer is remembered.
const MAX_KNOWN: usize = 8192;

/// The QMP sockets and their schedule.
pub(super) struct QmpSockets {
    walk: SocketWalk,
    by_pid: BTreeMap<Pid, PathBuf>,
    sockets: BTreeMap<PathBuf, Socket>,
    /// Number of queries so far.
    turns: u64,
}

/// A socket that was queried, or that the operator named.
struct Socket {
    owner: Option<Pid>,
    look: Option<Look>,
    /// The user that owns the socket; root for one that the operator named.
    user: u32,
    /// Turn of the last query; 0 if there was none.
    turn: u64,
}

/// A socket that is due for a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueSocket {
    pub(super) path: PathBuf,
    user: u32,
}

impl QmpSockets {
    /// Starts without known sockets.
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

    /// Whether any sockets may have to be queried.
    pub(super) fn is_used(&self) -> bool {
        !self.walk.is_empty() || !self.by_pid.is_empty()
    }

    /// Returns the sockets to query now: those of processes that want it, and those without a known process.
    /// `wants` returns whether a process wants it, or `None` for one that holds no VM.
    /// `may_have` returns whether a socket of this user may belong to such a process.
    pub(super) fn due(
        &mut self,
        now: Instant,
        wants: impl Fn(Pid) -> Option<bool>,
        may_have: impl Fn(u32) -> bool,
    ) -> Vec<DueSocket> {
        let walked = self.walk.go_on();
        if walked.is_round_over {
            let by_pid = &self.by_pid;
            let is_named = |path: &PathBuf| by_pid.values().any(|named| named == path);
            self.sockets
                .retain(|path, _| is_named(path) || FoundSocket::at(path.clone()).is_some());
        }
        // The next VM of the same name may take over a socket.
        for socket in self.sockets.values_mut() {
            socket.owner = socket.owner.filter(|&pid| wants(pid).is_some());
        }
        for (&pid, path) in &self.by_pid {
            self.sockets.entry(path.clone()).or_default().owner = Some(pid);
        }
        // Known sockets are also queried while the walk is elsewhere.
        let is_wanted = |socket: &Socket| socket.owner.and_then(&wants) == Some(true);
        let known = self.sockets.iter().filter(|(_, socket)| is_wanted(socket));
        let known = known.filter_map(|(path, _)| FoundSocket::at(path.clone()));
        let found = known.chain(walked.sockets);
        let found = found.filter(|socket| may_have(socket.user));
        let mut due: BTreeMap<PathBuf, u32> =
            found.map(|socket| (socket.path, socket.user)).collect();
        due.extend(self.by_pid.values().map(|path| (path.clone(), 0)));
        due.retain(|path, _| {
            self.sockets.get(path).is_none_or(|socket| {
                socket.owner.is_none_or(|pid| wants(pid) == Some(true))
                    && socket.look.is_none_or(|look| look.is_due(now))
            })
        });
        let due = due.into_iter();
        self.choose(due.map(|(path, user)| DueSocket { path, user }).collect())
    }

    /// Chooses the sockets whose turn it is: of the user with the oldest turn, the socket with the longest wait.
    fn choose(&self, mut due: Vec<DueSocket>) -> Vec<DueSocket> {
        let mut users: BTreeMap<u32, u64> = BTreeMap::new();
        for socket in self.sockets.values().filter(|socket| socket.turn > 0) {
            let turn = users.entry(socket.user).or_default();
            *turn = socket.turn.max(*turn);
        }
        let mut chosen = Vec::new();
        while chosen.len() < MAX_QUERIES_PER_SCAN {
            let waits = |at: &usize| {
                let DueSocket { path, user } = due.get(*at)?;
                let look = self.sockets.get(path).and_then(|socket| socket.look);
                Some((users.get(user), look.map(|look| look.next), path))
            };
            let Some(next) = (0..due.len()).min_by_key(waits) else {
                break;
            };
            let next = due.swap_remove(next);
            users.insert(next.user, self.turns + 1 + chosen.len() as u64);
            chosen.push(next);
        }
        chosen
    }

    /// Opens a due socket. Links in a path that the operator named are followed unconditionally.
    pub(super) fn open(&self, due: &DueSocket) -> Result<OpenSocket, QmpError> {
        if self.by_pid.values().any(|named| *named == due.path) {
            OpenSocket::named(&due.path)
        } else {
            OpenSocket::found(&due.path)
        }
    }

    /// Records the owner of a queried socket. Sockets without a useful answer are queried at growing intervals.
    pub(super) fn asked(&mut self, asked: DueSocket, owner: Option<Pid>, now: Instant) {
        self.turns += 1;
        let socket = self.sockets.entry(asked.path).or_default();
        socket.user = asked.user;
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
        if self.sockets.len() > MAX_KNOWN {
            let oldest = self.sockets.iter().min_by_key(|(_, socket)| socket.turn);
            let oldest = oldest.map(|(path, _)| path.clone());
            oldest.and_then(|path| self.sockets.remove(&path));
        }
    }
}

impl Default for Socket {
    /// Never queried, without a known process, and named by the operator.
    fn default() -> Socket {
        Socket { owner: None, look: None, user: 0, turn: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sockets() -> QmpSockets {
        QmpSockets::new(Vec::new(), BTreeMap::new(), PathBuf::from("/"))
    }

    fn due(path: &str, user: u32) -> DueSocket {
        DueSocket { path: PathBuf::from(path), user }
    }

    /// Returns the scan in which a socket is queried, among these silent ones.
    fn asked_in(sockets: &mut QmpSockets, all: &[DueSocket], wanted: &str) -> Option<usize> {
        let now = Instant::now();
        (0..10).find(|_| {
            // Only sockets that were never queried, as if the others were not due.
            let is_new = |socket: &&DueSocket| !sockets.sockets.contains_key(&socket.path);
            let chosen = sockets.choose(all.iter().filter(is_new).cloned().collect());
            assert!(chosen.len() <= MAX_QUERIES_PER_SCAN);
            let is_there = chosen.iter().any(|socket| socket.path == Path::new(wanted));
            for socket in chosen {
                sockets.asked(socket, None, now);
            }
            is_there
        })
    }

    #[test]
    fn hostile_sockets_delay_only_their_maker() {
        let flood = (0..1000).map(|n| due(&format!("/run/a/{n:04}.qmp"), 1000));
        let mut all: Vec<DueSocket> = flood.collect();
        all.push(due("/run/a/web.qmp", 1001));
        assert_eq!(asked_in(&mut sockets(), &all, "/run/a/web.qmp"), Some(0));
        assert_eq!(asked_in(&mut sockets(), &all, "/run/a/0999.qmp"), None);
    }

    #[test]
    fn hostile_users_take_turns() {
        let flood = (0..12).flat_map(|user| {
            (0..100).map(move |n| due(&format!("/run/a/{user}-{n}.qmp"), 2000 + user))
        });
        let mut all: Vec<DueSocket> = flood.collect();
        all.push(due("/run/z/web.qmp", 9999));
        let scan = asked_in(&mut sockets(), &all, "/run/z/web.qmp");
        assert!(scan.is_some_and(|scan| scan < 4), "{scan:?}");
    }

    #[test]
    fn hostile_silent_sockets_are_not_all_remembered() {
        let mut sockets = sockets();
        let now = Instant::now();
        for n in 0..MAX_KNOWN + 3 {
            sockets.asked(due(&format!("/run/{n}.qmp"), 1000), None, now);
        }
        assert_eq!(sockets.sockets.len(), MAX_KNOWN);
        assert!(!sockets.sockets.contains_key(Path::new("/run/2.qmp")));
        assert!(sockets.sockets.contains_key(Path::new("/run/3.qmp")));
    }
}
