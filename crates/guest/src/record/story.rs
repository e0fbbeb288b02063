//! What threads did in a traced window: [`Event`]s in, [`Step`]s of each thread out. Pure.
//!
//! A thread runs from the switch to it to the switch from it. A sleep ends with a wake-up: by another thread of the program (a [`Step::Wait`] here and a
//! [`Step::Wake`] there, always both), or by an interrupt or somebody else (a [`Step::Sleep`]). A thread that is woken while it is still on its way to
//! sleep waits, too: it would have slept, had it been woken later. What a thread waits for a CPU is no step: waits are what the simulator says anew.
//!
//! A thread that is born continues the row of one that ended, if there is one, and is woken by its parent. So as many rows are needed as threads live
//! at once, and not as were ever born.
//!
//! A sleep that was under way when the window began or ended is cut there, unless it was a wait for another thread. Nothing is made up for what was not
//! seen: a wait that was over before it began (an item that was there already) is no step.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tandem_linux::thread::Tid;
use tandem_model::Nanos;
use tandem_model::application::{LockLike, Step, WakeEdge};

use super::event::{Event, Kind};

/// Wake-ups by a clock are as regular as one if their distances differ by this part, and less than the sleeps between them.
const CLOCK: f64 = 0.05;

/// Who ran for less than this part of a window, one in so many, and has no event there, did nothing.
const NEXT_TO_NOTHING: u64 = 100;

/// What queueing a thread takes without telling an idle CPU, about; the rest of a wake-up of one is the telling.
const QUEUEING: Nanos = Nanos(700);

/// Of fewer nothing is said.
const FEW: usize = 8;

/// What one row of threads did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Threads of the row, in their order.
    pub tids: Vec<Tid>,
    /// What they did.
    pub steps: Vec<Step>,
    /// How long they were on a CPU between two sleeps.
    pub bursts: Vec<Nanos>,
    /// When a clock or somebody else woke, and how long the sleep was.
    clock: Vec<(Nanos, Nanos)>,
    run: Nanos,
    burst: Nanos,
    on_cpu: Option<Nanos>,
    /// What it spent on telling idle CPUs that a thread is there, which is no part of its burst.
    sent: Nanos,
    asleep: Asleep,
    /// The thread is about to end.
    ending: bool,
    /// The row is free.
    ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Asleep {
    /// It was not seen yet.
    #[default]
    Unknown,
    No,
    Since(Nanos),
}

/// What a program's threads did, window after window.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Rows of threads.
    pub rows: Vec<Row>,
    /// Of wake-ups on idle CPUs: how long until the thread ran.
    pub idle_wakes: Vec<Nanos>,
    /// How much longer a wake-up took the waker because the other's CPU was idle and had to be told.
    pub idle_sends: Vec<Nanos>,
    /// How long was traced.
    pub traced: Nanos,
    edges: BTreeMap<(usize, usize), (u64, Nanos)>,
    futexes: BTreeMap<u64, Futex>,
    row_of: HashMap<Tid, usize>,
    woken_at: HashMap<Tid, Nanos>,
    /// Who is on each CPU, as far as it was seen.
    on: HashMap<u32, Tid>,
}

#[derive(Clone, Debug, Default)]
struct Futex {
    waiters: BTreeSet<Tid>,
    wakers: BTreeSet<Tid>,
    waits: u64,
    wakes: u64,
}

impl Story {
    /// Steps so far.
    pub fn steps(&self) -> usize {
        self.rows.iter().map(|row| row.steps.len()).sum()
    }

    /// Takes in a window of these threads, from its begin to its end, and stops after `most` steps. With each thread stands how long it ran in the
    /// window, for those that no event tells of. Events are in the order of time.
    pub fn window(
        &mut self,
        ran: &[(Tid, Nanos)],
        window: (Nanos, Nanos),
        events: &[Event],
        most: usize,
    ) {
        let (begin, mut end) = window;
        let before = self.steps();
        // Who is born in the window comes when it is.
        let children = events.iter().filter_map(|event| match event.kind {
            Kind::Fork(child) => Some(child),
            _ => None,
        });
        let born: HashSet<Tid> = children.collect();
        let tids = ran.iter().map(|(tid, _)| *tid);
        let threads: BTreeSet<Tid> = tids.filter(|tid| !born.contains(tid)).collect();
        for row in &mut self.rows {
            row.ended |= row.tids.last().is_none_or(|tid| !threads.contains(tid));
            row.ending = false;
            (row.asleep, row.on_cpu) = (Asleep::Unknown, None);
            (row.run, row.burst, row.sent) = Default::default();
        }
        self.row_of.retain(|tid, _| threads.contains(tid));
        self.woken_at.clear();
        self.on.clear();
        for tid in &threads {
            self.row(*tid);
        }
        // Steps are counted as they are seen: one for each event at most, and a run before it.
        let mut seen = 0;
        for event in events.iter().filter(|event| event.at >= begin && event.at <= end) {
            self.event(event, begin);
            seen += 2;
            if seen >= most {
                seen = self.steps() - before;
                if seen >= most {
                    end = event.at;
                    break;
                }
            }
        }
        for row in &mut self.rows {
            row.finish(begin, end);
        }
        for (tid, ran) in ran {
            let Some(row) = self.known(*tid) else {
                continue;
            };
            let row = &mut self.rows[row];
            let is_silent = row.asleep == Asleep::Unknown && row.tids.last() == Some(tid);
            let length = end.saturating_sub(begin).0;
            let part = ran.0 as f64 / window.1.saturating_sub(begin).0.max(1) as f64;
            let ran = Nanos((part.min(1.0) * length as f64) as u64);
            if is_silent && ran.0.saturating_mul(NEXT_TO_NOTHING) > length {
                row.steps.push(Step::Run(ran));
            }
        }
        self.traced += end.saturating_sub(begin);
    }

    /// The row of a thread of the program; `None`: it is none.
    fn known(&mut self, tid: Tid) -> Option<usize> {
        self.row_of.get(&tid).copied()
    }

    fn row(&mut self, tid: Tid) -> usize {
        if let Some(row) = self.row_of.get(&tid) {
            return *row;
        }
        let row = match self.rows.iter().position(|row| row.ended) {
            Some(row) => row,
            None => {
                self.rows.push(Row::default());
                self.rows.len() - 1
            }
        };
        self.rows[row].ended = false;
        self.rows[row].tids.push(tid);
        self.row_of.insert(tid, row);
        row
    }

    fn event(&mut self, event: &Event, begin: Nanos) {
        let at = event.at;
        match event.kind {
            Kind::Switch { prev, sleeps, next } => {
                self.on.insert(event.cpu, next);
                if let Some(row) = self.known(prev) {
                    self.rows[row].leaves(at, begin, sleeps);
                    if self.rows[row].ending {
                        (self.rows[row].ending, self.rows[row].ended) = (false, true);
                        self.row_of.remove(&prev);
                    }
                }
                if let Some(row) = self.known(next) {
                    let woken = self.woken_at.remove(&next);
                    if let Some(woken) = woken.filter(|_| prev == Tid(0)) {
                        self.idle_wakes.push(at.saturating_sub(woken));
                    }
                    self.rows[row].comes(at);
                }
            }
            Kind::Waking(tid) => {
                if let Some(to) = self.known(tid) {
                    self.wakes(event, to, begin);
                    self.woken_at.insert(tid, at);
                }
            }
            Kind::Woken(tid, cpu) => {
                let begun = self.woken_at.get(&tid).copied();
                let is_idle = cpu != event.cpu && self.on.get(&cpu) == Some(&Tid(0));
                if let (Some(begun), Some(row)) = (begun, self.known(event.by))
                    && is_idle
                    && !event.in_interrupt
                {
                    let sent = at.saturating_sub(begun).saturating_sub(QUEUEING);
                    self.idle_sends.push(sent);
                    self.rows[row].sent += sent;
                }
            }
            Kind::Fork(child) => {
                if let Some(from) = self.known(event.by) {
                    let to = self.row(child);
                    self.pass(event, from, to, begin, Nanos::ZERO);
                    self.rows[to].asleep = Asleep::No;
                }
            }
            Kind::Exit => {
                // It wakes its parent yet, and its row is free once it left its CPU.
                if let Some(row) = self.known(event.by) {
                    self.rows[row].ending = true;
                }
            }
            Kind::FutexWait(address) if self.row_of.contains_key(&event.by) => {
                let futex = self.futexes.entry(address).or_default();
                futex.waits += 1;
                futex.waiters.insert(event.by);
            }
            Kind::FutexWake(address) if self.row_of.contains_key(&event.by) => {
                let futex = self.futexes.entry(address).or_default();
                futex.wakes += 1;
                futex.wakers.insert(event.by);
            }
            Kind::Yield => {
                if let Some(row) = self.known(event.by) {
                    self.rows[row].pause(at, begin);
                    self.rows[row].steps.push(Step::Yield);
                }
            }
            Kind::FutexWait(_) | Kind::FutexWake(_) => {}
        }
    }

    /// A thread of the program is woken.
    fn wakes(&mut self, event: &Event, to: usize, begin: Nanos) {
        let from = self.known(event.by).filter(|_| !event.in_interrupt);
        let slept = match self.rows[to].asleep {
            Asleep::Since(since) => event.at.saturating_sub(since),
            Asleep::Unknown => event.at.saturating_sub(begin),
            Asleep::No => Nanos::ZERO,
        };
        match from {
            Some(from) if from == to => {}
            Some(from) => self.pass(event, from, to, begin, slept),
            None if self.rows[to].asleep == Asleep::No => {}
            None => {
                let row = &mut self.rows[to];
                row.clock.push((event.at, slept));
                row.steps.push(Step::Sleep(slept));
            }
        }
        self.rows[to].asleep = Asleep::No;
    }

    /// One lets another go on.
    fn pass(&mut self, event: &Event, from: usize, to: usize, begin: Nanos, slept: Nanos) {
        self.rows[from].pause(event.at, begin);
        self.rows[from].steps.push(Step::Wake(to));
        if self.rows[to].asleep == Asleep::No {
            self.rows[to].pause(event.at, begin);
        }
        self.rows[to].steps.push(Step::Wait);
        let edge = self.edges.entry((from, to)).or_default();
        edge.0 += 1;
        edge.1 += slept;
    }

    /// Who woke whom.
    pub fn wake_edges(&self) -> Vec<WakeEdge> {
        let edges = self.edges.iter();
        edges.map(|(&(from, to), &(count, slept))| WakeEdge { from, to, count, slept }).collect()
    }

    /// Futexes on which at least two threads both wait and wake, the most used first.
    pub fn lock_like(&self) -> Vec<LockLike> {
        let mut found: Vec<LockLike> = Vec::new();
        for futex in self.futexes.values() {
            let both = futex.waiters.intersection(&futex.wakers).count();
            if both > 1 {
                found.push(LockLike { threads: both, waits: futex.waits, wakes: futex.wakes });
            }
        }
        found.sort_by_key(|lock| std::cmp::Reverse(lock.waits));
        found.truncate(32);
        found
    }
}

impl Row {
    fn comes(&mut self, at: Nanos) {
        self.on_cpu = Some(at);
        self.asleep = Asleep::No;
    }

    /// It was on a CPU for so long.
    fn runs(&mut self, time: Nanos) {
        let ran = time.saturating_sub(self.sent);
        self.sent = self.sent.saturating_sub(time);
        self.run += ran;
        self.burst += ran;
    }

    /// Adds what it ran until now, and goes on.
    fn pause(&mut self, at: Nanos, begin: Nanos) {
        // Who was on a CPU when the window began came by no switch.
        let since = match (self.on_cpu, self.asleep) {
            (Some(since), _) => since,
            (None, Asleep::Unknown) => begin,
            (None, _) => at,
        };
        self.runs(at.saturating_sub(since));
        if self.on_cpu.is_some() || self.asleep == Asleep::Unknown {
            self.on_cpu = Some(at);
            self.asleep = Asleep::No;
        }
        if self.run > Nanos::ZERO {
            self.steps.push(Step::Run(self.run));
            self.run = Nanos::ZERO;
        }
    }

    fn leaves(&mut self, at: Nanos, begin: Nanos, sleeps: bool) {
        if sleeps {
            self.pause(at, begin);
            self.bursts.push(std::mem::take(&mut self.burst));
            self.asleep = Asleep::Since(at);
        } else {
            let since = self.on_cpu.unwrap_or(match self.asleep {
                Asleep::Unknown => begin,
                _ => at,
            });
            self.runs(at.saturating_sub(since));
            self.asleep = Asleep::No;
        }
        self.on_cpu = None;
    }

    fn finish(&mut self, begin: Nanos, end: Nanos) {
        if let Some(since) = self.on_cpu.take() {
            self.runs(end.saturating_sub(since));
        }
        if self.run > Nanos::ZERO {
            self.steps.push(Step::Run(self.run));
            self.run = Nanos::ZERO;
        }
        let is_by_clock = !self.clock.is_empty() && !self.steps.contains(&Step::Wait);
        match self.asleep {
            Asleep::Since(since) if is_by_clock => {
                self.steps.push(Step::Sleep(end.saturating_sub(since)));
            }
            Asleep::Unknown if is_by_clock => {
                self.steps.push(Step::Sleep(end.saturating_sub(begin)));
            }
            _ => {}
        }
    }

    /// The period of the clock that wakes it, if one does: wake-ups come as regularly as a clock's, and sleeps are the shorter the longer it ran.
    pub fn period(&self) -> Option<Nanos> {
        let pairs = self.clock.windows(2).map(|pair| {
            let distance = pair[1].0.saturating_sub(pair[0].0);
            (distance.0 as f64, pair[1].1.0 as f64)
        });
        let (distances, sleeps): (Vec<f64>, Vec<f64>) = pairs.unzip();
        if distances.len() < FEW {
            return None;
        }
        let (middle, spread) = middle(&distances);
        let (_, of_sleeps) = self::middle(&sleeps);
        let is_clock = spread <= CLOCK * middle && spread < of_sleeps;
        is_clock.then_some(Nanos(middle as u64))
    }
}

/// The median, and how far three quarters are from it at most.
fn middle(values: &[f64]) -> (f64, f64) {
    let quarter = |mut values: Vec<f64>, quarters: usize| {
        values.sort_by(f64::total_cmp);
        let at = values.len() * quarters / 4;
        values.get(at).copied().unwrap_or_default()
    };
    let center = quarter(values.to_vec(), 2);
    let spread = quarter(values.iter().map(|value| (value - center).abs()).collect(), 3);
    (center, spread)
}

#[cfg(test)]
mod tests;
