//! References to threads and processes that stay valid when an ID is reused.
//!
//! Linux reuses a thread ID once its owner is gone, but the pair of ID and start time is unique while the machine is up.
//! A [`ThreadRef`] carries both, and all code that acts on a thread compares the start time first.
//! Between that check and the act, for some microseconds, the thread could end and its ID be reused.
//! The kernel offers no way to close that gap for affinity masks and cgroups.
//!
//! Source: `/proc/PID/stat`, proc_pid_stat(5).
//! Field 2 (the name) is in parentheses and may itself contain spaces and parentheses, so fields are counted from the last `)`.
//! Start times (field 22) are in clock ticks since boot.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::ids::{Pid, Tid};
use crate::printable::printable;
use crate::procfs::{ProcFs, is_gone};

/// When a thread started, in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartTime(pub u64);

/// A thread; unique while the machine is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadRef {
    /// Its process.
    pub pid: Pid,
    /// Its ID.
    pub tid: Tid,
    /// Its start time, which distinguishes it from a later thread with the same ID.
    pub start: StartTime,
}

impl fmt::Display for ThreadRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tid == self.pid.main_thread() {
            write!(f, "process {}", self.pid)
        } else {
            write!(f, "thread {} of process {}", self.tid, self.pid)
        }
    }
}

/// A thread's state, by the kernel's letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// `R`: running or waiting for a pCPU.
    Running,
    /// `S`: waiting for something else.
    Sleeping,
    /// `D`: waiting uninterruptibly, usually for a device.
    DiskSleep,
    /// `T` or `t`: stopped by a signal or a debugger.
    Stopped,
    /// `Z` or `X`: ended.
    Dead,
    /// `I`, and states that later kernels add.
    Other(char),
}

impl TaskState {
    /// Whether the thread runs or waits for a pCPU.
    pub fn is_runnable(self) -> bool {
        self == TaskState::Running
    }
}

impl From<char> for TaskState {
    fn from(letter: char) -> TaskState {
        match letter {
            'R' => TaskState::Running,
            'S' => TaskState::Sleeping,
            'D' => TaskState::DiskSleep,
            'T' | 't' => TaskState::Stopped,
            'Z' | 'X' | 'x' => TaskState::Dead,
            other => TaskState::Other(other),
        }
    }
}

/// Why a thread could not be read.
#[derive(Debug, Error)]
pub enum ThreadError {
    /// The thread ended; its ID may be reused.
    #[error("{0} is gone")]
    Gone(String),
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file does not have the documented format.
    #[error("{path} holds '{text}'; expected {wanted}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its contents.
        text: String,
        /// The expected format.
        wanted: &'static str,
    },
}

impl ThreadError {
    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, ThreadError::Gone(_))
    }

    /// Error for a file of a thread that could not be read.
    pub fn reading(path: &Path, source: io::Error) -> ThreadError {
        if is_gone(&source) {
            ThreadError::Gone(path.display().to_string())
        } else {
            ThreadError::Read { path: path.to_owned(), source }
        }
    }
}

/// Reads a line of `stat` in one system call, because this runs for every thread of the host.
fn read_line(path: &Path) -> io::Result<String> {
    // Some fifty numbers of at most 20 digits and a name.
    let mut buffer = [0u8; 1280];
    let bytes = File::open(path)?.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..bytes]).into_owned())
}

/// PF_KTHREAD of include/linux/sched.h: a kernel thread.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The fields of `stat` that Tandem uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStat {
    /// The thread's name, at most 15 bytes, escaped by [`printable`] because the thread chooses it.
    pub comm: String,
    /// Its state.
    pub state: TaskState,
    /// Its process's parent; 0 if it has none in this PID namespace.
    pub parent: Pid,
    /// Its process group; `None` for an exiting thread, for which the kernel shows -1.
    pub group: Option<Pid>,
    /// Whether it is a kernel thread, which cannot be a vCPU.
    pub kernel_thread: bool,
    /// Number of threads of its process.
    pub threads: u32,
    /// Its start time.
    pub start: StartTime,
    /// Its current or last pCPU; `None` if the line ends before that field.
    pub pcpu: Option<u32>,
}

impl ThreadStat {
    /// Parses one line; `None` if it does not have the documented format.
    pub fn parse(line: &str) -> Option<ThreadStat> {
        let open = line.find('(')?;
        let close = line.rfind(')')?;
        let comm = printable(line.get(open + 1..close)?).into_owned();
        // Field 3 is the first after the name.
        let mut fields = line.get(close + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?.into();
        let parent = Pid(fields.next()?.parse().ok()?);
        let group = fields.next()?.parse().ok().map(Pid);
        let flags: u64 = fields.nth(3)?.parse().ok()?;
        let threads = fields.nth(10)?.parse().ok()?;
        let start = StartTime(fields.nth(1)?.parse().ok()?);
        let pcpu = fields.nth(16).and_then(|field| field.parse().ok());
        Some(ThreadStat {
            comm,
            state,
            parent,
            group,
            kernel_thread: flags & PF_KTHREAD != 0,
            threads,
            start,
            pcpu,
        })
    }

    /// Reads `stat` in the folder of a process or task.
    pub fn read(folder: &Path) -> Result<ThreadStat, ThreadError> {
        let path = folder.join("stat");
        let line = read_line(&path).map_err(|source| ThreadError::reading(&path, source))?;
        ThreadStat::parse(&line).ok_or_else(|| ThreadError::Malformed {
            path,
            text: line.chars().take(80).collect(),
            wanted: "a line as proc_pid_stat(5) describes",
        })
    }
}

impl ThreadRef {
    /// The current thread `tid` of `pid`.
    pub fn read(procfs: &ProcFs, pid: Pid, tid: Tid) -> Result<ThreadRef, ThreadError> {
        let stat = ThreadStat::read(&procfs.task(pid, tid))?;
        Ok(ThreadRef { pid, tid, start: stat.start })
    }

    /// The first thread of the current process `pid`.
    pub fn of_process(procfs: &ProcFs, pid: Pid) -> Result<ThreadRef, ThreadError> {
        ThreadRef::read(procfs, pid, pid.main_thread())
    }

    /// Reads the thread's `stat`, if the ID still belongs to it.
    pub fn stat(&self, procfs: &ProcFs) -> Result<ThreadStat, ThreadError> {
        let stat = ThreadStat::read(&procfs.task(self.pid, self.tid))?;
        if stat.start == self.start { Ok(stat) } else { Err(ThreadError::Gone(self.to_string())) }
    }

    /// Whether the thread still exists.
    /// True if that cannot be read (no more open files), because its changes must not be forgotten.
    pub fn is_alive(&self, procfs: &ProcFs) -> bool {
        match self.stat(procfs) {
            Ok(stat) => stat.state != TaskState::Dead,
            Err(error) => !error.is_gone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(comm: &str) -> String {
        format!(
            "8935 ({comm}) R 8931 8930 4578 0 -1 4194304 97 0 0 0 0 0 0 0 20 0 7 0 191178 3133440 \
             361 18446744073709551615 94 94 140 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0"
        )
    }

    #[test]
    fn parentheses_in_names_do_not_shift_fields() {
        for comm in ["cat", "CPU 0/KVM", "a) S 1 (b", "((", ")) 1 2 3", ""] {
            let stat = ThreadStat::parse(&line(comm)).unwrap();
            assert_eq!(stat.comm, comm);
            assert_eq!(stat.state, TaskState::Running);
            assert_eq!(stat.parent, Pid(8931));
            assert_eq!(stat.group, Some(Pid(8930)));
            assert_eq!(stat.threads, 7);
            assert_eq!(stat.start, StartTime(191_178));
            assert_eq!(stat.pcpu, Some(1));
            assert!(!stat.kernel_thread);
        }
    }

    #[test]
    fn hostile_names_are_escaped() {
        let stat = ThreadStat::parse(&line("x\nerror: y\x1b[2")).unwrap();
        assert_eq!(stat.comm, "x\\x0aerror: y\\x1b[2");
        assert_eq!(stat.start, StartTime(191_178));
    }

    #[test]
    fn exiting_thread_has_no_group() {
        let going = line("cat").replace("8931 8930 4578", "0 -1 -1");
        let stat = ThreadStat::parse(&going).unwrap();
        assert_eq!((stat.parent, stat.group), (Pid(0), None));
        assert_eq!(stat.start, StartTime(191_178));
    }

    #[test]
    fn malformed_lines_are_refused() {
        for text in ["", "8935", "8935 (cat", "8935 (cat)", "8935 (cat) R 1 2", ")("] {
            assert_eq!(ThreadStat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn liveness_compares_the_start_time() {
        let procfs = ProcFs::host();
        let me = ThreadRef::of_process(&procfs, Pid(std::process::id())).unwrap();
        assert!(me.is_alive(&procfs));
        let other = ThreadRef { start: StartTime(me.start.0 + 1), ..me };
        assert!(!other.is_alive(&procfs));
        assert!(other.stat(&procfs).unwrap_err().is_gone());
    }
}
