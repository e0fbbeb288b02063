//! Messages of Perfetto's trace format that this crate writes, derived with `prost`.
//!
//! Numbers and names are those of Perfetto's public definitions (`protos/perfetto/trace/`:
//! `trace.proto`, `trace_packet.proto`, `track_event/*.proto`, `interned_data/*.proto`).
//! Unused fields are omitted; readers skip unknown fields.

use prost::{Enumeration, Message, Oneof};

/// A whole trace.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// The packets.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// One packet.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// Time, ns.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence of the interned names.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// Names that later packets of the sequence refer to by number.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// [`CLEARED`] and [`NEEDED`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Content of the packet.
    #[prost(oneof = "Data", tags = "11, 60")]
    pub data: Option<Data>,
}

/// The packet resets the interned names of the sequence.
pub const CLEARED: u32 = 1;

/// The packet needs interned names.
pub const NEEDED: u32 = 2;

/// Content of a packet.
#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    /// An event on a track.
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    /// A track.
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// A track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Number; zero is reserved for the root.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// Name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Parent track.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// Order of the child tracks.
    #[prost(enumeration = "ChildOrdering", optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Rank under a parent with [`ChildOrdering::Explicit`].
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// Order of child tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ChildOrdering {
    /// Chosen by the viewer.
    Unknown = 0,
    /// By name.
    Lexicographic = 1,
    /// By first event.
    Chronological = 2,
    /// By rank.
    Explicit = 3,
}

/// An event on a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// Category, by interned number.
    #[prost(uint64, repeated, tag = "3")]
    pub category_iids: Vec<u64>,
    /// Named values.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// The [`Kind`].
    #[prost(enumeration = "Kind", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// Name, by interned number.
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    /// The track.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// Arrows that leave or pass through the event.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// Arrows that end at the event.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// Kind of a [`TrackEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Not specified.
    Unspecified = 0,
    /// Begin of a slice.
    SliceBegin = 1,
    /// End of the innermost open slice of the track.
    SliceEnd = 2,
    /// An instant.
    Instant = 3,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// Name, by interned number.
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    /// The value.
    #[prost(oneof = "Value", tags = "3, 6")]
    pub value: Option<Value>,
}

/// The value of a [`DebugAnnotation`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Value {
    /// A number.
    #[prost(uint64, tag = "3")]
    Number(u64),
    /// A text.
    #[prost(string, tag = "6")]
    Text(String),
}

/// Interned names.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    /// Categories.
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Interned>,
    /// Names of events.
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Interned>,
    /// Names of values.
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Interned>,
}

/// An interned name.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Interned {
    /// The number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}
