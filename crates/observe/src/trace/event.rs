//! What the programs write: `bpf/trace.bpf.c` says the same in C.

use tandem_linux::thread::{Pid, Tid};
use tandem_model::{Nanos, PcpuId};

/// `struct event`, in bytes.
pub(super) const BYTES: usize = 56;

const SWITCH: u32 = 0;
const WAKE: u32 = 1;
const MOVE: u32 = 2;

const FROM_SLEEPS: u32 = 1;
const TO_IS_KERNEL: u32 = 2;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `from` left the pCPU, to sleep or not, and `to` came.
    Switch {
        /// Whether it cannot go on.
        from_sleeps: bool,
    },
    /// `from` woke `to`, which is in that pCPU's queue now.
    Wake,
    /// `to` is in that pCPU's queue now.
    Move,
}

/// Who it is, as far as the kernel says with the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) pid: Pid,
    pub(super) is_kernel: bool,
    pub(super) comm: [u8; 16],
}

impl Task {
    /// Its name: up to the first zero byte.
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
    /// 0 is idle.
    pub(super) from: Tid,
    pub(super) to: Tid,
    /// Who `to` is.
    pub(super) task: Task,
    /// On which pCPU it was seen.
    pub(super) seen_on: PcpuId,
    /// Its number among those that were seen there, whether they found room or not.
    pub(super) number: u32,
}

/// An event from its bytes; `None` if these are not such.
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
    fn events_are_read_as_the_programs_write_them() {
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
