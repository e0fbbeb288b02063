//! Information of BPF programs in addition to times and edges: missing events and counts, estimates, and wake-up latencies.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::column::Column;
use super::latency::Latency;
use crate::units::{Nanos, VmId};

/// Information of BPF programs about an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// Unavailable events.
    pub not_seen: Vec<NotSeen>,
    /// Occurrences that could not be counted.
    pub not_counted: NotCounted,
    /// Estimated parts.
    pub estimated: Vec<Estimated>,
    /// Wake-up latencies of the vCPUs of each measured VM.
    pub latency: BTreeMap<VmId, Latency>,
}

/// An unavailable event, and the information that is missing without it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotSeen {
    /// The tracepoint or function.
    pub event: String,
    /// Missing information.
    pub lacks: String,
    /// Reason for its absence.
    pub because: String,
}

impl fmt::Display for NotSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not seen: {} ({})", self.lacks, self.event)?;
        if self.because.is_empty() { Ok(()) } else { write!(f, ": {}", self.because) }
    }
}

/// Occurrences that exceeded the programs' tables or were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCounted {
    /// Waits without a culprit, as too many vCPUs waited for one pCPU.
    pub waits: u64,
    /// Time of those waits that ended.
    pub wait_time: Nanos,
    /// Parts of waits without a culprit, due to too many pairs of victim and culprit.
    pub edges: u64,
    /// Sum of these parts.
    pub edge_time: Nanos,
    /// Wake-ups, interrupts and yields that could not be counted, due to too many pairs of vCPUs.
    pub links: u64,
    /// Events that programs missed: they handled another event on the same pCPU, or the kernel did not report it (such as a switch to a task).
    pub events: u64,
}

impl NotCounted {
    /// Returns the nonzero counters: name, count, time, and description.
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
                "parts of waits, as there are too many pairs of victim and culprit",
            ),
            (
                "links",
                self.links,
                None,
                "wake-ups, interrupts and yields, as there are too many pairs of vCPUs",
            ),
            (
                "events",
                self.events,
                None,
                "events that the kernel did not report, or that occurred while a program handled another",
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

/// A part that is derived from measured ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Estimated {
    /// The part.
    pub what: Column,
    /// Method and possible errors.
    pub how: String,
}

impl fmt::Display for Estimated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} estimated: {}", self.what, self.how)
    }
}

impl Programs {
    /// Returns caveats, one line for each unavailable event, uncounted occurrence and estimate.
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

    /// Adds the information of another interval of the same host.
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
    fn notes_have_a_line_per_caveat() {
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
    fn sums_deduplicate_and_ignore_order() {
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
