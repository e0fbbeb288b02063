//! What the programs keep, in Rust: `bpf/model.h` says the same in C.

use std::mem::size_of;

/// No vCPU, no thread.
pub const NOBODY: u32 = u32::MAX;
/// What a vCPU does, as numbers of `bpf/model.h`.
pub const STATES: usize = 8;
/// The states that follow each other in [`RawVcpu::time`].
pub const RUN: usize = 0;
/// The host works for the guest.
pub const VMM: usize = 1;
/// The host polls.
pub const POLL: usize = 2;
/// Waits for a pCPU.
pub const READY: usize = 3;
/// Kept off by a quota.
pub const LIMITED: usize = 4;
/// Sleeps.
pub const ASLEEP: usize = 5;
/// Nothing happened to it yet.
pub const UNKNOWN: usize = 6;
/// Its thread is gone.
pub const ENDED: usize = 7;
/// Buckets of a histogram.
pub const BUCKETS: usize = 32;
/// Who a culprit is, is known.
pub const EDGE_NAMED: u32 = 1;
/// A culprit is a thread of the kernel.
pub const EDGE_KERNEL: u32 = 2;
/// Words of the filter of threads.
pub const FILTER_WORDS: usize = 1024;

/// A structure that the programs share: any bytes are a value, and it has no padding.
///
/// # Safety
///
/// Only for `repr(C)` structures of integers whose fields fill it.
pub unsafe trait Shared: Copy {}

// SAFETY: integers, and the fields fill it (`tests::structures_have_no_holes`).
unsafe impl Shared for RawVcpu {}
// SAFETY: as above.
unsafe impl Shared for RawEdgeKey {}
// SAFETY: as above.
unsafe impl Shared for RawEdge {}
// SAFETY: as above.
unsafe impl Shared for RawLinkKey {}
// SAFETY: as above.
unsafe impl Shared for RawLink {}
// SAFETY: as above.
unsafe impl Shared for RawSibling {}
// SAFETY: as above.
unsafe impl Shared for RawLost {}
// SAFETY: integers.
unsafe impl Shared for u32 {}
// SAFETY: integers.
unsafe impl Shared for u64 {}

/// A value from the bytes of a map; `None` if they are not as many.
pub fn decode<T: Shared>(bytes: &[u8]) -> Option<T> {
    (bytes.len() == size_of::<T>()).then(|| {
        // SAFETY: there are as many bytes as the value has, any bytes are one (`Shared`), and the read needs no alignment.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    })
}

/// The bytes of a value.
pub fn encode<T: Shared>(value: &T) -> &[u8] {
    // SAFETY: the value is borrowed as long as the bytes, and has no padding (`Shared`), so each byte is initialized.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// `struct vcpu`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawVcpu {
    pub lock: u32,
    pub state: u32,
    pub since: u64,
    pub time: [u64; STATES],
    pub woken_at: u64,
    pub poll_until: u64,
    pub slept_at: u64,
    pub slept_after: u64,
    pub cfs_rq: u64,
    pub runs: u64,
    pub exits: u64,
    pub user_exits: u64,
    pub halts: u64,
    pub ipis: u64,
    pub spins: u64,
    pub vm: u64,
    pub vcpu: u32,
    pub tid: u32,
    pub mode: u32,
    pub pcpu: u32,
    pub latency: [u64; BUCKETS],
}

/// `struct edge_key`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawEdgeKey {
    pub victim: u32,
    pub culprit: u32,
}

/// `struct edge`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawEdge {
    pub time: u64,
    pub cgroup: u64,
    pub index: u32,
    pub tgid: u32,
    pub flags: u32,
    pub pad: u32,
    pub comm: [u8; 16],
}

/// `struct link_key`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawLinkKey {
    pub from: u32,
    pub to: u32,
}

/// `struct link`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawLink {
    pub wakes: u64,
    pub ipis: u64,
    pub yields: u64,
    pub yields_made: u64,
}

/// `struct sibling`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawSibling {
    pub vm: u64,
    pub vcpu: u32,
    pub pad: u32,
}

/// `struct lost`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawLost {
    pub waits: u64,
    pub edges: u64,
    pub edge_time: u64,
    pub links: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_no_holes() {
        assert_eq!(size_of::<RawVcpu>(), 8 + 8 * (1 + 8 + 12) + 16 + 8 * 32);
        assert_eq!(size_of::<RawEdge>(), 8 + 8 + 16 + 16);
        assert_eq!(size_of::<RawLink>(), 32);
        assert_eq!(size_of::<RawSibling>(), 16);
        assert_eq!(size_of::<RawLost>(), 32);
    }

    #[test]
    fn bytes_of_another_length_are_no_value() {
        let key = RawEdgeKey {
            victim: 7,
            culprit: 9,
        };
        let bytes = encode(&key);
        let back: RawEdgeKey = decode(bytes).unwrap();
        assert_eq!((back.victim, back.culprit), (7, 9));
        assert!(decode::<RawEdgeKey>(&bytes[1..]).is_none());
    }
}
