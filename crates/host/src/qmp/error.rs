//! What can go wrong where QMP sockets are looked for and asked.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a QMP socket gave no answer.
#[derive(Debug, Error)]
pub enum QmpError {
    /// No connection, or it broke.
    #[error("QMP socket {socket}: {source}")]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing came in time.
    #[error(
        "QMP socket {0} does not answer: another client (libvirt?) holds it; give QEMU a second one \
         with -qmp unix:PATH,server=on,wait=off"
    )]
    Timeout(PathBuf),
    /// What came is not QMP, or not what was asked for.
    #[error("QMP socket {socket}: {what}")]
    Protocol {
        /// The socket.
        socket: PathBuf,
        /// What came instead.
        what: String,
    },
    /// A pattern of socket paths that cannot be used.
    #[error("'{pattern}' is no pattern of QMP sockets: {why}; write one such as /run/qemu/*.qmp")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
}
