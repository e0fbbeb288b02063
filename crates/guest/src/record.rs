//! A program is recorded: for how long its threads run, what they wait for, who wakes whom.
//!
//! ```text
//! /proc, again and again ──► tree ─────────────┐
//! tracefs, some windows  ──► event ──► story ──┴──► profile ──► Profile (tandem_model::application)
//! ```
//!
//! [`tree`] looks at the threads of a process and of what descends from it, ten times a second or less often: never for more than a twentieth of the time. Where
//! tracefs can be used (as root), the scheduler's events are traced in some short windows ([`tracefs`], [`event`]), and
//! become what each thread did, one after the other ([`story`]). [`profile`](mod@profile) puts both together. Windows are short while much happens and longer where little does, and there are no more once
//! there are [`MOST_STEPS`] steps. Neither needs perf or BPF.
//!
//! Nothing is changed: not the program's scheduling, and of tracing only an instance of our own, which is removed in the end.
//!
//! What it does not see: computing that is spinning; locks that are free when they are taken; items that are there before anybody waits; what a program
//! would do beside others or on more CPUs (a program that asks how many there are); memory and caches.

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
use tandem_linux::service::Reporter;
use tandem_linux::signals::{Signals, Wake};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::Nanos;
use tandem_model::application::Profile;
use thiserror::Error;

use crate::agent::end_process;
use crate::workload::{Target, WorkloadError, process, start};

use profile::Seen;
use story::Story;
use tracefs::{Tracefs, now};
use tree::{Did, Tree};

/// No more steps are kept: a workload of so many is some hundred kilobytes of text.
pub const MOST_STEPS: usize = 24_000;

/// Of one window.
const STEPS_OF_WINDOW: usize = MOST_STEPS / 4;

/// Between two looks, at least.
const PERIOD: Duration = Duration::from_millis(100);

/// And so many times as long as a look takes.
const LOOKS: u32 = 20;

/// The first window.
const WINDOW: Duration = Duration::from_millis(60);

/// The longest one.
const LONGEST_WINDOW: Duration = Duration::from_millis(800);

/// No window begins earlier: programs begin with what they do once.
const START: Duration = Duration::from_millis(300);

/// Less time on CPUs than that part of the time, one in so many, is nothing.
const NOTHING: u64 = 10_000;

/// A command that goes on after its recording is looked after once in so long a time, should no signal tell of its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a command line that are enough to know it by.
const LONGEST_NAME: usize = 1024;

/// What is left out is said from this part of the CPU time on, in hundredths.
const WORTH_SAYING: u64 = 2;

/// Why there is no profile.
#[derive(Debug, Error)]
pub enum RecordError {
    /// There is no program.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A cgroup was named.
    #[error("a cgroup cannot be recorded: give --pid, or a command after '--'")]
    Cgroup,
    /// Signals cannot be waited for.
    #[error("cannot watch for signals: {0}")]
    Signals(#[source] io::Error),
    /// The command cannot be waited for.
    #[error("cannot wait for the command: {0}")]
    Wait(#[source] io::Error),
    /// It was over too soon.
    #[error(
        "{program} ended after {:.0} ms, before it could be seen at work ({status}); record something that runs for a second or more",
        after.as_secs_f64() * 1e3
    )]
    EndedAtOnce {
        /// What.
        program: String,
        /// When.
        after: Duration,
        /// How a command ended; of a process nobody knows.
        status: Ended,
    },
    /// No thread ran.
    #[error(
        "nothing ran: {program} and what descends from it slept for all of {:.1} s; record it while it works",
        wall.as_secs_f64()
    )]
    NothingRan {
        /// What.
        program: String,
        /// How long it was looked at.
        wall: Nanos,
    },
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub Option<ExitStatus>);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(status) => write!(f, "{status}"),
            None => f.write_str("its status is not known"),
        }
    }
}

/// What to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// A command, or a process; no cgroup.
    pub target: Target,
    /// For how long; `None`: until it is over.
    pub seconds: Option<Duration>,
    /// Whether the scheduler's events are traced where that can be done.
    pub traces: bool,
}

/// A recording that ended.
#[derive(Debug)]
pub struct Recording {
    /// What the program did.
    pub profile: Profile,
    command: Option<Pid>,
    status: Option<ExitStatus>,
    signals: Signals,
}

impl Recording {
    /// How the command ended; waits for it if it still runs. A signal that asks to stop ends the command, and a second one the wait. `None`: it
    /// was no command, or still runs.
    pub fn wait(mut self) -> Result<Option<ExitStatus>, RecordError> {
        let Some(pid) = self.command.filter(|_| self.status.is_none()) else {
            return Ok(self.status);
        };
        let mut is_stopping = false;
        loop {
            if let Some((status, _)) = reap(pid)? {
                return Ok(Some(status));
            }
            match self.signals.wait_until(Instant::now() + PATIENCE) {
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

/// Records until the time is over, the program is, or a signal comes. SIGTERM and SIGINT end a command, too.
pub fn record(options: Options, reporter: &mut dyn Reporter) -> Result<Recording, RecordError> {
    let procfs = ProcFs::host();
    let program = name(&options.target, &procfs);
    let mut signals = Signals::catch(true).map_err(RecordError::Signals)?;
    let tracer = tracer(&options, &procfs, reporter);
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
    reporter.ready();
    let (status, used) = recorder.run(&mut signals, began, options.seconds, command, root)?;
    let wall = Nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    // One that had only just been started may not have had its command line yet.
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
    /// How many CPUs the first process could use at last.
    cpus: usize,
    missing: Vec<String>,
}

type End = (Option<ExitStatus>, Option<Nanos>);

impl Recorder {
    /// How the command ended, and what CPU time it used.
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
                    // The command ends as if nobody looked, and then we do.
                    is_stopping = true;
                    end_process(root.pid);
                    continue;
                }
                Wake::Child | Wake::Time | Wake::Reload | Wake::Other => {}
            }
            let looked = Instant::now();
            let spent = cpu_time();
            // Before its number is given away, also of a command that has just ended.
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

    /// Traces a window; true if there is one.
    fn trace(&mut self, end: Option<Instant>) -> bool {
        let Some(tracer) = &self.tracer else {
            return false;
        };
        let threads: Vec<Tid> = self.tree.there().iter().map(|(tid, _)| *tid).collect();
        if threads.is_empty() || self.story.steps() >= MOST_STEPS {
            return false;
        }
        let until = Instant::now() + self.window;
        let until = end.map_or(until, |end| end.min(until));
        let traced = tracer.begin(&threads).and_then(|()| {
            let begin = now();
            // Signals wait: a window is short.
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            let end = now();
            Ok((begin, end, tracer.stop()?))
        });
        let (begin, end, ()) = match traced {
            Ok(traced) => traced,
            Err(error) => return self.gives_up(&error.to_string()),
        };
        self.add(true);
        let Some(tracer) = &self.tracer else {
            return false;
        };
        let (events, complete) = match tracer.take(end) {
            Ok(taken) => taken,
            Err(error) => return self.gives_up(&error.to_string()),
        };
        let before = self.story.steps();
        let most = STEPS_OF_WINDOW.min(MOST_STEPS - before);
        let mut ran = self.tree.there();
        let there: HashSet<Tid> = ran.iter().map(|(tid, _)| *tid).collect();
        // Those that ended meanwhile have their events.
        let gone = threads.iter().filter(|tid| !there.contains(tid));
        ran.extend(gone.map(|tid| (*tid, Nanos::ZERO)));
        self.story.window(&ran, (begin, complete), &events, most);
        if self.story.steps() - before < STEPS_OF_WINDOW / 3 {
            self.window = (self.window * 3).min(LONGEST_WINDOW);
        }
        true
    }

    /// Tracing failed: the rest of the time goes without.
    fn gives_up(&mut self, why: &str) -> bool {
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
        if unseen >= WORTH_SAYING {
            profile.missing.push(match profile.traced {
                Nanos::ZERO => format!(
                    "{unseen} % of the CPU time: threads that lived between two looks"
                ),
                _ => format!(
                    "{unseen} % of the CPU time: threads that did nothing, or were not there, in the traced windows"
                ),
            });
        }
        profile
    }
}

/// Whether the profile says anything.
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
    if ran.0.saturating_mul(NOTHING) < profile.wall.0 {
        let wall = profile.wall;
        return Err(RecordError::NothingRan { program, wall });
    }
    Ok(())
}

/// Tracing, if it is wanted and can be done; else why it is not, in words.
fn tracer(
    options: &Options,
    procfs: &ProcFs,
    reporter: &mut dyn Reporter,
) -> Result<Option<Tracefs>, String> {
    const LOST: &str = "who wakes whom, and for whom threads wait";
    if !options.traces {
        return Err(format!("{LOST}: tracing was not wanted"));
    }
    Tracefs::open(procfs).map(Some).map_err(|error| {
        let why = format!("{LOST}: {error}");
        reporter.info(&format!("not traced: {why}"));
        why
    })
}

/// What the program is called: its command line, where it has one.
fn name(target: &Target, procfs: &ProcFs) -> Option<String> {
    match target {
        Target::Command(words) => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            Some(words.join(" "))
        }
        Target::Process(pid) => {
            let line = read_head(&procfs.process(*pid).join("cmdline"), LONGEST_NAME).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let line = line.trim();
            (!line.is_empty()).then(|| line.to_owned())
        }
        Target::Cgroup(_) => None,
    }
}

/// CPU time of this thread: on a busy machine a look takes longer than it costs.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How a child ended, and its CPU time with that of its children; `None`: it still runs.
fn reap(pid: Pid) -> Result<Option<(ExitStatus, Nanos)>, RecordError> {
    let child =
        libc::pid_t::try_from(pid.0).map_err(|error| RecordError::Wait(io::Error::other(error)))?;
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to memory of ours of the right types, for as long as the call takes.
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
