//! One run of a command: started, waited for, its CPU time counted, and nothing of it left running.
//!
//! CPU time is what the kernel says when the last of it is waited for (wait4(2)): of the command and of
//! all its descendants that it waited for, to the nanosecond of their run time. Those it left behind
//! become ours (PR_SET_CHILD_SUBREAPER); they are killed and counted too. On an interrupt, or when
//! the command takes far too long, it gets a SIGTERM, which lets a server shut down and the agent put
//! back its settings, and after some seconds a SIGKILL. Should we be killed ourselves, the kernel
//! sends that SIGTERM.

use std::fs::File;
use std::io;
use std::num::TryFromIntError;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal,
};
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::thread::ThreadStat;
use thiserror::Error;

/// Time between two looks at the interrupt.
const SLICE: Duration = Duration::from_millis(50);

/// Time to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// The environment variable by which a run's processes are known.
const MARK: &str = "TANDEM_BENCH_RUN";

/// Most of an output that is quoted.
const QUOTED: usize = 300;

/// Why a command did not run to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// Somebody asked for the end before.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// There is no command.
    #[error("an empty command")]
    Empty,
    /// What it leaves behind could not be found.
    #[error("cannot adopt what a command leaves behind")]
    Adopt(#[source] Errno),
    /// There is nowhere to keep what it prints.
    #[error("cannot create {}", path.display())]
    Create {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The same.
    #[error("cannot duplicate a file")]
    Duplicate(#[source] io::Error),
    /// It did not start.
    #[error("cannot start {program}")]
    Start {
        /// Its program.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its number is no process id.
    #[error("{0} is no process id")]
    NoPid(u32),
    /// Its end could not be waited for.
    #[error("cannot wait for a process")]
    Reap(#[source] io::Error),
    /// It was ended before its time.
    #[error("{program}, after {:.1} s", after.as_secs_f64())]
    Cut {
        /// Its program.
        program: String,
        /// How long it had run.
        after: Duration,
        /// Why.
        source: WaitError,
    },
    /// What it printed could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Where it is.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why a command was ended before its time.
#[derive(Debug, Error)]
pub enum WaitError {
    /// Its end would not be seen.
    #[error("cannot watch a process")]
    Watch(#[source] Errno),
    /// A time that the kernel cannot wait for.
    #[error("time-out")]
    TimeOut(#[source] TryFromIntError),
    /// Its end could not be waited for.
    #[error("cannot wait for a process")]
    Wait(#[source] Errno),
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// It took too long.
    #[error("it did not end in time")]
    Late,
}

/// A run that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed, stdout and stderr.
    pub text: String,
    /// How long it took.
    pub wall: Duration,
    /// CPU time of all of it.
    pub cpu: Duration,
}

impl Finished {
    /// The end of what it printed, on one line.
    pub fn quote(&self) -> String {
        let lines = self.text.lines().map(str::trim);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let said = lines.join("; ").replace("tandem: ", "");
        let skip = said.chars().count().saturating_sub(QUOTED);
        said.chars().skip(skip).collect()
    }
}

/// Runs a command to its end in `folder`, where its output is kept while it runs.
pub fn run(
    argv: &[String],
    folder: &Path,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<Finished, RunError> {
    interrupt.check()?;
    let (program, args) = argv.split_first().ok_or(RunError::Empty)?;
    set_child_subreaper(Some(getpid())).map_err(RunError::Adopt)?;
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}", std::process::id());
    let path = folder.join("output");
    let output =
        File::create(&path).map_err(|source| RunError::Create { path: path.clone(), source })?;
    let errors = output.try_clone().map_err(RunError::Duplicate)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .env(MARK, &mark)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0);
    // SAFETY: the closure makes one system call, prctl(PR_SET_PDEATHSIG), which is safe between
    // fork and exec; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
    }
    let begin = Instant::now();
    // `Child` is only asked for its number: it does not wait when it is dropped, and we do.
    let child =
        command.spawn().map_err(|source| RunError::Start { program: program.clone(), source })?;
    let pid = pid_of(child.id())?;
    let waited = wait(pid, begin + limit, interrupt);
    let wall = begin.elapsed();
    if waited.is_err() {
        stop(pid);
    }
    let (status, mut cpu) = reap(pid)?;
    cpu += end_the_rest(pid, &mark)?;
    waited.map_err(|source| RunError::Cut { program: program.clone(), after: wall, source })?;
    let text = std::fs::read(&path).map_err(|source| RunError::Read { path, source })?;
    Ok(Finished { status, text: String::from_utf8_lossy(&text).into_owned(), wall, cpu })
}

fn pid_of(number: u32) -> Result<Pid, RunError> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    pid.ok_or(RunError::NoPid(number))
}

/// Waits until the process has ended. It is not reaped, so that its number stays its own.
fn wait(pid: Pid, deadline: Instant, interrupt: &Interrupt) -> Result<(), WaitError> {
    let fd = pidfd_open(pid, PidfdFlags::empty()).map_err(WaitError::Watch)?;
    loop {
        let timeout = Timespec::try_from(SLICE).map_err(WaitError::TimeOut)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(WaitError::Wait(error)),
        }
        interrupt.check()?;
        if Instant::now() >= deadline {
            return Err(WaitError::Late);
        }
    }
}

/// Asks a process to end, and ends it. It is our child and not reaped, so its number is its own; that
/// it cannot be signalled can only mean that it has ended.
fn stop(pid: Pid) {
    let _ = kill_process(pid, Signal::TERM);
    let ended = || {
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let timeout = Timespec::try_from(PATIENCE).ok()?;
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).ok()?;
        (ready > 0).then_some(())
    };
    if ended().is_none() {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Waits for a process that has ended or is about to, and gives its CPU time with that of its
/// descendants.
fn reap(pid: Pid) -> Result<(ExitStatus, Duration), RunError> {
    let mut status = 0;
    // SAFETY: an rusage is plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both places are ours and of the types that wait4 writes.
        let got =
            unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
        if got >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(RunError::Reap(error));
        }
    }
    let time = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds)
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    Ok((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime)))
}

/// Kills what the command left running; gives its CPU time.
fn end_the_rest(group: Pid, mark: &str) -> Result<Duration, RunError> {
    let mut cpu = Duration::ZERO;
    // A child's children become ours in turn; each round takes a generation.
    for _ in 0..64 {
        let left = children(group, mark);
        if left.is_empty() {
            break;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
            cpu += reap(pid)?.1;
        }
    }
    Ok(cpu)
}

/// Our children that come from this run: they are in its process group, which no other process of
/// ours is, or have left it and have the run's mark in their environment.
fn children(group: Pid, mark: &str) -> Vec<Pid> {
    let me = std::process::id();
    let group = group.as_raw_nonzero().get().unsigned_abs();
    let mark = format!("{MARK}={mark}");
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = ThreadStat::read(&entry.path()).ok()?;
            let ours = stat.parent.0 == me
                && (stat.group.is_some_and(|its| its.0 == group) || marked(&entry.path(), &mark));
            ours.then(|| Pid::from_raw(pid)).flatten()
        })
        .collect()
}

/// Whether the environment of a process has a variable with a value. For a moment in execve(2), when
/// the new program is not yet set up, it is empty, so an empty one is read again.
fn marked(process: &Path, mark: &str) -> bool {
    for _ in 0..20 {
        match std::fs::read(process.join("environ")) {
            Ok(environment) if environment.is_empty() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(environment) => {
                let mut variables = environment.split(|byte| *byte == 0);
                return variables.any(|variable| variable == mark.as_bytes());
            }
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use tandem_report::explain;

    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Finished, RunError> {
        let dir = tempfile::tempdir().unwrap();
        let argv = ["sh", "-c", script].map(str::to_owned);
        run(&argv, dir.path(), limit, &Interrupt::watch().unwrap())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_status_and_cpu_time_are_of_the_command_and_its_children() {
        let script = "echo out; echo 'tandem: err' >&2; \
                      sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done'; exit 3";
        let run = shell(script, LONG).unwrap();
        assert_eq!(run.status.code(), Some(3));
        assert_eq!(run.quote(), "out; err");
        assert!(run.cpu > Duration::ZERO && run.wall > Duration::ZERO);
    }

    /// Runs a script that writes the number of a process to `$file`: that one is gone afterwards.
    #[track_caller]
    fn assert_ends(script: &str) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("file={}; {script}", file.display());
        assert!(shell(&script, LONG).unwrap().status.success());
        let pid = std::fs::read_to_string(&file).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn what_is_left_behind_is_killed() {
        assert_ends("sleep 1000 & echo $! > $file");
    }

    #[test]
    fn what_left_the_group_is_killed_too() {
        let script = "setsid sleep 1000 & echo $! > $file; setsid sh -c 'exec sleep 1000' & exit 0";
        for _ in 0..20 {
            assert_ends(script);
        }
    }

    #[test]
    fn what_takes_too_long_is_asked_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("asked");
        let script = format!("trap 'touch {}; exit 0' TERM; sleep 1000 & wait", file.display());
        let error = explain(&shell(&script, Duration::from_millis(300)).unwrap_err());
        assert!(error.contains("did not end in time"), "{error}");
        assert!(file.exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let argv = ["no-such-program-at-all".to_owned()];
        let error = run(&argv, dir.path(), LONG, &Interrupt::watch().unwrap()).unwrap_err();
        assert!(error.to_string().contains("no-such-program-at-all"));
    }
}
