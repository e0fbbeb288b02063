//! What each vCPU ran and waited, as cheaply as the kernel tells it.
//!
//! Source: `/proc/PID/task/TID/schedstat`: time on a pCPU in ns, time waiting for one in ns, time
//! slices (Documentation/scheduler/sched-stats.rst). The file stays open and is read again from its
//! start, which costs one system call per vCPU and period. An open file belongs to the thread it
//! was opened for: after that thread's end it answers ESRCH, whoever has its number by then.
//!
//! Most vCPUs of a host sleep most of the time, and a whole VM can be asked at once whether any of
//! its threads ran, by its process's CPU clock (see [`crate::cpu_clock`]). While it stands still the
//! last samples are still exact. With rounds ([`Sampler::begin_round`]) that clock is read once per
//! process and round, and the vCPUs' files only where it moved.
//!
//! Who starts threads must not use up the files that this process may open: beyond a part of its limit the files of further threads are
//! opened, read and closed each time ([`Sampler::overflow`]).
//!
//! Two things to know about the numbers. The kernel brings the first up to date at clock ticks and
//! at switches, so a difference over a short period is off by up to a tick. It adds to the second
//! when a wait is over, so a vCPU that has not run since the last sample shows no wait; whether it
//! waits or sleeps is what [`Sampler::read_state`] is for.
//!
//! Idle time per pCPU is from `/proc/stat` (idle and iowait), in steps of a clock tick of 10 ms.

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

/// Why there is no sample.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The thread ended, or its identity could not be read.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The affinity mask could not be read.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// Two open files per vCPU are more than this process may have.
    #[error(
        "cannot open {path}: this process may have {limit} open files and needs two per vCPU; \
         raise the limit (LimitNOFILE= in the service, or ulimit -n)"
    )]
    TooManyFiles {
        /// The file that was one too many.
        path: PathBuf,
        /// The hard limit.
        limit: u64,
    },
    /// The kernel keeps no such account.
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
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file does not hold what the kernel documents.
    #[error("{path} holds '{text}'; expected {wanted}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What it holds.
        text: String,
        /// What should be there.
        wanted: &'static str,
    },
}

impl SampleError {
    /// Whether the thread merely ended.
    pub fn is_gone(&self) -> bool {
        match self {
            SampleError::Thread(error) => error.is_gone(),
            SampleError::Affinity(error) => error.is_gone(),
            _ => false,
        }
    }
}

/// A thread's account since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuSample {
    /// Time on a pCPU.
    pub ran: Nanos,
    /// Time runnable without running, counted when a wait is over.
    pub waited: Nanos,
    /// Runs begun: how often it was put on a pCPU. Each ends at most one wait.
    #[serde(default)]
    pub runs: u64,
}

impl VcpuSample {
    /// Reads the three numbers of `schedstat`, byte by byte: a thousand vCPUs are read ten times a second.
    fn parse(text: &[u8]) -> Option<VcpuSample> {
        let (ran, rest) = number(text)?;
        let (waited, rest) = number(rest)?;
        let (runs, _) = number(rest)?;
        Some(VcpuSample { ran: Nanos(ran), waited: Nanos(waited), runs })
    }
}

/// The number that a text begins with, after blanks, and what follows it.
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

/// What `stat` tells of a thread beside its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// What it is doing right now.
    pub state: TaskState,
    /// Time in a guest so far (field 43), in clock ticks of 10 ms. Kernels count it by what a clock tick finds, unless they
    /// account exactly (CONFIG_VIRT_CPU_ACCOUNTING_GEN); some back ends of KVM do not count it at all.
    pub guest: Nanos,
}

/// Reads threads' accounts, and keeps the files open.
#[derive(Debug)]
pub struct Sampler {
    procfs: ProcFs,
    /// CPU clocks are the machine's own, so they say nothing about a tree made for a test.
    has_clocks: bool,
    open: HashMap<ThreadRef, Open>,
    /// So many threads' files may stay open.
    room: usize,
    /// Whether there were more threads than that.
    is_full: bool,
    round: u64,
    clocks: HashMap<Pid, Clock>,
}

/// A thread's open files.
#[derive(Debug)]
struct Open {
    schedstat: File,
    stat: File,
    /// The last sample, and its process's CPU clock just before it was taken.
    last: Option<(Nanos, VcpuSample)>,
}

/// A process's CPU clock as read in a round, `None` if it could not be; and in the round before.
#[derive(Clone, Copy, Debug)]
struct Clock {
    round: u64,
    time: Option<Nanos>,
    before: Option<Nanos>,
}

/// Room for three numbers of 64 bits.
const SCHEDSTAT_BYTES: usize = 96;

/// Room for a whole `stat`: some fifty numbers of at most 20 digits and a name.
const STAT_BYTES: usize = 1280;

/// Room for the number, the name and the state in `stat`, whatever follows.
const STATE_BYTES: usize = 128;

/// Every so many rounds the clocks of processes that are no longer asked about are dropped.
const CLOCKS_KEPT: u64 = 64;

impl Sampler {
    /// A sampler that has no file open yet.
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

    /// Begins a round of samples that need not be newer than its beginning: a process's CPU clock
    /// is read once in it, and vCPUs of processes that did not run since their last sample are not
    /// read at all. Without rounds every sample is read.
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

    /// What all threads of a process ran so far, those included that ended, as of this round; `None` where that is not known.
    pub fn process_time(&mut self, pid: Pid) -> Option<Nanos> {
        self.clock(pid)?.time
    }

    /// Whether no thread of a process ran between the last round and this: samples taken in that
    /// round are still exact. False where that is not known.
    pub fn stood_still(&mut self, pid: Pid) -> bool {
        self.clock(pid).is_some_and(|clock| clock.time.is_some() && clock.time == clock.before)
    }

    /// How many threads' files may stay open, if there are more threads than that. Those of the others are opened anew at each
    /// reading, which costs more.
    pub fn overflow(&self) -> Option<usize> {
        self.is_full.then_some(self.room)
    }

    /// What a thread ran and waited so far.
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

    /// Of how many threads files are open.
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

    /// What a thread is doing right now: tells one that waits for a pCPU from one that sleeps. Of a
    /// thread that was sampled before this is one more read of an open file.
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

    /// What a thread is doing right now, and how long it was in a guest so far. Of a thread that was sampled before this is
    /// one more read of an open file.
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

    /// Where a thread may run.
    pub fn read_affinity(&self, thread: &ThreadRef) -> Result<PcpuSet, SampleError> {
        Ok(affinity(thread.tid)?)
    }

    /// Each online pCPU's idle time since boot.
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

    /// The pCPUs that are online.
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

/// As much of a text as somebody needs who looks for what is wrong with it.
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

/// What a thread ran and waited so far, of one whose files do not stay open.
fn read_once(procfs: &ProcFs, thread: &ThreadRef) -> Result<VcpuSample, SampleError> {
    let open = open_files(procfs, thread)?;
    let mut buffer = [0u8; SCHEDSTAT_BYTES];
    let bytes = open.schedstat.read_at(&mut buffer, 0);
    let bytes = bytes.map_err(|source| opening(thread, &schedstat_path(procfs, thread), source))?;
    VcpuSample::parse(&buffer[..bytes]).ok_or_else(|| malformed(procfs, thread, &buffer[..bytes]))
}

/// Opens first and compares the start time second: were the number given away in between, the
/// comparison fails.
fn open_files(procfs: &ProcFs, thread: &ThreadRef) -> Result<Open, SampleError> {
    let path = schedstat_path(procfs, thread);
    let schedstat = open_file(&path).map_err(|error| {
        match error.kind() == io::ErrorKind::NotFound && thread.is_alive(procfs) {
            true => SampleError::NoSchedstat { path: path.clone() },
            false => opening(thread, &path, error),
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

/// The state in the beginning of a `stat`: what follows the name's end, the last `)`. Later fields
/// are numbers.
fn state_in(stat: &[u8]) -> Option<TaskState> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).map(|&letter| TaskState::from(char::from(letter)))
}

/// State (field 3) and time in a guest (field 43) of a `stat`.
fn activity_in(stat: &[u8]) -> Option<Activity> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(40)?.parse().ok()?;
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some(Activity { state: state_in(stat)?, guest: Nanos(ticks.checked_mul(tick)?) })
}

/// Opens a file of `/proc`, and makes room for one more open file where that is what it takes.
fn open_file(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_file_limit() => {
            File::open(path)
        }
        other => other,
    }
}

/// How many threads' files may stay open: two each, and of what this process may have a part is left to everything else.
fn room() -> usize {
    match getrlimit(Resource::Nofile).maximum {
        None => usize::MAX,
        Some(limit) => {
            let left = LEFT.max(limit / 8);
            usize::try_from(limit.saturating_sub(left) / 2).unwrap_or(usize::MAX)
        }
    }
}

/// So many files, or an eighth of all if that is more, are left to the rest of the process: cgroups, `/proc`, sockets, logs.
const LEFT: u64 = 128;

/// Lifts the soft limit of open files to the hard one; false if it is there already.
fn raise_file_limit() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok()
}

#[cfg(test)]
mod tests;
