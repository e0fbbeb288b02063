//! Traces for Perfetto (ui.perfetto.dev), in its binary format.
//!
//! A [`Trace`] has tracks, which may be nested, slices and instants on tracks, and arrows between two instants.
//! Times are ns since an origin that the caller chooses.
//! Events may be added in any order, and are written in order of time.
//! Slices of a track must follow each other or nest, as the format requires; [`Trace::encode`] reports an overlap as an error.
//!
//! Names are interned, which makes a trace several times smaller.
//! A slice of zero length is written as an instant, because readers differ in the order of begin and end at one time.
//!
//! Source of the format: Perfetto's documentation, "Synthetic TrackEvents", and the definitions named in [`message`].
//! Compression, counters, processes and clocks are not supported.

pub mod message;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use prost::Message as _;
use thiserror::Error;

pub use message::Value;
use message::{
    ChildOrdering, Data, DebugAnnotation, Interned, InternedData, Kind, TracePacket,
    TrackDescriptor, TrackEvent,
};

/// The sequence of all packets.
const SEQUENCE: u32 = 1;

/// A track of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrackId(u32);

impl TrackId {
    fn uuid(self) -> u64 {
        u64::from(self.0) + 1
    }
}

/// Error of a trace that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PerfettoError {
    /// Two slices overlap.
    #[error(
        "on track `{track}`, `{first}` lasts until {first_to_ns} ns, and `{second}` begins within it \
         at {second_from_ns} ns and ends after it at {second_to_ns} ns: slices of a track must \
         follow each other or nest"
    )]
    Overlap {
        /// The track's name.
        track: String,
        /// The earlier slice.
        first: String,
        /// End of the earlier slice.
        first_to_ns: u64,
        /// The later slice.
        second: String,
        /// Begin of the later slice.
        second_from_ns: u64,
        /// End of the later slice.
        second_to_ns: u64,
    },
    /// A slice ends before it begins.
    #[error("on track `{track}`, `{name}` begins at {from_ns} ns and ends before, at {to_ns} ns")]
    Backwards {
        /// The track's name.
        track: String,
        /// The slice.
        name: String,
        /// Begin of the slice.
        from_ns: u64,
        /// End of the slice.
        to_ns: u64,
    },
}

#[derive(Clone, Debug)]
struct Track {
    parent: Option<TrackId>,
    name: String,
}

/// A slice on a track, or an instant if its length is zero.
#[derive(Clone, Debug)]
struct Item {
    track: TrackId,
    name: u64,
    category: u64,
    from_ns: u64,
    to_ns: u64,
    values: Vec<(u64, Value)>,
    flow: Flow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    None,
    Leaves(u64),
    Ends(u64),
}

/// Interned names, numbered in order of first use.
#[derive(Clone, Debug, Default)]
struct Names {
    numbers: BTreeMap<String, u64>,
    list: Vec<String>,
}

impl Names {
    fn number(&mut self, name: &str) -> u64 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.list.push(name.to_owned());
        let number = self.list.len() as u64;
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn name(&self, number: u64) -> String {
        self.list[number as usize - 1].clone()
    }

    fn interned(&self) -> Vec<Interned> {
        let numbered = (1..).zip(&self.list);
        numbered.map(|(iid, name)| Interned { iid: Some(iid), name: Some(name.clone()) }).collect()
    }
}

/// An instant on a track: one end of an arrow.
#[derive(Clone, Copy, Debug)]
pub struct Point<'a> {
    /// The track.
    pub track: TrackId,
    /// The event.
    pub name: &'a str,
    /// The time.
    pub at_ns: u64,
}

/// A trace being built.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    tracks: Vec<Track>,
    items: Vec<Item>,
    names: Names,
    categories: Names,
    value_names: Names,
    flows: u64,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Adds a track, under another or at the top level; tracks are shown in the order of their addition.
    pub fn track(&mut self, parent: Option<TrackId>, name: impl Into<String>) -> TrackId {
        self.tracks.push(Track { parent, name: name.into() });
        TrackId(self.tracks.len() as u32 - 1)
    }

    /// Adds a slice from one time to another.
    pub fn slice(
        &mut self,
        track: TrackId,
        name: &str,
        category: &str,
        (from_ns, to_ns): (u64, u64),
        values: &[(&str, Value)],
    ) {
        self.add(track, name, category, (from_ns, to_ns), values, Flow::None);
    }

    /// Adds an instant.
    pub fn instant(
        &mut self,
        track: TrackId,
        name: &str,
        category: &str,
        at_ns: u64,
        values: &[(&str, Value)],
    ) {
        self.add(track, name, category, (at_ns, at_ns), values, Flow::None);
    }

    /// Adds two instants and an arrow between them.
    pub fn arrow(&mut self, category: &str, from: Point<'_>, to: Point<'_>) {
        self.flows += 1;
        let flow = self.flows;
        let ends = [(from, Flow::Leaves(flow)), (to, Flow::Ends(flow))];
        for (point, flow) in ends {
            let at = (point.at_ns, point.at_ns);
            self.add(point.track, point.name, category, at, &[], flow);
        }
    }

    fn add(
        &mut self,
        track: TrackId,
        name: &str,
        category: &str,
        (from_ns, to_ns): (u64, u64),
        values: &[(&str, Value)],
        flow: Flow,
    ) {
        let item = Item {
            track,
            name: self.names.number(name),
            category: self.categories.number(category),
            from_ns,
            to_ns,
            values: values
                .iter()
                .map(|(name, value)| (self.value_names.number(name), value.clone()))
                .collect(),
            flow,
        };
        self.items.push(item);
    }

    /// Returns the content of a trace file.
    pub fn encode(&self) -> Result<Vec<u8>, PerfettoError> {
        let mut bytes = Vec::new();
        let mut write = |packet: TracePacket| {
            // Writes one packet of a `Trace` at a time (key of field 1, length, packet), because encoding a
            // whole `Trace` would need twice the memory.
            bytes.push(0x0a);
            // Writing to a vector cannot fail.
            let _ = packet.encode_length_delimited(&mut bytes);
        };
        write(self.interned());
        write(root());
        for index in 0..self.tracks.len() {
            write(self.descriptor(index));
        }
        for step in self.ordered()? {
            write(TracePacket {
                timestamp: Some(step.at_ns),
                trusted_packet_sequence_id: Some(SEQUENCE),
                sequence_flags: Some(message::NEEDED),
                data: Some(Data::TrackEvent(step.message())),
                ..TracePacket::default()
            });
        }
        Ok(bytes)
    }

    fn interned(&self) -> TracePacket {
        TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(message::CLEARED),
            interned_data: Some(InternedData {
                event_categories: self.categories.interned(),
                event_names: self.names.interned(),
                debug_annotation_names: self.value_names.interned(),
            }),
            ..TracePacket::default()
        }
    }

    fn descriptor(&self, index: usize) -> TracePacket {
        let track = &self.tracks[index];
        TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            data: Some(Data::TrackDescriptor(TrackDescriptor {
                uuid: Some(TrackId(index as u32).uuid()),
                name: Some(track.name.clone()),
                parent_uuid: track.parent.map(TrackId::uuid),
                child_ordering: Some(ChildOrdering::Explicit.into()),
                sibling_order_rank: Some(index as i32),
            })),
            ..TracePacket::default()
        }
    }

    /// Returns begins, ends and instants in order of time.
    ///
    /// At equal times, ends come first (the innermost first), then begins (the longest first), then instants.
    /// So an instant is inside a slice that begins at the same time.
    fn ordered(&self) -> Result<Vec<Step<'_>>, PerfettoError> {
        let mut order: Vec<&Item> = self.items.iter().collect();
        order.sort_by_key(|item| (item.track, item.from_ns, Reverse(item.to_ns)));
        let mut steps: Vec<Step<'_>> = Vec::with_capacity(order.len() * 2);
        let mut open: Vec<&Item> = Vec::new();
        for item in order {
            if item.to_ns < item.from_ns {
                return Err(self.backwards(item));
            }
            if item.to_ns == item.from_ns {
                steps.push(Step::new(item, Kind::Instant));
                continue;
            }
            while let Some(&outer) = open.last() {
                if outer.track == item.track && outer.to_ns > item.from_ns {
                    if item.to_ns > outer.to_ns {
                        return Err(self.overlap(outer, item));
                    }
                    break;
                }
                steps.push(Step::new(outer, Kind::SliceEnd));
                open.pop();
            }
            steps.push(Step::new(item, Kind::SliceBegin));
            open.push(item);
        }
        while let Some(outer) = open.pop() {
            steps.push(Step::new(outer, Kind::SliceEnd));
        }
        // A stable sort preserves the nesting.
        steps.sort_by_key(|step| (step.at_ns, step.rank()));
        Ok(steps)
    }

    fn backwards(&self, item: &Item) -> PerfettoError {
        PerfettoError::Backwards {
            track: self.tracks[item.track.0 as usize].name.clone(),
            name: self.names.name(item.name),
            from_ns: item.from_ns,
            to_ns: item.to_ns,
        }
    }

    fn overlap(&self, first: &Item, second: &Item) -> PerfettoError {
        PerfettoError::Overlap {
            track: self.tracks[first.track.0 as usize].name.clone(),
            first: self.names.name(first.name),
            first_to_ns: first.to_ns,
            second: self.names.name(second.name),
            second_from_ns: second.from_ns,
            second_to_ns: second.to_ns,
        }
    }
}

/// One event; its message is created only when written, because it is much larger.
struct Step<'a> {
    at_ns: u64,
    kind: Kind,
    item: &'a Item,
}

impl<'a> Step<'a> {
    fn new(item: &'a Item, kind: Kind) -> Step<'a> {
        let at_ns = match kind {
            Kind::SliceEnd => item.to_ns,
            _ => item.from_ns,
        };
        Step { at_ns, kind, item }
    }

    fn rank(&self) -> u8 {
        match self.kind {
            Kind::SliceEnd => 0,
            Kind::SliceBegin => 1,
            // The begin of an arrow precedes its end at equal times.
            Kind::Instant | Kind::Unspecified => match self.item.flow {
                Flow::Leaves(_) => 2,
                Flow::None | Flow::Ends(_) => 3,
            },
        }
    }

    fn message(&self) -> TrackEvent {
        match self.kind {
            Kind::SliceEnd => end(self.item),
            kind => event(self.item, kind),
        }
    }
}

/// Returns the root of all tracks, which makes the order of the top-level tracks explicit.
fn root() -> TracePacket {
    TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        data: Some(Data::TrackDescriptor(TrackDescriptor {
            uuid: Some(0),
            child_ordering: Some(ChildOrdering::Explicit.into()),
            ..TrackDescriptor::default()
        })),
        ..TracePacket::default()
    }
}

fn event(item: &Item, kind: Kind) -> TrackEvent {
    TrackEvent {
        category_iids: vec![item.category],
        debug_annotations: item
            .values
            .iter()
            .map(|(name, value)| DebugAnnotation {
                name_iid: Some(*name),
                value: Some(value.clone()),
            })
            .collect(),
        r#type: Some(kind.into()),
        name_iid: Some(item.name),
        track_uuid: Some(item.track.uuid()),
        flow_ids: match item.flow {
            Flow::Leaves(flow) => vec![flow],
            _ => Vec::new(),
        },
        terminating_flow_ids: match item.flow {
            Flow::Ends(flow) => vec![flow],
            _ => Vec::new(),
        },
    }
}

fn end(item: &Item) -> TrackEvent {
    TrackEvent {
        r#type: Some(Kind::SliceEnd.into()),
        track_uuid: Some(item.track.uuid()),
        ..TrackEvent::default()
    }
}
