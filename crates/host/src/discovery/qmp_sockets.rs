//! Which QMP socket to ask when, and whose it is.
//!
//! A socket is told by a path or by a glob; whose it is becomes known by the threads that it names.
//! A process's own socket is asked when its vCPUs changed, a socket of nobody known ever less often,
//! and never more than a few in one scan, since each may use up its deadline in silence.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use super::look::Look;
use crate::qmp::SocketPattern;
use tandem_linux::thread::Pid;

/// The most sockets asked in one scan, so that a scan stays short when none answers.
const QMP_PER_SCAN: usize = 4;

/// The QMP sockets, and when they are to be asked.
pub(super) struct QmpSockets {
    patterns: Vec<SocketPattern>,
    by_pid: BTreeMap<Pid, PathBuf>,
    root: PathBuf,
    sockets: BTreeMap<PathBuf, Socket>,
}

struct Socket {
    owner: Option<Pid>,
    look: Option<Look>,
}

impl QmpSockets {
    /// None is known yet.
    pub(super) fn new(
        patterns: Vec<SocketPattern>,
        by_pid: BTreeMap<Pid, PathBuf>,
        root: PathBuf,
    ) -> QmpSockets {
        QmpSockets {
            patterns,
            by_pid,
            root,
            sockets: BTreeMap::new(),
        }
    }

    /// Whether there is any to be asked at all.
    pub(super) fn is_used(&self) -> bool {
        !self.patterns.is_empty() || !self.by_pid.is_empty()
    }

    /// The sockets to ask now: those of processes that want it, and those of nobody known yet.
    /// `wants` tells of a process whether it wants it, and nothing of one that holds no VM.
    pub(super) fn due(
        &mut self,
        now: Instant,
        wants: impl Fn(Pid) -> Option<bool>,
    ) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self
            .patterns
            .iter()
            .flat_map(|pattern| pattern.expand(&self.root))
            .collect();
        paths.extend(self.by_pid.values().cloned());
        paths.sort();
        paths.dedup();
        self.sockets
            .retain(|path, _| paths.binary_search(path).is_ok());
        // A socket may be taken over by the next VM of the same name.
        for socket in self.sockets.values_mut() {
            socket.owner = socket.owner.filter(|&pid| wants(pid).is_some());
        }
        for (&pid, path) in &self.by_pid {
            let socket = self.sockets.entry(path.clone()).or_insert(Socket {
                owner: None,
                look: None,
            });
            socket.owner = Some(pid);
        }
        paths.retain(|path| {
            self.sockets.get(path).is_none_or(|socket| {
                socket.owner.is_none_or(|pid| wants(pid) == Some(true))
                    && socket.look.is_none_or(|look| look.is_due(now))
            })
        });
        // Those asked longest ago first, so that silent ones do not keep others from their turn.
        paths.sort_by_key(|path| self.sockets.get(path).and_then(|s| s.look).map(|l| l.next));
        paths.truncate(QMP_PER_SCAN);
        paths
    }

    /// Remembers whose a socket is. One that gave no useful answer is asked ever less often.
    pub(super) fn asked(&mut self, path: PathBuf, owner: Option<Pid>, now: Instant) {
        let socket = self.sockets.entry(path).or_insert(Socket {
            owner: None,
            look: None,
        });
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
    }
}
