//! Errors of QMP sockets.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a QMP socket gave no answer.
#[derive(Debug, Error)]
pub enum QmpError {
    /// The connection failed or broke.
    #[error("QMP socket {socket}: {source}")]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No answer arrived in time.
    #[error(
        "QMP socket {0} does not answer: another client (libvirt?) holds it; give QEMU a second one \
         with -qmp unix:PATH,server=on,wait=off"
    )]
    Timeout(PathBuf),
    /// The answer is not QMP, or does not match the command.
    #[error("QMP socket {socket}: {what}")]
    Protocol {
        /// The socket.
        socket: PathBuf,
        /// The answer.
        what: String,
    },
    /// A pattern of socket paths is invalid.
    #[error("'{pattern}' is no pattern of QMP sockets: {why}; write one such as /run/qemu/*.qmp")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        why: String,
    },
}
