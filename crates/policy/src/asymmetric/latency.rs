//! Latency: a vCPU that gets its time too late runs sooner after its next wake-ups.
//!
//! Source: Shan (NJIT 2018), chapter 5. The state of a vCPU at the end of a period decides:
//!
//! - Allocation not used up, and ready: it got its time too late, so it becomes more urgent.
//! - Used up, and idle: it becomes less urgent, down to level 0.
//!   The source raises the latency further. In simulations that cost most of the gain of urgency,
//!   because most vCPUs that matter use up their allocation and sleep in between.
//! - At the highest level, and still too late: it waits for a slow sibling, so the siblings that
//!   wake it become more urgent.
//! - Not used up, and not ready: it gets the time it wants, mostly thanks to its urgency.
//!   It becomes less urgent only after [`CONTENT`] such periods in a row, one level at a time.
//!   The source leaves this case open.
//! - Used up, and ready: unchanged.
//! - Never asleep: it falls by one level per period, down to 0. This rule is ours.
//!   Such a vCPU has no late wake-ups, is always ready, and would drift to the highest level
//!   through noise in its time alone.
//!
//! Urgency is a level; the host maps it to a wake-up granularity, a slice or a temporary weight.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::units::VcpuId;

/// The highest level; 0 is normal.
pub const MAX_LEVEL: u8 = 4;

/// Periods in a row, neither ready nor with its allocation used up, after which a vCPU becomes less urgent.
/// With 8 a VM loses most of the gain of urgency, as it is late again at each lower level before it rises.
pub const CONTENT: u8 = 50;

/// State of a vCPU at the end of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Whether it used up its allocation.
    pub used_up: bool,
    /// Whether it was ready to run.
    pub ready: bool,
    /// Whether it slept at times. A vCPU that never sleeps has no wake-ups.
    pub sleeps: bool,
    /// Its siblings that woke it in the period, if known.
    pub woken_by: Vec<VcpuId>,
}

impl Standing {
    /// Whether it got its time too late.
    pub fn is_late(&self) -> bool {
        self.sleeps && self.ready && !self.used_up
    }
}

/// Urgency of each vCPU of a VM; 0 is normal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Urgencies(BTreeMap<VcpuId, Urgency>);

/// Urgency of one vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Urgency {
    level: u8,
    /// Consecutive periods at this level in which it was content.
    content: u8,
}

impl Urgency {
    fn up(self) -> Urgency {
        Urgency { level: (self.level + 1).min(MAX_LEVEL), content: 0 }
    }

    fn down(self) -> Urgency {
        Urgency { level: self.level.saturating_sub(1), content: 0 }
    }

    fn content(self) -> Urgency {
        let content = self.content + 1;
        if content >= CONTENT { self.down() } else { Urgency { content, ..self } }
    }
}

impl Urgencies {
    /// Returns the level of a vCPU.
    pub fn of(&self, vcpu: VcpuId) -> u8 {
        self.0.get(&vcpu).map_or(0, |urgency| urgency.level)
    }

    /// Updates the levels at the end of a period, by at most one each.
    /// A waker of a late vCPU rises even if it would fall otherwise, unless it never sleeps.
    /// vCPUs missing from `standings` are forgotten.
    pub fn follow(&mut self, standings: &[Standing]) {
        let mut slow: BTreeSet<VcpuId> = BTreeSet::new();
        for standing in standings {
            if standing.is_late() && self.of(standing.vcpu) == MAX_LEVEL {
                slow.extend(&standing.woken_by);
            }
        }
        let next = |standing: &Standing| {
            let now = self.0.get(&standing.vcpu).copied().unwrap_or_default();
            match (standing.used_up, standing.ready) {
                _ if !standing.sleeps => now.down(),
                _ if slow.contains(&standing.vcpu) => now.up(),
                (false, true) => now.up(),
                (true, false) => now.down(),
                (false, false) => now.content(),
                (true, true) => Urgency { content: 0, ..now },
            }
        };
        self.0 = standings.iter().map(|standing| (standing.vcpu, next(standing))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(vcpu: u32, used_up: bool, ready: bool) -> Standing {
        Standing { vcpu: VcpuId(vcpu), used_up, ready, sleeps: true, woken_by: Vec::new() }
    }

    fn levels(urgencies: &Urgencies, vcpus: u32) -> Vec<u8> {
        (0..vcpus).map(|v| urgencies.of(VcpuId(v))).collect()
    }

    #[test]
    fn late_vcpus_rise_and_satisfied_ones_fall() {
        let mut urgencies = Urgencies::default();
        urgencies.follow(&[
            standing(0, false, true),
            standing(1, true, false),
            standing(2, true, true),
            standing(3, false, false),
        ]);
        assert_eq!(levels(&urgencies, 4), [1, 0, 0, 0]);
        for _ in 0..9 {
            urgencies.follow(&[standing(0, false, true), standing(1, false, true)]);
        }
        urgencies.follow(&[standing(0, false, true), standing(1, true, false)]);
        assert_eq!(levels(&urgencies, 4), [MAX_LEVEL, MAX_LEVEL - 1, 0, 0]);
    }

    #[test]
    fn content_vcpu_becomes_less_urgent_eventually() {
        let mut urgencies = Urgencies::default();
        let late = standing(0, false, true);
        let content = standing(0, false, false);
        for _ in 0..MAX_LEVEL {
            urgencies.follow(std::slice::from_ref(&late));
        }
        for level in (0..MAX_LEVEL).rev() {
            for _ in 1..CONTENT {
                urgencies.follow(std::slice::from_ref(&content));
                assert_eq!(levels(&urgencies, 1), [level + 1]);
            }
            urgencies.follow(std::slice::from_ref(&content));
            assert_eq!(levels(&urgencies, 1), [level]);
        }
        // Late now and then, it stays urgent.
        for _ in 0..2 * MAX_LEVEL {
            urgencies.follow(std::slice::from_ref(&late));
            for _ in 1..CONTENT {
                urgencies.follow(std::slice::from_ref(&content));
            }
        }
        assert_eq!(levels(&urgencies, 1), [MAX_LEVEL]);
    }

    #[test]
    fn always_runnable_vcpu_is_not_urgent() {
        let mut urgencies = Urgencies::default();
        urgencies.follow(&[standing(0, false, true)]);
        let awake = Standing { sleeps: false, ..standing(0, false, true) };
        for _ in 0..3 {
            urgencies.follow(std::slice::from_ref(&awake));
            assert_eq!(levels(&urgencies, 1), [0]);
        }
    }

    #[test]
    fn wakers_of_most_urgent_vcpu_rise() {
        let mut urgencies = Urgencies::default();
        let late = Standing { woken_by: vec![VcpuId(1)], ..standing(0, false, true) };
        for period in 0..8u8 {
            // The waker uses up its time and goes idle, which alone would lower its level.
            urgencies.follow(&[late.clone(), standing(1, true, false)]);
            assert_eq!(urgencies.of(VcpuId(1)), period.saturating_sub(MAX_LEVEL - 1));
        }
        assert_eq!(levels(&urgencies, 2), [MAX_LEVEL, 4]);
    }
}
