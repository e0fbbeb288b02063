//! The daemon's side of the control socket.
//!
//! A thread accepts connections one after the other and reads their requests; the daemon takes these when it has time. The socket
//! is made under another name, gets its mode, and is renamed, so that it never exists with another mode. The thread ends with
//! [`Control`], which removes the socket unless another daemon has made its own since.

use std::fs;
use std::fs::Permissions;
use std::io;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, shutdown};
use thiserror::Error;

use super::{Answer, MAX_REQUEST, Request, is_trusted, socket};

/// Maximum time for a client to send its request, and to read its answer.
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for the daemon to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// Why the daemon has no control socket.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    /// Another daemon listens on it.
    #[error("another daemon listens on {}", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("cannot make the control socket {}: {source}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A request, and where its answer goes.
pub(crate) type Asked = (Request, SyncSender<Answer>);

/// The socket of a running daemon.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode of the socket.
    file: (u64, u64),
    listener: UnixListener,
    requests: Receiver<Asked>,
}

impl Control {
    /// Makes the socket in the state directory. With `takes_over`, it replaces the one of a daemon that runs; the lock of the
    /// journal says that this is a dry run.
    pub(crate) fn open(state_dir: &Path, takes_over: bool) -> Result<Control, ControlError> {
        let path = socket(state_dir);
        let failed = |source| ControlError::Io { path: path.clone(), source };
        if !takes_over && UnixStream::connect(&path).is_ok() {
            return Err(ControlError::InUse(path));
        }
        let fresh = state_dir.join(format!("control.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh).map_err(failed)?;
        let made = fs::set_permissions(&fresh, Permissions::from_mode(0o600))
            .and_then(|()| fs::symlink_metadata(&fresh))
            .and_then(|metadata| fs::rename(&fresh, &path).map(|()| metadata));
        let metadata = made.map_err(|error| {
            let _ = fs::remove_file(&fresh);
            failed(error)
        })?;
        let (tell, requests) = sync_channel(1);
        let accepting = listener.try_clone().map_err(failed)?;
        let serve = move || {
            while let Ok((stream, _)) = accepting.accept() {
                // A client that went away needs no answer.
                let _ = serve(stream, &tell);
            }
        };
        std::thread::Builder::new().name("control".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Control {
            path: path.clone(),
            file: (metadata.dev(), metadata.ino()),
            listener,
            requests,
        })
    }

    /// Returns a request that waits for an answer.
    pub(crate) fn next(&self) -> Option<Asked> {
        self.requests.try_recv().ok()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // accept(2) fails from now on, which ends the thread.
        let _ = shutdown(self.listener.as_fd(), Shutdown::Both);
        let now = fs::symlink_metadata(&self.path);
        if now.is_ok_and(|now| (now.dev(), now.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Serves one connection.
fn serve(mut stream: UnixStream, tell: &SyncSender<Asked>) -> io::Result<()> {
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let peer = socket_peercred(stream.as_fd())?;
    let answer = if is_trusted(peer.uid.as_raw()) {
        match read(&mut stream) {
            Ok(text) => answered(&text, tell),
            Err(error) => Answer::Error(error.to_string()),
        }
    } else {
        Answer::Error("only root and the daemon's user may send requests".to_owned())
    };
    stream.write_all(serde_json::to_string(&answer)?.as_bytes())
}

/// Reads a request to its end, in bounded size and time.
fn read(stream: &mut UnixStream) -> io::Result<String> {
    let deadline = Instant::now() + IO_TIMEOUT;
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::other(format!(
                "the request is not complete after {IO_TIMEOUT:?}"
            )));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(piece.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if text.len() as u64 > MAX_REQUEST {
            return Err(io::Error::other(format!("a request has at most {MAX_REQUEST} bytes")));
        }
    }
    String::from_utf8(text).map_err(|_| io::Error::other("a request is UTF-8"))
}

/// Has the daemon answer.
fn answered(text: &str, tell: &SyncSender<Asked>) -> Answer {
    let request = match serde_json::from_str(text) {
        Ok(request) => request,
        Err(error) => return Answer::Error(format!("invalid request: {error}")),
    };
    let (answer, answers) = sync_channel(1);
    match tell.try_send((request, answer)) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => {
            return Answer::Error("the daemon is busy; try again".to_owned());
        }
        Err(TrySendError::Disconnected(_)) => return Answer::Error("the daemon ends".to_owned()),
    }
    let late = |_| Answer::Error(format!("the daemon did not answer within {ANSWER_TIMEOUT:?}"));
    answers.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(late)
}
