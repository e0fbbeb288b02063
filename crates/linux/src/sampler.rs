//! Run and wait time of each vCPU, at the lowest cost that the kernel offers.
//!
//! Source: `/proc/PID/task/TID/schedstat`: time on a pCPU in ns, time waiting for one in ns, time slices
//! (Documentation/scheduler/sched-stats.rst).
//! The file stays open and is reread from its start, which costs one system call per vCPU and period.
//! An open file belongs to its thread: after that thread's end it returns ESRCH, even if the TID is reused.
//!
//! Most vCPUs of a host sleep most of the time.
//! The CPU clock of a VM's process shows whether any of its threads ran (see [`crate::cpu_clock`]).
//! While it stands still, the last samples are still exact.
//! With rounds ([`Sampler::begin_round`]), the sampler reads that clock once per process and round, and the files only if it moved.
//!
//! A tenant that starts many threads must not use up this process's open files.
//! Beyond a part of the limit, the sampler opens, reads and closes the files of further threads each time ([`Sampler::overflow`]).
//!
//! Accuracy: the kernel updates the run time at clock ticks and switches, so a difference over a short period is off by up to a tick.
//! It adds to the wait time at the end of a wait, so a vCPU that has not run since the last sample shows no wait.
//! [`Sampler::read_state`] tells whether it waits or sleeps.
//!
//! Idle time per pCPU is from `/proc/stat` (idle and iowait), in clock ticks of 10 ms.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tandem_model::{Nanos, PcpuId, PcpuSet};
use thiserror::Error;

use crate::affinity::{AffinityError, affinity};
use crate::cpu_clock::process_cpu_time;
use crate::ids::Pid;
use crate::procfs::{ProcFs, is_gone, read_text};
use crate::thread::{TaskState, ThreadError, ThreadRef};

/// Why a sample could not be taken.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The thread ended, or its identity could not be read.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The affinity mask could not be read.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The process is at its limit of open files, of which each vCPU needs two.
    #[error(
        "cannot open {path}: this process may have {limit} open files and needs two per vCPU; \
         raise the limit (LimitNOFILE= in the service, or ulimit -n)"
    )]
    TooManyFiles {
        /// The file that could not be opened.
        path: PathBuf,
        /// The hard limit.
        limit: u64,
    },
    /// The kernel has no `schedstat` accounting.
    #[error(
        "{path} does not exist, though the thread does; Tandem needs a kernel with \
         CONFIG_SCHED_INFO (set by CONFIG_TASK_DELAY_ACCT or CONFIG_SCHEDSTATS)"
    )]
    NoSchedstat {
        /// The missing file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file does not have the documented format.
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

impl SampleError {
    /// Whether the thread has ended.
    pub fn is_gone(&self) -> bool {
        match self {
            SampleError::Thread(error) => error.is_gone(),
            SampleError::Affinity(error) => error.is_gone(),
            _ => false,
        }
    }
}

/// A thread's times since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuSample {
    /// Time on a pCPU.
    pub ran: Nanos,
    /// Time runnable without running, counted at the end of each wait.
    pub waited: Nanos,
    /// Number of times that it was switched in; each ends at most one wait.
    #[serde(default)]
    pub runs: u64,
}

impl VcpuSample {
    /// Parses the three numbers of `schedstat` byte by byte, for speed: 1,000 vCPUs ten times a second.
    fn parse(text: &[u8]) -> Option<VcpuSample> {
        let (ran, rest) = number(text)?;
        let (waited, rest) = number(rest)?;
        let (runs, _) = number(rest)?;
        Some(VcpuSample { ran: Nanos(ran), waited: Nanos(waited), runs })
    }
}

/// Splits off the number at the start of a text, after blanks.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let begin = text.iter().position(|byte| *byte != b' ')?;
    let text = &text[begin..];
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(length);
    let mut value: u64 = 0;
    for digit in digits {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    let is_whole = matches!(rest.first(), None | Some(b' ' | b'\n'));
    (length > 0 && is_whole).then_some((value, rest))
}

/// A thread's state and guest time, from `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Current state.
    pub state: TaskState,
    /// Time in a guest so far (field 43), with a resolution of a clock tick (10 ms).
    /// Kernels sample it at ticks, unless they account exactly (CONFIG_VIRT_CPU_ACCOUNTING_GEN); some KVM back ends do not count it.
    pub guest: Nanos,
}

/// Reads threads' times and keeps the files open.
#[derive(Debug)]
pub struct Sampler {
    procfs: ProcFs,
    /// Whether the tree is this host's, which the CPU clocks belong to.
    has_clocks: bool,
    open: HashMap<ThreadRef, Open>,
    /// Maximum number of threads whose files stay open.
    room: usize,
    /// Whether more threads were sampled.
    is_full: bool,
    round: u64,
    clocks: HashMap<Pid, Clock>,
}

/// A thread's open files.
#[derive(Debug)]
struct Open {
    schedstat: File,
    stat: File,
    /// The process's CPU clock just before the last sample, and that sample.
    last: Option<(Nanos, VcpuSample)>,
}

/// A process's CPU clock in a round and in the round before; `None` if it could not be read.
#[derive(Clone, Copy, Debug)]
struct Clock {
    round: u64,
    time: Option<Nanos>,
    before: Option<Nanos>,
}

/// Room for three 64-bit numbers, in bytes.
const SCHEDSTAT_BYTES: usize = 96;

/// Room for a whole `stat`, in bytes: some fifty numbers of at most 20 digits and a name.
const STAT_BYTES: usize = 1280;

/// Room for the TID, name and state of `stat`, in bytes.
const STATE_BYTES: usize = 128;

/// Number of rounds after which the clock of a process that is no longer sampled is dropped.
const CLOCKS_KEPT: u64 = 64;

impl Sampler {
    /// Creates a sampler without open files.
    pub fn new(procfs: ProcFs) -> Sampler {
        Sampler {
            has_clocks: procfs == ProcFs::host(),
            procfs,
            open: HashMap::new(),
            room: room(),
            is_full: false,
            round: 0,
            clocks: HashMap::new(),
        }
    }

    /// Begins a round, whose samples need not be newer than its beginning.
    /// The sampler reads each process's CPU clock once in it, and no vCPUs of a process that has not run since their last sample.
    /// Without rounds it reads every sample.
    pub fn begin_round(&mut self) {
        self.round += 1;
        if self.round.is_multiple_of(CLOCKS_KEPT) {
            let round = self.round;
            self.clocks.retain(|_, clock| clock.round + CLOCKS_KEPT > round);
        }
    }

    /// The process's CPU clock in this round and the one before.
    fn clock(&mut self, pid: Pid) -> Option<Clock> {
        if self.round == 0 || !self.has_clocks {
            return None;
        }
        let round = self.round;
        let clock = self.clocks.entry(pid).or_insert(Clock { round: 0, time: None, before: None });
        if clock.round != round {
            *clock = Clock {
                round,
                time: process_cpu_time(pid),
                before: clock.time.filter(|_| clock.round + 1 == round),
            };
        }
        Some(*clock)
    }

    /// Total run time of a process's threads as of this round, including ended ones; `None` if unknown.
    pub fn process_time(&mut self, pid: Pid) -> Option<Nanos> {
        self.clock(pid)?.time
    }

    /// Whether no thread of a process ran between the last round and this one, so that samples of that round are still exact.
    /// False if unknown.
    pub fn stood_still(&mut self, pid: Pid) -> bool {
        self.clock(pid).is_some_and(|clock| clock.time.is_some() && clock.time == clock.before)
    }

    /// Maximum number of threads whose files stay open, if more threads were sampled.
    /// The sampler reopens the files of the others for each sample, which costs more.
    pub fn overflow(&self) -> Option<usize> {
        self.is_full.then_some(self.room)
    }

    /// Returns a thread's run and wait time so far.
    pub fn sample(&mut self, thread: &ThreadRef) -> Result<VcpuSample, SampleError> {
        if self.open.len() >= self.room && !self.open.contains_key(thread) {
            self.is_full = true;
            return read_once(&self.procfs, thread);
        }
        let clock = self.clock(thread.pid).and_then(|clock| clock.time);
        let open = match self.open.entry(*thread) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(open_files(&self.procfs, thread)?),
        };
        if let (Some(clock), Some((then, sample))) = (clock, open.last)
            && clock == then
        {
            return Ok(sample);
        }
        let mut buffer = [0u8; SCHEDSTAT_BYTES];
        let bytes = match open.schedstat.read_at(&mut buffer, 0) {
            Ok(bytes) => &buffer[..bytes],
            Err(source) => {
                self.open.remove(thread);
                return Err(if is_gone(&source) {
                    ThreadError::Gone(thread.to_string()).into()
                } else {
                    SampleError::Read { path: schedstat_path(&self.procfs, thread), source }
                });
            }
        };
        let sample = VcpuSample::parse(bytes);
        open.last = clock.zip(sample);
        sample.ok_or_else(|| malformed(&self.procfs, thread, bytes))
    }

    /// Number of threads with open files.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Closes a thread's files.
    pub fn forget(&mut self, thread: &ThreadRef) {
        self.open.remove(thread);
    }

    /// Closes the files of all threads but these.
    pub fn retain(&mut self, mut keep: impl FnMut(&ThreadRef) -> bool) {
        self.open.retain(|thread, _| keep(thread));
    }

    /// Returns a thread's current state, which distinguishes waiting for a pCPU from sleeping.
    /// For a thread that was sampled before, this is one more read of an open file.
    pub fn read_state(&self, thread: &ThreadRef) -> Result<TaskState, SampleError> {
        let Some(open) = self.open.get(thread) else {
            return Ok(thread.stat(&self.procfs)?.state);
        };
        let mut buffer = [0u8; STATE_BYTES];
        match open.stat.read_at(&mut buffer, 0) {
            Ok(bytes) => match state_in(&buffer[..bytes]) {
                Some(state) => Ok(state),
                None => Ok(thread.stat(&self.procfs)?.state),
            },
            Err(_) => Ok(thread.stat(&self.procfs)?.state),
        }
    }

    /// Returns a thread's current state and its guest time so far.
    /// For a thread that was sampled before, this is one more read of an open file.
    pub fn read_activity(&self, thread: &ThreadRef) -> Result<Activity, SampleError> {
        let path = || self.procfs.task(thread.pid, thread.tid).join("stat");
        let mut buffer = [0u8; STAT_BYTES];
        let bytes = match self.open.get(thread) {
            Some(open) => open.stat.read_at(&mut buffer, 0),
            None => File::open(path()).and_then(|file| file.read_at(&mut buffer, 0)),
        };
        match bytes {
            Ok(bytes) => activity_in(&buffer[..bytes]).ok_or_else(|| SampleError::Malformed {
                path: path(),
                text: String::from_utf8_lossy(&buffer[..bytes.min(80)]).into_owned(),
                wanted: "a line as proc_pid_stat(5) describes, with 43 fields at least",
            }),
            Err(source) if is_gone(&source) => Err(ThreadError::Gone(thread.to_string()).into()),
            Err(source) => Err(SampleError::Read { path: path(), source }),
        }
    }

    /// Returns the pCPUs that a thread may run on.
    pub fn read_affinity(&self, thread: &ThreadRef) -> Result<PcpuSet, SampleError> {
        Ok(affinity(thread.tid)?)
    }

    /// Returns each online pCPU's idle time since boot.
    pub fn pcpu_idle(&self) -> Result<BTreeMap<PcpuId, Nanos>, SampleError> {
        let path = self.procfs.resolve("/proc/stat");
        let text = self.read(&path)?;
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let mut idle = BTreeMap::new();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let number = fields
                .next()
                .and_then(|name| name.strip_prefix("cpu"))
                .and_then(|number| number.parse().ok());
            let Some(pcpu) = number.map(PcpuId) else {
                continue;
            };
            // After the name: user, nice, system, idle, iowait.
            let mut ticks = fields.skip(3).map(str::parse::<u64>);
            let time = match (ticks.next(), ticks.next()) {
                (Some(Ok(idle_ticks)), Some(Ok(iowait))) => {
                    idle_ticks.checked_add(iowait).and_then(|ticks| ticks.checked_mul(tick))
                }
                _ => None,
            };
            let Some(time) = time else {
                return Err(SampleError::Malformed {
                    path,
                    text: short(line),
                    wanted: "a pCPU's times: user, nice, system, idle, iowait, …",
                });
            };
            idle.insert(pcpu, Nanos(time));
        }
        Ok(idle)
    }

    /// Returns the online pCPUs.
    pub fn online_pcpus(&self) -> Result<PcpuSet, SampleError> {
        let path = self.procfs.resolve("/sys/devices/system/cpu/online");
        let text = self.read(&path)?;
        text.parse().map_err(|_| SampleError::Malformed {
            path,
            text: short(text.trim_end()),
            wanted: "a list of pCPUs such as 0-3,7",
        })
    }

    fn read(&self, path: &Path) -> Result<String, SampleError> {
        read_text(path).map_err(|source| SampleError::Read { path: path.to_owned(), source })
    }
}

/// Truncates a text for an error message.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

fn schedstat_path(procfs: &ProcFs, thread: &ThreadRef) -> PathBuf {
    procfs.task(thread.pid, thread.tid).join("schedstat")
}

fn malformed(procfs: &ProcFs, thread: &ThreadRef, bytes: &[u8]) -> SampleError {
    SampleError::Malformed {
        path: schedstat_path(procfs, thread),
        text: String::from_utf8_lossy(bytes).trim_end().to_owned(),
        wanted: "three numbers: ns run, ns waited, time slices",
    }
}

/// Samples a thread whose files do not stay open.
fn read_once(procfs: &ProcFs, thread: &ThreadRef) -> Result<VcpuSample, SampleError> {
    let open = open_files(procfs, thread)?;
    let mut buffer = [0u8; SCHEDSTAT_BYTES];
    let bytes = open.schedstat.read_at(&mut buffer, 0);
    let bytes = bytes.map_err(|source| opening(thread, &schedstat_path(procfs, thread), source))?;
    VcpuSample::parse(&buffer[..bytes]).ok_or_else(|| malformed(procfs, thread, &buffer[..bytes]))
}

/// Opens first and compares the start time second: if the TID was reused in between, the comparison fails.
fn open_files(procfs: &ProcFs, thread: &ThreadRef) -> Result<Open, SampleError> {
    let path = schedstat_path(procfs, thread);
    let schedstat = open_file(&path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound && thread.is_alive(procfs) {
            SampleError::NoSchedstat { path: path.clone() }
        } else {
            opening(thread, &path, error)
        }
    })?;
    let path = path.with_file_name("stat");
    let stat = open_file(&path).map_err(|error| opening(thread, &path, error))?;
    thread.stat(procfs)?;
    Ok(Open { schedstat, stat, last: None })
}

fn opening(thread: &ThreadRef, path: &Path, source: io::Error) -> SampleError {
    match source.raw_os_error() {
        _ if is_gone(&source) => ThreadError::Gone(thread.to_string()).into(),
        Some(libc::EMFILE) => SampleError::TooManyFiles {
            path: path.to_owned(),
            limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        },
        _ => SampleError::Read { path: path.to_owned(), source },
    }
}

/// Parses the state at the start of a `stat`: the letter after the name's end, which is the last `)`, because later fields are numbers.
fn state_in(stat: &[u8]) -> Option<TaskState> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).map(|&letter| TaskState::from(char::from(letter)))
}

/// Parses the state (field 3) and guest time (field 43) of a `stat`.
fn activity_in(stat: &[u8]) -> Option<Activity> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(40)?.parse().ok()?;
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some(Activity { state: state_in(stat)?, guest: Nanos(ticks.checked_mul(tick)?) })
}

/// Opens a file of `/proc`, raising the limit of open files if necessary.
fn open_file(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_file_limit() => {
            File::open(path)
        }
        other => other,
    }
}

/// Number of threads whose files may stay open, at two each, with [`LEFT`] or more files left over.
fn room() -> usize {
    match getrlimit(Resource::Nofile).maximum {
        None => usize::MAX,
        Some(limit) => {
            let left = LEFT.max(limit / 8);
            usize::try_from(limit.saturating_sub(left) / 2).unwrap_or(usize::MAX)
        }
    }
}

/// Minimum number of files left to the rest of the process (cgroups, `/proc`, sockets, logs); an eighth of the limit if that is more.
const LEFT: u64 = 128;

/// Raises the soft limit of open files to the hard one; returns false if that is impossible or has happened.
fn raise_file_limit() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok()
}

#[cfg(test)]
mod tests;
