//! Events written by the programs; `bpf/trace.bpf.c` has the same in C.

use tandem_linux::thread::{Pid, Tid};
use tandem_model::{Nanos, PcpuId};

/// Size of `struct event` in bytes.
pub(super) const BYTES: usize = 56;

const SWITCH: u32 = 0;
const WAKE: u32 = 1;
const MOVE: u32 = 2;

const FROM_SLEEPS: u32 = 1;
const TO_IS_KERNEL: u32 = 2;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `from` left the pCPU, and `to` entered it.
    Switch {
        /// Whether `from` sleeps.
        from_sleeps: bool,
    },
    /// `from` woke `to`, which is now in that pCPU's queue.
    Wake,
    /// `to` is now in that pCPU's queue.
    Move,
}

/// The kernel's data about a thread in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) pid: Pid,
    pub(super) is_kernel: bool,
    pub(super) comm: [u8; 16],
}

impl Task {
    /// Returns its name, which ends at the first zero byte.
    pub(super) fn name(&self) -> String {
        let end = self.comm.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&self.comm[..end.unwrap_or(self.comm.len())]).into_owned()
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Nanos,
    pub(super) kind: Kind,
    pub(super) pcpu: PcpuId,
    /// 0 is the idle task.
    pub(super) from: Tid,
    pub(super) to: Tid,
    /// Data about `to`.
    pub(super) task: Task,
    /// The pCPU where the program ran.
    pub(super) seen_on: PcpuId,
    /// The number of the event on that pCPU, including lost ones.
    pub(super) number: u32,
}

/// Decodes an event; `None` if the bytes are invalid.
pub(super) fn decode(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; BYTES] = bytes.get(..BYTES)?.try_into().ok()?;
    let number = |at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
    let flags = number(28)?;
    Some(Event {
        at: Nanos(u64::from_ne_bytes(bytes[..8].try_into().ok()?)),
        kind: match number(8)? {
            SWITCH => Kind::Switch { from_sleeps: flags & FROM_SLEEPS != 0 },
            WAKE => Kind::Wake,
            MOVE => Kind::Move,
            _ => return None,
        },
        pcpu: PcpuId(number(12)?),
        from: Tid(number(16)?),
        to: Tid(number(20)?),
        task: Task {
            pid: Pid(number(24)?),
            is_kernel: flags & TO_IS_KERNEL != 0,
            comm: bytes[40..].try_into().ok()?,
        },
        seen_on: PcpuId(number(32)?),
        number: number(36)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_match_the_layout_of_the_programs() {
        let mut bytes = Vec::new();
        bytes.extend(77u64.to_ne_bytes());
        for number in [SWITCH, 3, 11, 12, 10, FROM_SLEEPS | TO_IS_KERNEL, 5, 99] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(*b"kworker/3:1\0rest");
        let event = decode(&bytes).unwrap();
        assert_eq!((event.at, event.pcpu), (Nanos(77), PcpuId(3)));
        assert_eq!(event.kind, Kind::Switch { from_sleeps: true });
        assert_eq!((event.from, event.to), (Tid(11), Tid(12)));
        assert_eq!((event.task.pid, event.task.is_kernel), (Pid(10), true));
        assert_eq!(event.task.name(), "kworker/3:1");
        assert_eq!((event.seen_on, event.number), (PcpuId(5), 99));
        assert_eq!(decode(&bytes[..55]), None);
        bytes[8] = 9;
        assert_eq!(decode(&bytes), None);
    }
}
