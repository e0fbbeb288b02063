//! The control socket of a running daemon, `STATE_DIR/control`: its status, pause and resume.
//!
//! A connection carries one request and one answer, each a JSON document. The socket has mode 0600, and both sides check by
//! SO_PEERCRED that the other one is root or the same user. Requests are bounded in size and time; a thread reads them, so a slow
//! client delays no decision of the daemon, which answers between two accounting periods.

mod server;

use std::io;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use tandem_linux::printable::printable;
use thiserror::Error;

use crate::status::ServiceStatus;

pub(crate) use server::Control;
#[cfg(test)]
use server::ControlError;

/// Maximum size of a request in bytes.
const MAX_REQUEST: u64 = 64 << 10;
/// Maximum size of an answer in bytes.
const MAX_ANSWER: u64 = 64 << 20;
/// Maximum time that a client waits: a busy daemon may be in the middle of adopting many VMs.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket of a state directory.
pub fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("control")
}

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The status of the daemon and its VMs.
    Status,
    /// Revert the changes on the managed VMs that match these patterns, and leave them alone.
    Pause(Vec<String>),
    /// Manage paused VMs again.
    Resume(Vec<String>),
}

/// The answer of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Its status.
    Status(Box<ServiceStatus>),
    /// The request is done: a line for each VM.
    Done(Vec<String>),
    /// No VM matches.
    NoMatch(String),
    /// The request is invalid or failed.
    Error(String),
}

/// Why a daemon does not answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// There is no socket, or no daemon listens on it.
    #[error("no daemon runs with the state directory {}", .0.display())]
    NoDaemon(PathBuf),
    /// The caller may not connect.
    #[error("only root and the daemon's user may connect to {}; run as root", .0.display())]
    NotPermitted(PathBuf),
    /// Another user listens on the socket.
    #[error("the process that listens on {} belongs to user {user}, not to root or the caller", .path.display())]
    Untrusted {
        /// The socket.
        path: PathBuf,
        /// The user of the process.
        user: u32,
    },
    /// The daemon did not answer.
    #[error("the daemon does not answer on {}: {source}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The answer is invalid.
    #[error("the answer of the daemon on {} is invalid: {source}", .path.display())]
    Invalid {
        /// The socket.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The answer does not fit the request.
    #[error("the daemon says: {0}")]
    Refused(String),
    /// No VM matches.
    #[error("{0}")]
    NoMatch(String),
}

/// Whether a process of this user is trusted: root's, or the caller's own.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Sends a request to the daemon with this state directory.
fn ask(state_dir: &Path, request: &Request) -> Result<Answer, AskError> {
    let path = socket(state_dir);
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            AskError::NoDaemon(state_dir.to_owned())
        }
        io::ErrorKind::PermissionDenied => AskError::NotPermitted(path.clone()),
        _ => AskError::Io { path: path.clone(), source },
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    let peer = socket_peercred(stream.as_fd()).map_err(|error| failed(error.into()))?;
    let user = peer.uid.as_raw();
    if !is_trusted(user) {
        return Err(AskError::Untrusted { path, user });
    }
    let answered = (|| {
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        stream.write_all(serde_json::to_string(request)?.as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut text = String::new();
        (&mut stream).take(MAX_ANSWER).read_to_string(&mut text)?;
        Ok(text)
    })();
    let text = answered.map_err(|source| AskError::Io { path: path.clone(), source })?;
    serde_json::from_str(&text).map_err(|source| AskError::Invalid { path, source })
}

/// Returns the status of the daemon with this state directory.
pub fn status(state_dir: &Path) -> Result<ServiceStatus, AskError> {
    match ask(state_dir, &Request::Status)? {
        Answer::Status(status) => Ok(*status),
        other => Err(refused(other)),
    }
}

/// Sends a request that changes VMs; returns a line for each of them.
pub fn change(state_dir: &Path, request: &Request) -> Result<Vec<String>, AskError> {
    match ask(state_dir, request)? {
        Answer::Done(lines) => Ok(lines),
        other => Err(refused(other)),
    }
}

fn refused(answer: Answer) -> AskError {
    match answer {
        Answer::NoMatch(why) => AskError::NoMatch(why),
        Answer::Error(why) => AskError::Refused(printable(&why).into_owned()),
        Answer::Status(_) | Answer::Done(_) => {
            AskError::Refused("an answer to another request".to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
