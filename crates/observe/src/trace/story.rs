//! From events to who ran where, and what each vCPU did.
//!
//! Events are sorted by time. A vCPU's states follow from its switches, wake-ups and moves. What was before the first event of a vCPU follows from
//! that: who leaves ran, who comes without having been woken waited, who is woken slept. Of a vCPU without any event it is known only that it slept all
//! the time, if it slept at the begin.
//!
//! Events of each pCPU are numbered. Where a number is missing ([`Gap`]), nothing is known of what its pCPU may have done between the events before and
//! after: who ran there, and every vCPU's state, but for those that ran on another pCPU, which only that one can end. After it all begins anew. Where
//! events do not fit each other all the same (another leaves than came, or one leaves that never came), the time between is not known either. There are
//! kernels that do not tell when some threads leave, in any of their traces.

use std::collections::BTreeMap;

use tandem_linux::thread::Tid;
use tandem_model::states::edges::Party;
use tandem_model::states::trace::{Did, HostTrace, Ran, VcpuTrace, Woken};
use tandem_model::{Nanos, PcpuId, PcpuSet, State, VcpuId, VmId};

use super::event::{Event, Kind, Task};

/// A thread that is watched.
#[derive(Clone, Debug)]
pub(super) struct Traced {
    pub(super) tid: Tid,
    pub(super) vm: VmId,
    pub(super) vcpu: VcpuId,
    pub(super) allowed: PcpuSet,
    /// Whether it slept when the trace began.
    pub(super) slept: bool,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) events: Vec<Event>,
    /// How many events each pCPU had.
    pub(super) counts: BTreeMap<PcpuId, u32>,
    /// How many of them found no room.
    pub(super) lost: u64,
}

/// A time in which events of a pCPU are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    pcpu: PcpuId,
    from: Nanos,
    to: Nanos,
}

/// Looks for numbers that are missing, one pCPU beside the other.
struct Numbers {
    begin: Nanos,
    /// When the last event of each was, and the number of its next.
    last: BTreeMap<PcpuId, (Nanos, u32)>,
}

impl Numbers {
    fn before(&self, pcpu: PcpuId) -> (Nanos, u32) {
        self.last.get(&pcpu).copied().unwrap_or((self.begin, 0))
    }

    /// What is missing before this event.
    fn next(&mut self, event: &Event) -> Option<Gap> {
        let (from, number) = self.before(event.seen_on);
        let now = (event.at, event.number.wrapping_add(1));
        self.last.insert(event.seen_on, now);
        (event.number != number).then_some(Gap { pcpu: event.seen_on, from, to: event.at })
    }

    /// What is missing between the last events and the end.
    fn finish(&self, counts: &BTreeMap<PcpuId, u32>, end: Nanos) -> Vec<Gap> {
        let gaps = counts.iter().filter_map(|(pcpu, count)| {
            let (from, number) = self.before(*pcpu);
            // A program that still ran when these were counted wrote more.
            let is_missing = (1..=u32::MAX / 2).contains(&count.wrapping_sub(number));
            (is_missing && from < end).then_some(Gap { pcpu: *pcpu, from, to: end })
        });
        gaps.collect()
    }
}

/// What a vCPU does since when.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// `None`: not known.
    state: Option<State>,
    pcpu: Option<PcpuId>,
    since: Nanos,
}

/// Makes a trace of events; `name` says who a thread is that is not watched, by its number and what is known of it.
pub(super) fn tell(
    seen: Seen,
    traced: &[Traced],
    (begin, end): (Nanos, Nanos),
    mut name: impl FnMut(Tid, Option<&Task>) -> Party,
) -> HostTrace {
    let mut events = seen.events;
    // Stable: those of one moment stay in the order in which they were written.
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
        seats: BTreeMap::new(),
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
    /// A vCPU's place by its thread.
    places: BTreeMap<Tid, usize>,
    doing: Vec<Option<Doing>>,
    /// Since when no event that could be about it is missing.
    since: Vec<Nanos>,
    /// Who is on each pCPU since when; `None`: whoever leaves next.
    seats: BTreeMap<PcpuId, (Option<Tid>, Nanos)>,
    /// A party's place.
    known: BTreeMap<Party, usize>,
    of_tid: BTreeMap<Tid, usize>,
    trace: HostTrace,
}

type Name<'a> = dyn FnMut(Tid, Option<usize>) -> Party + 'a;

impl Story {
    fn add(&mut self, event: &Event, name: &mut Name<'_>) {
        match event.kind {
            Kind::Switch { from_sleeps } => {
                let seat = self.seats.insert(event.pcpu, (Some(event.to), event.at));
                let (who, since) = seat.unwrap_or((None, self.trace.begin));
                match who.filter(|who| *who != event.from) {
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
                // Who sleeps is moved on its way to being woken.
                let place = self.places.get(&event.to);
                let doing = place.and_then(|place| self.doing[*place]);
                if doing.is_some_and(|doing| doing.state == Some(State::Ready)) {
                    self.change(event, event.to, &[State::Ready], State::Ready);
                }
            }
        }
    }

    /// A vCPU that did one of `was` does another thing now.
    fn change(&mut self, event: &Event, tid: Tid, was: &[State], now: State) {
        let Some(&place) = self.places.get(&tid) else {
            return;
        };
        let doing = self.doing[place].unwrap_or(Doing {
            state: was.first().copied(),
            // A wait that was not seen to begin is taken for one in the queue of the pCPU to which it led.
            pcpu: Some(event.pcpu),
            since: self.since[place],
        });
        // A thread that is woken before it has left its pCPU goes on.
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

    /// Of what events that are missing may have changed nothing is known; what was before is.
    fn miss(&mut self, gap: Gap, name: &mut Name<'_>) {
        let Gap { pcpu, from, to } = gap;
        if to <= self.trace.begin {
            return;
        }
        if let Some((Some(who), since)) = self.seats.insert(pcpu, (None, to)) {
            self.ran(pcpu, who, (since, from), name);
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
            // What was told of that time before the gap showed.
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

    /// Somebody left this pCPU, and nobody saw when.
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

    /// Somebody came to this pCPU after `since`, when another came, and nobody saw when: until then it waited if it did before.
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
        for (pcpu, (who, since)) in std::mem::take(&mut self.seats) {
            if let Some(tid) = who {
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

    /// Numbered on each pCPU, in the order of time; what is at `lost` has its number, and no room.
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

    /// From 100 to 200, with vCPUs 0, 1 and 2 as threads 10, 11 and 12.
    fn told(events: &[Event]) -> HostTrace {
        told_without(events, &[])
    }

    fn told_without(events: &[Event], lost: &[usize]) -> HostTrace {
        let traced = [traced(10, 0, false), traced(11, 1, false), traced(12, 2, true)];
        let name = |tid: Tid, task: Option<&Task>| Party::Process {
            name: format!("{}{tid}", task.map(Task::name).unwrap_or_default()),
            cgroup: None,
        };
        let seen = numbered(events, lost);
        tell(seen, &traced, (Nanos(100), Nanos(200)), name)
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
    fn switches_wake_ups_and_moves_become_states() {
        use State::{Halted, Ready, Run};
        let trace = told(&[
            // Out of order: the kernel's buffer is filled by several pCPUs.
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
        // And what waits is charged to who ran there.
        let whole = &trace.intervals(Nanos(100))[0];
        assert_eq!(whole.vms[0].vcpus.len(), 3);
        assert_eq!(whole.vms[0].vcpus[1].waited, Nanos(20));
    }

    #[test]
    fn where_events_are_missing_nothing_is_claimed() {
        // Between 110 and 150 thread 11 left and 10 came back; nobody saw it.
        let trace = told(&[switch(110, 0, 10, false, 11), switch(150, 0, 10, true, 99)]);
        assert_eq!(ran(&trace, 0).len(), 2, "{:?}", ran(&trace, 0));
        assert_eq!(ran(&trace, 0)[1], ("task99".to_owned(), 150, 200));
        // When thread 11 left nobody knows.
        assert_eq!(did(&trace, 1), [(State::Ready, Some(0), 100, 110)]);
        // It was RDY at 110, and cannot have left the pCPU at 150 without having come.
        assert_eq!(
            did(&trace, 0),
            [(State::Run, Some(0), 100, 110), (State::Halted, None, 150, 200)]
        );
        let interval = &trace.intervals(Nanos(100))[0];
        let measured: Vec<u32> = interval.vms[0].vcpus.iter().map(|vcpu| vcpu.vcpu.0).collect();
        assert!(!measured.contains(&0), "{measured:?}");
    }

    #[test]
    fn who_comes_unseen_waited_until_another_came() {
        // Nobody saw thread 99 leave: from 120 on it ran, or thread 10 did.
        let trace = told(&[
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
    fn an_even_number_of_lost_events_is_noticed() {
        use State::{Halted, Ready, Run};
        // Thread 11 left at 120 and came back at 140: what is left of it fits.
        let events = [
            switch(110, 0, 10, false, 11),
            switch(120, 0, 11, false, 99),
            switch(140, 0, 99, false, 11),
            switch(150, 0, 11, true, 99),
        ];
        assert_eq!(ran(&told(&events), 0).len(), 5);
        let trace = told_without(&events, &[1, 2]);
        assert_eq!(trace.lost, 2);
        let places: Vec<(u64, u64)> =
            ran(&trace, 0).iter().map(|(_, from, to)| (*from, *to)).collect();
        assert_eq!(places, [(100, 110), (150, 200)]);
        assert_eq!(did(&trace, 1), [(Ready, Some(0), 100, 110), (Halted, None, 150, 200)]);
        // It may have been woken there meanwhile, and have slept again.
        assert!(did(&trace, 2).is_empty());
        assert_eq!(did(&trace, 0), [(Run, Some(0), 100, 110)]);
    }

    #[test]
    fn events_that_are_lost_elsewhere_cannot_end_a_run() {
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
        let trace = told_without(&events, &[2]);
        // It ran on the other pCPU all the time, and waits since.
        assert_eq!(
            did(&trace, 0),
            [(Ready, Some(1), 100, 110), (Run, Some(1), 110, 160), (Ready, Some(1), 160, 200)]
        );
        // That it was woken at 125 is in the time of which nothing is known; since 130 it waits.
        assert_eq!(
            did(&trace, 1),
            [(State::Halted, None, 100, 115), (Ready, Some(1), 130, 160), (Run, Some(1), 160, 200)]
        );
        let places: Vec<(u64, u64)> =
            ran(&trace, 0).iter().map(|(_, from, to)| (*from, *to)).collect();
        assert_eq!(places, [(100, 115), (130, 170), (170, 200)]);
    }

    #[test]
    fn what_is_lost_at_the_end_is_noticed() {
        let events = [switch(110, 0, 10, false, 11), switch(120, 0, 11, true, 99)];
        let trace = told_without(&events, &[1]);
        assert_eq!(did(&trace, 1), [(State::Ready, Some(0), 100, 110)]);
        assert_eq!(ran(&trace, 0).len(), 1);
        assert!(did(&trace, 2).is_empty());
    }

    #[test]
    fn of_a_vcpu_without_events_that_did_not_sleep_nothing_is_known() {
        let trace = told(&[]);
        assert!(did(&trace, 0).is_empty() && did(&trace, 1).is_empty());
        assert_eq!(did(&trace, 2), [(State::Halted, None, 100, 200)]);
        assert!(trace.pcpus.is_empty());
    }

    #[test]
    fn who_is_woken_before_it_left_its_pcpu_goes_on() {
        let trace = told(&[
            switch(110, 0, 0, false, 10),
            event(120, Kind::Wake, 0, 99, 10),
            switch(130, 0, 10, false, 0),
        ]);
        let states: Vec<State> = trace.vcpus[0].did.iter().map(|did| did.state).collect();
        assert_eq!(states, [State::Ready, State::Run, State::Ready]);
    }
}
