//! One microVM in this process, until its time is up, somebody asks for its end, or it fails.
//!
//! By hand it runs for some seconds. Under control ([`crate::control`]) it is a part of something larger:
//! it says when it is ready, answers each line on stdin with its counters, and stops when stdin ends.
//! SIGINT and SIGTERM end it as if its time were up, so that there is a report.

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

/// Why a VM did not run to its end.
#[derive(Debug, Error)]
pub enum VmRunError {
    /// No way to hear of signals.
    #[error("cannot make a socket pair for signals")]
    SocketPair(#[source] io::Error),
    /// The same.
    #[error("cannot duplicate a socket")]
    Duplicate(#[source] io::Error),
    /// The same, of one signal.
    #[error("cannot handle signal {signal}")]
    Signal {
        /// Which.
        signal: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// It did not boot.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A vCPU without a thread.
    #[error("vCPU {index} has no thread: {tid} is not the number of one")]
    NoThread {
        /// Which.
        index: usize,
        /// What should be its thread.
        tid: i32,
    },
    /// Its owner does not listen.
    #[error(transparent)]
    Say(#[from] SayError),
    /// No way to wait.
    #[error("poll failed: {0}")]
    Poll(Errno),
    /// Its owner cannot be heard.
    #[error("cannot read stdin: {0}")]
    Stdin(Errno),
    /// A vCPU stopped by itself.
    #[error("the VM stopped: {0}")]
    Stopped(String),
    /// The workload went wrong.
    #[error("the workload saw {0} broken invariants: a bug of Tandem or of this host")]
    Violations(u64),
}

/// A stream that becomes readable when the process is asked to end.
#[derive(Debug)]
pub struct Signals(UnixStream);

impl Signals {
    /// Listens from now on; before the VM boots, so that a signal at any moment finds somebody.
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

/// A VM that ended.
#[derive(Debug)]
pub struct Ended {
    /// What it did; none where its owner has seen enough.
    pub report: Option<Report>,
    violations: u64,
}

impl Ended {
    /// An error if the workload went wrong: for after the report, which is worth having all the same.
    pub fn check(&self) -> Result<(), VmRunError> {
        match self.violations {
            0 => Ok(()),
            violations => Err(VmRunError::Violations(violations)),
        }
    }
}

/// Boots a VM and runs it to its end; with `owner`, under its control.
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
    // The span ends before the threads do, or the time that stopping takes would be in it.
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

/// Why a VM's run ended.
enum End {
    /// The time is up, or a signal asked for the end.
    Time,
    /// stdin ended.
    Stdin,
    /// A vCPU stopped by itself.
    Failure,
}

/// Waits for the end; meanwhile answers each line on stdin, if there is an owner.
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
        // A time too long for the kernel is as good as none.
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

/// How many lines end in what stdin holds now; none at its end.
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
    fn a_vm_runs_for_its_time_and_reports() {
        let mut config = MicrovmConfig::new("vm0".parse().unwrap(), Workload::Burn);
        config.backend = Backend::Threads;
        let signals = Signals::listen().unwrap();
        let limit = Some(Duration::from_millis(50));
        let ended = run(config, limit, &signals, None).unwrap();
        ended.check().unwrap();
        assert!(ended.report.unwrap().seconds >= 0.05);
    }
}
