//! The sending process of each piece of data on a Unix stream socket.
//!
//! SO_PEERCRED names the process that called listen(2).
//! That process may have passed the socket on and exited, and its pid may be reused.
//! With SO_PASSCRED the kernel attaches the writing process to each piece, and never merges pieces of two processes
//! (unix(7), SCM_CREDENTIALS; `maybe_add_creds` and `unix_stream_read_generic` in net/unix/af_unix.c).
//! This also works across network and mount namespaces.
//! A writer can name another process only with CAP_SYS_ADMIN over its own PID namespace, and only one of that namespace.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt::set_socket_passcred;

use crate::ids::Pid;

/// The sender of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The process; `None` if it is outside the PID namespaces that are visible here.
    pub pid: Option<Pid>,
    /// Its real user.
    pub uid: u32,
}

/// Room for one sender and no descriptors, so that passed descriptors are not received.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    sender: libc::ucred,
}

/// Enables SO_PASSCRED. Call it before the socket is connected; earlier pieces have no sender.
pub fn pass_credentials(socket: impl AsFd) -> io::Result<()> {
    Ok(set_socket_passcred(socket, true)?)
}

/// Reads once, like recvmsg(2); returns the length and the sender.
/// The sender is `None` at the end of the stream, or without SO_PASSCRED.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<Sender>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: both consist of plain numbers and pointers, for which all zeroes are valid.
    let (mut message, mut control): (libc::msghdr, Control) = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let (socket, flags) = (socket.as_fd().as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
    // SAFETY: the message points to a buffer and to control data, with their lengths; both outlive the call.
    let length = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
    let Ok(length) = usize::try_from(length) else {
        return Err(io::Error::last_os_error());
    };
    let least = size_of::<libc::cmsghdr>() + size_of::<libc::ucred>();
    // At the end of the stream the kernel reports process 0.
    let has_sender = length > 0
        && message.msg_controllen >= least as _
        && control.header.cmsg_level == libc::SOL_SOCKET
        && control.header.cmsg_type == libc::SCM_CREDENTIALS;
    let sender = has_sender.then(|| Sender {
        pid: u32::try_from(control.sender.pid).ok().filter(|&pid| pid != 0).map(Pid),
        uid: control.sender.uid,
    });
    Ok((length, sender))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn each_piece_has_its_sender() {
        let (mut mine, theirs) = UnixStream::pair().unwrap();
        pass_credentials(&theirs).unwrap();
        mine.write_all(b"mine").unwrap();
        // Another process with the same end of the socket.
        let output = std::os::fd::OwnedFd::from(mine.try_clone().unwrap());
        let mut child =
            Command::new("echo").arg("its").stdout(Stdio::from(output)).spawn().unwrap();
        let number = child.id();
        assert!(child.wait().unwrap().success());
        drop(mine);
        let read = || {
            let mut buffer = [0; 64];
            let (length, sender) = receive(&theirs, &mut buffer).unwrap();
            (buffer[..length].to_vec(), sender.map(|sender| sender.pid))
        };
        let me = Some(Pid(std::process::id()));
        assert_eq!(read(), (b"mine".to_vec(), Some(me)));
        assert_eq!(read(), (b"its\n".to_vec(), Some(Some(Pid(number)))));
        assert_eq!(read(), (Vec::new(), None));
    }
}
