//! A QMP socket that is opened before it is queried, so that a later swap at its path has no effect.
//!
//! It is opened without a connection (O_PATH, open(2)), checked through its descriptor, and connected through `/proc/self/fd`.
//! If the operator did not name the path, links in it are followed only if root or the socket's owner owns them.
//! Links of others could lead to sockets that are not theirs.
//! The path is therefore resolved part by part, and the kernel follows no link itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat, openat2, readlinkat,
};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::error::QmpError;

/// Maximum number of parts of a path, including those of its links: tenants create links, and each part takes three system calls.
const MAX_PARTS: usize = 64;

/// Opens for neither reading nor writing.
const FOLLOW: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The same, but opens links themselves.
const FLAGS: OFlags = FOLLOW.union(OFlags::NOFOLLOW);

/// An open socket without a connection.
#[derive(Debug)]
pub struct OpenSocket {
    path: PathBuf,
    file: OwnedFd,
    user: u32,
}

impl OpenSocket {
    /// Opens a path that the operator named, following all links.
    pub fn named(path: &Path) -> Result<OpenSocket, QmpError> {
        let opened = open(path, FOLLOW, Mode::empty()).and_then(|file| {
            let user = fstat(&file)?.st_uid;
            Ok((file, user))
        });
        OpenSocket::new(path, opened.map_err(io::Error::from))
    }

    /// Opens a discovered path if it is a socket, and if root or the socket's owner owns all links in the path.
    pub fn found(path: &Path) -> Result<OpenSocket, QmpError> {
        OpenSocket::new(path, follow(path))
    }

    fn new(path: &Path, opened: io::Result<(OwnedFd, u32)>) -> Result<OpenSocket, QmpError> {
        let path = path.to_owned();
        match opened {
            Ok((file, user)) => Ok(OpenSocket { path, file, user }),
            Err(source) => Err(QmpError::Socket { socket: path, source }),
        }
    }

    /// The path at which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the owner of the socket, or of the link at its path.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Returns an address to connect to while the socket is open.
    pub(super) fn address(&self) -> io::Result<SocketAddrUnix> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(SocketAddrUnix::new(path)?)
    }
}

/// Returns the socket at a path, and the owner of the path's last part.
fn follow(path: &Path) -> io::Result<(OwnedFd, u32)> {
    // Most paths have no links.
    let (flags, without) = (FOLLOW, ResolveFlags::NO_SYMLINKS);
    if let Ok(file) = openat2(CWD, path, flags, Mode::empty(), without) {
        let user = socket_at(&file)?.st_uid;
        return Ok((file, user));
    }
    let mut left = parts(path.as_os_str());
    let mut named_left = left.len();
    let mut here = start(path.as_os_str())?;
    let (mut user, mut owners) = (None, Vec::new());
    let mut passed = 0;
    while let Some(part) = left.pop() {
        passed += 1;
        if passed + left.len() > MAX_PARTS {
            return Err(Errno::LOOP.into());
        }
        let next = openat(&here, &part, FLAGS, Mode::empty())?;
        let stat = fstat(&next)?;
        if left.len() < named_left {
            named_left = left.len();
            user = Some(stat.st_uid);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            here = next;
            continue;
        }
        owners.push(stat.st_uid);
        let target = OsString::from_vec(readlinkat(&next, "", Vec::new())?.into_bytes());
        left.extend(parts(&target));
        if target.as_bytes().starts_with(b"/") {
            here = start(&target)?;
        }
    }
    let socket = socket_at(&here)?.st_uid;
    match owners.iter().find(|owner| ![0, socket].contains(owner)) {
        Some(other) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("a link of user {other} leads there, and the socket is user {socket}'s"),
        )),
        None => Ok((here, user.unwrap_or(socket))),
    }
}

/// Returns the parts of a path, the first at the end.
fn parts(path: &OsStr) -> Vec<OsString> {
    let parts = path.as_bytes().split(|byte| *byte == b'/').rev();
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(|part| OsStr::from_bytes(part).to_owned()).collect()
}

/// Opens the start of a path.
fn start(path: &OsStr) -> io::Result<OwnedFd> {
    let at = if path.as_bytes().starts_with(b"/") { "/" } else { "." };
    Ok(open(at, FLAGS, Mode::empty())?)
}

/// Returns the status of an open file that is a socket.
fn socket_at(file: &OwnedFd) -> io::Result<Stat> {
    let stat = fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Ok(stat),
        _ => Err(Errno::NOTSOCK.into()),
    }
}
