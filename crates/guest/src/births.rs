//! Thread creation events from the kernel's process connector.
//!
//! The connector (Linux, `drivers/connector/cn_proc.c`, `CONFIG_PROC_EVENTS`) sends a netlink message for each new thread in the system.
//! It sends it before the creating call returns to user mode.
//! It needs CAP_NET_ADMIN and the initial PID namespace; elsewhere there are no messages.
//! If the reader falls behind, the kernel drops messages, so missed threads must be found by other means.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send,
    socket_with,
};
use tandem_linux::thread::{Pid, Tid};

/// `CN_IDX_PROC` and `CN_VAL_PROC` identify the connector; the first is also its multicast group.
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
/// `PROC_CN_MCAST_LISTEN`.
const LISTEN: u32 = 1;
/// `PROC_EVENT_FORK`.
const FORK: u32 = 1;
/// Bytes of `struct nlmsghdr` and of `struct cn_msg`.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
/// `what`, `cpu` and `timestamp_ns` of `struct proc_event`.
const EVENT_HEADER: usize = 16;
/// Maximum number of messages per read, so that a fork storm does not delay the agent's periods.
const MAX_MESSAGES: usize = 1024;

/// A new thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Parent of its process.
    pub parent: Pid,
    /// Its process.
    pub process: Pid,
    /// The thread itself.
    pub thread: Tid,
}

impl Birth {
    /// Returns true if this is the first thread of a new process.
    pub fn is_process(&self) -> bool {
        self.process.0 == self.thread.0
    }
}

/// Subscription to thread creation events.
#[derive(Debug)]
pub struct Births {
    socket: OwnedFd,
}

impl Births {
    /// Subscribes to events from now on.
    pub fn listen() -> Result<Births, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::CONNECTOR);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC))?;
        send(&socket, &request(), SendFlags::empty())?;
        Ok(Births { socket })
    }

    /// Returns the new threads since the last call, oldest first.
    /// At most 1,024 messages are read; the rest follow at the next call.
    /// An error ends the subscription.
    pub fn take(&self) -> Result<Vec<Birth>, Errno> {
        let mut births = Vec::new();
        let mut message = [0; 256];
        for _ in 0..MAX_MESSAGES {
            match recv(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((length, _)) => births.extend(birth(&message[..length.min(message.len())])),
                // NOBUFS: messages were dropped; later ones are still readable.
                Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(births)
    }
}

impl AsFd for Births {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the subscription message: netlink header, connector header, operation.
fn request() -> Vec<u8> {
    let length = NETLINK_HEADER + CONNECTOR_HEADER + size_of::<u32>();
    let mut message = Vec::with_capacity(length);
    // Length; type NLMSG_DONE and no flags; sequence number; sender, set by the kernel.
    for word in [length as u32, 3, 0, 0] {
        message.extend(word.to_ne_bytes());
    }
    // Id; sequence and acknowledgement; payload length and no flags follow.
    for word in [CN_IDX_PROC, CN_VAL_PROC, 0, 0] {
        message.extend(word.to_ne_bytes());
    }
    message.extend((size_of::<u32>() as u16).to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(LISTEN.to_ne_bytes());
    message
}

/// Parses a message; `None` if it is not a fork event.
fn birth(message: &[u8]) -> Option<Birth> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let event = NETLINK_HEADER + CONNECTOR_HEADER;
    let is_ours = word(NETLINK_HEADER)? == CN_IDX_PROC && word(NETLINK_HEADER + 4)? == CN_VAL_PROC;
    if !is_ours || word(event)? != FORK {
        return None;
    }
    // parent_pid, parent_tgid, child_pid, child_tgid
    let data = event + EVENT_HEADER;
    Some(Birth {
        parent: Pid(word(data + 4)?),
        process: Pid(word(data + 12)?),
        thread: Tid(word(data + 8)?),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Messages from Linux on x86_64, without the netlink header: process 4816 created thread 4883,
    /// and process 4883 called execve.
    const MADE: [u32; 15] = [1, 1, 0, 0, 40, 1, 0, 0, 0, 4816, 4816, 4883, 4816, 0, 0];
    const CALLED: [u32; 15] = [1, 1, 3, 0, 40, 2, 0, 0, 0, 4883, 4883, 0, 0, 0, 0];

    fn message(words: &[u32]) -> Vec<u8> {
        let header = [76u32, 3, 0, 0];
        let words = header.iter().chain(words);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn only_fork_events_are_parsed() {
        let made = message(&MADE);
        let expected = Birth { parent: Pid(4816), process: Pid(4816), thread: Tid(4883) };
        assert_eq!(birth(&made), Some(expected));
        assert_eq!(birth(&message(&CALLED)), None);
        for length in 0..68 {
            assert_eq!(birth(&made[..length]), None, "{length} bytes");
        }
        let mut other = MADE;
        other[0] = 2;
        assert_eq!(birth(&message(&other)), None);
    }

    #[test]
    fn new_thread_is_reported() {
        let births = match Births::listen() {
            Ok(births) => births,
            Err(error) => {
                println!("skipped: no process connector here: {error}");
                return;
            }
        };
        let me = Pid(std::process::id());
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            let made = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get());
            let tid = Tid(made.join().unwrap() as u32);
            let is_it = |birth: &Birth| birth.thread == tid;
            if let Some(birth) = births.take().unwrap().into_iter().find(is_it) {
                assert_eq!(birth.process, me);
                assert!(!birth.is_process());
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("skipped: the process connector reports nothing here (another PID namespace?)");
    }
}
