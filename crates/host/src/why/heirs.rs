//! Heirs: threads and processes started by those whose affinity or nice value a trial changed.
//!
//! Linux passes both settings on, so the heirs have to be reverted, too.
//! `/proc` does not name the creator of a thread, and names that of a process only while it lives.
//! An heir therefore is a thread that began after the change, in a changed process or below one.
//! Orphans of its process group, whose parent is in another group, count too.
//! It also has the value given to its maker when it is first seen; another value was set by others.
//! The search runs every quarter of a second while a change is applied, and journals the heirs ([`Actuator::adopt`]).
//! After kill -9, only heirs that began after the last look are missed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tandem_linux::actuator::{Actuator, ActuatorError, Inheritance};
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::thread::{Pid, StartTime, ThreadRef, ThreadStat, Tid};

/// The heirs of one change.
#[derive(Debug)]
pub(super) struct Heirs {
    /// Time of the change.
    since: StartTime,
    makers: BTreeSet<ThreadRef>,
    /// Process groups of the changed processes and of their descendants.
    groups: BTreeSet<Pid>,
    /// Descendants of the changed processes that began since.
    below: BTreeMap<Pid, StartTime>,
    inheritance: Inheritance,
    /// Threads that were inspected.
    seen: BTreeSet<ThreadRef>,
}

/// Returns the start time that a thread would have now; `None` if `/proc/uptime` cannot be read.
///
/// Source: proc(5): `/proc/uptime` is in seconds with two digits, field 22 of `stat` in ticks of the same clock.
pub(super) fn now(procfs: &ProcFs) -> Option<StartTime> {
    let text = read_text(&procfs.resolve("/proc/uptime")).ok()?;
    let (whole, part) = text.split_ascii_whitespace().next()?.split_once('.')?;
    let hundredths: u64 =
        whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(part.get(..2)?.parse().ok()?)?;
    let ticks = rustix::param::clock_ticks_per_second();
    Some(StartTime(hundredths.checked_mul(ticks)? / 100))
}

impl Heirs {
    /// Starts without heirs; the makers have the values of `inheritance` since `since`.
    pub(super) fn new(
        procfs: &ProcFs,
        since: StartTime,
        makers: &[ThreadRef],
        inheritance: Inheritance,
    ) -> Heirs {
        let stats = makers.iter().map(|maker| maker.pid);
        let stats: BTreeSet<Pid> = stats.collect();
        let groups =
            stats.into_iter().filter_map(|pid| ThreadStat::read(&procfs.process(pid)).ok()?.group);
        Heirs {
            since,
            makers: makers.iter().copied().collect(),
            groups: groups.collect(),
            below: BTreeMap::new(),
            inheritance,
            seen: BTreeSet::new(),
        }
    }

    /// Journals and returns the heirs that began since the last look.
    pub(super) fn look(
        &mut self,
        procfs: &ProcFs,
        actuator: &mut Actuator,
    ) -> Result<Vec<ThreadRef>, ActuatorError> {
        let mut found = Vec::new();
        for thread in self.born(procfs) {
            if !self.seen.contains(&thread) {
                if actuator.adopt(&thread, &self.inheritance)? {
                    found.push(thread);
                }
                self.seen.insert(thread);
            }
        }
        Ok(found)
    }

    /// Returns all threads that may be heirs.
    fn born(&mut self, procfs: &ProcFs) -> Vec<ThreadRef> {
        let makers: BTreeSet<Pid> = self.makers.iter().map(|maker| maker.pid).collect();
        let pids = numbers(&procfs.resolve("/proc")).into_iter().map(Pid);
        let all = pids.filter_map(|pid| Some((pid, ThreadStat::read(&procfs.process(pid)).ok()?)));
        let all: BTreeMap<Pid, ThreadStat> = all.collect();
        let counts = |(pid, stat): &(&Pid, &ThreadStat)| {
            stat.start >= self.since && !stat.kernel_thread && !makers.contains(pid)
        };
        let mut young: BTreeMap<&Pid, &ThreadStat> = all.iter().filter(counts).collect();
        self.below.retain(|pid, start| {
            let now = all.get(pid);
            now.is_none_or(|now| now.start == *start)
        });
        // Each round finds the children of the last.
        loop {
            let is_orphan = |stat: &ThreadStat| {
                let of_parent = all.get(&stat.parent).and_then(|parent| parent.group);
                let group = stat.group.filter(|group| self.groups.contains(group));
                group.is_some() && of_parent != group
            };
            let is_below = |stat: &ThreadStat| {
                makers.contains(&stat.parent) || self.below.contains_key(&stat.parent)
            };
            let (next, rest): (BTreeMap<_, _>, _) =
                young.into_iter().partition(|(_, stat)| is_below(stat) || is_orphan(stat));
            young = rest;
            if next.is_empty() {
                break;
            }
            for (pid, stat) in next {
                self.below.insert(*pid, stat.start);
                self.groups.extend(stat.group);
            }
        }
        let processes = makers.iter().chain(self.below.keys());
        let threads = processes.flat_map(|pid| {
            let tids = numbers(&procfs.process(*pid).join("task"));
            let threads = tids.into_iter().map(Tid);
            threads.filter_map(|tid| ThreadRef::read(procfs, *pid, tid).ok())
        });
        threads
            .filter(|thread| thread.start >= self.since && !self.makers.contains(thread))
            .collect()
    }
}

/// Returns the numeric entries of a folder, in order.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
