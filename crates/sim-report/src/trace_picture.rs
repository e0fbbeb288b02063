//! The picture of a short window of a trace: its lanes (pCPUs and vCPUs), spans, arrows and colours.
//!
//! A vCPU that runs while its current thread spins is coloured as spinning: the host cannot see this time,
//! and the guest cannot avoid it.
//!
//! Spans of running vCPUs are drawn first, spans of spinning threads over them.
//! Arrows of wake-ups go from the waker's vCPU to the vCPU on which the woken thread runs.
//! The colours are those of Okabe and Ito.

use tandem_model::Nanos;
use tandem_sim::trace::{ThreadState, TraceEvent, Tracks, VcpuState};

use super::trace_names::vcpu_name;
use tandem_report::timeline::{Arrow, ArrowKind, Group, Kind, Lane, Span, Timeline};

/// Kinds of spans, by their index in the picture's list; the VMs' kinds follow.
const RUNNING: usize = 0;
const SPINNING: usize = 1;
const STEAL: usize = 2;
const HALTED: usize = 3;
const POLLING: usize = 4;
const FIRST_VM: usize = 5;

/// Kinds of arrows.
const IPI: usize = 0;
const WAKEUP: usize = 1;
const YIELD: usize = 2;

/// Colours of VMs on pCPUs; pale, so that labels on them are readable.
const VM_COLOURS: [&str; 6] = ["#a6cee3", "#fdd49e", "#b2df8a", "#cab2d6", "#fbb4b9", "#e5d8bd"];

/// Draws the window.
pub fn draw(tracks: &Tracks, events: &[TraceEvent], from: Nanos, to: Nanos) -> Timeline {
    let mut groups = lanes(tracks);
    let places = places(tracks);
    let running = of_vcpus(tracks, events, from, to);
    let threads = of_threads(tracks, events);
    let mut arrows = Vec::new();
    for &event in events {
        match event {
            TraceEvent::PcpuRan { pcpu, vcpu, from, to } => {
                let vm = tracks.vcpus[vcpu as usize].0 as usize;
                groups[0].lanes[pcpu as usize].spans.push(Span {
                    from_ns: from,
                    to_ns: to,
                    kind: FIRST_VM + vm,
                    label: vcpu_name(tracks, vcpu),
                });
            }
            TraceEvent::Vcpu { vcpu, state, from, to } => {
                let (group, lane) = places[vcpu as usize];
                groups[group].lanes[lane].spans.push(Span {
                    from_ns: from,
                    to_ns: to,
                    kind: match state {
                        VcpuState::Running => RUNNING,
                        VcpuState::Ready => STEAL,
                        VcpuState::Halted => HALTED,
                        VcpuState::HaltPolling => POLLING,
                    },
                    label: String::new(),
                });
            }
            TraceEvent::Exit { vcpu, at, .. } => {
                let (group, lane) = places[vcpu as usize];
                groups[group].lanes[lane].marks_ns.push(at);
            }
            TraceEvent::Yield { from, to, at } => arrows.push(Arrow {
                from: at_place(places[from as usize], at),
                to: at_place(places[to as usize], at),
                kind: YIELD,
            }),
            TraceEvent::Ipi { from, to, sent, handled, .. } => arrows.push(Arrow {
                from: at_place(places[from as usize], sent),
                to: at_place(places[to as usize], handled),
                kind: IPI,
            }),
            TraceEvent::Wakeup { from: Some(waker), to, woken, ran, owed: _ } => {
                let from = vcpu_at(&threads[waker as usize], woken);
                let to = vcpu_at(&threads[to as usize], ran);
                if let (Some(from), Some(to)) = (from, to)
                    && from != to
                {
                    arrows.push(Arrow {
                        from: at_place(places[from as usize], woken),
                        to: at_place(places[to as usize], ran),
                        kind: WAKEUP,
                    });
                }
            }
            TraceEvent::Wakeup { from: None, .. } | TraceEvent::Thread { .. } => {}
        }
    }
    for &event in events {
        if let TraceEvent::Thread { state: ThreadState::Spinning(_), vcpu, from, to, .. } = event {
            let (group, lane) = places[vcpu as usize];
            // A spinning thread is current on its vCPU, and spins only while the vCPU has a pCPU.
            for &(begin, end) in within(&running[vcpu as usize], from, to) {
                groups[group].lanes[lane].spans.push(Span {
                    from_ns: begin.max(from),
                    to_ns: end.min(to),
                    kind: SPINNING,
                    label: String::new(),
                });
            }
        }
    }
    Timeline {
        title: format!("pCPUs and vCPUs from {from} to {to}"),
        from_ns: from.0,
        to_ns: to.0,
        kinds: kinds(tracks),
        groups,
        arrow_kinds: arrow_kinds(),
        arrows,
        marks: "VM exit".to_owned(),
    }
}

fn at_place((group, lane): (usize, usize), at: u64) -> (usize, usize, u64) {
    (group, lane, at)
}

/// Returns the empty lanes: pCPUs, then each VM's vCPUs.
fn lanes(tracks: &Tracks) -> Vec<Group> {
    let lane = |name: String| Lane { name, ..Lane::default() };
    let host = Group {
        name: "Host".to_owned(),
        lanes: (0..tracks.pcpus).map(|pcpu| lane(format!("pCPU {pcpu}"))).collect(),
    };
    let vms = (0..).zip(&tracks.vms).map(|(vm, name)| Group {
        name: format!("VM {name}"),
        lanes: tracks
            .vcpus
            .iter()
            .filter(|&&(of, _)| of == vm)
            .map(|(_, number)| lane(format!("vCPU {number}")))
            .collect(),
    });
    std::iter::once(host).chain(vms).collect()
}

/// Returns the group and lane of each vCPU.
fn places(tracks: &Tracks) -> Vec<(usize, usize)> {
    let mut filled = vec![0; tracks.vms.len()];
    tracks
        .vcpus
        .iter()
        .map(|&(vm, _)| {
            filled[vm as usize] += 1;
            (vm as usize + 1, filled[vm as usize] - 1)
        })
        .collect()
}

/// Returns the intervals in which each vCPU ran in the window, in order of time.
fn of_vcpus(
    tracks: &Tracks,
    events: &[TraceEvent],
    from: Nanos,
    to: Nanos,
) -> Vec<Vec<(u64, u64)>> {
    let mut running = vec![Vec::new(); tracks.vcpus.len()];
    for &event in events {
        if let TraceEvent::Vcpu { vcpu, state: VcpuState::Running, from: begin, to: end } = event
            && end > from.0
            && begin < to.0
        {
            running[vcpu as usize].push((begin, end));
        }
    }
    for times in &mut running {
        times.sort_unstable();
    }
    running
}

/// Returns the intervals that overlap `from` … `to`.
fn within(times: &[(u64, u64)], from: u64, to: u64) -> &[(u64, u64)] {
    let first = times.partition_point(|&(_, end)| end <= from);
    let last = times.partition_point(|&(begin, _)| begin < to);
    times.get(first..last).unwrap_or_default()
}

/// Returns for each thread the vCPUs that it was on, with the start of each stay, in order of time.
fn of_threads(tracks: &Tracks, events: &[TraceEvent]) -> Vec<Vec<(u64, u32)>> {
    let mut threads = vec![Vec::new(); tracks.threads.len()];
    for &event in events {
        if let TraceEvent::Thread { thread, vcpu, from, .. } = event {
            threads[thread as usize].push((from, vcpu));
        }
    }
    for times in &mut threads {
        times.sort_unstable();
    }
    threads
}

/// Returns the vCPU of a thread at a time.
fn vcpu_at(times: &[(u64, u32)], at: u64) -> Option<u32> {
    let after = times.partition_point(|&(from, _)| from <= at);
    after.checked_sub(1).map(|last| times[last].1)
}

fn kinds(tracks: &Tracks) -> Vec<Kind> {
    let kind = |name: &str, colour: &str, hatched| Kind {
        name: name.to_owned(),
        colour: colour.to_owned(),
        hatched,
    };
    let mut kinds = vec![
        kind("running", "#009e73", false),
        kind("running, but spinning", "#d55e00", false),
        kind("ready without a pCPU (steal)", "#e69f00", true),
        kind("halted", "#eaeef2", false),
        kind("halted, the host polls", "#56b4e9", true),
    ];
    for vm in 0..tracks.vms.len() {
        // Spans on pCPUs are labelled with their vCPU, so the legend omits them.
        kinds.push(kind("", VM_COLOURS[vm % VM_COLOURS.len()], false));
    }
    kinds
}

fn arrow_kinds() -> Vec<ArrowKind> {
    let kind = |name: &str, colour: &str, dashed| ArrowKind {
        name: name.to_owned(),
        colour: colour.to_owned(),
        dashed,
    };
    vec![
        kind("IPI, sent to handled", "#0050a0", false),
        kind("wake-up, woken to running", "#6f42c1", true),
        kind("directed yield", "#000000", false),
    ]
}
