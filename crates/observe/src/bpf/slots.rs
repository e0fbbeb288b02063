//! Assigns threads to slots of the programs' map, and keeps the last values read of each.
//!
//! A slot is reused only after the next reading, so that its data in the maps stays unambiguous until then.

use std::collections::BTreeMap;

use tandem_model::states::latency::Latency;
use tandem_model::{Nanos, VcpuId};

use super::layout::{
    ASLEEP, COSTOP, ENDED, FILTER_WORDS, LIMITED, POLL, READY, RUN, RawVcpu, STATES, UNKNOWN, VMM,
};
use super::reading::{StateTimes, VcpuReading};
use super::{BpfError, Watch, kernel};

/// A slot with its thread.
pub struct Slot {
    pub watch: Watch,
    /// The values of the last reading.
    before: RawVcpu,
    /// The number of the thread now belongs to another one, whose data in this slot is ignored.
    is_another: bool,
}

/// The changes that a new set of threads requires.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Slots to empty, with their threads.
    pub gone: Vec<(u32, Watch)>,
    /// Slots to fill, with their threads.
    pub new: Vec<(u32, Watch)>,
}

/// Returns the number of slots for at most `most` threads.
pub fn slot_count(most: u32) -> u32 {
    most.saturating_mul(2)
}

/// The figures that the attached programs measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supported {
    pub vmm: bool,
    pub poll: bool,
    pub limited: bool,
    pub costop: bool,
    pub exits: bool,
    pub user_exits: bool,
    pub halts: bool,
    pub ipis: bool,
    pub spins: bool,
}

/// All slots.
pub struct Slots {
    /// Twice the maximum number of threads, so that all can be replaced between two readings.
    slots: Vec<Option<Slot>>,
    /// Slots emptied since the last reading.
    retired: Vec<u32>,
}

impl Slots {
    pub fn new(most: u32) -> Slots {
        Slots { slots: (0..slot_count(most)).map(|_| None).collect(), retired: Vec::new() }
    }

    /// Returns the changes needed to watch exactly these threads. Changes nothing yet.
    pub fn change(&self, threads: &[Watch]) -> Result<Change, BpfError> {
        let most = self.slots.len() / 2;
        if threads.len() > most {
            return Err(BpfError::TooMany { given: threads.len(), most: most as u32 });
        }
        let mut by_tid = BTreeMap::new();
        let mut by_index = BTreeMap::new();
        for thread in threads {
            let what = if by_tid.insert(thread.thread.tid, *thread).is_some() {
                format!("thread {}", thread.thread.tid)
            } else if by_index.insert(thread.index, ()).is_some() {
                format!("index {}", thread.index)
            } else {
                continue;
            };
            return Err(BpfError::Twice { what });
        }
        let mut change = Change::default();
        for (place, slot) in self.taken() {
            let watch = slot.watch;
            let tid = watch.thread.tid;
            match by_tid.get(&tid) {
                Some(same) if *same == watch => drop(by_tid.remove(&tid)),
                _ => change.gone.push((place, watch)),
            }
        }
        let is_free =
            |place: &u32| self.slots[*place as usize].is_none() && !self.retired.contains(place);
        let all = 0..self.slots.len() as u32;
        let free: Vec<u32> = all.filter(is_free).collect();
        if by_tid.len() > free.len() {
            return Err(BpfError::ReadFirst { new: by_tid.len(), free: free.len() });
        }
        change.new = free.into_iter().zip(by_tid.into_values()).collect();
        Ok(change)
    }

    /// Empties a slot.
    pub fn retire(&mut self, place: u32) {
        self.slots[place as usize] = None;
        self.retired.push(place);
    }

    /// Fills a slot, and returns the value to write to the map.
    pub fn fill(&mut self, place: u32, watch: Watch, now: Nanos) -> RawVcpu {
        let (born_from, born_to) = kernel::born(watch.thread.start);
        let raw = RawVcpu {
            state: UNKNOWN as u32,
            since: now.0,
            born_from,
            born_to,
            vm: watch.vm.0,
            vcpu: watch.vcpu.0,
            tid: watch.thread.tid.0,
            ..RawVcpu::default()
        };
        self.slots[place as usize] = Some(Slot { watch, before: raw, is_another: false });
        raw
    }

    /// Marks a slot whose thread is a different one or exited long ago, so its counts are invalid.
    /// Returns the value to write to the map.
    pub fn disown(&mut self, place: u32) -> Option<RawVcpu> {
        let slot = self.slots.get_mut(place as usize)?.as_mut()?;
        slot.is_another = true;
        Some(RawVcpu { state: ENDED as u32, ..slot.before })
    }

    /// Frees the retired slots, after a reading.
    pub fn free_retired(&mut self) {
        self.retired.clear();
    }

    /// Returns the occupied slots in order.
    pub fn taken(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let numbered = (0u32..).zip(&self.slots);
        numbered.filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    /// Returns the thread in a slot.
    pub fn watch(&self, place: u32) -> Option<Watch> {
        Some(self.slots.get(place as usize)?.as_ref()?.watch)
    }

    /// Returns the thread in a slot, unless its data belongs to another thread.
    pub fn owner(&self, place: u32) -> Option<Watch> {
        let slot = self.slots.get(place as usize)?.as_ref()?;
        (!slot.is_another).then_some(slot.watch)
    }

    /// Returns the number of leading slots that contain all threads.
    pub fn used(&self) -> usize {
        let last = self.slots.iter().rposition(Option::is_some);
        last.map_or(0, |last| last + 1)
    }

    /// Returns the thread filter for the watched threads.
    pub fn filter(&self) -> Vec<u64> {
        let mut words = vec![0u64; FILTER_WORDS];
        for (_, slot) in self.taken() {
            let tid = slot.watch.thread.tid.0;
            words[(tid >> 6) as usize % FILTER_WORDS] |= 1 << (tid & 63);
        }
        words
    }

    /// Returns the changes of a thread since its last reading. `now` was taken before `raw` was read.
    /// A current state that began before `now` is therefore counted until `now`.
    /// If a program had taken an earlier time to end it, the next reading subtracts the excess.
    pub fn read(
        &mut self,
        place: u32,
        raw: RawVcpu,
        now: Nanos,
        supported: Supported,
    ) -> Option<VcpuReading> {
        let slot = self.slots.get_mut(place as usize)?.as_mut()?;
        let mut after = raw;
        let state = raw.state as usize;
        if state < UNKNOWN && now.0 > raw.since {
            after.time[state] += now.0 - raw.since;
            after.since = now.0;
        }
        let before = std::mem::replace(&mut slot.before, after);
        let times = differences(&before.time, &after.time);
        let watched = after.since.saturating_sub(before.since);
        let mut latency =
            Latency { time: Nanos(after.latency_time - before.latency_time), ..Latency::default() };
        let counts = after.latency.iter().zip(before.latency);
        for (difference, (after, before)) in latency.counts.iter_mut().zip(counts) {
            *difference = after - before;
        }
        let watch = slot.watch;
        Some(VcpuReading {
            index: watch.index,
            tid: watch.thread.tid,
            vm: watch.vm,
            vcpu: VcpuId(watch.vcpu.0),
            wall: Nanos(watched.saturating_sub(times[UNKNOWN])),
            unseen: Nanos(times[UNKNOWN]),
            times: state_times(&times, supported),
            runs: after.runs - before.runs,
            exits: supported.exits.then_some(after.exits - before.exits),
            user_exits: supported.user_exits.then_some(after.user_exits - before.user_exits),
            halts: supported.halts.then_some(after.halts - before.halts),
            ipis: supported.ipis.then_some(after.ipis - before.ipis),
            spins: supported.spins.then_some(after.spins - before.spins),
            latency,
            ended: state == ENDED,
        })
    }
}
/// Returns the increase of each state.
///
/// A state can turn out shorter than was read:
/// - When a halt ends, a part of RUN or VMM becomes POLL, and a part of the halt may become co-stop.
/// - A program that ends a state may have taken its time before the reading.
/// - The end of a state may have been missed, so that a part becomes UNKNOWN.
///
/// The excess is subtracted from UNKNOWN, from POLL or CSTP, or else from the states that grew most.
fn differences(before: &[u64; STATES], after: &[u64; STATES]) -> [u64; STATES] {
    let mut times: [u64; STATES] =
        std::array::from_fn(|state| after[state].saturating_sub(before[state]));
    let shrank = |state: usize| before[state].saturating_sub(after[state]);
    let mut missing: u64 = (0..STATES).map(shrank).sum();
    let mut take = |time: &mut u64, most: u64| {
        let part = missing.min(*time).min(most);
        *time -= part;
        missing -= part;
    };
    take(&mut times[UNKNOWN], u64::MAX);
    take(&mut times[COSTOP], shrank(ASLEEP));
    take(&mut times[POLL], shrank(RUN) + shrank(VMM));
    let mut states: [usize; STATES] = std::array::from_fn(|state| state);
    states.sort_by_key(|state| std::cmp::Reverse(times[*state]));
    for state in states {
        take(&mut times[state], u64::MAX);
    }
    times
}

/// Merges each state that is not measured into the state that includes it.
fn state_times(times: &[u64; STATES], supported: Supported) -> StateTimes {
    let mut times = *times;
    let nested = [
        (POLL, VMM, supported.poll),
        (VMM, RUN, supported.vmm),
        (LIMITED, READY, supported.limited),
        (COSTOP, ASLEEP, supported.costop),
    ];
    for (state, within, supported) in nested {
        if !supported {
            times[within] += std::mem::take(&mut times[state]);
        }
    }
    let measured = |state: usize, supported: bool| supported.then_some(Nanos(times[state]));
    StateTimes {
        run: Nanos(times[RUN]),
        vmm: measured(VMM, supported.vmm),
        poll: measured(POLL, supported.poll),
        ready: Nanos(times[READY]),
        limited: measured(LIMITED, supported.limited),
        costop: measured(COSTOP, supported.costop),
        halted: Nanos(times[ASLEEP]),
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};
    use tandem_model::VmId;

    use super::*;

    fn watch(index: u32, tid: u32) -> Watch {
        Watch {
            index,
            thread: ThreadRef { pid: Pid(9), tid: Tid(tid), start: StartTime(500) },
            vm: VmId(1),
            vcpu: VcpuId(index),
        }
    }

    fn apply(slots: &mut Slots, threads: &[Watch]) -> Change {
        let change = slots.change(threads).unwrap();
        for (place, _) in &change.gone {
            slots.retire(*place);
        }
        for (place, watch) in &change.new {
            slots.fill(*place, *watch, Nanos(1000));
        }
        change
    }

    #[test]
    fn data_of_another_thread_is_dropped() {
        let mut slots = Slots::new(1);
        apply(&mut slots, &[watch(0, 10)]);
        assert_eq!(slots.owner(0), Some(watch(0, 10)));
        let raw = slots.disown(0).unwrap();
        assert_eq!((raw.state, raw.since), (ENDED as u32, 1000));
        assert_eq!((raw.time, raw.runs), ([0; STATES], 0));
        assert_eq!(slots.owner(0), None, "its edges and links are dropped");
        assert_eq!(slots.watch(0), Some(watch(0, 10)), "it can still be removed");
        let reading = slots.read(0, raw, Nanos(9000), Supported::default()).unwrap();
        assert!(reading.ended);
        assert_eq!((reading.wall, reading.times.sum()), (Nanos(0), Nanos(0)));
    }

    #[test]
    fn unknown_time_is_in_no_state() {
        let mut slots = Slots::new(1);
        apply(&mut slots, &[watch(0, 10)]);
        let mut raw = RawVcpu { since: 1500, state: RUN as u32, tid: 10, ..RawVcpu::default() };
        raw.time[ASLEEP] = 500;
        // It seems to run.
        let first = slots.read(0, raw, Nanos(2000), Supported::default()).unwrap();
        assert_eq!((first.times.run, first.unseen), (Nanos(500), Nanos(0)));
        // It had left the pCPU, but the switch was missed.
        raw.time[UNKNOWN] = 1300;
        raw.time[READY] = 100;
        (raw.since, raw.state) = (2900, RUN as u32);
        let second = slots.read(0, raw, Nanos(3000), Supported::default()).unwrap();
        // It ran for 100. The 500 counted in excess are subtracted from this and from the unknown time.
        assert_eq!((second.times.run, second.times.ready), (Nanos(0), Nanos(100)));
        assert_eq!(second.unseen, Nanos(900));
        assert_eq!((second.wall, second.times.sum()), (Nanos(100), Nanos(100)));
    }

    #[test]
    fn slots_are_reused_only_after_a_reading() {
        let mut slots = Slots::new(2);
        let change = apply(&mut slots, &[watch(0, 10), watch(1, 11)]);
        assert_eq!(change.new, [(0, watch(0, 10)), (1, watch(1, 11))]);
        let change = apply(&mut slots, &[watch(0, 10), watch(1, 12)]);
        assert_eq!(change.gone, [(1, watch(1, 11))]);
        assert_eq!(change.new, [(2, watch(1, 12))]);
        apply(&mut slots, &[watch(0, 13)]);
        let error = slots.change(&[watch(1, 14)]).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("1 new threads to watch, and 0 free"), "{text}");
        slots.free_retired();
        let change = apply(&mut slots, &[watch(1, 14)]);
        assert_eq!(change.new, [(0, watch(1, 14))]);
        assert_eq!((slots.used(), slots.watch(0)), (1, Some(watch(1, 14))));
        let three = [watch(0, 1), watch(1, 2), watch(2, 3)];
        let text = slots.change(&three).unwrap_err().to_string();
        assert!(text.starts_with("3 threads to watch, of at most 2"), "{text}");
    }

    #[test]
    fn reused_thread_number_takes_a_new_slot() {
        let mut slots = Slots::new(1);
        let old = watch(0, 10);
        apply(&mut slots, &[old]);
        let mut new = old;
        new.thread.start = StartTime(501);
        let change = slots.change(&[new]).unwrap();
        assert_eq!((&change.gone[..], &change.new[..]), (&[(0, old)][..], &[(1, new)][..]));
        let raw = slots.fill(1, new, Nanos(7));
        assert!(raw.born_from > 0 && raw.born_to > raw.born_from);
        assert!(raw.born_from >= kernel::born(old.thread.start).1, "the ranges are disjoint");
    }

    #[test]
    fn duplicate_threads_and_indices_are_rejected() {
        let slots = Slots::new(4);
        let same_thread = slots.change(&[watch(0, 10), watch(1, 10)]).unwrap_err();
        assert!(same_thread.to_string().starts_with("thread 10 is given twice"));
        let same_index = slots.change(&[watch(3, 10), watch(3, 11)]).unwrap_err();
        assert!(same_index.to_string().starts_with("index 3 is given twice"));
    }

    #[test]
    fn open_state_counts_once_up_to_now() {
        let mut slots = Slots::new(1);
        apply(&mut slots, &[watch(0, 10)]);
        let mut raw = RawVcpu { state: READY as u32, since: 1500, ..RawVcpu::default() };
        raw.time[RUN] = 500;
        let first = slots.read(0, raw, Nanos(2000), Supported::default()).unwrap();
        assert_eq!(first.times.run, Nanos(500));
        assert_eq!(first.times.ready, Nanos(500));
        assert_eq!(first.wall, first.times.sum());
        raw.time[READY] += 1000;
        raw.since = 2500;
        raw.state = ASLEEP as u32;
        // The time was taken before the state changed.
        let second = slots.read(0, raw, Nanos(2400), Supported::default()).unwrap();
        assert_eq!(second.times.ready, Nanos(500));
        assert_eq!(second.times.halted, Nanos(0));
        assert_eq!(second.wall, second.times.sum());
    }

    #[test]
    fn state_that_ended_before_the_reading_is_corrected() {
        let waits = RawVcpu { state: READY as u32, since: 1500, ..RawVcpu::default() };
        let begin = || {
            let mut slots = Slots::new(1);
            apply(&mut slots, &[watch(0, 10)]);
            let first = slots.read(0, waits, Nanos(2000), Supported::default());
            assert_eq!(first.unwrap().times.ready, Nanos(500));
            slots
        };
        // A program had taken the time at 1800.
        let mut runs = RawVcpu { state: RUN as u32, since: 1800, ..RawVcpu::default() };
        runs.time[READY] = 300;
        let second = begin().read(0, runs, Nanos(3000), Supported::default()).unwrap();
        assert_eq!((second.times.ready, second.times.run), (Nanos(0), Nanos(1000)));
        assert_eq!(second.wall, second.times.sum());
        runs.state = ENDED as u32;
        let second = begin().read(0, runs, Nanos(3000), Supported::default()).unwrap();
        assert!(second.ended);
        assert_eq!((second.times.sum(), second.wall), (Nanos(0), Nanos(0)));
    }

    #[test]
    fn late_polling_is_not_counted_twice() {
        let mut before = [0; STATES];
        before[RUN] = 1000;
        let mut after = before;
        after[RUN] = 900;
        after[POLL] = 150;
        let times = differences(&before, &after);
        assert_eq!((times[RUN], times[POLL]), (0, 50));
        after[RUN] = 1100;
        let times = differences(&before, &after);
        assert_eq!((times[RUN], times[POLL]), (100, 150));
    }

    #[test]
    fn late_co_stop_is_subtracted_from_the_halt() {
        let mut before = [0; STATES];
        before[ASLEEP] = 1000;
        let mut after = before;
        // The halt lasted 100 more, and 300 of the total were co-stop.
        (after[ASLEEP], after[COSTOP], after[POLL]) = (800, 300, 70);
        let times = differences(&before, &after);
        assert_eq!((times[ASLEEP], times[COSTOP], times[POLL]), (0, 100, 70));
    }

    #[test]
    fn unmeasured_states_are_merged() {
        let mut times = [0; STATES];
        (times[RUN], times[VMM], times[POLL]) = (1, 10, 100);
        (times[READY], times[LIMITED]) = (1000, 10_000);
        (times[ASLEEP], times[COSTOP]) = (100_000, 1_000_000);
        let nothing = state_times(&times, Supported::default());
        assert_eq!(
            (nothing.vmm, nothing.poll, nothing.limited, nothing.costop),
            (None, None, None, None)
        );
        assert_eq!((nothing.run, nothing.ready), (Nanos(111), Nanos(11_000)));
        assert_eq!(nothing.halted, Nanos(1_100_000));
        assert_eq!(nothing.sum(), Nanos(1_111_111));
        let costop = Supported { costop: true, ..Supported::default() };
        let told = state_times(&times, costop);
        assert_eq!((told.costop, told.halted), (Some(Nanos(1_000_000)), Nanos(100_000)));
        assert_eq!(told.sum(), Nanos(1_111_111));
        let poll = Supported { poll: true, ..Supported::default() };
        let some = state_times(&times, poll);
        assert_eq!((some.run, some.poll), (Nanos(11), Some(Nanos(100))));
        assert_eq!(some.on_pcpu(), Nanos(111));
    }

    #[test]
    fn filter_has_a_bit_per_thread() {
        let mut slots = Slots::new(3);
        apply(&mut slots, &[watch(0, 65), watch(1, 65 + 65536), watch(2, 3)]);
        let filter = slots.filter();
        assert_eq!((filter[0], filter[1]), (8, 2));
        assert_eq!(filter.iter().map(|word| word.count_ones()).sum::<u32>(), 2);
    }
}
