//! What programs in the kernel say beside times and edges: what they could not see or count, what of their figures is an
//! estimate, and how long wake-ups took.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::column::Column;
use super::latency::Latency;
use crate::units::{Nanos, VmId};

/// What programs in the kernel say of an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// Events that they do not get.
    pub not_seen: Vec<NotSeen>,
    /// What happened and could not be counted.
    pub not_counted: NotCounted,
    /// What is estimated.
    pub estimated: Vec<Estimated>,
    /// How long the vCPUs of each VM that was measured waited from when they were woken until they ran.
    pub latency: BTreeMap<VmId, Latency>,
}

/// An event that programs do not get, and what is not known for want of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotSeen {
    /// The tracepoint or function.
    pub event: String,
    /// What is not known.
    pub lacks: String,
    /// Why it is missing.
    pub because: String,
}

impl fmt::Display for NotSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not seen: {} ({})", self.lacks, self.event)?;
        if self.because.is_empty() { Ok(()) } else { write!(f, ": {}", self.because) }
    }
}

/// What there was no room for, or no chance to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCounted {
    /// Waits for which nobody is charged: too many vCPUs waited for one pCPU.
    pub waits: u64,
    /// How long those waits lasted that ended.
    pub wait_time: Nanos,
    /// Times that nobody could be charged with: too many pairs of victim and culprit.
    pub edges: u64,
    /// What they sum to.
    pub edge_time: Nanos,
    /// Wake-ups, interrupts and yields that could not be counted: too many pairs of vCPUs.
    pub links: u64,
    /// Events that programs missed: they were busy with another on the same pCPU, or the kernel did not tell (a task goes off a pCPU that
    /// was not seen to come).
    pub events: u64,
}

impl NotCounted {
    /// What of it happened: the name of the counter, how often, for how long, and in words. Nothing if all was counted.
    pub fn parts(&self) -> Vec<(&'static str, u64, Option<Nanos>, &'static str)> {
        let parts = [
            (
                "waits",
                self.waits,
                Some(self.wait_time),
                "waits for a pCPU for which too many vCPUs waited",
            ),
            (
                "edges",
                self.edges,
                Some(self.edge_time),
                "parts of waits, for want of room for more pairs of victim and culprit",
            ),
            (
                "links",
                self.links,
                None,
                "wake-ups, interrupts and yields, for want of room for more pairs of vCPUs",
            ),
            (
                "events",
                self.events,
                None,
                "events that the kernel did not tell, or that came while a program was busy with another",
            ),
        ];
        let happened = |(_, count, time, _): &(_, u64, Option<Nanos>, _)| {
            *count > 0 || time.unwrap_or_default() > Nanos::ZERO
        };
        parts.into_iter().filter(happened).collect()
    }
}

impl AddAssign for NotCounted {
    fn add_assign(&mut self, other: NotCounted) {
        self.waits += other.waits;
        self.wait_time += other.wait_time;
        self.edges += other.edges;
        self.edge_time += other.edge_time;
        self.links += other.links;
        self.events += other.events;
    }
}

/// Something that is not measured but follows from what is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Estimated {
    /// What.
    pub what: Column,
    /// From what, and how it may be wrong.
    pub how: String,
}

impl fmt::Display for Estimated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} estimated: {}", self.what, self.how)
    }
}

impl Programs {
    /// What to know before reading the figures: a line for each thing that was not seen, not counted, or is estimated.
    pub fn notes(&self) -> Vec<String> {
        let not_counted = self.not_counted.parts().into_iter().map(|(_, count, time, words)| {
            let time = time.filter(|time| *time > Nanos::ZERO);
            let time = time.map_or(String::new(), |time| format!(" ({time} in all)"));
            format!("not counted: {count} {words}{time}")
        });
        let not_seen = self.not_seen.iter().map(ToString::to_string);
        let estimated = self.estimated.iter().map(ToString::to_string);
        not_seen.chain(not_counted).chain(estimated).collect()
    }

    /// Adds what was said of another interval of the same host.
    pub fn add(&mut self, other: &Programs) {
        for not_seen in &other.not_seen {
            if !self.not_seen.contains(not_seen) {
                self.not_seen.push(not_seen.clone());
            }
        }
        self.not_seen.sort();
        self.not_counted += other.not_counted;
        for estimated in &other.estimated {
            if !self.estimated.contains(estimated) {
                self.estimated.push(estimated.clone());
            }
        }
        self.estimated.sort();
        for (vm, latency) in &other.latency {
            *self.latency.entry(*vm).or_default() += *latency;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::State;

    fn programs(event: &str, waits: u64) -> Programs {
        let mut latency = Latency::default();
        (latency.counts[4], latency.time) = (1, Nanos(17));
        Programs {
            not_seen: vec![NotSeen {
                event: event.to_owned(),
                lacks: "pause exits".to_owned(),
                because: "this kernel has none".to_owned(),
            }],
            not_counted: NotCounted {
                waits,
                wait_time: Nanos(waits * 1_000_000),
                ..NotCounted::default()
            },
            estimated: vec![Estimated {
                what: Column::State(State::Costop),
                how: "from wake-ups".to_owned(),
            }],
            latency: BTreeMap::from([(VmId(7), latency)]),
        }
    }

    #[test]
    fn what_was_not_seen_or_counted_is_a_line() {
        let notes = programs("function kvm_vcpu_on_spin", 2).notes();
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert_eq!(
            notes[0],
            "not seen: pause exits (function kvm_vcpu_on_spin): this kernel has none"
        );
        assert!(notes[1].starts_with("not counted: 2 waits for a pCPU"), "{notes:?}");
        assert_eq!(notes[2], "CSTP estimated: from wake-ups");
        assert!(Programs::default().notes().is_empty());
    }

    #[test]
    fn sums_say_each_thing_once_and_do_not_depend_on_order() {
        let (one, two) = (programs("a", 1), programs("b", 2));
        let mut sum = one.clone();
        sum.add(&two);
        sum.add(&one);
        let mut other = two.clone();
        other.add(&one);
        other.add(&one);
        assert_eq!(sum, other);
        assert_eq!((sum.not_seen.len(), sum.estimated.len()), (2, 1));
        assert_eq!(sum.not_counted.waits, 4);
        assert_eq!(sum.latency[&VmId(7)].counts[4], 3);
    }
}
