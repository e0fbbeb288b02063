//! Parser of the kernel's trace ring buffer: pages of bytes in, scheduler [`Event`]s out.
//!
//! The layout of an event's fields is in its `format` file, and the layout of a page in include/linux/ring_buffer.h.
//! A page has a time stamp, the number of bytes, then records.
//! A record's header has 5 bits of type and length and 27 bits of time since the previous record.
//! Times are ns of the instance's clock (`mono`).
//!
//! This module does not read files.

use tandem_linux::thread::Tid;
use tandem_model::Nanos;

/// Size of a page's header: time stamp and length.
const PAGE_HEADER: usize = 16;
/// Mask of the length in the second word of a page's header.
const LENGTH: u64 = 0xf_ffff;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// TRACE_FLAG_HARDIRQ of include/linux/trace_events.h.
const HARDIRQ: u8 = 0x08;
/// TASK_REPORT of include/linux/sched.h without the "preempted" bit: a thread in one of these states is not runnable.
const ASLEEP: u64 = 0xff;
/// Mask of the command in the operation of futex(2).
const FUTEX_COMMANDS: u64 = 0x7f;
/// FUTEX_WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2.
const FUTEX_WAITS: [u64; 5] = [0, 6, 9, 11, 13];
/// FUTEX_WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP, UNLOCK_PI, WAKE_BITSET.
const FUTEX_WAKES: [u64; 6] = [1, 3, 4, 5, 7, 10];

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Context switch from `prev` to `next`; 0 is the idle thread.
    Switch {
        /// Thread that leaves the CPU.
        prev: Tid,
        /// Whether it is no longer runnable.
        sleeps: bool,
        /// Thread that gets the CPU.
        next: Tid,
    },
    /// Start of a thread's wake-up.
    Waking(Tid),
    /// The thread is on the run queue of that CPU, which was notified.
    Woken(Tid, u32),
    /// The running thread creates a thread.
    Fork(Tid),
    /// The running thread exits.
    Exit,
    /// The running thread may wait on the futex at this address.
    FutexWait(u64),
    /// The running thread wakes waiters of the futex at this address.
    FutexWake(u64),
    /// The running thread yields.
    Yield,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time.
    pub at: Nanos,
    /// CPU.
    pub cpu: u32,
    /// Thread that runs on that CPU.
    pub by: Tid,
    /// Whether an interrupt caused it, rather than the running thread.
    pub in_interrupt: bool,
    /// Kind.
    pub kind: Kind,
}

/// Recorded events: folder in tracefs and used fields.
/// The first [`NEEDED`] are required.
pub const EVENTS: [(&str, &[&str]); 7] = [
    ("sched/sched_switch", &["prev_pid", "prev_state", "next_pid"]),
    ("sched/sched_waking", &["pid"]),
    ("sched/sched_wakeup", &["pid", "target_cpu"]),
    ("sched/sched_process_fork", &["child_pid"]),
    ("sched/sched_process_exit", &[]),
    ("syscalls/sys_enter_futex", &["uaddr", "op"]),
    ("syscalls/sys_enter_sched_yield", &[]),
];

/// Number of required events.
pub const NEEDED: usize = 5;

/// Layout of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    id: u16,
    /// Offset and size of each used field.
    fields: Vec<(usize, usize)>,
}

impl Format {
    /// Parses the text of a `format` file; `None` if it lacks a wanted field.
    pub fn parse(text: &str, wanted: &[&str]) -> Option<Format> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?;
        let place = |name: &&str| {
            let line = text.lines().find(|line| {
                let declared = line.trim().strip_prefix("field:");
                let declared = declared.and_then(|rest| rest.split(';').next());
                declared.and_then(|text| text.split([' ', '*']).next_back()) == Some(*name)
            })?;
            let number = |key: &str| -> Option<usize> {
                let rest = line.split(key).nth(1)?;
                rest.split(';').next()?.trim().parse().ok()
            };
            Some((number("offset:")?, number("size:")?))
        };
        Some(Format {
            id: id.trim().parse().ok()?,
            fields: wanted.iter().map(place).collect::<Option<_>>()?,
        })
    }

    fn value(&self, field: usize, data: &[u8]) -> Option<u64> {
        let (offset, size) = *self.fields.get(field)?;
        let mut bytes = [0u8; 8];
        let size = size.min(8);
        bytes[..size].copy_from_slice(data.get(offset..offset + size)?);
        Some(u64::from_le_bytes(bytes))
    }
}

/// Formats of [`EVENTS`], in the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formats(pub Vec<Option<Format>>);

impl Formats {
    /// Parses a page; skips a truncated record at its end.
    pub fn page(&self, page: &[u8], cpu: u32, out: &mut Vec<Event>) {
        let word = |at: usize| -> Option<u64> {
            let bytes = page.get(at..at + 4)?;
            Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
        };
        let long = |at: usize| Some(word(at)? | word(at + 4)? << 32);
        let (Some(mut now), Some(length)) = (long(0), long(8)) else {
            return;
        };
        let end = PAGE_HEADER + (length & LENGTH) as usize;
        let mut at = PAGE_HEADER;
        while at < end {
            let Some(header) = word(at) else { return };
            let (kind, delta) = (header as u32 & 31, header >> 5);
            let first = word(at + 4);
            let (data, next) = match (kind, first) {
                (PADDING, _) if delta == 0 => return,
                (PADDING, Some(length)) => {
                    now = now.wrapping_add(delta);
                    at += length as usize + 4;
                    continue;
                }
                (TIME_EXTEND, Some(more)) => {
                    now = now.wrapping_add(delta + (more << 27));
                    at += 8;
                    continue;
                }
                (TIME_STAMP, Some(more)) => {
                    // The record has no room for the highest bits, which do not change.
                    now = now >> 59 << 59 | more << 27 | delta;
                    at += 8;
                    continue;
                }
                (0, Some(length)) => (at + 8, at + 4 + length as usize),
                (words, _) => (at + 4, at + 4 + words as usize * 4),
            };
            now = now.wrapping_add(delta);
            if next <= at {
                return;
            }
            if let Some(data) = page.get(data..next)
                && let Some(event) = self.event(data, Nanos(now), cpu)
            {
                out.push(event);
            }
            at = next;
        }
    }

    fn event(&self, data: &[u8], at: Nanos, cpu: u32) -> Option<Event> {
        let id = u16::from_le_bytes(data.get(..2)?.try_into().ok()?);
        let by = u32::from_le_bytes(data.get(4..8)?.try_into().ok()?);
        let mut known = self.0.iter().enumerate();
        let (number, format) =
            known.find_map(|(n, format)| Some((n, format.as_ref().filter(|one| one.id == id)?)))?;
        let value = |field: usize| format.value(field, data);
        let tid = |field: usize| value(field).map(|tid| Tid(tid as u32));
        let kind = match number {
            0 => Kind::Switch { prev: tid(0)?, sleeps: value(1)? & ASLEEP != 0, next: tid(2)? },
            1 => Kind::Waking(tid(0)?),
            2 => Kind::Woken(tid(0)?, value(1)? as u32),
            3 => Kind::Fork(tid(0)?),
            4 => Kind::Exit,
            5 => {
                let (address, command) = (value(0)?, value(1)? & FUTEX_COMMANDS);
                match command {
                    _ if FUTEX_WAITS.contains(&command) => Kind::FutexWait(address),
                    _ if FUTEX_WAKES.contains(&command) => Kind::FutexWake(address),
                    _ => return None,
                }
            }
            _ => Kind::Yield,
        };
        Some(Event { at, cpu, by: Tid(by), in_interrupt: data.get(2)? & HARDIRQ != 0, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "name: sched_switch\nID: 372\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
        \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\nprint fmt: \"x\"\n";
    const FUTEX: &str = "ID: 9\n\tfield:u32 * uaddr;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:int op;\toffset:24;\tsize:8;\tsigned:0;\n";

    fn formats() -> Formats {
        let mut all = vec![None; EVENTS.len()];
        all[0] = Format::parse(SWITCH, EVENTS[0].1);
        all[5] = Format::parse(FUTEX, EVENTS[5].1);
        assert!(all[0].is_some() && all[5].is_some());
        Formats(all)
    }

    /// Builds a record of the ring buffer: header and data.
    fn record(delta: u32, data: &[u8]) -> Vec<u8> {
        assert_eq!(data.len() % 4, 0);
        let header = (data.len() / 4) as u32 | delta << 5;
        [&header.to_le_bytes()[..], data].concat()
    }

    fn switch(prev: u32, state: u64, next: u32, flags: u8) -> Vec<u8> {
        let mut data = vec![0u8; 64];
        data[..2].copy_from_slice(&372u16.to_le_bytes());
        data[2] = flags;
        data[4..8].copy_from_slice(&prev.to_le_bytes());
        data[24..28].copy_from_slice(&prev.to_le_bytes());
        data[32..40].copy_from_slice(&state.to_le_bytes());
        data[56..60].copy_from_slice(&next.to_le_bytes());
        data
    }

    fn futex(by: u32, address: u64, op: u64) -> Vec<u8> {
        let mut data = vec![0u8; 32];
        data[..2].copy_from_slice(&9u16.to_le_bytes());
        data[4..8].copy_from_slice(&by.to_le_bytes());
        data[16..24].copy_from_slice(&address.to_le_bytes());
        data[24..32].copy_from_slice(&op.to_le_bytes());
        data
    }

    fn page(records: &[Vec<u8>]) -> Vec<u8> {
        let body = records.concat();
        let mut page = 1_000_000u64.to_le_bytes().to_vec();
        page.extend((body.len() as u64 | 1 << 31).to_le_bytes());
        page.extend(body);
        page.resize(4096, 0);
        page
    }

    #[test]
    fn page_records_become_timed_events() {
        let extend = [30u32 | 5 << 5, 2].map(u32::to_le_bytes).concat();
        let page = page(&[
            record(10, &switch(7, 1, 0, 0)),
            extend,
            record(3, &switch(0, 0, 8, HARDIRQ)),
            record(1, &switch(8, 0x100, 7, 0)),
            record(2, &futex(7, 0xabc, 128)),
            record(2, &futex(7, 0xabc, 129)),
            record(0, &futex(7, 0xabc, 99)),
        ]);
        let mut events = Vec::new();
        formats().page(&page, 3, &mut events);
        let kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
        let switch = |prev, sleeps, next| Kind::Switch { prev: Tid(prev), sleeps, next: Tid(next) };
        assert_eq!(
            kinds,
            [
                switch(7, true, 0),
                switch(0, false, 8),
                switch(8, false, 7),
                Kind::FutexWait(0xabc),
                Kind::FutexWake(0xabc),
            ]
        );
        let times: Vec<u64> = events.iter().map(|event| event.at.0 - 1_000_000).collect();
        let after = 10 + 5 + (2 << 27) + 3;
        assert_eq!(times, [10, after, after + 1, after + 3, after + 5]);
        assert_eq!((events[0].by, events[0].cpu), (Tid(7), 3));
        let interrupts: Vec<bool> = events.iter().map(|event| event.in_interrupt).collect();
        assert_eq!(interrupts, [false, true, false, false, false]);
    }

    #[test]
    fn truncated_or_random_pages_are_safe() {
        let whole = page(&[record(10, &switch(7, 1, 0, 0)), record(3, &switch(0, 0, 8, 0))]);
        for length in 0..200 {
            let mut events = Vec::new();
            formats().page(&whole[..length], 0, &mut events);
            let records = usize::from(length >= 16 + 68) + usize::from(length >= 16 + 2 * 68);
            assert_eq!(events.len(), records, "{length} bytes");
        }
        // Random bytes must neither panic nor loop forever.
        let mut state = 1u64;
        for _ in 0..2000 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .take(600)
            .collect();
            formats().page(&bytes, 0, &mut Vec::new());
        }
    }

    #[test]
    fn format_without_field_is_none() {
        assert_eq!(Format::parse(SWITCH, &["prev_prio"]), None);
        assert_eq!(Format::parse("", &[]), None);
    }
}
