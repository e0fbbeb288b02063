//! Who wrote what comes out of a Unix stream socket.
//!
//! SO_PEERCRED tells who called listen(2). That one may have handed the socket on and be gone, and its number may be another process's by now. With
//! SO_PASSCRED the kernel tells of each piece which process wrote it, as it is written, and never joins pieces of two processes (unix(7), SCM_CREDENTIALS;
//! `maybe_add_creds` and `unix_stream_read_generic` in net/unix/af_unix.c). It holds across network and mount namespaces. Who writes may name another
//! process only with CAP_SYS_ADMIN over its own PID namespace, and only one of that namespace.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt::set_socket_passcred;

use crate::ids::Pid;

/// Who wrote a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The process; `None`: it is in no PID namespace that is seen from here.
    pub pid: Option<Pid>,
    /// Its real user.
    pub uid: u32,
}

/// Room for one sender, and for no descriptors: what is not asked for is not taken in.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    sender: libc::ucred,
}

/// Has the kernel tell who writes; to be called before the socket is connected, or of the first pieces it is not known.
pub fn tell_senders(socket: impl AsFd) -> io::Result<()> {
    Ok(set_socket_passcred(socket, true)?)
}

/// Reads once, as recvmsg(2) does: how much, and who wrote it. `None` at the end, or if the kernel was not told to say it.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<Sender>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: both are plain numbers and pointers, of which all zeroes are a valid value that points nowhere.
    let (mut message, mut control): (libc::msghdr, Control) = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let (socket, flags) = (socket.as_fd().as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
    // SAFETY: the message names a buffer and a room for control data, with their lengths; both outlive the call.
    let length = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
    let Ok(length) = usize::try_from(length) else {
        return Err(io::Error::last_os_error());
    };
    let least = size_of::<libc::cmsghdr>() + size_of::<libc::ucred>();
    // At the end the kernel tells of a process 0.
    let is_told = length > 0
        && message.msg_controllen >= least as _
        && control.header.cmsg_level == libc::SOL_SOCKET
        && control.header.cmsg_type == libc::SCM_CREDENTIALS;
    let sender = is_told.then(|| Sender {
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
    fn each_piece_comes_with_who_wrote_it() {
        let (mut mine, theirs) = UnixStream::pair().unwrap();
        tell_senders(&theirs).unwrap();
        mine.write_all(b"mine").unwrap();
        // Another process that holds the same end.
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
