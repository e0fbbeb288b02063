//! `tandem host replay`: what `top` would have shown, of any time of a record.
//!
//! A range is one interval: the sum of those that it overlaps ([`IntervalSum`]). What a VM was due in it is the sum of what it was due
//! in each, so a VM that was there for a part is due for that part only.

pub mod text;

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;
use tandem_linux::thread::Pid;
use tandem_linux::thread::StartTime;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_observe::record::Frame;
use tandem_observe::record::Record;
use tandem_observe::record::RecordError;
use tandem_observe::record::RecordedVm;
use tandem_policy::Nanos;
use tandem_policy::VmId;
use tandem_policy::assess::lag;
use tandem_policy::states::sum::IntervalSum;

use crate::discovery::Scan;
use crate::discovery::VcpuThread;
use crate::discovery::Vm;
use crate::glob::name_matches;
use crate::top::TopInterval;
use crate::top::shown;
use crate::vmm::Vmm;

/// All the time there is.
pub const ALWAYS: Range<Nanos> = Nanos(0)..Nanos(u64::MAX);

/// Between two intervals more than this is a gap: clocks are read one after the other, and are set by a little now and then.
const GAP: Nanos = Nanos::from_secs(1);

/// Intervals of a record, added up.
#[derive(Debug, Default)]
struct Replayed {
    sum: IntervalSum,
    vms: BTreeMap<VmId, RecordedVm>,
    due: BTreeMap<VmId, Nanos>,
    unreadable: usize,
}

/// Reads the intervals that overlap a time by the wall clock, and shows them as one, with the VMs whose names match a glob, or all if
/// there is none; `None` where the record has no interval.
pub fn replay(
    record: &Record,
    wanted: Range<Nanos>,
    names: &[String],
) -> Result<Option<TopInterval>, RecordError> {
    let mut replayed = Replayed::default();
    record.read(wanted, |_, frame| {
        replayed.add(frame);
        Ok::<(), RecordError>(())
    })?;
    Ok(replayed.shown(names))
}

impl Replayed {
    fn add(&mut self, frame: Frame) {
        self.sum.add(&frame.interval);
        self.unreadable = self.unreadable.max(frame.unreadable);
        for (vm, known) in frame.vms {
            if let Some(due) = known.due {
                *self.due.entry(vm).or_default() += due;
            }
            self.vms.insert(vm, known);
        }
    }

    fn shown(self, names: &[String]) -> Option<TopInterval> {
        let interval = self.sum.finish()?;
        let scan = Scan {
            vms: self
                .vms
                .iter()
                .map(|(id, known)| found(*id, known))
                .collect(),
            unreadable_vmms: self.unreadable,
            ..Scan::default()
        };
        let weights = self.vms.iter();
        let weights = weights.filter_map(|(id, known)| Some((*id, known.weight?)));
        let is_selected =
            |vm: &Vm| names.is_empty() || names.iter().any(|glob| name_matches(glob, &vm.name));
        let mut top = shown(&scan, &interval, &weights.collect(), is_selected);
        // A process may hold several VMs, but not two of one name.
        let ids: BTreeMap<(u32, &str), VmId> = scan
            .vms
            .iter()
            .map(|vm| ((vm.process.pid.0, vm.name.as_str()), vm.id))
            .collect();
        for vm in &mut top.vms {
            let id = ids.get(&(vm.pid, vm.name.as_str()));
            let Some(due) = id.and_then(|id| self.due.get(id)) else {
                continue;
            };
            let measured = interval.vms.iter().find(|other| Some(&other.vm) == id);
            let vcpus = measured.iter().flat_map(|vm| &vm.vcpus);
            let received: Nanos = vcpus.map(|vcpu| vcpu.ran).sum();
            vm.due = due.0 as f64 / interval.length.0.max(1) as f64;
            vm.lag = lag(*due, received);
        }
        Some(top)
    }
}

/// A VM as discovery would have it; when its threads started nobody knows any more.
fn found(id: VmId, known: &RecordedVm) -> Vm {
    let thread = |tid| ThreadRef {
        pid: Pid(known.pid),
        tid: Tid(tid),
        start: StartTime(0),
    };
    let vmm = serde_json::from_value(serde_json::Value::from(known.program.as_str()));
    Vm {
        id,
        process: thread(known.pid),
        name: known.name.clone(),
        vmm: vmm.unwrap_or(Vmm::Other),
        vcpus: known
            .tids
            .iter()
            .map(|(index, tid)| VcpuThread {
                index: *index,
                thread: thread(*tid),
            })
            .collect(),
        unidentified: 0,
    }
}

/// A VM of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The most vCPUs that it had.
    pub vcpus: usize,
    /// In how many intervals it was found.
    pub intervals: u64,
    /// When the first of them began and the last ended, in ns since 1970.
    pub from: Nanos,
    /// See `from`.
    pub to: Nanos,
}

/// A time between two intervals in which nobody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// When it began, in ns since 1970.
    pub from: Nanos,
    /// When it ended.
    pub to: Nanos,
}

/// What a record holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// When the first interval began and the last ended, in ns since 1970; `None` of an empty record.
    pub from: Option<Nanos>,
    /// See `from`.
    pub to: Option<Nanos>,
    /// How many intervals there are.
    pub intervals: u64,
    /// How many of the oldest went to make room.
    pub dropped: u64,
    /// vCPUs, summed over the intervals.
    pub vcpu_intervals: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Whether it was ended as it should be: neither killed nor written now.
    pub complete: bool,
    /// Whether it is written now.
    pub written: bool,
    /// The VMs, in the order in which they were first seen.
    pub vms: Vec<ListedVm>,
    /// Times without intervals.
    pub gaps: Vec<Gap>,
}

/// Looks through a record.
pub fn list(record: &Record) -> Result<Listing, RecordError> {
    let mut listing = Listing {
        bytes: record.bytes()?,
        complete: record.is_complete()?,
        written: record.is_written(),
        ..Listing::default()
    };
    let mut vms: BTreeMap<VmId, ListedVm> = BTreeMap::new();
    record.read(ALWAYS, |number, frame| {
        listing.add(number, &frame);
        for (id, known) in &frame.vms {
            let vm = vms.entry(*id).or_insert_with(|| ListedVm {
                name: known.name.clone(),
                pid: known.pid,
                vcpus: 0,
                intervals: 0,
                from: frame.at,
                to: frame.end(),
            });
            vm.vcpus = vm.vcpus.max(known.tids.len());
            vm.intervals += 1;
            vm.to = vm.to.max(frame.end());
        }
        Ok::<(), RecordError>(())
    })?;
    listing.vms = vms.into_values().collect();
    Ok(listing)
}

impl Listing {
    fn add(&mut self, number: u64, frame: &Frame) {
        match self.to {
            None => self.dropped = number,
            Some(end) if frame.at.saturating_sub(end) > GAP => {
                self.gaps.push(Gap {
                    from: end,
                    to: frame.at,
                });
            }
            Some(_) => {}
        }
        self.intervals += 1;
        let vcpus = frame.interval.vms.iter().map(|vm| vm.vcpus.len() as u64);
        self.vcpu_intervals += vcpus.sum::<u64>();
        self.from = Some(self.from.map_or(frame.at, |from| from.min(frame.at)));
        self.to = Some(self.to.map_or(frame.end(), |to| to.max(frame.end())));
    }
}

#[cfg(test)]
mod tests;
