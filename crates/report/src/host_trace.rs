//! A host's trace with every context switch, for Perfetto and as an HTML page.
//!
//! The Perfetto trace has a track for each pCPU with the tasks that ran on it.
//! It also has a track for each VM, with a track for each vCPU: its states (RUN, RDY, HALT) and its pCPU.
//! A wake-up of a vCPU by another vCPU is an arrow to the woken vCPU's next run; other wake-ups are instants.
//! Unobserved times have no slice.
//!
//! The page is that of a record ([`crate::record_page`]), because a trace can be divided into intervals.

use std::collections::BTreeMap;

use tandem_model::states::edges::Party;
use tandem_model::states::interval::Interval;
use tandem_model::states::sum::IntervalSum;
use tandem_model::states::trace::{Did, HostTrace, VcpuTrace};
use tandem_model::{Nanos, State, VmId};

use crate::perfetto::{Point, Trace, TrackId, Value};
use crate::record_page::RecordPage;

/// Maximum number of steps of a page.
const STEPS: u64 = 120;

/// Returns a trace for ui.perfetto.dev, with times in ns since the trace's begin.
pub fn perfetto(host: &HostTrace, names: &BTreeMap<VmId, String>) -> Trace {
    let at = |time: Nanos| time.saturating_sub(host.begin).0;
    let parties: Vec<String> = host.parties.iter().map(|party| name(party, names)).collect();
    let mut trace = Trace::new();
    let group = trace.track(None, "Host");
    for (number, pcpu) in &host.pcpus {
        let track = trace.track(Some(group), format!("pCPU {number}"));
        for ran in &pcpu.ran {
            let times = (at(ran.from), at(ran.to));
            trace.slice(track, &parties[ran.who], "pcpu", times, &[]);
        }
    }
    let mut tracks: Vec<TrackId> = Vec::new();
    let mut vm: Option<(VmId, TrackId)> = None;
    for vcpu in &host.vcpus {
        let group = match vm {
            Some((id, track)) if id == vcpu.vm => track,
            _ => trace.track(None, format!("VM {}", vm_name(vcpu.vm, names))),
        };
        vm = Some((vcpu.vm, group));
        let track = trace.track(Some(group), format!("vCPU {}", vcpu.vcpu));
        tracks.push(track);
        for did in &vcpu.did {
            let times = (at(did.from), at(did.to));
            let values = did.pcpu.map(|pcpu| ("pCPU", Value::Number(pcpu.0.into())));
            trace.slice(track, did.state.name(), "vcpu", times, values.as_slice());
        }
    }
    for woken in &host.woken {
        let target = tracks[woken.vcpu];
        let by = &host.parties[woken.by];
        let waker = host.vcpus.iter().position(|vcpu| is(vcpu, by));
        let runs = runs_after(&host.vcpus[woken.vcpu].did, woken.at);
        match (waker, runs) {
            (Some(waker), Some(runs)) => {
                let from = Point { track: tracks[waker], name: "wakes", at_ns: at(woken.at) };
                let to = Point { track: target, name: "runs, woken", at_ns: at(runs) };
                trace.arrow("wakeup", from, to);
            }
            _ => {
                let by = [("by", Value::Text(parties[woken.by].clone()))];
                trace.instant(target, "woken", "wakeup", at(woken.at), &by);
            }
        }
    }
    trace
}

fn vm_name(vm: VmId, names: &BTreeMap<VmId, String>) -> String {
    let name = names.get(&vm);
    name.map_or_else(|| vm.to_string(), String::clone)
}

fn name(party: &Party, names: &BTreeMap<VmId, String>) -> String {
    match party {
        Party::Vcpu { vm, vcpu } => format!("{} vCPU {vcpu}", vm_name(*vm, names)),
        Party::Vm(vm) => vm_name(*vm, names),
        Party::VmThread { vm, name } => format!("{}: {name}", vm_name(*vm, names)),
        other => other.to_string(),
    }
}

fn is(vcpu: &VcpuTrace, party: &Party) -> bool {
    let Party::Vcpu { vm, vcpu: number } = party else {
        return false;
    };
    (vcpu.vm, vcpu.vcpu) == (*vm, *number)
}

/// Returns the time at which a vCPU first starts to run at or after `at`.
fn runs_after(did: &[Did], at: Nanos) -> Option<Nanos> {
    let first = did.partition_point(|did| did.from < at);
    let mut later = did[first..].iter();
    later.find(|did| did.state == State::Run).map(|did| did.from)
}

/// Data of a page for a trace.
#[derive(Clone, Debug)]
pub struct TracePage {
    steps: Vec<(Nanos, Interval)>,
    whole: Interval,
    selected: Vec<VmId>,
}

impl TracePage {
    /// Divides a trace into steps of equal length; `None` if it is empty.
    ///
    /// `begun` is the wall-clock time of its begin, in ns since 1970.
    pub fn of(host: &HostTrace, begun: Nanos) -> Option<TracePage> {
        let length = host.end.saturating_sub(host.begin).0.div_ceil(STEPS);
        let mut sum = IntervalSum::new();
        let mut steps = Vec::new();
        for interval in host.intervals(Nanos(length)) {
            sum.add(&interval);
            steps.push((begun + interval.start.saturating_sub(host.begin), interval));
        }
        let mut selected: Vec<VmId> = host.vcpus.iter().map(|vcpu| vcpu.vm).collect();
        selected.dedup();
        Some(TracePage { steps, whole: sum.finish()?, selected })
    }

    /// Returns the page.
    pub fn page<'a>(
        &'a self,
        title: &'a str,
        names: &'a BTreeMap<VmId, String>,
        notes: Vec<String>,
        moment: fn(Nanos) -> String,
    ) -> RecordPage<'a> {
        RecordPage {
            title,
            steps: &self.steps,
            whole: &self.whole,
            names,
            selected: &self.selected,
            notes,
            moment,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tandem_model::states::trace::{PcpuTrace, Ran, Woken};
    use tandem_model::{PcpuId, VcpuId};

    use super::*;
    use crate::perfetto::message;
    use crate::perfetto::message::{Data, Kind};

    /// Two vCPUs on one pCPU for 100 ns: the second runs after the first, which wakes it.
    fn host() -> HostTrace {
        let party = |vcpu| Party::Vcpu { vm: VmId(1), vcpu: VcpuId(vcpu) };
        let did = |state, from: u64, to: u64| Did {
            state,
            pcpu: Some(PcpuId(0)),
            from: Nanos(1_000 + from),
            to: Nanos(1_000 + to),
        };
        let vcpu = |vcpu, did: &[Did]| VcpuTrace {
            vm: VmId(1),
            vcpu: VcpuId(vcpu),
            allowed: "0".parse().unwrap(),
            did: did.to_vec(),
        };
        let ran =
            |who, from: u64, to: u64| Ran { who, from: Nanos(1_000 + from), to: Nanos(1_000 + to) };
        HostTrace {
            begin: Nanos(1_000),
            end: Nanos(1_100),
            parties: vec![party(0), party(1), Party::Unseen],
            pcpus: BTreeMap::from([(
                PcpuId(0),
                PcpuTrace { ran: vec![ran(0, 0, 60), ran(1, 60, 100)], idle: Nanos::ZERO },
            )]),
            vcpus: vec![
                vcpu(0, &[did(State::Run, 0, 60), did(State::Halted, 60, 100)]),
                vcpu(
                    1,
                    &[
                        did(State::Halted, 0, 20),
                        did(State::Ready, 20, 60),
                        did(State::Run, 60, 100),
                    ],
                ),
            ],
            woken: vec![
                Woken { by: 0, vcpu: 1, at: Nanos(1_020) },
                Woken { by: 2, vcpu: 0, at: Nanos(1_090) },
            ],
            lost: 0,
        }
    }

    fn names() -> BTreeMap<VmId, String> {
        BTreeMap::from([(VmId(1), "db".to_owned())])
    }

    #[test]
    fn perfetto_has_tasks_states_and_wakeups() {
        let bytes = perfetto(&host(), &names()).encode().unwrap();
        let trace = message::Trace::decode(&bytes[..]).unwrap();
        let (mut tracks, mut known) = (Vec::new(), BTreeMap::new());
        let (mut begun, mut flows) = (Vec::new(), 0);
        for packet in trace.packet {
            for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
                known.insert(name.iid.unwrap(), name.name.clone().unwrap());
            }
            match packet.data {
                Some(Data::TrackDescriptor(track)) => tracks.extend(track.name),
                Some(Data::TrackEvent(event)) => {
                    flows += event.flow_ids.len() + event.terminating_flow_ids.len();
                    if event.r#type() != Kind::SliceEnd {
                        let name = known[&event.name_iid.unwrap()].clone();
                        begun.push((packet.timestamp.unwrap(), name));
                    }
                }
                None => {}
            }
        }
        assert_eq!(tracks, ["Host", "pCPU 0", "VM db", "vCPU 0", "vCPU 1"]);
        let has = |at: u64, name: &str| begun.contains(&(at, name.to_owned()));
        for (at, name) in [
            (0, "db vCPU 0"),
            (60, "db vCPU 1"),
            (0, "RUN"),
            (20, "RDY"),
            (60, "HALT"),
            (20, "wakes"),
            (60, "runs, woken"),
            (90, "woken"),
        ] {
            assert!(has(at, name), "{at} {name}: {begun:?}");
        }
        assert_eq!(flows, 2, "one arrow, and one wake-up by an unobserved task");
    }

    #[test]
    fn trace_page_is_a_record_page() {
        let page = TracePage::of(&host(), Nanos(5_000)).unwrap();
        assert_eq!(page.steps.len(), 100, "a step is at least 1 ns");
        assert_eq!(page.steps[1].0, Nanos(5_001));
        let names = names();
        let html =
            page.page("trace", &names, vec!["3 events were lost".to_owned()], |at| at.to_string());
        let html = html.html("tandem host record --trace", "tandem");
        for expected in ["3 events were lost", "db: states over time", "db waited 40 ns for itself"]
        {
            assert!(html.contains(expected), "{expected}");
        }
        assert!(TracePage::of(&HostTrace::default(), Nanos(0)).is_none());
    }
}
