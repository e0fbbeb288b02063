//! A child process that never outlives its owner.
//!
//! When the owner is done (success, error or panic), the child gets a SIGTERM, and SIGKILL after 15 s.
//! Each child has its own process group, so Ctrl-C on the terminal reaches only the parent, which orders the stops.
//! If the parent is killed, the kernel sends SIGTERM to its children.

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

/// Time that a child has to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum length of a line from a child, in bytes; a snapshot of 64 vCPUs has under 10 000 bytes.
const MAX_LINE: usize = 1 << 20;

/// A failure of a child.
#[derive(Debug, Error)]
pub enum ChildError {
    /// The path of the running program is unavailable.
    #[error("cannot find the running program")]
    Program(#[source] io::Error),
    /// The child did not start.
    #[error("cannot start {what} ({})", program.display())]
    Start {
        /// Description of the child.
        what: String,
        /// The program.
        program: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The child has no stdout pipe.
    #[error("the child has no stdout")]
    NoStdout,
    /// The child ended before it answered.
    #[error("{what} ended early ({status})")]
    EndedEarly {
        /// Description of the child.
        what: String,
        /// Its exit status.
        status: ExitStatus,
    },
    /// The child closed its output.
    #[error("{0} closed its output")]
    Silent(String),
    /// The child did not answer.
    #[error("no answer from {what}")]
    NoAnswer {
        /// Description of the child.
        what: String,
        /// The cause.
        source: LineError,
    },
    /// Waiting for the child failed.
    #[error("cannot wait for {what}")]
    Wait {
        /// Description of the child.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The child has no valid process id.
    #[error("{0} has no process id")]
    NoPid(String),
    /// The child could not be signalled.
    #[error("cannot signal {what}")]
    Signal {
        /// Description of the child.
        what: String,
        /// The operating system's error.
        source: rustix::io::Errno,
    },
}

/// No line could be read.
#[derive(Debug, Error)]
pub enum LineError {
    /// The line is too long.
    #[error("a line of more than {MAX_LINE} bytes")]
    TooLong,
    /// The timeout expired.
    #[error("no line within {0} s")]
    Late(f64),
    /// The timeout is out of the range of the kernel.
    #[error("timeout out of range")]
    TimeOut(#[source] std::num::TryFromIntError),
    /// Reading the pipe failed.
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
    /// Starts this program again with `args`; its stderr goes to `errors`.
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
        // fork and exec: it neither allocates nor locks.
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

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its description for messages.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns its stdin while it is open.
    pub fn stdin(&mut self) -> Option<&mut ChildStdin> {
        self.stdin.as_mut()
    }

    /// Closes its stdin, which stops a VM under control.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Returns the next line of its output, without the line end.
    pub fn line(&mut self, timeout: Duration) -> Result<String, ChildError> {
        match self.output.line(timeout) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => match self.wait(Duration::from_secs(1))? {
                Some(status) => Err(ChildError::EndedEarly { what: self.what.clone(), status }),
                None => Err(ChildError::Silent(self.what.clone())),
            },
            Err(source) => Err(ChildError::NoAnswer { what: self.what.clone(), source }),
        }
    }

    /// Returns its exit status if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, ChildError> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .map_err(|source| ChildError::Wait { what: self.what.clone(), source })?;
        }
        Ok(self.status)
    }

    /// Waits for its exit; returns `None` at the timeout.
    fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, ChildError> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.ended()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self) -> Result<(), ChildError> {
        self.signal(Signal::TERM)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), ChildError> {
        // The pid is not reused until the child has been reaped.
        if self.ended()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| ChildError::NoPid(self.what.clone()))?;
        kill_process(pid, signal)
            .map_err(|source| ChildError::Signal { what: self.what.clone(), source })
    }

    /// Waits for its exit after a request to stop; kills it after 15 s and returns `Ok(None)`.
    pub fn reap(&mut self) -> Result<Option<ExitStatus>, ChildError> {
        match self.wait(STOP_TIMEOUT)? {
            Some(status) => Ok(Some(status)),
            None => {
                self.signal(Signal::KILL)?;
                self.wait(STOP_TIMEOUT)?;
                Ok(None)
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close_stdin();
        // Explicit stops report errors; a drop cannot.
        let _ = self.terminate();
        let _ = self.reap();
    }
}

/// Reads lines from a pipe, with a timeout and a maximum length.
#[derive(Debug)]
struct LineReader {
    pipe: OwnedFd,
    read: Vec<u8>,
}

impl LineReader {
    fn new(pipe: OwnedFd) -> LineReader {
        LineReader { pipe, read: Vec::new() }
    }

    /// Returns the next line; `None` at the end.
    fn line(&mut self, timeout: Duration) -> Result<Option<String>, LineError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.read.len() > MAX_LINE {
                return Err(LineError::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LineError::Late(timeout.as_secs_f64()));
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

    fn readable(&self, timeout: Duration) -> Result<bool, LineError> {
        let timeout = Timespec::try_from(timeout).map_err(LineError::TimeOut)?;
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
    fn lines_are_split_across_reads() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut lines = LineReader::new(OwnedFd::from(reader));
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.line(Duration::from_secs(5)).unwrap().as_deref(), Some("one"));
        let error = lines.line(Duration::from_millis(10)).unwrap_err().to_string();
        assert!(error.contains("no line within 0.01 s"), "{error}");
        writer.write_all(b"o\nlost").unwrap();
        assert_eq!(lines.line(Duration::from_secs(5)).unwrap().as_deref(), Some("two"));
        drop(writer);
        assert_eq!(lines.line(Duration::from_secs(5)).unwrap(), None);
    }
}
