//! Converts the [`Event`]s of a traced window into the [`Step`]s of each thread.
//!
//! A thread runs from the switch to it until the switch from it.
//! A sleep ends with a wake-up.
//! A wake-up by another thread of the program is a [`Step::Wait`] of the one and a [`Step::Wake`] of the other, always both.
//! A wake-up by an interrupt or a foreign thread makes the sleep a [`Step::Sleep`].
//! A thread that is woken before it has left its CPU also waits: with a later wake-up it would have slept.
//! Waiting for a CPU is not a step, as the simulator computes such waits itself.
//!
//! A new thread continues the row of an exited one, if there is one, and its parent wakes it.
//! The number of rows is therefore that of concurrent threads, not of all threads.
//!
//! A sleep that crosses the start or end of the window is cut there, unless it is a wait for another thread.
//! Unseen steps are not invented: a wait that was satisfied in advance (by an available item) is not a step.
//!
//! This module does no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tandem_linux::thread::Tid;
use tandem_model::Nanos;
use tandem_model::application::{LockLike, Step, WakeEdge};

use super::event::{Event, Kind};

/// Maximum relative spread of the distances between the wake-ups of a clock.
/// The spread must also be less than that of the sleeps between them.
const MAX_SPREAD: f64 = 0.05;

/// A thread without events that ran for less than one part in this many of a window counts as idle.
const IDLE_SHARE: u64 = 100;

/// Approximate time to enqueue a thread.
/// The rest of a wake-up on an idle CPU is the notification of that CPU.
const ENQUEUE: Nanos = Nanos(700);

/// Minimum number of distances between wake-ups to detect a clock.
const MIN_DISTANCES: usize = 8;

/// Steps of a row of threads, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Threads of the row, in order.
    pub tids: Vec<Tid>,
    /// Their steps.
    pub steps: Vec<Step>,
    /// Run times between two sleeps.
    pub bursts: Vec<Nanos>,
    /// Time of each wake-up by a clock or a foreign thread, and length of the sleep.
    clock: Vec<(Nanos, Nanos)>,
    run: Nanos,
    burst: Nanos,
    on_cpu: Option<Nanos>,
    /// Time spent on notifying idle CPUs, which is not part of its burst.
    sent: Nanos,
    asleep: Asleep,
    /// The thread is exiting.
    ending: bool,
    /// The row is free.
    ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Asleep {
    /// Not seen yet in this window.
    #[default]
    Unknown,
    No,
    Since(Nanos),
}

/// Steps of a program's threads, window after window.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Rows of threads.
    pub rows: Vec<Row>,
    /// Times from a wake-up on an idle CPU until the thread ran.
    pub idle_wakes: Vec<Nanos>,
    /// Times that wakers spent on notifying an idle CPU.
    pub idle_sends: Vec<Nanos>,
    /// Traced time.
    pub traced: Nanos,
    edges: BTreeMap<(usize, usize), (u64, Nanos)>,
    futexes: BTreeMap<u64, Futex>,
    row_of: HashMap<Tid, usize>,
    woken_at: HashMap<Tid, Nanos>,
    /// Running thread of each CPU, if known.
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
    /// Returns the number of steps so far.
    pub fn steps(&self) -> usize {
        self.rows.iter().map(|row| row.steps.len()).sum()
    }

    /// Adds a window of these threads, given as its start and end, and stops after `most` steps.
    /// `ran` has the run time of each thread in the window, for threads without events.
    /// Events are in order of time.
    pub fn window(
        &mut self,
        ran: &[(Tid, Nanos)],
        window: (Nanos, Nanos),
        events: &[Event],
        most: usize,
    ) {
        let (begin, mut end) = window;
        let before = self.steps();
        // Threads created in the window get their row at the fork event.
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
        // An event adds at most two steps: its own, and a run before it.
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
            if is_silent && ran.0.saturating_mul(IDLE_SHARE) > length {
                row.steps.push(Step::Run(ran));
            }
        }
        self.traced += end.saturating_sub(begin);
    }

    /// Returns the row of a thread; `None` if it is not of the program.
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
                    let sent = at.saturating_sub(begun).saturating_sub(ENQUEUE);
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
                // It still wakes its parent; its row is free after it leaves its CPU.
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

    /// Handles the wake-up of a thread of the program.
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

    /// Adds a wake-up by `from` and a wait of `to`.
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

    /// Returns the wake-ups between threads.
    pub fn wake_edges(&self) -> Vec<WakeEdge> {
        let edges = self.edges.iter();
        edges.map(|(&(from, to), &(count, slept))| WakeEdge { from, to, count, slept }).collect()
    }

    /// Returns futexes on which at least two threads both wait and wake, most used first.
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

    /// Adds time on a CPU, less the time of notifications.
    fn runs(&mut self, time: Nanos) {
        let ran = time.saturating_sub(self.sent);
        self.sent = self.sent.saturating_sub(time);
        self.run += ran;
        self.burst += ran;
    }

    /// Adds the run time until now; the thread keeps running.
    fn pause(&mut self, at: Nanos, begin: Nanos) {
        // A thread that ran at the start of the window has no switch to it.
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

    /// Returns the period of the clock that wakes the thread, if any.
    /// With a clock, wake-ups are regular and sleeps vary with the run time before them.
    pub fn period(&self) -> Option<Nanos> {
        let pairs = self.clock.windows(2).map(|pair| {
            let distance = pair[1].0.saturating_sub(pair[0].0);
            (distance.0 as f64, pair[1].1.0 as f64)
        });
        let (distances, sleeps): (Vec<f64>, Vec<f64>) = pairs.unzip();
        if distances.len() < MIN_DISTANCES {
            return None;
        }
        let (middle, spread) = middle(&distances);
        let (_, of_sleeps) = self::middle(&sleeps);
        let is_clock = spread <= MAX_SPREAD * middle && spread < of_sleeps;
        is_clock.then_some(Nanos(middle as u64))
    }
}

/// Returns the median, and the distance from it that three quarters of the values do not exceed.
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
