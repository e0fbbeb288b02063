//! `tandem host replay`: what `top` would have shown, and `why` would have said, of any time of a record.
//!
//! A range is one interval: the sum of those that it overlaps ([`IntervalSum`]). What a VM was due in it is the sum of what it was due
//! in each, so a VM that was there for a part is due for that part only. What is configured is what was in the last of them.
//!
//! What could not be read is skipped, and said ([`Read::damages`]).

mod listing;
mod steps;
pub mod text;
mod why;

use std::collections::BTreeMap;

use tandem_linux::thread::Pid;
use tandem_linux::thread::StartTime;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_observe::findings::KnownHost;
use tandem_observe::record::Damage;
use tandem_observe::record::Frame;
use tandem_observe::record::Record;
use tandem_observe::record::RecordError;
use tandem_observe::record::RecordedVm;
use tandem_observe::record::Wanted;
use tandem_policy::Nanos;
use tandem_policy::VmId;
use tandem_policy::assess::lag;
use tandem_policy::states::interval::Interval;
use tandem_policy::states::sum::IntervalSum;
use thiserror::Error;

use crate::discovery::Scan;
use crate::discovery::VcpuThread;
use crate::discovery::Vm;
use crate::glob::name_matches;
use crate::moment::Moment;
use crate::moment::printed;
use crate::top::TopInterval;
use crate::top::shown;
use crate::vmm::Vmm;

pub use listing::ClockSet;
pub use listing::Gap;
pub use listing::ListedVm;
pub use listing::Listing;
pub use listing::list;
pub use steps::Steps;

/// Why a time cannot be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is nothing to which a time could be relative.
    #[error("it holds no interval; --list says what it holds")]
    Empty,
    /// The record is over before.
    #[error("the record begins at {from} and ends at {to}; nothing was recorded at {at}")]
    Outside {
        /// What was asked for.
        at: String,
        /// The record's begin.
        from: String,
        /// The record's end.
        to: String,
    },
    /// Nobody looked then.
    #[error("no interval at that time; --list says what it holds")]
    NothingThen,
    /// What was there cannot be read.
    #[error("{0}; --list says what it holds")]
    Lost(Damage),
    /// No VM of that time has such a name.
    #[error("none of its {of} VMs at that time matches '{}'", .names.join("' or '"))]
    NoneMatches {
        /// How many there were.
        of: usize,
        /// What was asked for.
        names: Vec<String>,
    },
    /// The end is not after the begin.
    #[error("--from {from} is not before --to {to}")]
    Backwards {
        /// The begin.
        from: String,
        /// The end.
        to: String,
    },
}

impl ReplayError {
    /// Whether the record can be read and has nothing of what was asked for.
    pub fn is_of_nothing(&self) -> bool {
        matches!(
            self,
            ReplayError::NoneMatches { .. }
                | ReplayError::Outside { .. }
                | ReplayError::NothingThen
        )
    }
}

/// The time that is asked for: the interval of a moment, or all from one to another. Moments that are relative to the record's begin or end are those
/// of CLOCK_MONOTONIC: it does not matter to them that the wall clock was set.
pub fn wanted(
    record: &Record,
    at: Option<Moment>,
    from: Option<Moment>,
    to: Option<Moment>,
) -> Result<Wanted, ReplayError> {
    let is_relative = [at, from, to].iter().flatten().any(|m| m.is_relative());
    let mut wanted = Wanted::ALL;
    // Where the record begins by the wall clock, and from when to when it is steadily; nobody asks where nothing is relative.
    let (begin, steady) = match is_relative {
        true => {
            let listing = list(record)?;
            let known = listing.from.zip(listing.steady);
            known.ok_or(ReplayError::Empty)?
        }
        false => (Nanos(0), Nanos(0)..Nanos(0)),
    };
    let resolved = |moment: Moment| moment.within(steady.start, steady.end);
    let by_wall = |at: Nanos| Nanos(begin.0.saturating_add(at.saturating_sub(steady.start).0));
    if let Some(at) = at {
        let moment = resolved(at);
        if at.is_relative() && !(steady.start..=steady.end).contains(&moment) {
            return Err(ReplayError::Outside {
                at: printed(by_wall(moment)),
                from: printed(begin),
                to: printed(by_wall(steady.end)),
            });
        }
        // The end of a record is in its last interval.
        let moment = match at.is_relative() {
            true => resolved(at).min(steady.end.saturating_sub(Nanos(1))),
            false => resolved(at),
        };
        let range = moment..Nanos(moment.0.saturating_add(1));
        match at.is_relative() {
            true => wanted.steady = range,
            false => wanted.wall = range,
        }
        return Ok(wanted);
    }
    for (moment, is_begin) in [(from, true), (to, false)] {
        let Some(moment) = moment else { continue };
        let range = match moment.is_relative() {
            true => &mut wanted.steady,
            false => &mut wanted.wall,
        };
        match is_begin {
            true => range.start = resolved(moment),
            false => range.end = resolved(moment),
        }
    }
    let Wanted {
        wall,
        steady: asked,
    } = &wanted;
    if wall.start >= wall.end || asked.start >= asked.end {
        let (from, to) = match wall.start >= wall.end {
            true => (wall.start, wall.end),
            false => (by_wall(asked.start), by_wall(asked.end)),
        };
        return Err(ReplayError::Backwards {
            from: printed(from),
            to: printed(to),
        });
    }
    Ok(wanted)
}

/// Intervals of a record, added up.
#[derive(Debug)]
pub struct Replayed {
    /// The sum.
    interval: Interval,
    /// The VMs that were found in any of them, as the last says that has them.
    vms: BTreeMap<VmId, RecordedVm>,
    due: BTreeMap<VmId, Nanos>,
    unreadable: usize,
    /// The host as the last says that knows it.
    host: Option<KnownHost>,
    /// When they began and ended, in ns since 1970.
    at: (Nanos, Nanos),
    /// Whether anything was configured otherwise in the first than in the last.
    has_changed: bool,
}

/// What was read of a record.
#[derive(Debug)]
pub struct Read<T> {
    /// What was asked for; `None` where the record has no interval of that time.
    pub found: Option<T>,
    /// By what some of it may be missing.
    pub damages: Vec<Damage>,
}

impl<T> Read<T> {
    /// What was found, and by what some of it may be missing; or why there is nothing.
    pub fn some(self, wanted: &Wanted) -> Result<(T, Vec<Damage>), ReplayError> {
        match (self.found, self.damages) {
            (Some(found), damages) => Ok((found, damages)),
            (None, mut damages) if !damages.is_empty() => {
                Err(ReplayError::Lost(damages.swap_remove(0)))
            }
            (None, _) if *wanted == Wanted::ALL => Err(ReplayError::Empty),
            (None, _) => Err(ReplayError::NothingThen),
        }
    }
}

/// Reads the intervals that are wanted, and adds them up.
pub fn replay(record: &Record, wanted: impl Into<Wanted>) -> Result<Read<Replayed>, RecordError> {
    let mut growing = Growing::default();
    let damages = record.read(wanted, |_, frame| {
        growing.add(frame);
        Ok::<(), RecordError>(())
    })?;
    Ok(Read {
        found: growing.finish(),
        damages,
    })
}

/// Intervals so far.
#[derive(Debug, Default)]
struct Growing {
    sum: IntervalSum,
    vms: BTreeMap<VmId, RecordedVm>,
    due: BTreeMap<VmId, Nanos>,
    unreadable: usize,
    host: Option<KnownHost>,
    at: Option<(Nanos, Nanos)>,
    has_changed: bool,
}

impl Growing {
    fn add(&mut self, frame: Frame) {
        self.sum.add(&frame.interval);
        self.unreadable = self.unreadable.max(frame.unreadable);
        let begin = self.at.map_or(frame.at, |(begin, _)| begin);
        self.at = Some((begin, frame.end()));
        if frame.host.is_some() {
            self.has_changed |= self.host.is_some() && self.host != frame.host;
            self.host = frame.host;
        }
        for (vm, mut known) in frame.vms {
            if let Some(due) = known.due {
                *self.due.entry(vm).or_default() += due;
            }
            let before = self.vms.remove(&vm).and_then(|before| before.settings);
            match (&before, &known.settings) {
                (Some(before), Some(now)) => self.has_changed |= before != now,
                (Some(_), None) => known.settings = before,
                (None, _) => {}
            }
            self.vms.insert(vm, known);
        }
    }

    fn finish(self) -> Option<Replayed> {
        Some(Replayed {
            interval: self.sum.finish()?,
            vms: self.vms,
            due: self.due,
            unreadable: self.unreadable,
            host: self.host,
            at: self.at?,
            has_changed: self.has_changed,
        })
    }
}

fn is_named(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|glob| name_matches(glob, name))
}

impl Replayed {
    /// As `top` shows one interval, with the VMs whose names match a glob, or all if there is none.
    pub fn shown(&self, names: &[String]) -> TopInterval {
        let interval = &self.interval;
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
        let is_selected = |vm: &Vm| is_named(names, &vm.name);
        let mut top = shown(&scan, interval, &weights.collect(), is_selected);
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
            let received = id.map_or(Nanos::ZERO, |id| self.received(*id));
            vm.due = due.0 as f64 / interval.length.0.max(1) as f64;
            vm.lag = lag(*due, received);
        }
        top
    }

    /// The same; that no VM's name matches is an error.
    pub fn shown_if_any(&self, names: &[String]) -> Result<TopInterval, ReplayError> {
        let shown = self.shown(names);
        match shown.vms.is_empty() && !names.is_empty() {
            true => Err(ReplayError::NoneMatches {
                of: shown.found,
                names: names.to_vec(),
            }),
            false => Ok(shown),
        }
    }

    /// What the vCPUs of a VM ran.
    fn received(&self, id: VmId) -> Nanos {
        let measured = self.interval.vms.iter().filter(|vm| vm.vm == id);
        measured.flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.ran).sum()
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
        tenant: None,
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

#[cfg(test)]
mod tests;
