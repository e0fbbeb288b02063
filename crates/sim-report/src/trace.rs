//! A simulation's trace as a Perfetto file.
//!
//! Each pCPU has a track with the vCPU that it runs.
//! Each VM has a track for each vCPU (running, ready without a pCPU, halted, halt-polling; exits as instants)
//! and for each thread (running, spinning or blocked with the object, ready, sleeping).
//! IPIs, wake-ups and directed yields are arrows from their source to their target.
//!
//! The mapping adds no interpretation: it shows only recorded events.

use tandem_sim::trace::{IpiKind, ThreadState, TraceEvent, Tracks, VcpuState};

use super::trace_names::{exit_name, object_name, vcpu_name};
use tandem_report::perfetto::{Point, Trace, TrackId, Value};

/// Returns a trace for ui.perfetto.dev.
pub fn trace(tracks: &Tracks, events: &[TraceEvent]) -> Trace {
    Mapping::new(tracks).trace(events)
}

/// Maps the simulator's tracks to Perfetto's.
struct Mapping<'a> {
    tracks: &'a Tracks,
    trace: Trace,
    pcpus: Vec<TrackId>,
    vcpus: Vec<TrackId>,
    threads: Vec<TrackId>,
}

impl<'a> Mapping<'a> {
    fn new(tracks: &'a Tracks) -> Mapping<'a> {
        let mut trace = Trace::new();
        let host = trace.track(None, "Host");
        let pcpus =
            (0..tracks.pcpus).map(|pcpu| trace.track(Some(host), format!("pCPU {pcpu}"))).collect();
        // Perfetto shows tracks in the order in which they are added: VM by VM, vCPUs before threads.
        let (mut vcpus, mut threads) = (Vec::new(), Vec::new());
        for (vm, name) in (0..).zip(&tracks.vms) {
            let group = trace.track(None, format!("VM {name}"));
            let own = (0..).zip(&tracks.vcpus).filter(|(_, of)| of.0 == vm);
            for (index, &(_, number)) in own {
                let track = trace.track(Some(group), format!("vCPU {number}"));
                vcpus.push((index as usize, track));
            }
            let own = (0..).zip(&tracks.threads).filter(|(_, of)| of.0 == vm);
            for (index, (_, name)) in own {
                let track = trace.track(Some(group), format!("thread {name}"));
                threads.push((index as usize, track));
            }
        }
        vcpus.sort_by_key(|&(index, _): &(usize, TrackId)| index);
        threads.sort_by_key(|&(index, _): &(usize, TrackId)| index);
        Mapping {
            tracks,
            trace,
            pcpus,
            vcpus: vcpus.into_iter().map(|(_, track)| track).collect(),
            threads: threads.into_iter().map(|(_, track)| track).collect(),
        }
    }

    fn trace(mut self, events: &[TraceEvent]) -> Trace {
        for &event in events {
            self.add(event);
        }
        self.trace
    }

    fn add(&mut self, event: TraceEvent) {
        match event {
            TraceEvent::PcpuRan { pcpu, vcpu, from, to } => {
                let name = vcpu_name(self.tracks, vcpu);
                let track = self.pcpus[pcpu as usize];
                self.trace.slice(track, &name, "pcpu", (from, to), &[]);
            }
            TraceEvent::Vcpu { vcpu, state, from, to } => {
                let name = match state {
                    VcpuState::Running => "running",
                    VcpuState::Ready => "steal",
                    VcpuState::Halted => "halted",
                    VcpuState::HaltPolling => "halt-polling",
                };
                let track = self.vcpus[vcpu as usize];
                self.trace.slice(track, name, "vcpu", (from, to), &[]);
            }
            TraceEvent::Thread { thread, state, vcpu, from, to } => {
                self.thread(thread, state, vcpu, (from, to))
            }
            TraceEvent::Exit { vcpu, reason, at } => {
                let track = self.vcpus[vcpu as usize];
                let name = exit_name(reason);
                self.trace.instant(track, name, "exit", at, &[]);
            }
            TraceEvent::Yield { from, to, at } => {
                let ends = [from, to].map(|vcpu| self.vcpus[vcpu as usize]);
                let names = ["directed yield", "yielded to"];
                self.arrow("yield", ends, names, [at, at]);
            }
            TraceEvent::Ipi { from, to, kind, sent, handled } => {
                let ends = [from, to].map(|vcpu| self.vcpus[vcpu as usize]);
                let names = match kind {
                    IpiKind::Reschedule => ["send reschedule IPI", "reschedule IPI"],
                    IpiKind::Shootdown => ["send TLB-flush IPI", "TLB-flush IPI"],
                };
                self.arrow("ipi", ends, names, [sent, handled]);
            }
            TraceEvent::Wakeup { from, to, woken, ran, owed: _ } => {
                let target = self.threads[to as usize];
                match from {
                    Some(from) => {
                        let ends = [self.threads[from as usize], target];
                        self.arrow("wakeup", ends, ["wake", "runs, woken"], [woken, ran]);
                    }
                    // A timer or device has no track.
                    None => self.trace.instant(
                        target,
                        "woken by a timer or device",
                        "wakeup",
                        woken,
                        &[],
                    ),
                }
            }
        }
    }

    fn thread(&mut self, thread: u32, state: ThreadState, vcpu: u32, (from, to): (u64, u64)) {
        let vm = self.tracks.threads[thread as usize].0;
        let object = |object| object_name(self.tracks, vm, object);
        let name = match state {
            ThreadState::Running => "running".to_owned(),
            ThreadState::Spinning(Some(at)) => format!("spinning for {}", object(at)),
            ThreadState::Spinning(None) => "waiting for TLB flushes".to_owned(),
            ThreadState::Ready => "ready".to_owned(),
            ThreadState::Blocked(at) => format!("blocked on {}", object(at)),
            ThreadState::Sleeping => "sleeping".to_owned(),
            ThreadState::Ended => "ended".to_owned(),
        };
        let number = u64::from(self.tracks.vcpus[vcpu as usize].1);
        let values = [("vCPU", Value::Number(number))];
        let track = self.threads[thread as usize];
        self.trace.slice(track, &name, "thread", (from, to), &values);
    }

    fn arrow(&mut self, category: &str, ends: [TrackId; 2], names: [&str; 2], at: [u64; 2]) {
        let point = |end: usize| Point { track: ends[end], name: names[end], at_ns: at[end] };
        self.trace.arrow(category, point(0), point(1));
    }
}
