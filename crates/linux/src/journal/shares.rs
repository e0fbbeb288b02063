//! Shares of the journal: limits per process and per user, so that none can fill it.
//!
//! Limited are the number of records per process and the bytes of all lines, including those of written values.
//! A record about a thread is charged to the user of its process, or to the process itself if the user is unknown.
//! A record about a cgroup is charged to the user that the caller names.
//! Records about cgroups without a user only count in the total: changes of the operator, and leftovers of a killed run.
//! Leftovers are charged once the caller names the user of the cgroup.
//! Paths are at most [`MAX_PATH_LENGTH`](crate::cgroup::MAX_PATH_LENGTH) bytes long, plus the names of groups created there.

use std::collections::HashMap;

use crate::ids::Pid;
use crate::journal::error::JournalError;
use crate::journal::record::Entry;
use crate::thread::ThreadRef;

/// The share that a record counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShareOwner {
    /// The user's.
    User(u32),
    /// The process's own, as its user is unknown.
    Process(Pid),
}

/// Bytes and records in the journal, by share.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    bytes: usize,
    of_each: HashMap<ShareOwner, usize>,
    processes: HashMap<Pid, Share>,
}

/// Records about the threads of one process.
#[derive(Debug, Default)]
struct Share {
    records: usize,
    user: Option<u32>,
}

impl Shares {
    /// Total bytes of all lines.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// User of a process with journaled threads, if known.
    pub(crate) fn user_of(&self, pid: Pid) -> Option<u32> {
        self.processes.get(&pid)?.user
    }

    /// The share that a record about this thread, or about a cgroup, counts in, given the caller's `user`.
    /// Without a user, the process keeps the user that it had before, although its pid may have been reused since.
    pub(crate) fn owner(
        &self,
        thread: Option<&ThreadRef>,
        user: Option<u32>,
    ) -> Option<ShareOwner> {
        match thread.map(|thread| thread.pid) {
            Some(pid) => {
                let user = user.or_else(|| self.user_of(pid));
                Some(user.map_or(ShareOwner::Process(pid), ShareOwner::User))
            }
            None => user.map(ShareOwner::User),
        }
    }

    /// Counts a new record.
    pub(crate) fn add_record(&mut self, thread: Option<&ThreadRef>, owner: Option<ShareOwner>) {
        if let Some(thread) = thread {
            self.processes.entry(thread.pid).or_default().records += 1;
        }
        if let Some(ShareOwner::User(user)) = owner {
            self.set_user(thread, user);
        }
    }

    /// Sets the user of a thread's process.
    pub(crate) fn set_user(&mut self, thread: Option<&ThreadRef>, user: u32) {
        if let Some(thread) = thread
            && let Some(share) = self.processes.get_mut(&thread.pid)
        {
            share.user = Some(user);
        }
    }

    /// Removes a record from the counts.
    pub(crate) fn take_record(&mut self, thread: Option<&ThreadRef>) {
        if let Some(thread) = thread
            && let Some(share) = self.processes.get_mut(&thread.pid)
        {
            share.records = share.records.saturating_sub(1);
            if share.records == 0 {
                self.processes.remove(&thread.pid);
            }
        }
    }

    /// Adds bytes of lines to a share.
    pub(crate) fn add(&mut self, owner: Option<ShareOwner>, bytes: usize) {
        self.bytes += bytes;
        if let Some(owner) = owner {
            *self.of_each.entry(owner).or_default() += bytes;
        }
    }

    /// Removes bytes of lines from a share.
    pub(crate) fn take(&mut self, owner: Option<ShareOwner>, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(owner) = owner
            && let Some(share) = self.of_each.get_mut(&owner)
        {
            *share = share.saturating_sub(bytes);
            if *share == 0 {
                self.of_each.remove(&owner);
            }
        }
    }

    /// Checks the room for another record of the thread's process.
    pub(crate) fn check_records<R: Entry>(
        &self,
        thread: Option<&ThreadRef>,
    ) -> Result<(), JournalError> {
        let most = R::MAX_PER_PROCESS;
        match thread.and_then(|thread| Some((thread.pid, self.processes.get(&thread.pid)?))) {
            Some((pid, share)) if share.records >= most => Err(JournalError::TooMany { pid, most }),
            _ => Ok(()),
        }
    }

    /// Checks the room for this many more bytes.
    pub(crate) fn check_bytes<R: Entry>(
        &self,
        owner: Option<ShareOwner>,
        bytes: usize,
    ) -> Result<(), JournalError> {
        let too_long = |whose, most| JournalError::TooLong { whose, most };
        if let Some(owner) = owner {
            let share = self.of_each.get(&owner).copied().unwrap_or_default();
            let name = match owner {
                ShareOwner::User(user) => format!(" of user {user}"),
                ShareOwner::Process(pid) => format!(" of process {pid}"),
            };
            if share + bytes > R::MAX_BYTES_PER_USER {
                return Err(too_long(name, R::MAX_BYTES_PER_USER));
            }
        }
        if self.bytes + bytes > R::MAX_BYTES {
            Err(too_long(String::new(), R::MAX_BYTES))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_model::{PcpuId, PcpuSet};

    use super::*;
    use crate::cgroup::{CgroupId, CgroupPath, Knob};
    use crate::ids::Tid;
    use crate::journal::lines::line;
    use crate::journal::{KEPT, KEPT_AFFINITIES, Record};
    use crate::thread::StartTime;

    /// Number of vCPUs that a user's share has room for if each has these lines, rounded down to hundreds.
    fn capacity(records: &[(Record, usize)]) -> usize {
        let lines = records.iter().map(|(record, lines)| line(record).len() * lines);
        Record::MAX_BYTES_PER_USER / lines.sum::<usize>() / 100 * 100
    }

    /// IDs and times have as many digits as on a host with weeks of uptime.
    #[test]
    fn vcpu_capacity_per_user() {
        let thread =
            ThreadRef { pid: Pid(2_345_678), tid: Tid(2_345_690), start: StartTime(234_567_890) };
        let id = CgroupId(1_234_567);
        let moved = |from: &CgroupPath, to: &CgroupPath| Record::Moved {
            thread,
            from: from.clone(),
            to: to.clone(),
        };
        // VMs that share a cgroup: the daemon creates a group per VM, or per vCPU while it separates them.
        let home = CgroupPath("/system.slice/vms.service".to_owned());
        let group = home.child("tandem-web-frontend-2345678");
        let apart = home.child("tandem-web-frontend-2345678-vcpu12");
        let together = (moved(&home, &group), 1);
        let many = capacity(std::slice::from_ref(&together));
        let cgroup = apart.clone();
        let own = [
            together,
            (moved(&home, &apart), 1),
            (Record::Created { cgroup: cgroup.clone() }, 1),
            (Record::Enabled { cgroup, id }, 1),
        ];
        let many = [many, capacity(&own)];
        // libvirt gives each VM and each vCPU a cgroup of its own.
        let vms = CgroupPath(r"/machine.slice/machine-qemu\x2d12\x2dweb-frontend.scope".to_owned());
        let weight = Record::Knob {
            cgroup: vms.child("libvirt").child("vcpu12"),
            id,
            knob: Knob::Weight,
            original: "100".to_owned(),
        };
        let weighed = (weight, 1 + KEPT);
        let affinity = |pcpus: PcpuSet| Record::Affinity { thread, original: pcpus };
        let all = (0..128).map(PcpuId).collect();
        let one = [PcpuId(127)].into_iter().collect();
        let slots = [(affinity(all), 2), (affinity(one), KEPT_AFFINITIES - 1)];
        let of_libvirt = [capacity(&[weighed]), capacity(&slots)];
        assert_eq!((many, of_libvirt), ([60_900, 19_000], [17_700, 5_700]));
    }
}
