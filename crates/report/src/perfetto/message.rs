//! The few messages of Perfetto's trace format that are written here, as `prost` derives them.
//!
//! Numbers and names are those of Perfetto's public definitions (`protos/perfetto/trace/`:
//! `trace.proto`, `trace_packet.proto`, `track_event/*.proto`, `interned_data/*.proto`). Fields that
//! are never written are left out; a reader skips what it does not know, and so does this one.

use prost::{Enumeration, Message, Oneof};

/// A whole trace.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// Its packets.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// One packet.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// When, ns.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence that interned names belong to.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// Names that later packets of the sequence mean by number.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// [`CLEARED`] and [`NEEDED`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// What the packet is.
    #[prost(oneof = "Data", tags = "11, 60")]
    pub data: Option<Data>,
}

/// The sequence's interned names begin anew with this packet.
pub const CLEARED: u32 = 1;

/// The packet needs interned names.
pub const NEEDED: u32 = 2;

/// What a packet is.
#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    /// Something that happened on a track.
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    /// A track.
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// A track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its number; zero is taken.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The track it is shown under.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// How the tracks under it are ordered.
    #[prost(enumeration = "ChildOrdering", optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Its place under a parent with [`ChildOrdering::Explicit`].
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// How the tracks under a track are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ChildOrdering {
    /// As the viewer likes.
    Unknown = 0,
    /// By name.
    Lexicographic = 1,
    /// By first event.
    Chronological = 2,
    /// By rank.
    Explicit = 3,
}

/// Something that happened on a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// Its category, by interned number.
    #[prost(uint64, repeated, tag = "3")]
    pub category_iids: Vec<u64>,
    /// More about it.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// What it is.
    #[prost(enumeration = "Kind", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// Its name, by interned number.
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    /// On which track.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// Arrows that leave it or pass through it.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// Arrows that end at it.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// What a [`TrackEvent`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Nothing that was said.
    Unspecified = 0,
    /// A slice begins.
    SliceBegin = 1,
    /// The newest slice of the track that has not ended ends.
    SliceEnd = 2,
    /// Something without a length.
    Instant = 3,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// Its name, by interned number.
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

/// Names that are written once.
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

/// One name.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Interned {
    /// The number that means it.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}
