//! Runs one microVM in this process until its time limit, a signal, the end of stdin, or a failure.
//!
//! Without an owner it runs for some seconds.
//! Under control ([`crate::control`]) it reports ready, answers each line on stdin with its counters, and stops when stdin ends.
//! SIGINT and SIGTERM have the same effect as the time limit, so that a report is printed.

use std::io;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use tandem_microvm::{Microvm, MicrovmConfig, Report, StartError};
use thiserror::Error;

use crate::control::{Ready, ReadyVcpu, SayError, say};

/// A VM could not be run.
#[derive(Debug, Error)]
pub enum VmRunError {
    /// The socket pair for signals could not be made.
    #[error("cannot make a socket pair for signals")]
    SocketPair(#[source] io::Error),
    /// The socket for a signal could not be duplicated.
    #[error("cannot duplicate a socket")]
    Duplicate(#[source] io::Error),
    /// The handler of a signal could not be installed.
    #[error("cannot handle signal {signal}")]
    Signal {
        /// The signal.
        signal: i32,
        /// The operating system's error.
        source: io::Error,
    },
    /// The VM did not boot.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A vCPU has no valid thread id.
    #[error("vCPU {index} has no thread: {tid} is not a thread id")]
    NoThread {
        /// The vCPU's index.
        index: usize,
        /// The invalid thread id.
        tid: i32,
    },
    /// The owner could not be answered.
    #[error(transparent)]
    Say(#[from] SayError),
    /// `poll` failed.
    #[error("poll failed: {0}")]
    Poll(Errno),
    /// stdin could not be read.
    #[error("cannot read stdin: {0}")]
    Stdin(Errno),
    /// A vCPU stopped unexpectedly.
    #[error("the VM stopped: {0}")]
    Stopped(String),
    /// The workload saw broken invariants.
    #[error("the workload saw {0} broken invariants: a bug of Tandem or of this host")]
    Violations(u64),
}

/// A stream that becomes readable on SIGINT or SIGTERM.
#[derive(Debug)]
pub struct Signals(UnixStream);

impl Signals {
    /// Installs the handlers. Call it before the VM boots, so that no signal is missed.
    pub fn listen() -> Result<Signals, VmRunError> {
        let (reader, writer) = UnixStream::pair().map_err(VmRunError::SocketPair)?;
        for signal in [SIGINT, SIGTERM] {
            let writer = writer.try_clone().map_err(VmRunError::Duplicate)?;
            signal_hook::low_level::pipe::register(signal, writer)
                .map_err(|source| VmRunError::Signal { signal, source })?;
        }
        Ok(Signals(reader))
    }
}

/// Result of a VM that ended.
#[derive(Debug)]
pub struct Ended {
    /// The report; `None` if the end of stdin stopped the VM.
    pub report: Option<Report>,
    violations: u64,
}

impl Ended {
    /// Returns an error if the workload saw broken invariants; call it after printing the report.
    pub fn check(&self) -> Result<(), VmRunError> {
        match self.violations {
            0 => Ok(()),
            violations => Err(VmRunError::Violations(violations)),
        }
    }
}

/// Boots a VM and runs it to its end; with `owner`, under control.
pub fn run(
    config: MicrovmConfig,
    limit: Option<Duration>,
    signals: &Signals,
    mut owner: Option<&mut dyn Write>,
) -> Result<Ended, VmRunError> {
    let vm = Microvm::start(config)?;
    let first = vm.snapshot();
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    if let Some(owner) = owner.as_deref_mut() {
        say(owner, &ready(&vm)?)?;
    }
    let end = wait(&vm, signals, deadline, owner)?;
    // Take the snapshot before stopping the threads, to exclude the time of stopping.
    let report = Report::between(&vm, &first, &vm.snapshot());
    let last = vm.stop();
    let violations = last.sum(|vcpu| vcpu.violations);
    let report = match end {
        End::Stdin => None,
        End::Time => Some(report),
        End::Failure => return Err(VmRunError::Stopped(last.failure.unwrap_or_default())),
    };
    Ok(Ended { report, violations })
}

fn ready(vm: &Microvm) -> Result<Ready, VmRunError> {
    let vcpu = |(index, tid): (usize, i32)| match u32::try_from(tid) {
        Ok(tid) => Ok(ReadyVcpu { index, tid }),
        Err(_) => Err(VmRunError::NoThread { index, tid }),
    };
    let vcpus = vm.tids().into_iter().enumerate().map(vcpu);
    Ok(Ready {
        ready: true,
        pid: std::process::id(),
        backend: vm.config().backend,
        calibration: vm.calibration().to_string(),
        vcpus: vcpus.collect::<Result<_, _>>()?,
    })
}

/// The reason for the end of a run.
enum End {
    /// The time limit, or a signal.
    Time,
    /// stdin ended.
    Stdin,
    /// A vCPU stopped unexpectedly.
    Failure,
}

/// Waits for the end; if there is an owner, answers each line on stdin meanwhile.
fn wait(
    vm: &Microvm,
    signals: &Signals,
    deadline: Option<Instant>,
    mut owner: Option<&mut dyn Write>,
) -> Result<End, VmRunError> {
    let stdin = io::stdin();
    let event = vm.failure_event();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(End::Time);
        }
        let mut fds =
            vec![PollFd::new(&event, PollFlags::IN), PollFd::new(&signals.0, PollFlags::IN)];
        if owner.is_some() {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        // A timeout out of the range of the kernel is effectively infinite.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(VmRunError::Poll(error)),
        }
        let called = |place: usize| fds.get(place).is_some_and(|fd| !fd.revents().is_empty());
        match owner.as_deref_mut() {
            _ if called(0) => return Ok(End::Failure),
            _ if called(1) => return Ok(End::Time),
            Some(owner) if called(2) => match lines()? {
                None => return Ok(End::Stdin),
                Some(lines) => {
                    for _ in 0..lines {
                        say(owner, &vm.snapshot())?;
                    }
                }
            },
            _ => {}
        }
    }
}

/// Returns the number of lines that stdin has now; `None` at its end.
fn lines() -> Result<Option<usize>, VmRunError> {
    let mut buffer = [0; 4096];
    match rustix::io::read(io::stdin(), &mut buffer) {
        Ok(0) => Ok(None),
        Ok(read) => Ok(Some(buffer[..read].iter().filter(|byte| **byte == b'\n').count())),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Some(0)),
        Err(error) => Err(VmRunError::Stdin(error)),
    }
}

#[cfg(test)]
mod tests {
    use tandem_microvm::{Backend, Workload};

    use super::*;

    #[test]
    fn vm_runs_for_its_time_and_reports() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Burn);
        config.backend = Backend::Threads;
        let signals = Signals::listen().unwrap();
        let limit = Some(Duration::from_millis(50));
        let ended = run(config, limit, &signals, None).unwrap();
        ended.check().unwrap();
        assert!(ended.report.unwrap().seconds >= 0.05);
    }
}
