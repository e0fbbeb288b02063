//! Runs a command to its end, counts its CPU time, and leaves none of its processes running.
//!
//! CPU time comes from wait4(2) and covers the command and all descendants that it waited for.
//! Orphaned descendants become children of this process (PR_SET_CHILD_SUBREAPER), which kills and counts them too.
//! On an interrupt or a timeout the command gets SIGTERM, which lets a server shut down and the agent revert its settings, and after some seconds SIGKILL.
//! If this process is killed, the kernel sends that SIGTERM.

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

/// Interval between checks of the interrupt.
const SLICE: Duration = Duration::from_millis(50);

/// Time between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_secs(5);

/// Environment variable that identifies the processes of a run.
const MARK: &str = "TANDEM_BENCH_RUN";

/// Maximum length of a quoted output, in characters.
const QUOTED: usize = 300;

/// Error of a run.
#[derive(Debug, Error)]
pub enum RunError {
    /// Interrupted before the start.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The command is empty.
    #[error("an empty command")]
    Empty,
    /// Becoming a subreaper failed.
    #[error("cannot adopt what a command leaves behind")]
    Adopt(#[source] Errno),
    /// Creating the output file failed.
    #[error("cannot create {}", path.display())]
    Create {
        /// Its path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Duplicating the output file failed.
    #[error("cannot duplicate a file")]
    Duplicate(#[source] io::Error),
    /// The command did not start.
    #[error("cannot start {program}")]
    Start {
        /// Its program.
        program: String,
        /// OS error.
        source: io::Error,
    },
    /// Its PID is out of range.
    #[error("{0} is no process id")]
    NoPid(u32),
    /// wait4(2) failed.
    #[error("cannot wait for a process")]
    Reap(#[source] io::Error),
    /// The command was terminated early.
    #[error("{program}, after {:.1} s", after.as_secs_f64())]
    Cut {
        /// Its program.
        program: String,
        /// Its run time until then.
        after: Duration,
        /// The reason.
        source: WaitError,
    },
    /// Reading the output file failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

/// Reason why a command was terminated early.
#[derive(Debug, Error)]
pub enum WaitError {
    /// pidfd_open(2) failed.
    #[error("cannot watch a process")]
    Watch(#[source] Errno),
    /// The timeout is out of range.
    #[error("time-out")]
    TimeOut(#[source] TryFromIntError),
    /// poll(2) failed.
    #[error("cannot wait for a process")]
    Wait(#[source] Errno),
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// It timed out.
    #[error("it did not end in time")]
    Late,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Output, stdout and stderr.
    pub text: String,
    /// Wall time.
    pub wall: Duration,
    /// CPU time of all its processes.
    pub cpu: Duration,
}

impl Finished {
    /// Returns the end of its output in one line.
    pub fn quote(&self) -> String {
        let lines = self.text.lines().map(str::trim);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let said = lines.join("; ").replace("tandem: ", "");
        let skip = said.chars().count().saturating_sub(QUOTED);
        said.chars().skip(skip).collect()
    }
}

/// Runs a command to its end in `folder`, which also holds its output.
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
    // Only the PID of `Child` is used; `reap` waits for the process.
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

/// Waits until the process has ended. Does not reap it, so its PID is not reused.
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

/// Sends SIGTERM to a child, then SIGKILL after a timeout.
/// The child is not reaped, so its PID is not reused; a signal fails only if it has ended.
fn stop(pid: Pid) {
    let _ = kill_process(pid, Signal::TERM);
    let ended = || {
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let timeout = Timespec::try_from(TERM_TIMEOUT).ok()?;
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).ok()?;
        (ready > 0).then_some(())
    };
    if ended().is_none() {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Waits for a process that has ended or is about to end.
/// Returns its status and its CPU time with that of its descendants.
fn reap(pid: Pid) -> Result<(ExitStatus, Duration), RunError> {
    let mut status = 0;
    // SAFETY: rusage consists of integers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are valid and have the types that wait4 writes.
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

/// Kills the processes that the command left running, and returns their CPU time.
fn end_the_rest(group: Pid, mark: &str) -> Result<Duration, RunError> {
    let mut cpu = Duration::ZERO;
    // The orphans of a killed process become ours; each iteration kills one generation.
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

/// Returns our children from this run: those in its process group, and those with the run's mark in their environment.
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

/// Returns whether the environment of a process contains `mark`.
/// It is briefly empty during execve(2), so an empty environment is read again.
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
    fn run_covers_the_command_and_its_children() {
        let script = "echo out; echo 'tandem: err' >&2; \
                      sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done'; exit 3";
        let run = shell(script, LONG).unwrap();
        assert_eq!(run.status.code(), Some(3));
        assert_eq!(run.quote(), "out; err");
        assert!(run.cpu > Duration::ZERO && run.wall > Duration::ZERO);
    }

    /// Runs a script that writes a PID to `$file`, and asserts that this process is gone afterwards.
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
    fn orphans_are_killed() {
        assert_ends("sleep 1000 & echo $! > $file");
    }

    #[test]
    fn orphans_outside_the_group_are_killed() {
        let script = "setsid sleep 1000 & echo $! > $file; setsid sh -c 'exec sleep 1000' & exit 0";
        for _ in 0..20 {
            assert_ends(script);
        }
    }

    #[test]
    fn timeout_sends_sigterm() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("asked");
        let script = format!("trap 'touch {}; exit 0' TERM; sleep 1000 & wait", file.display());
        let error = explain(&shell(&script, Duration::from_millis(300)).unwrap_err());
        assert!(error.contains("did not end in time"), "{error}");
        assert!(file.exists());
    }

    #[test]
    fn missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let argv = ["no-such-program-at-all".to_owned()];
        let error = run(&argv, dir.path(), LONG, &Interrupt::watch().unwrap()).unwrap_err();
        assert!(error.to_string().contains("no-such-program-at-all"));
    }
}
