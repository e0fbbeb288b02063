//! Waits for the next period or a signal.
//!
//! Signals become bytes on a socket, so that a daemon sleeps in poll(2) and handles them only between periods.

use std::io;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The deadline has come.
    Time,
    /// SIGTERM or SIGINT asks to stop, or the terminal is gone (SIGHUP).
    Stop,
    /// A child process ended, or was stopped.
    Child,
    /// SIGHUP asks to read the settings again.
    Reload,
    /// The other file is readable.
    Other,
}

/// The signals that end this process's waits.
#[derive(Debug)]
pub struct Signals {
    stop: UnixStream,
    child: UnixStream,
    reload: UnixStream,
    /// Kept open, because a reader without a writer is at its end and polls as readable.
    _writers: [UnixStream; 3],
}

impl Signals {
    /// Installs handlers: SIGTERM, SIGINT and SIGHUP now end a wait instead of the process; with `children`, SIGCHLD too.
    pub fn catch(children: bool) -> io::Result<Signals> {
        Signals::open(&[SIGTERM, SIGINT, SIGHUP], if children { &[SIGCHLD] } else { &[] }, &[])
    }

    /// Installs handlers: SIGTERM and SIGINT now end a wait, and SIGHUP ends it as [`Wake::Reload`].
    pub fn catch_with_reload() -> io::Result<Signals> {
        Signals::open(&[SIGTERM, SIGINT], &[], &[SIGHUP])
    }

    fn open(stop: &[i32], child: &[i32], reload: &[i32]) -> io::Result<Signals> {
        let pipe = |signals: &[i32]| -> io::Result<(UnixStream, UnixStream)> {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            for &signal in signals {
                signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            }
            Ok((reader, writer))
        };
        let (stop, stopping) = pipe(stop)?;
        let (child, ending) = pipe(child)?;
        let (reload, reloading) = pipe(reload)?;
        Ok(Signals { stop, child, reload, _writers: [stopping, ending, reloading] })
    }

    /// Sleeps until `next` or a signal.
    pub fn wait_until(&mut self, next: Instant) -> Wake {
        self.wait_until_or(next, None)
    }

    /// Sleeps until `next`, a signal, or until another file is readable; signals take precedence.
    pub fn wait_until_or(&mut self, next: Instant, other: Option<BorrowedFd<'_>>) -> Wake {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let own = [self.stop.as_fd(), self.child.as_fd(), self.reload.as_fd()];
            let fds = own.into_iter().chain(other);
            let mut fds: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let polled = poll(&mut fds, Some(&timeout));
            let is_ready = fds.get(3).is_some_and(|fd| !fd.revents().is_empty());
            match polled {
                Ok(0) => return Wake::Time,
                Ok(_) => {
                    let mut bytes = [0u8; 16];
                    if self.stop.read(&mut bytes).is_ok() {
                        return Wake::Stop;
                    }
                    if self.child.read(&mut bytes).is_ok() {
                        return Wake::Child;
                    }
                    if self.reload.read(&mut bytes).is_ok() {
                        return Wake::Reload;
                    }
                    if is_ready {
                        return Wake::Other;
                    }
                }
                // Interrupted: the next round reads the sockets if it was one of these signals.
                Err(_) if left.is_zero() => return Wake::Time,
                Err(_) => {}
            }
        }
    }
}
