//! Births of threads, as the kernel tells them: its process connector.
//!
//! The connector (Linux, `drivers/connector/cn_proc.c`, `CONFIG_PROC_EVENTS`) sends a message over netlink for
//! each thread that is made, anywhere in the system, before the call that made it returns to user mode. It needs
//! CAP_NET_ADMIN and the first PID namespace; elsewhere there is nothing to hear. If messages come faster than they are read
//! the kernel drops some: what was missed has to be found otherwise.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send,
    socket_with,
};
use tandem_linux::thread::{Pid, Tid};

/// `CN_IDX_PROC` and `CN_VAL_PROC`, the connector's name; the first is its multicast group as well.
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
/// At most so many messages are read at a time, so that a storm of births does not keep the agent from its periods.
const MOST: usize = 1024;

/// A new thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// The parent of its process.
    pub parent: Pid,
    /// Its process.
    pub process: Pid,
    /// Itself.
    pub thread: Tid,
}

impl Birth {
    /// Whether it is the first of a new process.
    pub fn is_process(&self) -> bool {
        self.process.0 == self.thread.0
    }
}

/// The kernel's announcements.
#[derive(Debug)]
pub struct Births {
    socket: OwnedFd,
}

impl Births {
    /// From now on births are announced.
    pub fn listen() -> Result<Births, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::CONNECTOR);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC))?;
        send(&socket, &request(), SendFlags::empty())?;
        Ok(Births { socket })
    }

    /// The births since the last call, oldest first; at most some hundred, the others next time. An error means that
    /// there will be no more.
    pub fn take(&self) -> Result<Vec<Birth>, Errno> {
        let mut births = Vec::new();
        let mut message = [0; 256];
        for _ in 0..MOST {
            match recv(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((length, _)) => births.extend(birth(&message[..length.min(message.len())])),
                // Some were dropped; those that follow are there.
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

/// The message that asks for announcements: a netlink header, the connector's, and what is asked for.
fn request() -> Vec<u8> {
    let length = NETLINK_HEADER + CONNECTOR_HEADER + size_of::<u32>();
    let mut message = Vec::with_capacity(length);
    // Length; type NLMSG_DONE and no flags; sequence number; the sender, whom the kernel fills in.
    for word in [length as u32, 3, 0, 0] {
        message.extend(word.to_ne_bytes());
    }
    // Name; sequence and acknowledgement; length of what follows, and no flags.
    for word in [CN_IDX_PROC, CN_VAL_PROC, 0, 0] {
        message.extend(word.to_ne_bytes());
    }
    message.extend((size_of::<u32>() as u16).to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(LISTEN.to_ne_bytes());
    message
}

/// The birth that a message tells of; `None` where it tells of something else.
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

    /// Messages of a Linux on x86_64, from the connector's header on: thread 4883 of process 4816 was made
    /// by that process; process 4883 called execve.
    const MADE: [u32; 15] = [1, 1, 0, 0, 40, 1, 0, 0, 0, 4816, 4816, 4883, 4816, 0, 0];
    const CALLED: [u32; 15] = [1, 1, 3, 0, 40, 2, 0, 0, 0, 4883, 4883, 0, 0, 0, 0];

    fn message(words: &[u32]) -> Vec<u8> {
        let header = [76u32, 3, 0, 0];
        let words = header.iter().chain(words);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn births_are_read_and_nothing_else() {
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
    fn a_thread_is_announced() {
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
        println!("skipped: the process connector says nothing here (another PID namespace?)");
    }
}
