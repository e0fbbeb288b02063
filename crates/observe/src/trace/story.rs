//! Converts events to the threads on each pCPU, and the states of each vCPU.
//!
//! Events are sorted by time. A vCPU's states follow from its switches, wake-ups and migrations. The state before its first event follows from
//! that event: a vCPU that leaves a pCPU ran, one that enters without a wake-up waited, one that is woken slept. A vCPU without events slept
//! all the time if it slept at the begin; otherwise its state is unknown.
//!
//! Events of each pCPU are numbered. If a number is missing ([`Gap`]), the running thread of that pCPU and the states of vCPUs are
//! unknown between the adjacent events, except for vCPUs that ran on another pCPU, since only events there could end that. Tracking
//! restarts after the gap. If events contradict each other otherwise (the thread that leaves did not enter), the time between them is
//! unknown, too. Some kernels miss the switch out of some threads in all their traces.

use std::collections::BTreeMap;

use tandem_linux::thread::Tid;
use tandem_model::states::edges::Party;
use tandem_model::states::trace::{Did, HostTrace, Ran, VcpuTrace, Woken};
use tandem_model::{Nanos, PcpuId, PcpuSet, State, VcpuId, VmId};

use super::event::{Event, Kind, Task};

/// A watched thread.
#[derive(Clone, Debug)]
pub(super) struct Traced {
    pub(super) tid: Tid,
    pub(super) vm: VmId,
    pub(super) vcpu: VcpuId,
    pub(super) allowed: PcpuSet,
    /// Whether it slept at the begin of the trace.
    pub(super) slept: bool,
}

/// The data of a trace.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) events: Vec<Event>,
    /// Number of events of each pCPU.
    pub(super) counts: BTreeMap<PcpuId, u32>,
    /// Number of lost events.
    pub(super) lost: u64,
}

/// A time span in which events of a pCPU are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    pcpu: PcpuId,
    from: Nanos,
    to: Nanos,
}

/// Finds missing numbers, separately for each pCPU.
struct Numbers {
    begin: Nanos,
    /// Time of the last event of each pCPU, and the expected number of its next.
    last: BTreeMap<PcpuId, (Nanos, u32)>,
}

impl Numbers {
    fn before(&self, pcpu: PcpuId) -> (Nanos, u32) {
        self.last.get(&pcpu).copied().unwrap_or((self.begin, 0))
    }

    /// Returns the gap before this event.
    fn next(&mut self, event: &Event) -> Option<Gap> {
        let (from, number) = self.before(event.seen_on);
        let now = (event.at, event.number.wrapping_add(1));
        self.last.insert(event.seen_on, now);
        (event.number != number).then_some(Gap { pcpu: event.seen_on, from, to: event.at })
    }

    /// Returns the gaps between the last events and the end.
    fn finish(&self, counts: &BTreeMap<PcpuId, u32>, end: Nanos) -> Vec<Gap> {
        let gaps = counts.iter().filter_map(|(pcpu, count)| {
            let (from, number) = self.before(*pcpu);
            // A program that still ran when these were read has written more.
            let is_missing = (1..=u32::MAX / 2).contains(&count.wrapping_sub(number));
            (is_missing && from < end).then_some(Gap { pcpu: *pcpu, from, to: end })
        });
        gaps.collect()
    }
}

/// Current state of a vCPU.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// `None`: unknown.
    state: Option<State>,
    pcpu: Option<PcpuId>,
    since: Nanos,
}

/// Builds a trace from events; `name` returns the party of a thread that is not watched, by its number and data.
pub(super) fn build(
    seen: Seen,
    traced: &[Traced],
    (begin, end): (Nanos, Nanos),
    mut name: impl FnMut(Tid, Option<&Task>) -> Party,
) -> HostTrace {
    let mut events = seen.events;
    // The stable sort keeps simultaneous events in the order of writing.
    events.sort_by_key(|event| event.at);
    let mut tasks: BTreeMap<Tid, Task> = BTreeMap::new();
    for event in &events {
        tasks.entry(event.to).or_insert(event.task);
    }
    let vcpus = traced.iter().map(|traced| VcpuTrace {
        vm: traced.vm,
        vcpu: traced.vcpu,
        allowed: traced.allowed.clone(),
        did: Vec::new(),
    });
    let mut story = Story {
        places: traced.iter().map(|traced| traced.tid).zip(0..).collect(),
        doing: vec![None; traced.len()],
        since: vec![begin; traced.len()],
        running: BTreeMap::new(),
        known: BTreeMap::new(),
        of_tid: BTreeMap::new(),
        trace: HostTrace {
            begin,
            end,
            vcpus: vcpus.collect(),
            lost: seen.lost,
            ..HostTrace::default()
        },
    };
    let mut party = |tid: Tid, place: Option<usize>| match place {
        Some(place) => Party::Vcpu { vm: traced[place].vm, vcpu: traced[place].vcpu },
        None => name(tid, tasks.get(&tid)),
    };
    let last = BTreeMap::new();
    let mut numbers = Numbers { begin, last };
    for event in events {
        if let Some(gap) = numbers.next(&event) {
            story.miss(gap, &mut party);
        }
        let is_within = event.at >= begin && event.at <= end;
        if is_within {
            story.add(&event, &mut party);
        }
    }
    for gap in numbers.finish(&seen.counts, end) {
        story.miss(gap, &mut party);
    }
    story.finish(traced, &mut party)
}

struct Story {
    /// A vCPU's position by its thread.
    places: BTreeMap<Tid, usize>,
    doing: Vec<Option<Doing>>,
    /// Start of each vCPU's current time without missing events.
    since: Vec<Nanos>,
    /// The thread on each pCPU, and since when; `None`: unknown, the next to leave.
    running: BTreeMap<PcpuId, (Option<Tid>, Nanos)>,
    /// A party's position.
    known: BTreeMap<Party, usize>,
    of_tid: BTreeMap<Tid, usize>,
    trace: HostTrace,
}

type Name<'a> = dyn FnMut(Tid, Option<usize>) -> Party + 'a;

impl Story {
    fn add(&mut self, event: &Event, name: &mut Name<'_>) {
        match event.kind {
            Kind::Switch { from_sleeps } => {
                let running = self.running.insert(event.pcpu, (Some(event.to), event.at));
                let (tid, since) = running.unwrap_or((None, self.trace.begin));
                match tid.filter(|tid| *tid != event.from) {
                    None => self.ran(event.pcpu, event.from, (since, event.at), name),
                    Some(other) => {
                        self.lose(event.pcpu, other);
                        self.came_unseen(event.pcpu, event.from, since);
                    }
                }
                let then = if from_sleeps { State::Halted } else { State::Ready };
                self.change(event, event.from, &[State::Run], then);
                self.change(event, event.to, &[State::Ready], State::Run);
            }
            Kind::Wake => {
                self.woken(event, name);
                self.change(event, event.to, &[State::Halted], State::Ready);
            }
            Kind::Move => {
                // A sleeping thread is migrated while it is being woken.
                let place = self.places.get(&event.to);
                let doing = place.and_then(|place| self.doing[*place]);
                if doing.is_some_and(|doing| doing.state == Some(State::Ready)) {
                    self.change(event, event.to, &[State::Ready], State::Ready);
                }
            }
        }
    }

    /// Changes the state of a vCPU that was in one of the states `was`.
    fn change(&mut self, event: &Event, tid: Tid, was: &[State], now: State) {
        let Some(&place) = self.places.get(&tid) else {
            return;
        };
        let doing = self.doing[place].unwrap_or(Doing {
            state: was.first().copied(),
            // A wait whose begin was not seen is attributed to the queue of the pCPU where it ended.
            pcpu: Some(event.pcpu),
            since: self.since[place],
        });
        // A thread that is woken before it left its pCPU keeps running.
        if event.kind == Kind::Wake && matches!(doing.state, Some(State::Run | State::Ready)) {
            return;
        }
        let is_known = doing.state.is_some_and(|state| was.contains(&state));
        if is_known {
            self.did(place, doing, event.at);
        }
        self.doing[place] =
            Some(Doing { state: Some(now), pcpu: Some(event.pcpu), since: event.at });
    }

    /// Clears the states that missing events may have changed, from the begin of the gap on.
    fn miss(&mut self, gap: Gap, name: &mut Name<'_>) {
        let Gap { pcpu, from, to } = gap;
        if to <= self.trace.begin {
            return;
        }
        if let Some((Some(tid), since)) = self.running.insert(pcpu, (None, to)) {
            self.ran(pcpu, tid, (since, from), name);
        }
        for place in 0..self.doing.len() {
            let elsewhere = |state, on: Option<PcpuId>| state == State::Run && on != Some(pcpu);
            let doing = self.doing[place];
            let is_safe = |doing: Doing| doing.state.is_some_and(|now| elsewhere(now, doing.pcpu));
            if !doing.is_some_and(is_safe) {
                if let Some(doing) = doing {
                    self.did(place, doing, from);
                }
                self.doing[place] = None;
                self.since[place] = to;
            }
            // States within the gap that were reported before it was detected.
            let did = &mut self.trace.vcpus[place].did;
            let first = did.partition_point(|did| did.to <= from);
            let mut after = did.split_off(first);
            after.retain_mut(|did| {
                if !elsewhere(did.state, did.pcpu) {
                    did.to = from;
                }
                did.from < did.to
            });
            did.append(&mut after);
        }
    }

    /// Handles a thread that left this pCPU at an unknown time.
    fn lose(&mut self, pcpu: PcpuId, tid: Tid) {
        let Some(&place) = self.places.get(&tid) else {
            return;
        };
        if let Some(doing) = &mut self.doing[place]
            && (doing.state, doing.pcpu) == (Some(State::Run), Some(pcpu))
        {
            doing.state = None;
        }
    }

    /// Handles a thread that entered this pCPU at an unknown time after `since`, when another entered. A wait before counts until `since`.
    fn came_unseen(&mut self, pcpu: PcpuId, tid: Tid, since: Nanos) {
        let Some(&place) = self.places.get(&tid) else {
            return;
        };
        let waits = |doing: &Doing| (doing.state, doing.pcpu) == (Some(State::Ready), Some(pcpu));
        if let Some(doing) = self.doing[place].filter(waits)
            && doing.since <= since
        {
            self.did(place, doing, since);
            self.doing[place] = Some(Doing { state: None, since, ..doing });
        }
    }

    fn did(&mut self, place: usize, doing: Doing, to: Nanos) {
        if let Some(state) = doing.state.filter(|_| to > doing.since) {
            self.trace.vcpus[place].did.push(Did {
                state,
                pcpu: doing.pcpu.filter(|_| state != State::Halted),
                from: doing.since,
                to,
            });
        }
    }

    fn ran(&mut self, pcpu: PcpuId, tid: Tid, (from, to): (Nanos, Nanos), name: &mut Name<'_>) {
        let who = (tid != Tid(0)).then(|| self.party(tid, name));
        let pcpu = self.trace.pcpus.entry(pcpu).or_default();
        match who {
            _ if to <= from => {}
            Some(who) => pcpu.ran.push(Ran { who, from, to }),
            None => pcpu.idle += to.saturating_sub(from),
        }
    }

    fn woken(&mut self, event: &Event, name: &mut Name<'_>) {
        if let Some(&vcpu) = self.places.get(&event.to) {
            let by = match event.from {
                Tid(0) => self.place_of(Party::Unseen),
                tid => self.party(tid, name),
            };
            let at = event.at;
            self.trace.woken.push(Woken { by, vcpu, at });
        }
    }

    fn party(&mut self, tid: Tid, name: &mut Name<'_>) -> usize {
        if let Some(place) = self.of_tid.get(&tid) {
            return *place;
        }
        let party = name(tid, self.places.get(&tid).copied());
        let place = self.place_of(party);
        self.of_tid.insert(tid, place);
        place
    }

    fn place_of(&mut self, party: Party) -> usize {
        if let Some(place) = self.known.get(&party) {
            return *place;
        }
        let place = self.trace.parties.len();
        self.trace.parties.push(party.clone());
        self.known.insert(party, place);
        place
    }

    fn finish(mut self, traced: &[Traced], name: &mut Name<'_>) -> HostTrace {
        let end = self.trace.end;
        for (pcpu, (tid, since)) in std::mem::take(&mut self.running) {
            if let Some(tid) = tid {
                self.ran(pcpu, tid, (since, end), name);
            }
        }
        for (place, traced) in traced.iter().enumerate() {
            let slept = Doing { state: Some(State::Halted), pcpu: None, since: self.trace.begin };
            let slept_on = traced.slept && self.since[place] == self.trace.begin;
            let last = self.doing[place].or(slept_on.then_some(slept));
            if let Some(doing) = last {
                self.did(place, doing, end);
            }
        }
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::thread::Pid;

    use super::*;

    fn event(at: u64, kind: Kind, pcpu: u32, from: u32, to: u32) -> Event {
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"task");
        Event {
            at: Nanos(at),
            kind,
            pcpu: PcpuId(pcpu),
            from: Tid(from),
            to: Tid(to),
            task: Task { pid: Pid(to), is_kernel: false, comm },
            seen_on: PcpuId(pcpu),
            number: 0,
        }
    }

    fn switch(at: u64, pcpu: u32, from: u32, from_sleeps: bool, to: u32) -> Event {
        event(at, Kind::Switch { from_sleeps }, pcpu, from, to)
    }

    fn traced(tid: u32, vcpu: u32, slept: bool) -> Traced {
        Traced {
            tid: Tid(tid),
            vm: VmId(1),
            vcpu: VcpuId(vcpu),
            allowed: "0-1".parse().unwrap(),
            slept,
        }
    }

    /// Numbers the events of each pCPU in the order of time. Events at the positions `lost` use up a number and are dropped.
    fn numbered(events: &[Event], lost: &[usize]) -> Seen {
        let mut order: Vec<usize> = (0..events.len()).collect();
        order.sort_by_key(|place| events[*place].at);
        let mut seen = Seen { events: events.to_vec(), lost: lost.len() as u64, ..Seen::default() };
        for place in order {
            let count = seen.counts.entry(events[place].seen_on).or_default();
            seen.events[place].number = *count;
            *count += 1;
        }
        let mut place = 0..;
        seen.events.retain(|_| place.next().is_some_and(|place| !lost.contains(&place)));
        seen
    }

    /// A trace from 100 to 200, with vCPUs 0, 1 and 2 as threads 10, 11 and 12.
    fn trace_of(events: &[Event]) -> HostTrace {
        trace_without(events, &[])
    }

    fn trace_without(events: &[Event], lost: &[usize]) -> HostTrace {
        let traced = [traced(10, 0, false), traced(11, 1, false), traced(12, 2, true)];
        let name = |tid: Tid, task: Option<&Task>| Party::Process {
            name: format!("{}{tid}", task.map(Task::name).unwrap_or_default()),
            cgroup: None,
        };
        let seen = numbered(events, lost);
        build(seen, &traced, (Nanos(100), Nanos(200)), name)
    }

    fn did(trace: &HostTrace, vcpu: usize) -> Vec<(State, Option<u32>, u64, u64)> {
        let did = trace.vcpus[vcpu].did.iter();
        did.map(|did| (did.state, did.pcpu.map(|pcpu| pcpu.0), did.from.0, did.to.0)).collect()
    }

    fn ran(trace: &HostTrace, pcpu: u32) -> Vec<(String, u64, u64)> {
        let ran = trace.pcpus[&PcpuId(pcpu)].ran.iter();
        ran.map(|ran| (trace.parties[ran.who].to_string(), ran.from.0, ran.to.0)).collect()
    }

    #[test]
    fn events_become_states() {
        use State::{Halted, Ready, Run};
        let trace = trace_of(&[
            // Out of order, since several pCPUs fill the kernel's buffer.
            switch(130, 0, 11, true, 99),
            switch(110, 0, 10, false, 11),
            event(140, Kind::Move, 1, 0, 10),
            switch(150, 1, 0, false, 10),
            event(160, Kind::Wake, 0, 99, 11),
            switch(170, 0, 99, false, 11),
        ]);
        assert_eq!(
            did(&trace, 0),
            [
                (Run, Some(0), 100, 110),
                (Ready, Some(0), 110, 140),
                (Ready, Some(1), 140, 150),
                (Run, Some(1), 150, 200),
            ]
        );
        assert_eq!(
            did(&trace, 1),
            [
                (Ready, Some(0), 100, 110),
                (Run, Some(0), 110, 130),
                (Halted, None, 130, 160),
                (Ready, Some(0), 160, 170),
                (Run, Some(0), 170, 200),
            ]
        );
        assert_eq!(did(&trace, 2), [(Halted, None, 100, 200)]);
        let of_first = ran(&trace, 0);
        let names: Vec<&str> = of_first.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["VM 1 vCPU 0", "VM 1 vCPU 1", "task99", "VM 1 vCPU 1"]);
        assert_eq!((of_first[2].1, of_first[2].2), (130, 170));
        assert_eq!(trace.pcpus[&PcpuId(1)].idle, Nanos(50));
        let [woken] = &trace.woken[..] else { panic!("{:?}", trace.woken) };
        assert_eq!((woken.vcpu, woken.at), (1, Nanos(160)));
        assert_eq!(trace.parties[woken.by].to_string(), "task99");
        // A wait is charged to the thread that ran there.
        let whole = &trace.intervals(Nanos(100))[0];
        assert_eq!(whole.vms[0].vcpus.len(), 3);
        assert_eq!(whole.vms[0].vcpus[1].waited, Nanos(20));
    }

    #[test]
    fn missing_events_leave_states_unknown() {
        // Between 110 and 150, thread 11 left and 10 came back unseen.
        let trace = trace_of(&[switch(110, 0, 10, false, 11), switch(150, 0, 10, true, 99)]);
        assert_eq!(ran(&trace, 0).len(), 2, "{:?}", ran(&trace, 0));
        assert_eq!(ran(&trace, 0)[1], ("task99".to_owned(), 150, 200));
        // It is unknown when thread 11 left.
        assert_eq!(did(&trace, 1), [(State::Ready, Some(0), 100, 110)]);
        // It was RDY at 110, and cannot have left the pCPU at 150 without entering it.
        assert_eq!(
            did(&trace, 0),
            [(State::Run, Some(0), 100, 110), (State::Halted, None, 150, 200)]
        );
        let interval = &trace.intervals(Nanos(100))[0];
        let measured: Vec<u32> = interval.vms[0].vcpus.iter().map(|vcpu| vcpu.vcpu.0).collect();
        assert!(!measured.contains(&0), "{measured:?}");
    }

    #[test]
    fn unseen_switch_in_ends_a_known_wait() {
        // Thread 99 left unseen: from 120 on it ran, or thread 10 did.
        let trace = trace_of(&[
            switch(110, 0, 10, false, 11),
            switch(120, 0, 11, false, 99),
            switch(150, 0, 10, false, 11),
        ]);
        assert_eq!(
            did(&trace, 0),
            [
                (State::Run, Some(0), 100, 110),
                (State::Ready, Some(0), 110, 120),
                (State::Ready, Some(0), 150, 200)
            ]
        );
        assert_eq!(ran(&trace, 0).len(), 3, "{:?}", ran(&trace, 0));
    }

    #[test]
    fn even_number_of_lost_events_is_detected() {
        use State::{Halted, Ready, Run};
        // Thread 11 left at 120 and came back at 140: its remaining events are consistent.
        let events = [
            switch(110, 0, 10, false, 11),
            switch(120, 0, 11, false, 99),
            switch(140, 0, 99, false, 11),
            switch(150, 0, 11, true, 99),
        ];
        assert_eq!(ran(&trace_of(&events), 0).len(), 5);
        let trace = trace_without(&events, &[1, 2]);
        assert_eq!(trace.lost, 2);
        let places: Vec<(u64, u64)> =
            ran(&trace, 0).iter().map(|(_, from, to)| (*from, *to)).collect();
        assert_eq!(places, [(100, 110), (150, 200)]);
        assert_eq!(did(&trace, 1), [(Ready, Some(0), 100, 110), (Halted, None, 150, 200)]);
        // It may have been woken there meanwhile, and slept again.
        assert!(did(&trace, 2).is_empty());
        assert_eq!(did(&trace, 0), [(Run, Some(0), 100, 110)]);
    }

    #[test]
    fn events_lost_elsewhere_do_not_end_a_run() {
        use State::{Ready, Run};
        let events = [
            switch(110, 1, 0, false, 10),
            switch(115, 0, 98, false, 99),
            switch(120, 0, 99, false, 98),
            event(125, Kind::Wake, 1, 97, 11),
            switch(130, 0, 98, false, 99),
            switch(160, 1, 10, false, 11),
            switch(170, 0, 99, false, 98),
        ];
        let trace = trace_without(&events, &[2]);
        // It ran on the other pCPU all the time, and has waited since.
        assert_eq!(
            did(&trace, 0),
            [(Ready, Some(1), 100, 110), (Run, Some(1), 110, 160), (Ready, Some(1), 160, 200)]
        );
        // The wake-up at 125 is in the unknown time; since 130 it waits.
        assert_eq!(
            did(&trace, 1),
            [(State::Halted, None, 100, 115), (Ready, Some(1), 130, 160), (Run, Some(1), 160, 200)]
        );
        let places: Vec<(u64, u64)> =
            ran(&trace, 0).iter().map(|(_, from, to)| (*from, *to)).collect();
        assert_eq!(places, [(100, 115), (130, 170), (170, 200)]);
    }

    #[test]
    fn loss_at_the_end_is_detected() {
        let events = [switch(110, 0, 10, false, 11), switch(120, 0, 11, true, 99)];
        let trace = trace_without(&events, &[1]);
        assert_eq!(did(&trace, 1), [(State::Ready, Some(0), 100, 110)]);
        assert_eq!(ran(&trace, 0).len(), 1);
        assert!(did(&trace, 2).is_empty());
    }

    #[test]
    fn vcpu_without_events_is_unknown_unless_asleep() {
        let trace = trace_of(&[]);
        assert!(did(&trace, 0).is_empty() && did(&trace, 1).is_empty());
        assert_eq!(did(&trace, 2), [(State::Halted, None, 100, 200)]);
        assert!(trace.pcpus.is_empty());
    }

    #[test]
    fn wakeup_of_a_running_thread_changes_nothing() {
        let trace = trace_of(&[
            switch(110, 0, 0, false, 10),
            event(120, Kind::Wake, 0, 99, 10),
            switch(130, 0, 10, false, 0),
        ]);
        let states: Vec<State> = trace.vcpus[0].did.iter().map(|did| did.state).collect();
        assert_eq!(states, [State::Ready, State::Run, State::Ready]);
    }
}
