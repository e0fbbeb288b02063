//! How much of a journal is whose: no process and no user may fill it.
//!
//! Counted are records and the bytes of their lines, with those of what was given. What is about a thread counts for the user of its process, and
//! for that process alone where its user is not known; what is about a cgroup for the user that it is journaled for. "User" is who has one share
//! of what is bounded: all numbers that `/etc/subuid` gives to one name are one ([`crate::tenants`]). What is about a cgroup of nobody's counts in
//! the sum alone: that is what an operator changes beside VMs, and what a killed run left, until somebody says for whom that cgroup is changed.
//! No path is longer than [`LONGEST`](crate::cgroup::LONGEST) and the names of groups made there.

use std::collections::HashMap;

use crate::ids::Pid;
use crate::journal::error::JournalError;
use crate::journal::record::Entry;
use crate::thread::ThreadRef;

/// Who a record counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    /// A user.
    User(u32),
    /// A process of which it is not known whose it is.
    Process(Pid),
}

/// What is journaled.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    bytes: usize,
    of_each: HashMap<Whose, usize>,
    processes: HashMap<Pid, Share>,
}

/// Of the threads of one process.
#[derive(Debug, Default)]
struct Share {
    records: usize,
    user: Option<u32>,
}

impl Shares {
    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whose a process is of whose threads something is journaled, as far as that is known.
    pub(crate) fn user_of(&self, pid: Pid) -> Option<u32> {
        self.processes.get(&pid)?.user
    }

    /// Who a record counts for that is about this thread, or about none, and that is journaled for this user. Where that is not known, a process
    /// counts for whom it counted before; but its number may have been another's then.
    pub(crate) fn whose(&self, thread: Option<&ThreadRef>, user: Option<u32>) -> Option<Whose> {
        match thread.map(|thread| thread.pid) {
            Some(pid) => {
                let user = user.or_else(|| self.user_of(pid));
                Some(user.map_or(Whose::Process(pid), Whose::User))
            }
            None => user.map(Whose::User),
        }
    }

    /// A record is journaled.
    pub(crate) fn add_record(&mut self, thread: Option<&ThreadRef>, whose: Option<Whose>) {
        if let Some(thread) = thread {
            self.processes.entry(thread.pid).or_default().records += 1;
        }
        if let Some(Whose::User(user)) = whose {
            self.tell(thread, user);
        }
    }

    /// It is known whose a thread's process is.
    pub(crate) fn tell(&mut self, thread: Option<&ThreadRef>, user: u32) {
        if let Some(thread) = thread
            && let Some(share) = self.processes.get_mut(&thread.pid)
        {
            share.user = Some(user);
        }
    }

    /// It is not any more.
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

    /// So many bytes of lines are journaled.
    pub(crate) fn add(&mut self, whose: Option<Whose>, bytes: usize) {
        self.bytes += bytes;
        if let Some(whose) = whose {
            *self.of_each.entry(whose).or_default() += bytes;
        }
    }

    /// They are not any more.
    pub(crate) fn take(&mut self, whose: Option<Whose>, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(whose) = whose
            && let Some(share) = self.of_each.get_mut(&whose)
        {
            *share = share.saturating_sub(bytes);
            if *share == 0 {
                self.of_each.remove(&whose);
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

    /// Whether there is room for so many bytes more.
    pub(crate) fn check_bytes<R: Entry>(
        &self,
        whose: Option<Whose>,
        bytes: usize,
    ) -> Result<(), JournalError> {
        let too_long = |whose, most| JournalError::TooLong { whose, most };
        if let Some(whose) = whose {
            let share = self.of_each.get(&whose).copied().unwrap_or_default();
            let name = match whose {
                Whose::User(user) => format!(" of user {user}"),
                Whose::Process(pid) => format!(" of process {pid}"),
            };
            if share + bytes > R::MOST_BYTES_PER_USER {
                return Err(too_long(name, R::MOST_BYTES_PER_USER));
            }
        }
        match self.bytes + bytes > R::MOST_BYTES {
            true => Err(too_long(String::new(), R::MOST_BYTES)),
            false => Ok(()),
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

    /// So many vCPUs there is room for, in hundreds, where each has lines about these.
    fn hundreds(records: &[(Record, usize)]) -> usize {
        let lines = records.iter().map(|(record, lines)| line(record).len() * lines);
        Record::MOST_BYTES_PER_USER / lines.sum::<usize>() / 100 * 100
    }

    /// With numbers as long as they are on a host that is up for weeks.
    #[test]
    fn how_many_vcpus_one_user_has_room_for() {
        let thread =
            ThreadRef { pid: Pid(2_345_678), tid: Tid(2_345_690), start: StartTime(234_567_890) };
        let id = CgroupId(1_234_567);
        let moved = |from: &CgroupPath, to: &CgroupPath| Record::Moved {
            thread,
            from: from.clone(),
            to: to.clone(),
        };
        // VMs that share a cgroup: the daemon makes a group of each, or of each vCPU while they are apart.
        let home = CgroupPath("/system.slice/vms.service".to_owned());
        let group = home.child("tandem-web-frontend-2345678");
        let apart = home.child("tandem-web-frontend-2345678-vcpu12");
        let together = (moved(&home, &group), 1);
        let many = hundreds(std::slice::from_ref(&together));
        let cgroup = apart.clone();
        let own = [
            together,
            (moved(&home, &apart), 1),
            (Record::Created { cgroup: cgroup.clone() }, 1),
            (Record::Enabled { cgroup, id }, 1),
        ];
        let many = [many, hundreds(&own)];
        // libvirt's have cgroups of their own, and so has each vCPU.
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
        let roams = [(affinity(all), 2), (affinity(one), KEPT_AFFINITIES - 1)];
        let of_libvirt = [hundreds(&[weighed]), hundreds(&roams)];
        assert_eq!((many, of_libvirt), ([60_900, 19_000], [17_700, 5_700]));
    }
}
