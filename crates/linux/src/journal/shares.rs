//! How much of a journal is whose: no process and no user may fill it.
//!
//! Counted are records and the bytes of their lines, with those of what was given. A process of which it is not known whose it is counts for
//! itself. What is about cgroups counts in the sum alone; its number is bounded by that of VMs and vCPUs. No path is longer than
//! [`LONGEST`](crate::cgroup::LONGEST) and the names of groups made there.

use std::collections::HashMap;

use crate::ids::Pid;
use crate::journal::error::JournalError;
use crate::journal::record::Entry;
use crate::thread::ThreadRef;

/// What is journaled.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    bytes: usize,
    processes: HashMap<Pid, Share>,
    users: HashMap<u32, usize>,
}

/// Of one process.
#[derive(Debug, Default)]
struct Share {
    records: usize,
    bytes: usize,
    user: Option<u32>,
}

impl Shares {
    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whose a process is of which something is journaled, as far as that is known.
    pub(crate) fn user_of(&self, pid: Pid) -> Option<u32> {
        self.processes.get(&pid)?.user
    }

    /// So many records of a thread's process, or of no process, and their lines are journaled. Whose it is counts with the first.
    pub(crate) fn add(
        &mut self,
        thread: Option<&ThreadRef>,
        user: Option<u32>,
        records: usize,
        bytes: usize,
    ) {
        self.bytes += bytes;
        if let Some(thread) = thread {
            let share = self.processes.entry(thread.pid).or_default();
            if share.bytes == 0 {
                share.user = user;
            }
            share.records += records;
            share.bytes += bytes;
            if let Some(user) = share.user {
                *self.users.entry(user).or_default() += bytes;
            }
        }
    }

    /// They are not any more.
    pub(crate) fn take(&mut self, thread: Option<&ThreadRef>, records: usize, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let Some(thread) = thread else {
            return;
        };
        let Some(share) = self.processes.get_mut(&thread.pid) else {
            return;
        };
        share.records = share.records.saturating_sub(records);
        share.bytes = share.bytes.saturating_sub(bytes);
        let (user, is_empty) = (share.user, share.bytes == 0);
        if is_empty {
            self.processes.remove(&thread.pid);
        }
        if let Some(user) = user
            && let Some(of_user) = self.users.get_mut(&user)
        {
            *of_user = of_user.saturating_sub(bytes);
            if *of_user == 0 {
                self.users.remove(&user);
            }
        }
    }

    /// Whether there is room for one more record of the thread's process.
    pub(crate) fn check_records<R: Entry>(
        &self,
        thread: Option<&ThreadRef>,
    ) -> Result<(), JournalError> {
        let most = R::MOST_PER_PROCESS;
        match thread.and_then(|thread| Some((thread.pid, self.processes.get(&thread.pid)?))) {
            Some((pid, share)) if share.records >= most => Err(JournalError::TooMany { pid, most }),
            _ => Ok(()),
        }
    }

    /// Whether there is room for so many bytes more of the thread's process, or of no process; `user` is whose it is, where nothing is
    /// journaled of it yet.
    pub(crate) fn check_bytes<R: Entry>(
        &self,
        thread: Option<&ThreadRef>,
        user: Option<u32>,
        bytes: usize,
    ) -> Result<(), JournalError> {
        let too_long = |whose, most| JournalError::TooLong { whose, most };
        if let Some(pid) = thread.map(|thread| thread.pid) {
            let most = R::MOST_BYTES_PER_USER;
            let share = self.processes.get(&pid);
            let user = share.map_or(user, |share| share.user);
            let (of_user, whose) = match user {
                Some(user) => (self.users.get(&user).copied(), format!(" of user {user}")),
                None => (share.map(|share| share.bytes), format!(" of process {pid}")),
            };
            if of_user.unwrap_or_default() + bytes > most {
                return Err(too_long(whose, most));
            }
        }
        match self.bytes + bytes > R::MOST_BYTES {
            true => Err(too_long(String::new(), R::MOST_BYTES)),
            false => Ok(()),
        }
    }
}
