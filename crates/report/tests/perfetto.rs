//! Round trips of a trace: tracks, nesting, order, values, arrows.

use std::collections::BTreeMap;

use prost::Message;
use tandem_report::perfetto::message::{Data, Kind, TrackDescriptor, TrackEvent};
use tandem_report::perfetto::{PerfettoError, Point, Trace, Value, message};

/// Decodes a trace: track descriptors, and events with their times and names.
fn read(bytes: &[u8]) -> (Vec<TrackDescriptor>, Vec<(u64, String, TrackEvent)>) {
    let trace = message::Trace::decode(bytes).unwrap();
    let mut names = BTreeMap::new();
    let (mut tracks, mut events) = (Vec::new(), Vec::new());
    for packet in trace.packet {
        assert_eq!(packet.trusted_packet_sequence_id, Some(1));
        if let Some(interned) = packet.interned_data {
            assert_eq!(packet.sequence_flags, Some(message::CLEARED));
            for name in interned.event_names {
                names.insert(name.iid.unwrap(), name.name.unwrap());
            }
        }
        match packet.data {
            Some(Data::TrackDescriptor(track)) => tracks.push(track),
            Some(Data::TrackEvent(event)) => {
                assert_eq!(packet.sequence_flags, Some(message::NEEDED));
                let name = event.name_iid.map(|iid| names[&iid].clone());
                events.push((packet.timestamp.unwrap(), name.unwrap_or_default(), event));
            }
            None => {}
        }
    }
    (tracks, events)
}

fn line(event: &(u64, String, TrackEvent)) -> String {
    let kind = match event.2.r#type() {
        Kind::SliceBegin => "begin",
        Kind::SliceEnd => "end",
        Kind::Instant => "at",
        Kind::Unspecified => "?",
    };
    format!("{} {kind} {}", event.0, event.1).trim().to_owned()
}

#[test]
fn slices_are_ordered_and_nested() {
    let mut trace = Trace::new();
    let track = trace.track(None, "t");
    for (name, from, to) in [
        ("third", 30, 40),
        ("inner", 12, 20),
        ("outer", 10, 20),
        ("second", 20, 30),
        ("innermost", 12, 14),
    ] {
        trace.slice(track, name, "c", (from, to), &[]);
    }
    trace.slice(track, "moment", "c", (20, 20), &[]);
    let (_, events) = read(&trace.encode().unwrap());
    let lines: Vec<String> = events.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "10 begin outer",
            "12 begin inner",
            "12 begin innermost",
            "14 end",
            "20 end",
            "20 end",
            "20 begin second",
            "20 at moment",
            "30 end",
            "30 begin third",
            "40 end",
        ]
    );
}

#[test]
fn tracks_have_names_parents_and_ranks() {
    let mut trace = Trace::new();
    let group = trace.track(None, "group");
    trace.track(Some(group), "b");
    trace.track(Some(group), "a");
    let (tracks, _) = read(&trace.encode().unwrap());
    // The first track is the root.
    assert_eq!(tracks[0].uuid, Some(0));
    let named: Vec<(&str, bool, i32)> = tracks[1..]
        .iter()
        .map(|track| {
            let under = track.parent_uuid == tracks[1].uuid;
            let rank = track.sibling_order_rank.unwrap();
            (track.name.as_deref().unwrap(), under, rank)
        })
        .collect();
    assert_eq!(named, [("group", false, 0), ("b", true, 1), ("a", true, 2)]);
}

#[test]
fn arrows_connect_two_instants() {
    let mut trace = Trace::new();
    let (a, b) = (trace.track(None, "a"), trace.track(None, "b"));
    for at_ns in [5, 7] {
        let (from, to) = (
            Point { track: a, name: "sent", at_ns },
            Point { track: b, name: "handled", at_ns: at_ns + 10 },
        );
        trace.arrow("ipi", from, to);
    }
    let (_, events) = read(&trace.encode().unwrap());
    let ends: Vec<(u64, &[u64], &[u64])> = events
        .iter()
        .map(|(at, _, event)| (*at, &event.flow_ids[..], &event.terminating_flow_ids[..]))
        .collect();
    assert_eq!(ends, [(5, &[1][..], &[][..]), (7, &[2], &[]), (15, &[], &[1]), (17, &[], &[2]),]);
}

#[test]
fn values_are_kept() {
    let mut trace = Trace::new();
    let track = trace.track(None, "t");
    let values = [("cpu", Value::Number(3)), ("why", Value::Text("tick".to_owned()))];
    trace.instant(track, "x", "c", 1, &values);
    let (_, events) = read(&trace.encode().unwrap());
    let found: Vec<Value> = events[0]
        .2
        .debug_annotations
        .iter()
        .map(|annotation| annotation.value.clone().unwrap())
        .collect();
    assert_eq!(found, [values[0].1.clone(), values[1].1.clone()]);
}

#[test]
fn overlapping_slices_are_rejected() {
    let mut trace = Trace::new();
    let track = trace.track(None, "vCPU 3");
    trace.slice(track, "running", "c", (0, 10), &[]);
    trace.slice(track, "halted", "c", (9, 11), &[]);
    let error = trace.encode().unwrap_err();
    assert!(matches!(error, PerfettoError::Overlap { .. }));
    for word in ["vCPU 3", "running", "halted", "10 ns", "9 ns", "11 ns"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    // Equal times on different tracks do not overlap.
    let mut trace = Trace::new();
    for name in ["a", "b"] {
        let track = trace.track(None, name);
        trace.slice(track, "running", "c", (0, 10), &[]);
    }
    assert!(trace.encode().is_ok());
}

#[test]
fn backward_slices_are_rejected() {
    let mut trace = Trace::new();
    let track = trace.track(None, "t");
    trace.slice(track, "x", "c", (5, 4), &[]);
    let error = trace.encode().unwrap_err();
    assert!(matches!(error, PerfettoError::Backwards { from_ns: 5, .. }));
}
