//! `tandem-sim run --trace` and `--picture`: reads back and checks the output of real simulations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use prost::Message;
use tandem_report::perfetto::message;
use tandem_report::perfetto::message::{Data, Kind};

/// Runs a scenario for 80 ms and returns the bytes of its output.
fn run(scenario: &str, more: &[&str], file: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(scenario);
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
        .args(["run"])
        .arg(scenario)
        .args(["--duration", "80ms"])
        .args(more)
        .arg(&path)
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    std::fs::read(&path).unwrap()
}

/// The content of a trace, after a check of the rules of the format.
#[derive(Default)]
struct Found {
    tracks: BTreeMap<u64, String>,
    /// Number of events by the first word of the track and the name of the event.
    names: BTreeMap<(String, String), u64>,
    flows: usize,
}

fn check(bytes: &[u8]) -> Found {
    let trace = message::Trace::decode(bytes).unwrap();
    let mut found = Found::default();
    let mut names = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut clock = 0;
    let (mut left, mut ended) = (BTreeMap::new(), BTreeSet::new());
    for packet in trace.packet {
        if let Some(interned) = packet.interned_data {
            for name in interned.event_names {
                names.insert(name.iid.unwrap(), name.name.unwrap());
            }
        }
        let at = packet.timestamp;
        match packet.data {
            Some(Data::TrackDescriptor(track)) => {
                let name = track.name.unwrap_or_default();
                found.tracks.insert(track.uuid.unwrap(), name);
                if let Some(parent) = track.parent_uuid {
                    assert!(found.tracks.contains_key(&parent), "a parent comes first");
                }
            }
            Some(Data::TrackEvent(event)) => {
                let at = at.unwrap();
                assert!(at >= clock, "time goes back from {clock} to {at}");
                clock = at;
                let track = event.track_uuid.unwrap();
                let place = found.tracks[&track].split(' ').next().unwrap().to_owned();
                let stack = open.entry(track).or_default();
                match event.r#type() {
                    Kind::SliceBegin => stack.push(at),
                    Kind::SliceEnd => {
                        let begin = stack.pop().expect("an end has its start");
                        assert!(begin < at, "no slice is empty");
                    }
                    kind => assert_eq!(kind, Kind::Instant),
                }
                if event.r#type() != Kind::SliceEnd {
                    let name = names[&event.name_iid.unwrap()].clone();
                    *found.names.entry((place, name)).or_default() += 1;
                }
                for &flow in &event.flow_ids {
                    assert!(left.insert(flow, at).is_none(), "an arrow leaves once");
                }
                for &flow in &event.terminating_flow_ids {
                    let began = left.get(&flow).expect("an arrow ends after its start");
                    assert!(*began <= at);
                    assert!(ended.insert(flow), "an arrow ends once");
                }
            }
            None => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "every start has its end");
    assert_eq!(left.len(), ended.len(), "every arrow ends");
    found.flows = left.len();
    found
}

fn has(found: &Found, place: &str, name: &str) -> bool {
    found.names.keys().any(|(at, what)| at == place && what.starts_with(name))
}

#[test]
fn spinning_causes_exits_steal_and_yields() {
    let found = check(&run("ticket-ple-per-vm.toml", &["--trace"], "t.pftrace"));
    for (place, name) in [
        ("pCPU", "locks-1/"),
        ("vCPU", "running"),
        ("vCPU", "steal"),
        ("vCPU", "exit: pause loop"),
        ("vCPU", "directed yield"),
        ("vCPU", "yielded to"),
        ("thread", "running"),
        ("thread", "spinning for "),
    ] {
        assert!(has(&found, place, name), "{place}: {name}: {:?}", found.names);
    }
    let named = |name: &str| found.tracks.values().filter(|t| t.starts_with(name)).count();
    assert_eq!((named("Host"), named("pCPU "), named("VM ")), (1, 4, 2));
    assert!(found.flows > 100, "{}", found.flows);
}

#[test]
fn blocking_causes_halts_and_wake_ups() {
    let found = check(&run("mutex-halt.toml", &["--trace"], "t.pftrace"));
    for (place, name) in [
        ("vCPU", "halted"),
        ("vCPU", "exit: HLT"),
        ("vCPU", "send reschedule IPI"),
        ("vCPU", "reschedule IPI"),
        ("thread", "blocked on "),
        ("thread", "wake"),
        ("thread", "runs, woken"),
    ] {
        assert!(has(&found, place, name), "{place}: {name}: {:?}", found.names);
    }
}

#[test]
fn shootdowns_show_their_interrupts() {
    let found = check(&run("shootdown-ipi.toml", &["--trace"], "t.pftrace"));
    for (place, name) in [
        ("vCPU", "send TLB-flush IPI"),
        ("vCPU", "TLB-flush IPI"),
        ("thread", "waiting for TLB flushes"),
    ] {
        assert!(has(&found, place, name), "{place}: {name}: {:?}", found.names);
    }
}
