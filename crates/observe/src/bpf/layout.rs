//! Structures that the programs share with user space; a test compares them field by field with `bpf/model.h`.

use std::mem::size_of;

/// No vCPU, no thread.
pub const NO_VCPU: u32 = u32::MAX;
/// Size of the state table; the numbers of states are those of `bpf/model.h`.
pub const STATES: usize = 16;
/// Runs guest code; the first state of [`RawVcpu::time`].
pub const RUN: usize = 0;
/// Runs host code for the guest.
pub const VMM: usize = 1;
/// Halt polling.
pub const POLL: usize = 2;
/// Waits for a pCPU.
pub const READY: usize = 3;
/// Throttled by a quota.
pub const LIMITED: usize = 4;
/// Sleeps.
pub const ASLEEP: usize = 5;
/// No event seen yet; in [`RawVcpu::time`], time between events that were missed.
pub const UNKNOWN: usize = 6;
/// The thread exited.
pub const ENDED: usize = 7;
/// Not a state: the part of [`ASLEEP`] that a sibling's wait for a pCPU added.
pub const COSTOP: usize = 8;
/// Buckets of a latency histogram.
pub const BUCKETS: usize = tandem_model::states::latency::BUCKETS;
/// The culprit's process, name and cgroup are known.
pub const EDGE_NAMED: u32 = 1;
/// The culprit is a kernel thread.
pub const EDGE_KERNEL: u32 = 2;
/// Words of the thread filter.
pub const FILTER_WORDS: usize = 1024;

/// A structure that the programs share: all bit patterns are valid, and it has no padding.
///
/// # Safety
///
/// Only for `repr(C)` structures of integers without padding.
pub unsafe trait Shared: Copy {}

// SAFETY: integers.
unsafe impl Shared for u32 {}
// SAFETY: integers.
unsafe impl Shared for u64 {}

/// Decodes a value from the bytes of a map; `None` if the length differs.
pub fn decode<T: Shared>(bytes: &[u8]) -> Option<T> {
    (bytes.len() == size_of::<T>()).then(|| {
        // SAFETY: the length matches, all bit patterns are valid (`Shared`), and the read needs no alignment.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    })
}

/// Returns the bytes of a value.
pub fn encode<T: Shared>(value: &T) -> &[u8] {
    // SAFETY: the value is borrowed as long as the bytes, and has no padding (`Shared`), so each byte is initialized.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Defines a structure with its name in C.
macro_rules! shared {
    ($c_name:literal $raw:ident { $($field:ident: $type:ty,)* }) => {
        #[doc = concat!("`struct ", $c_name, "`")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $raw {
            $(pub $field: $type,)*
        }

        // SAFETY: integers without padding, which the constant below checks.
        unsafe impl Shared for $raw {}
        const _: () = assert!(size_of::<$raw>() == 0 $(+ size_of::<$type>())*);

        impl $raw {
            /// The name in C, the size, and name, offset and size in bytes of each field.
            #[cfg(test)]
            const LAYOUT: tests::Layout = (
                $c_name,
                size_of::<$raw>(),
                &[$((stringify!($field), std::mem::offset_of!($raw, $field), size_of::<$type>())),*],
            );
        }
    };
}

shared!("vcpu" RawVcpu {
    lock: u32,
    state: u32,
    since: u64,
    time: [u64; STATES],
    woken_at: u64,
    poll_until: u64,
    slept_at: u64,
    slept_after: u64,
    born_from: u64,
    born_to: u64,
    task: u64,
    cfs_rq: u64,
    waits_since: u64,
    waited_until: u64,
    costop_since: u64,
    costop_until: u64,
    unlisted_since: u64,
    runs: u64,
    exits: u64,
    user_exits: u64,
    halts: u64,
    ipis: u64,
    spins: u64,
    vm: u64,
    vcpu: u32,
    tid: u32,
    mode: u32,
    pcpu: u32,
    costop_for: u32,
    is_found: u32,
    latency_time: u64,
    latency: [u64; BUCKETS],
});

shared!("edge_key" RawEdgeKey {
    victim: u32,
    culprit: u32,
});

shared!("edge" RawEdge {
    time: u64,
    cgroup: u64,
    index: u32,
    tgid: u32,
    flags: u32,
    pad: u32,
    comm: [u8; 16],
});

shared!("link_key" RawLinkKey {
    from: u32,
    to: u32,
});

shared!("link" RawLink {
    wakes: u64,
    ipis: u64,
    yields: u64,
    yields_made: u64,
    costops: u64,
    costop_time: u64,
});

shared!("sibling" RawSibling {
    vm: u64,
    vcpu: u32,
    pad: u32,
});

shared!("lost" RawLost {
    waits: u64,
    wait_time: u64,
    edges: u64,
    edge_time: u64,
    links: u64,
    switches: u64,
});

shared!("settings" RawSettings {
    max_poll: u64,
});

#[cfg(test)]
mod tests {
    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};

    use super::super::programs::OBJECT;
    use super::*;

    /// A structure: the name in C, the size, and name, offset and size in bytes of each field.
    pub(super) type Layout = (&'static str, usize, &'static [(&'static str, usize, usize)]);

    const ALL: [Layout; 8] = [
        RawVcpu::LAYOUT,
        RawEdgeKey::LAYOUT,
        RawEdge::LAYOUT,
        RawLinkKey::LAYOUT,
        RawLink::LAYOUT,
        RawSibling::LAYOUT,
        RawLost::LAYOUT,
        RawSettings::LAYOUT,
    ];

    /// Returns the BTF that clang wrote for the programs' structures.
    fn types() -> Btf<'static> {
        Btf::from_raw("tandem", OBJECT)
            .expect("the programs can be opened")
            .expect("they are built with -g")
    }

    #[test]
    fn field_offsets_match_the_programs() {
        let types = types();
        for (name, size, fields) in ALL {
            let c: Struct<'_> = types.type_by_name(name).expect(name);
            let text = |member: &libbpf_rs::btf::types::StructMember<'_>| {
                let name = member.name.unwrap_or_default();
                name.to_string_lossy().into_owned()
            };
            let starts: Vec<(String, usize)> = c
                .iter()
                .map(|member| match member.attr {
                    MemberAttr::Normal { offset } => (text(&member), offset as usize / 8),
                    MemberAttr::BitField { .. } => panic!("{name} has no bit fields"),
                })
                .collect();
            let rust: Vec<(String, usize)> =
                fields.iter().map(|(field, offset, _)| ((*field).to_owned(), *offset)).collect();
            assert_eq!(starts, rust, "struct {name}");
            // Fields are contiguous, so equal offsets imply equal sizes, except for the last field.
            let (_, offset, last) = fields.last().expect("it has fields");
            assert_eq!(offset + last, size, "struct {name}");
            assert_eq!(c.size(), size, "struct {name}");
        }
    }

    #[test]
    fn state_numbers_match_the_programs() {
        // clang omits types that no structure uses, such as this enumeration, from BTF.
        let model = include_str!("../../bpf/model.h");
        let states = model.split("enum {").nth(1).expect("an enumeration");
        let states = states.split("};").next().expect("it ends");
        let words = |line: &str| -> Vec<String> {
            let words = line.split(|c: char| !c.is_alphanumeric());
            let words = words.filter(|word| !word.is_empty());
            words.map(str::to_owned).collect()
        };
        let lines: Vec<Vec<String>> = states.lines().map(words).collect();
        let lines: Vec<&Vec<String>> = lines.iter().filter(|line| !line.is_empty()).collect();
        let names = [
            ("RUN", RUN),
            ("VMM", VMM),
            ("POLL", POLL),
            ("READY", READY),
            ("LIMITED", LIMITED),
            ("ASLEEP", ASLEEP),
            ("UNKNOWN", UNKNOWN),
            ("ENDED", ENDED),
            ("COSTOP", COSTOP),
        ];
        assert_eq!(lines.len(), names.len() + 1, "{lines:?}");
        for (number, (name, ours)) in names.into_iter().enumerate() {
            assert_eq!((lines[number][0].as_str(), number), (name, ours));
        }
        assert_eq!(lines[9][..2], ["STATES".to_owned(), STATES.to_string()]);
        let filter = format!("#define FILTER_WORDS {FILTER_WORDS}u\n");
        assert!(include_str!("../../bpf/state.h").contains(&filter));
    }

    #[test]
    fn decode_rejects_other_lengths() {
        let key = RawEdgeKey { victim: 7, culprit: 9 };
        let bytes = encode(&key);
        let back: RawEdgeKey = decode(bytes).unwrap();
        assert_eq!((back.victim, back.culprit), (7, 9));
        assert!(decode::<RawEdgeKey>(&bytes[1..]).is_none());
    }
}
