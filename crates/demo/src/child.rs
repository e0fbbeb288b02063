//! A child process that never outlives its owner.
//!
//! Whatever ends the owner's use of it (success, error, panic), the child is asked to stop, waited
//! for, and killed if it does not answer in time. Children run in process groups of their own, so
//! that a Ctrl-C on the terminal reaches only us, and we decide what stops when; and they get a
//! SIGTERM from the kernel should we be killed ourselves.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use thiserror::Error;

/// How long a child may take to stop before it is killed.
const PATIENCE: Duration = Duration::from_secs(15);

/// Longest line that a child may write; a snapshot of 64 vCPUs has under 10 000 bytes.
const LONGEST_LINE: usize = 1 << 20;

/// What went wrong with a child.
#[derive(Debug, Error)]
pub enum ChildError {
    /// This program does not know its own file.
    #[error("cannot find the running program")]
    Program(#[source] io::Error),
    /// It did not start.
    #[error("cannot start {what} ({})", program.display())]
    Start {
        /// What it is.
        what: String,
        /// This program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It has nothing to be heard by.
    #[error("the child has no stdout")]
    NoStdout,
    /// It ended where an answer was expected.
    #[error("{what} ended early ({status})")]
    EndedEarly {
        /// What it is.
        what: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// It says nothing any more.
    #[error("{0} closed its output")]
    Silent(String),
    /// It did not answer.
    #[error("no answer from {what}")]
    NoAnswer {
        /// What it is.
        what: String,
        /// Why.
        source: LineError,
    },
    /// Its end cannot be waited for.
    #[error("cannot wait for {what}")]
    Wait {
        /// What it is.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its number is no process id.
    #[error("{0} has no process id")]
    NoPid(String),
    /// It cannot be asked to end.
    #[error("cannot signal {what}")]
    Signal {
        /// What it is.
        what: String,
        /// What the kernel said.
        source: rustix::io::Errno,
    },
}

/// Why there is no line.
#[derive(Debug, Error)]
pub enum LineError {
    /// It does not end.
    #[error("a line of more than {LONGEST_LINE} bytes")]
    TooLong,
    /// It did not come.
    #[error("nothing within {0} s")]
    Late(f64),
    /// A time that the kernel cannot wait for.
    #[error("time-out")]
    TimeOut(#[source] std::num::TryFromIntError),
    /// The pipe.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// A running child.
#[derive(Debug)]
pub struct Running {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    output: LineReader,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts this very program with `args`; its error output goes to `errors`.
    pub fn start(what: &str, args: &[String], errors: File) -> Result<Running, ChildError> {
        let program = std::env::current_exe().map_err(ChildError::Program)?;
        let mut command = Command::new(&program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(errors))
            .process_group(0);
        // SAFETY: the closure makes one system call, prctl(PR_SET_PDEATHSIG), which is safe between
        // fork and exec; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let mut child = command.spawn().map_err(|source| ChildError::Start {
            what: what.to_owned(),
            program,
            source,
        })?;
        let stdin = child.stdin.take();
        let output = child.stdout.take().ok_or(ChildError::NoStdout)?;
        Ok(Running {
            what: what.to_owned(),
            child,
            stdin,
            output: LineReader::new(OwnedFd::from(output)),
            status: None,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it is, for messages.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Its stdin, while it is open.
    pub fn stdin(&mut self) -> Option<&mut ChildStdin> {
        self.stdin.as_mut()
    }

    /// Closes its stdin, which ends a VM under control.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The next line it writes, without the line end.
    pub fn line(&mut self, patience: Duration) -> Result<String, ChildError> {
        match self.output.line(patience) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => match self.wait(Duration::from_secs(1))? {
                Some(status) => Err(ChildError::EndedEarly { what: self.what.clone(), status }),
                None => Err(ChildError::Silent(self.what.clone())),
            },
            Err(source) => Err(ChildError::NoAnswer { what: self.what.clone(), source }),
        }
    }

    /// Its exit status if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, ChildError> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .map_err(|source| ChildError::Wait { what: self.what.clone(), source })?;
        }
        Ok(self.status)
    }

    /// Waits for it to end.
    fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>, ChildError> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.ended()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Asks it to stop by SIGTERM.
    pub fn terminate(&mut self) -> Result<(), ChildError> {
        self.signal(Signal::TERM)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), ChildError> {
        // As long as it was not waited for, its number cannot belong to another process.
        if self.ended()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| ChildError::NoPid(self.what.clone()))?;
        kill_process(pid, signal)
            .map_err(|source| ChildError::Signal { what: self.what.clone(), source })
    }

    /// Waits for it to end after it was asked to. Kills it if it does not: `Ok(None)`.
    pub fn reap(&mut self) -> Result<Option<ExitStatus>, ChildError> {
        match self.wait(PATIENCE)? {
            Some(status) => Ok(Some(status)),
            None => {
                self.signal(Signal::KILL)?;
                self.wait(PATIENCE)?;
                Ok(None)
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close_stdin();
        // Nothing can be done about an error here, and it is reported where stopping is explicit.
        let _ = self.terminate();
        let _ = self.reap();
    }
}

/// Lines from a pipe, with a limit on the time to wait and on the length.
#[derive(Debug)]
struct LineReader {
    pipe: OwnedFd,
    read: Vec<u8>,
}

impl LineReader {
    fn new(pipe: OwnedFd) -> LineReader {
        LineReader { pipe, read: Vec::new() }
    }

    /// The next line; `None` at the end.
    fn line(&mut self, patience: Duration) -> Result<Option<String>, LineError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.read.len() > LONGEST_LINE {
                return Err(LineError::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LineError::Late(patience.as_secs_f64()));
            }
            if !self.readable(left)? {
                continue;
            }
            let mut chunk = [0u8; 8192];
            match rustix::io::read(&self.pipe, &mut chunk) {
                Ok(0) => return Ok(None),
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn readable(&self, patience: Duration) -> Result<bool, LineError> {
        let timeout = Timespec::try_from(patience).map_err(LineError::TimeOut)?;
        let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_told_apart_however_they_arrive() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut lines = LineReader::new(OwnedFd::from(reader));
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.line(Duration::from_secs(5)).unwrap().as_deref(), Some("one"));
        let error = lines.line(Duration::from_millis(10)).unwrap_err().to_string();
        assert!(error.contains("nothing within 0.01 s"), "{error}");
        writer.write_all(b"o\nlost").unwrap();
        assert_eq!(lines.line(Duration::from_secs(5)).unwrap().as_deref(), Some("two"));
        drop(writer);
        assert_eq!(lines.line(Duration::from_secs(5)).unwrap(), None);
    }
}
