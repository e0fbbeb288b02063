//! Records a program: run times, waits and wake-ups of its threads.
//!
//! ```text
//! /proc, polled          ──► tree ─────────────┐
//! tracefs, some windows  ──► event ──► story ──┴──► profile ──► Profile (tandem_model::application)
//! ```
//!
//! [`tree`] reads the threads of a process and its descendants up to ten times per second, in at most a twentieth of the time.
//! If tracefs is available (as root), the scheduler's events are traced in short windows ([`tracefs`], [`event`]).
//! [`story`] turns them into the steps of each thread, and [`profile`](mod@profile) combines both.
//! Windows are short for busy programs and longer for quiet ones, and end after [`MAX_STEPS`] steps.
//! Neither source needs perf or BPF.
//!
//! Recording does not change the program's scheduling.
//! It creates one tracing instance of its own, and removes it at the end.
//!
//! It does not see spinning (which looks like computing), uncontended locks, items that are available before a wait, memory and caches.
//! It does not predict the program next to others or on more CPUs, as some programs query the number of CPUs.

pub mod event;
pub mod profile;
pub mod story;
pub mod tracefs;
pub mod tree;

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tandem_linux::ProcFs;
use tandem_linux::affinity::affinity;
use tandem_linux::procfs::read_head;
use tandem_linux::signals::{Signals, Wake};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::Nanos;
use tandem_model::application::Profile;
use thiserror::Error;
use tracing::info;

use crate::agent::end_process;
use crate::workload::{Target, WorkloadError, process, start};

use profile::Seen;
use story::Story;
use tracefs::{Tracefs, now};
use tree::{Did, Tree};

/// Maximum number of steps; a workload of that size is some hundred kilobytes of text.
pub const MAX_STEPS: usize = 24_000;

/// Maximum number of steps per window.
const STEPS_OF_WINDOW: usize = MAX_STEPS / 4;

/// Minimum interval between two looks.
const PERIOD: Duration = Duration::from_millis(100);

/// Minimum interval between two looks, relative to the CPU time of a look.
const LOOKS: u32 = 20;

/// Length of the first window.
const WINDOW: Duration = Duration::from_millis(60);

/// Maximum length of a window.
const MAX_WINDOW: Duration = Duration::from_millis(800);

/// Start of the first window, as programs begin with one-time work.
const START: Duration = Duration::from_millis(300);

/// A program that ran for less than one part in this many of the time counts as idle.
const IDLE_SHARE: u64 = 10_000;

/// Poll interval for a command that outlives its recording, in case SIGCHLD is lost.
const REAP_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum length of a command line in the profile, bytes.
const MAX_NAME: usize = 1024;

/// Minimum CPU time of unseen threads to report, percent.
const MIN_UNSEEN: u64 = 2;

/// Reason why there is no profile.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The program could not be found or started.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The target is a cgroup.
    #[error("a cgroup cannot be recorded: give --pid, or a command after '--'")]
    Cgroup,
    /// Signals cannot be waited for.
    #[error("cannot watch for signals: {0}")]
    Signals(#[source] io::Error),
    /// The command cannot be waited for.
    #[error("cannot wait for the command: {0}")]
    Wait(#[source] io::Error),
    /// The program ended before it could be observed.
    #[error(
        "{program} ended after {:.0} ms, before it could be observed ({status}); record a program that runs for at least a second",
        after.as_secs_f64() * 1e3
    )]
    EndedAtOnce {
        /// The program.
        program: String,
        /// Time until its end.
        after: Duration,
        /// Exit status of a command; unknown for a process.
        status: Ended,
    },
    /// No thread ran.
    #[error(
        "nothing ran: {program} and its descendants slept for all of {:.1} s; record it while it works",
        wall.as_secs_f64()
    )]
    NothingRan {
        /// The program.
        program: String,
        /// How long it was observed.
        wall: Nanos,
    },
}

/// Exit status of a command, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub Option<ExitStatus>);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(status) => write!(f, "{status}"),
            None => f.write_str("unknown status"),
        }
    }
}

/// Settings of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// A command, or a process; no cgroup.
    pub target: Target,
    /// Maximum duration; `None`: until the program ends.
    pub seconds: Option<Duration>,
    /// Whether to trace the scheduler's events if tracefs is available.
    pub traces: bool,
}

/// A finished recording.
#[derive(Debug)]
pub struct Recording {
    /// Profile of the program.
    pub profile: Profile,
    command: Option<Pid>,
    status: Option<ExitStatus>,
    signals: Signals,
}

impl Recording {
    /// Waits for the command and returns its exit status.
    /// The first SIGTERM or SIGINT terminates the command, and the second one ends the wait.
    /// Returns `None` for a process, or if the command still runs.
    pub fn wait(mut self) -> Result<Option<ExitStatus>, RecordError> {
        let Some(pid) = self.command.filter(|_| self.status.is_none()) else {
            return Ok(self.status);
        };
        let mut is_stopping = false;
        loop {
            if let Some((status, _)) = reap(pid)? {
                return Ok(Some(status));
            }
            match self.signals.wait_until(Instant::now() + REAP_INTERVAL) {
                Wake::Stop if is_stopping => return Ok(None),
                Wake::Stop => {
                    is_stopping = true;
                    end_process(pid);
                }
                Wake::Child | Wake::Time | Wake::Reload | Wake::Other => {}
            }
        }
    }
}

/// Records until the time is over, the program ends, or a signal arrives.
/// SIGTERM and SIGINT also terminate a command.
pub fn record(options: Options) -> Result<Recording, RecordError> {
    let procfs = ProcFs::host();
    let program = name(&options.target, &procfs);
    let mut signals = Signals::catch(true).map_err(RecordError::Signals)?;
    let tracer = tracer(&options, &procfs);
    let began = Instant::now();
    let (command, root) = match &options.target {
        Target::Command(words) => {
            let pid = Pid(start(words, None)?.id());
            (Some(pid), process(&procfs, pid)?)
        }
        Target::Process(pid) => (None, process(&procfs, *pid)?),
        Target::Cgroup(_) => return Err(RecordError::Cgroup),
    };
    let tree = Tree::new(procfs, root, now(), command.is_some());
    let (tracer, missing) = match tracer {
        Ok(tracer) => {
            let lacks = tracer.as_ref().and_then(Tracefs::lacks);
            (tracer, lacks.map(str::to_owned))
        }
        Err(why) => (None, Some(why)),
    };
    let mut recorder = Recorder {
        tree,
        tracer,
        story: Story::default(),
        within: Did::default(),
        outside: Did::default(),
        window: WINDOW,
        cpus: 1,
        missing: missing.into_iter().collect(),
    };
    let (status, used) = recorder.run(&mut signals, began, options.seconds, command, root)?;
    let wall = Nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    // A process that had just been started may not have had its command line yet.
    let program = program
        .or_else(|| name(&options.target, &ProcFs::host()))
        .unwrap_or_else(|| options.target.to_string());
    let profile = recorder.profile(program, wall, used);
    judge(&profile, began.elapsed(), status, command.is_some())?;
    Ok(Recording { profile, command, status, signals })
}

struct Recorder {
    tree: Tree,
    tracer: Option<Tracefs>,
    story: Story,
    within: Did,
    outside: Did,
    window: Duration,
    /// Number of CPUs that the first process may use, last read.
    cpus: usize,
    missing: Vec<String>,
}

type End = (Option<ExitStatus>, Option<Nanos>);

impl Recorder {
    /// Records, and returns the command's exit status and CPU time.
    fn run(
        &mut self,
        signals: &mut Signals,
        began: Instant,
        seconds: Option<Duration>,
        command: Option<Pid>,
        root: ThreadRef,
    ) -> Result<End, RecordError> {
        let end = seconds.map(|seconds| began + seconds);
        let (mut next, mut next_window) = (began, began + START);
        let mut is_stopping = false;
        loop {
            let until = end.map_or(next, |end| end.min(next));
            match signals.wait_until(until) {
                Wake::Stop if is_stopping || command.is_none() => break,
                Wake::Stop => {
                    // Terminate the command; the recording ends with it.
                    is_stopping = true;
                    end_process(root.pid);
                    continue;
                }
                Wake::Child | Wake::Time | Wake::Reload | Wake::Other => {}
            }
            let looked = Instant::now();
            let spent = cpu_time();
            // Also of a command that has just exited, before reaping frees its PID.
            self.add(false);
            let cost = cpu_time().saturating_sub(spent);
            if let Some(pid) = command
                && let Some((status, used)) = reap(pid)?
            {
                return Ok((Some(status), Some(used)));
            }
            if let Ok(cpus) = affinity(root.tid) {
                self.cpus = cpus.len().max(1);
            }
            if command.is_none() && self.tree.is_over() {
                break;
            }
            if end.is_some_and(|end| looked >= end) {
                break;
            }
            if looked >= next_window && self.trace(end) {
                next_window = Instant::now() + self.window.max(START);
            }
            next = Instant::now() + PERIOD.max(cost * LOOKS);
        }
        Ok((None, None))
    }

    fn add(&mut self, is_within: bool) {
        let did = self.tree.look(now());
        let sum = if is_within { &mut self.within } else { &mut self.outside };
        sum.ran += did.ran;
        sum.sleeps += did.sleeps;
    }

    /// Traces a window and returns true on success.
    fn trace(&mut self, end: Option<Instant>) -> bool {
        let Some(tracer) = &self.tracer else {
            return false;
        };
        let threads: Vec<Tid> = self.tree.there().iter().map(|(tid, _)| *tid).collect();
        if threads.is_empty() || self.story.steps() >= MAX_STEPS {
            return false;
        }
        let until = Instant::now() + self.window;
        let until = end.map_or(until, |end| end.min(until));
        let traced = tracer.begin(&threads).and_then(|()| {
            let begin = now();
            // Signals may wait, as a window is short.
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            let end = now();
            Ok((begin, end, tracer.stop()?))
        });
        let (begin, end, ()) = match traced {
            Ok(traced) => traced,
            Err(error) => return self.give_up(&error.to_string()),
        };
        self.add(true);
        let Some(tracer) = &self.tracer else {
            return false;
        };
        let (events, complete) = match tracer.take(end) {
            Ok(taken) => taken,
            Err(error) => return self.give_up(&error.to_string()),
        };
        let before = self.story.steps();
        let most = STEPS_OF_WINDOW.min(MAX_STEPS - before);
        let mut ran = self.tree.there();
        let there: HashSet<Tid> = ran.iter().map(|(tid, _)| *tid).collect();
        // Threads that exited meanwhile have their events.
        let gone = threads.iter().filter(|tid| !there.contains(tid));
        ran.extend(gone.map(|tid| (*tid, Nanos::ZERO)));
        self.story.window(&ran, (begin, complete), &events, most);
        if self.story.steps() - before < STEPS_OF_WINDOW / 3 {
            self.window = (self.window * 3).min(MAX_WINDOW);
        }
        true
    }

    /// Disables tracing for the rest of the recording.
    fn give_up(&mut self, why: &str) -> bool {
        self.missing.push(format!("tracing ended early: {why}"));
        self.tracer = None;
        false
    }

    fn profile(self, program: String, wall: Nanos, used: Option<Nanos>) -> Profile {
        let was_traced = self.tracer.is_some() || self.story.steps() > 0;
        let seen = Seen {
            program,
            cpus: self.cpus,
            wall,
            threads: self.tree.threads(),
            within: self.within,
            outside: self.outside,
            used,
            missing: self.missing,
        };
        let mut profile = profile::profile(seen, was_traced.then_some(self.story));
        let unseen = profile.unseen.0.saturating_mul(100) / profile.ran.0.max(1);
        if unseen >= MIN_UNSEEN {
            profile.missing.push(match profile.traced {
                Nanos::ZERO => format!(
                    "{unseen} % of the CPU time: threads that started and ended between two looks"
                ),
                _ => format!(
                    "{unseen} % of the CPU time: threads that were idle or absent in the traced windows"
                ),
            });
        }
        profile
    }
}

/// Returns an error if the program ended too early or never ran.
fn judge(
    profile: &Profile,
    after: Duration,
    status: Option<ExitStatus>,
    is_command: bool,
) -> Result<(), RecordError> {
    let ran: Nanos = profile.threads.iter().map(|thread| thread.ran).sum();
    let program = profile.program.clone();
    let is_over = status.is_some() || !is_command;
    if is_over && after < START && (ran == Nanos::ZERO || status.is_some()) {
        let status = Ended(status);
        return Err(RecordError::EndedAtOnce { program, after, status });
    }
    if ran.0.saturating_mul(IDLE_SHARE) < profile.wall.0 {
        let wall = profile.wall;
        return Err(RecordError::NothingRan { program, wall });
    }
    Ok(())
}

/// Opens tracing if requested; the error is the reason for its absence.
fn tracer(options: &Options, procfs: &ProcFs) -> Result<Option<Tracefs>, String> {
    const LOST: &str = "wake-ups between threads and waits for threads";
    if !options.traces {
        return Err(format!("{LOST}: tracing was not wanted"));
    }
    Tracefs::open(procfs).map(Some).map_err(|error| {
        let why = format!("{LOST}: {error}");
        info!("not traced: {why}");
        why
    })
}

/// Returns the name of the program: its command line, if it has one.
fn name(target: &Target, procfs: &ProcFs) -> Option<String> {
    match target {
        Target::Command(words) => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            Some(words.join(" "))
        }
        Target::Process(pid) => {
            let line = read_head(&procfs.process(*pid).join("cmdline"), MAX_NAME).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let line = line.trim();
            (!line.is_empty()).then(|| line.to_owned())
        }
        Target::Cgroup(_) => None,
    }
}

/// Returns the CPU time of this thread, which excludes the time it waits on a busy machine.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reaps a child and returns its exit status and its CPU time with that of its children; `None` if it still runs.
fn reap(pid: Pid) -> Result<Option<(ExitStatus, Nanos)>, RecordError> {
    let child =
        libc::pid_t::try_from(pid.0).map_err(|error| RecordError::Wait(io::Error::other(error)))?;
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to valid memory of the right types that outlives the call.
        let ended = unsafe { libc::wait4(child, &mut status, libc::WNOHANG, usage.as_mut_ptr()) };
        match ended {
            0 => return Ok(None),
            1.. => break,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(RecordError::Wait(error));
                }
            }
        }
    }
    // SAFETY: zeroes are a valid rusage, and the kernel has filled it.
    let usage = unsafe { usage.assume_init() };
    let nanos =
        |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    let used = Nanos(nanos(usage.ru_utime) + nanos(usage.ru_stime));
    Ok(Some((ExitStatus::from_raw(status), used)))
}
