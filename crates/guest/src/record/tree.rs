//! Polls `/proc` for the threads of a process and its descendants.
//!
//! Per thread it reads the run time and the wait for a CPU (`schedstat`) and the number of voluntary sleeps (`status`).
//! It reads the system call of a sleeping thread (`syscall`) if permitted.
//! A thread counts from its first sight, or from its creation if it is created during the recording.
//! Threads that live and exit between two looks are not seen.
//!
//! A look lists `/proc/PID/task` and takes a few reads per thread.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use tandem_linux::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};
use tandem_model::Nanos;
use tandem_model::application::{AsleepIn, Sleeps, ThreadProfile};

/// Length of the intervals in which sleeps are counted.
const PART: Nanos = Nanos::from_millis(500);

/// Counters of a thread since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    ran: Nanos,
    waited: Nanos,
    sleeps: u64,
    preempted: u64,
}

/// Activity of all threads between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// CPU time.
    pub ran: Nanos,
    /// Number of voluntary sleeps.
    pub sleeps: u64,
}

/// An observed thread.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its TID.
    pub tid: Tid,
    name: String,
    first: Counts,
    last: Counts,
    /// Run time since the previous look.
    pub lately: Nanos,
    since: Nanos,
    until: Nanos,
    by_time: Vec<Sleeps>,
    part: (Nanos, u64),
    asleep_in: BTreeMap<&'static str, u64>,
    is_there: bool,
}

/// All observed threads.
#[derive(Debug)]
pub struct Tree {
    procfs: ProcFs,
    root: ThreadRef,
    seen: HashMap<ThreadRef, Seen>,
    began: Nanos,
    looks: u64,
}

impl Tree {
    /// Starts with this process; `is_new` if it starts now, so that its counters count from zero.
    pub fn new(procfs: ProcFs, root: ThreadRef, now: Nanos, is_new: bool) -> Tree {
        Tree { procfs, root, seen: HashMap::new(), began: now, looks: u64::from(is_new) }
    }

    /// Reads all current threads.
    pub fn look(&mut self, now: Nanos) -> Did {
        for seen in self.seen.values_mut() {
            seen.is_there = false;
            seen.lately = Nanos::ZERO;
        }
        let mut did = Did::default();
        for pid in family(&self.procfs, self.root) {
            let tasks = self.procfs.process(pid).join("task");
            let Ok(tasks) = fs::read_dir(tasks) else {
                continue;
            };
            for task in tasks.flatten() {
                if let Some(tid) = number(&task.file_name()) {
                    let one = self.look_at(pid, Tid(tid), &task.path(), now);
                    let one = one.unwrap_or_default();
                    did.ran += one.ran;
                    did.sleeps += one.sleeps;
                }
            }
        }
        self.looks += 1;
        did
    }

    fn look_at(&mut self, pid: Pid, tid: Tid, folder: &Path, now: Nanos) -> Option<Did> {
        let stat = ThreadStat::read(folder).ok()?;
        let counts = counts(folder)?;
        let thread = ThreadRef { pid, tid, start: stat.start };
        let is_born_since = self.looks > 0;
        let began = self.began;
        let seen = self.seen.entry(thread).or_insert_with(|| {
            let first = if is_born_since { Counts::default() } else { counts };
            Seen {
                tid,
                name: String::new(),
                first,
                last: first,
                lately: Nanos::ZERO,
                since: if is_born_since { now } else { began },
                until: now,
                by_time: Vec::new(),
                part: (now, first.sleeps),
                asleep_in: BTreeMap::new(),
                is_there: true,
            }
        });
        let did = Did {
            ran: counts.ran.saturating_sub(seen.last.ran),
            sleeps: counts.sleeps.saturating_sub(seen.last.sleeps),
        };
        // A new program has its parent's name until execve.
        seen.name = stat.comm;
        (seen.last, seen.until, seen.is_there) = (counts, now, true);
        seen.lately = did.ran;
        let wall = now.saturating_sub(seen.part.0);
        if wall >= PART {
            let sleeps = counts.sleeps.saturating_sub(seen.part.1);
            seen.by_time.push(Sleeps { sleeps, wall });
            seen.part = (now, counts.sleeps);
        }
        if !stat.state.is_runnable()
            && let Some(call) = call(folder)
        {
            *seen.asleep_in.entry(call).or_default() += 1;
        }
        Some(did)
    }

    /// Returns the threads of the last look, with their run times since the previous one.
    pub fn there(&self) -> Vec<(Tid, Nanos)> {
        let there = self.seen.values().filter(|seen| seen.is_there);
        let mut there: Vec<_> = there.map(|seen| (seen.tid, seen.lately)).collect();
        there.sort_unstable();
        there
    }

    /// Returns true if the process has exited.
    pub fn is_over(&self) -> bool {
        !self.root.is_alive(&self.procfs)
    }

    /// Returns the profiles of all threads, longest run time first.
    pub fn threads(&self) -> Vec<(Tid, ThreadProfile)> {
        let mut all: Vec<_> = self.seen.values().collect();
        all.sort_by_key(|seen| (std::cmp::Reverse(seen.ran()), seen.tid));
        all.into_iter().map(|seen| (seen.tid, seen.profile())).collect()
    }
}

impl Seen {
    fn ran(&self) -> Nanos {
        self.last.ran.saturating_sub(self.first.ran)
    }

    fn profile(&self) -> ThreadProfile {
        let (first, last) = (self.first, self.last);
        let ran = self.ran();
        let asleep_in = self
            .asleep_in
            .iter()
            .map(|(what, samples)| AsleepIn { what: (*what).to_owned(), samples: *samples });
        ThreadProfile {
            name: self.name.clone(),
            lives: 1,
            // A thread that is seen only once ran before that.
            wall: self.until.saturating_sub(self.since).max(ran),
            ran,
            waited: last.waited.saturating_sub(first.waited),
            sleeps: last.sleeps.saturating_sub(first.sleeps),
            preempted: last.preempted.saturating_sub(first.preempted),
            by_time: self.by_time.clone(),
            asleep_in: asleep_in.collect(),
            ..ThreadProfile::default()
        }
    }
}

/// Returns a process and its descendants; none if it has exited.
fn family(procfs: &ProcFs, root: ThreadRef) -> Vec<Pid> {
    if root.stat(procfs).is_err() {
        return Vec::new();
    }
    let entries = fs::read_dir(procfs.resolve("/proc")).into_iter().flatten();
    let all = entries.flatten().filter_map(|entry| {
        let pid = Pid(number(&entry.file_name())?);
        Some((ThreadStat::read(&entry.path()).ok()?.parent, pid))
    });
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    all.for_each(|(parent, pid)| children.entry(parent).or_default().push(pid));
    let (mut family, mut at) = (vec![root.pid], 0);
    while let Some(parent) = family.get(at) {
        family.extend(children.remove(parent).unwrap_or_default());
        at += 1;
    }
    family
}

fn number(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

fn counts(folder: &Path) -> Option<Counts> {
    let schedstat = read_text(&folder.join("schedstat")).ok()?;
    let mut fields = schedstat.split_ascii_whitespace().map(str::parse);
    let (Some(Ok(ran)), Some(Ok(waited))) = (fields.next(), fields.next()) else {
        return None;
    };
    let status = read_text(&folder.join("status")).ok()?;
    let count = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(Counts {
        ran: Nanos(ran),
        waited: Nanos(waited),
        sleeps: count("voluntary_ctxt_switches:")?,
        preempted: count("nonvoluntary_ctxt_switches:")?,
    })
}

/// Returns one word for the system call in which a thread sleeps; `None` if it may not be read.
fn call(folder: &Path) -> Option<&'static str> {
    let text = read_text(&folder.join("syscall")).ok()?;
    Some(word(text.split_ascii_whitespace().next()?.parse().ok()?))
}

/// Returns one word for a system call that sleeps.
fn word(number: libc::c_long) -> &'static str {
    match number {
        libc::SYS_futex => "futex",
        libc::SYS_clock_nanosleep | libc::SYS_nanosleep => "sleep",
        libc::SYS_read | libc::SYS_readv | libc::SYS_pread64 => "read",
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 => "write",
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_accept | libc::SYS_accept4 => "receive",
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_connect => "send",
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait => "poll",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => "poll",
        libc::SYS_wait4 | libc::SYS_waitid => "child",
        libc::SYS_rt_sigtimedwait | libc::SYS_rt_sigsuspend => "signal",
        libc::SYS_fsync | libc::SYS_fdatasync => "sync",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the files of a process with one thread.
    fn write(root: &Path, pid: u32, parent: u32, schedstat: &str, sleeps: u64, state: char) {
        let folder = root.join(format!("proc/{pid}/task/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let stat = format!(
            "{pid} (p{pid}) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0",
            pid * 10
        );
        for at in [&folder, &root.join(format!("proc/{pid}"))] {
            fs::write(at.join("stat"), &stat).unwrap();
        }
        fs::write(folder.join("schedstat"), schedstat).unwrap();
        let status = format!(
            "Name:\tp\nvoluntary_ctxt_switches:\t{sleeps}\nnonvoluntary_ctxt_switches:\t2\n"
        );
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("syscall"), "202 0x1 0x2\n").unwrap();
    }

    fn root(procfs: &ProcFs) -> ThreadRef {
        ThreadRef::of_process(procfs, Pid(5)).unwrap()
    }

    #[test]
    fn children_count_from_their_creation() {
        let dir = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(dir.path());
        write(dir.path(), 5, 1, "1000 50 3", 7, 'R');
        write(dir.path(), 9, 1, "777 0 1", 1, 'R');
        let mut tree = Tree::new(procfs.clone(), root(&procfs), Nanos(0), false);
        assert_eq!(tree.look(Nanos(0)), Did::default());
        write(dir.path(), 5, 1, "1600 70 3", 9, 'S');
        write(dir.path(), 6, 5, "300 0 1", 4, 'R');
        write(dir.path(), 7, 6, "20 0 1", 0, 'R');
        let did = tree.look(Nanos(1_000_000_000));
        assert_eq!((did.ran, did.sleeps), (Nanos(920), 6));
        let there = [(Tid(5), Nanos(600)), (Tid(6), Nanos(300)), (Tid(7), Nanos(20))];
        assert_eq!(tree.there(), there);
        let threads = tree.threads();
        let (tid, first) = &threads[0];
        assert_eq!((*tid, first.name.as_str()), (Tid(5), "p5"));
        assert_eq!((first.ran, first.waited), (Nanos(600), Nanos(20)));
        assert_eq!((first.sleeps, first.preempted), (2, 0));
        assert_eq!(first.wall, Nanos(1_000_000_000));
        let futex = AsleepIn { what: "futex".to_owned(), samples: 1 };
        assert_eq!(first.asleep_in, [futex]);
        let wall = Nanos(1_000_000_000);
        assert_eq!(first.by_time, [Sleeps { sleeps: 2, wall }]);
        assert_eq!((threads[1].1.ran, threads[1].1.sleeps), (Nanos(300), 4));
        assert!(!tree.is_over());
    }

    #[test]
    fn exited_process_keeps_its_counts() {
        let dir = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(dir.path());
        write(dir.path(), 5, 1, "1000 50 3", 7, 'R');
        let mut tree = Tree::new(procfs.clone(), root(&procfs), Nanos(0), true);
        tree.look(Nanos(10));
        fs::remove_dir_all(dir.path().join("proc/5")).unwrap();
        tree.look(Nanos(20));
        assert!(tree.is_over());
        assert_eq!(tree.there(), []);
        assert_eq!(tree.threads()[0].1.ran, Nanos(1000));
    }
}
