//! Latency: a vCPU that gets its time too late is to run sooner after it wakes.
//!
//! Source: Shan (NJIT 2018), chapter 5. By how a vCPU stands at the end of a period:
//!
//! - its allocation not used up, and ready: it got its time too late, so it becomes more urgent;
//! - used up, and idle: less urgent, down to as any other. The source raises its latency beyond that; in simulations that cost most of what
//!   urgency gained, as vCPUs that use what they are allocated and sleep in between are most of those that matter;
//! - as urgent as can be, and still too late: it waits for a slow sibling, so the senders of its wake-ups become more urgent;
//! - not used up, and not ready: it gets what it wants. Mostly that is what its urgency does for it, so it becomes less urgent only after
//!   [`CONTENT`] such periods on end, one level at a time. The source leaves this case open;
//! - used up, and ready: as it was; one that never sleeps goes back to 0. The source does not say this, but such a vCPU has no wake-up to
//!   be late for, is always ready, and would drift to the most urgent by the noise of its time alone.
//!
//! Urgency is a level; what it means is up to the host: a wake-up granularity, a slice, a weight for a while.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::units::VcpuId;

/// The most urgent; 0 is as any.
pub const MOST: u8 = 4;

/// A vCPU that was neither ready nor had used up its allocation for so many periods on end is less urgent. With 8 of them instead a VM
/// loses most of what urgency gives it, as it is late again at each lower level before it rises.
pub const CONTENT: u8 = 50;

/// How a vCPU stands at the end of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub vcpu: VcpuId,
    /// Whether it used up its allocation.
    pub used_up: bool,
    /// Whether it was ready to run.
    pub ready: bool,
    /// Whether it slept at times. One that never does has nothing to wake for.
    pub sleeps: bool,
    /// Its siblings that woke it in the period, where that is known.
    pub woken_by: Vec<VcpuId>,
}

impl Standing {
    /// Whether it got its time too late.
    pub fn is_late(&self) -> bool {
        self.sleeps && self.ready && !self.used_up
    }
}

/// How urgent each vCPU of a VM is; 0: as any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Urgencies(BTreeMap<VcpuId, Urgency>);

/// How urgent a vCPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Urgency {
    level: u8,
    /// For how many periods on end it has been content, since it last became less urgent for that.
    content: u8,
}

impl Urgency {
    fn up(self) -> Urgency {
        Urgency { level: (self.level + 1).min(MOST), content: 0 }
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
    /// Of a vCPU.
    pub fn of(&self, vcpu: VcpuId) -> u8 {
        self.0.get(&vcpu).map_or(0, |urgency| urgency.level)
    }

    /// Takes in the end of a period. A vCPU moves by one level at most, up if anything asks for that. Those that are not in
    /// `standings` are forgotten.
    pub fn follow(&mut self, standings: &[Standing]) {
        let mut slow: BTreeSet<VcpuId> = BTreeSet::new();
        for standing in standings {
            if standing.is_late() && self.of(standing.vcpu) == MOST {
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
    fn who_comes_too_late_becomes_urgent_and_who_had_its_time_less_so() {
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
        assert_eq!(levels(&urgencies, 4), [MOST, MOST - 1, 0, 0]);
    }

    #[test]
    fn who_gets_what_it_wants_is_less_urgent_in_the_end() {
        let mut urgencies = Urgencies::default();
        let late = standing(0, false, true);
        let content = standing(0, false, false);
        for _ in 0..MOST {
            urgencies.follow(std::slice::from_ref(&late));
        }
        for level in (0..MOST).rev() {
            for _ in 1..CONTENT {
                urgencies.follow(std::slice::from_ref(&content));
                assert_eq!(levels(&urgencies, 1), [level + 1]);
            }
            urgencies.follow(std::slice::from_ref(&content));
            assert_eq!(levels(&urgencies, 1), [level]);
        }
        // Late once in a while, it stays urgent.
        for _ in 0..2 * MOST {
            urgencies.follow(std::slice::from_ref(&late));
            for _ in 1..CONTENT {
                urgencies.follow(std::slice::from_ref(&content));
            }
        }
        assert_eq!(levels(&urgencies, 1), [MOST]);
    }

    #[test]
    fn who_never_sleeps_is_not_urgent() {
        let mut urgencies = Urgencies::default();
        urgencies.follow(&[standing(0, false, true)]);
        let awake = Standing { sleeps: false, ..standing(0, false, true) };
        for _ in 0..3 {
            urgencies.follow(std::slice::from_ref(&awake));
            assert_eq!(levels(&urgencies, 1), [0]);
        }
    }

    #[test]
    fn at_the_most_its_wakers_become_urgent_instead() {
        let mut urgencies = Urgencies::default();
        let late = Standing { woken_by: vec![VcpuId(1)], ..standing(0, false, true) };
        for period in 0..8u8 {
            // The waker uses up its time and goes idle, which alone would make it less urgent.
            urgencies.follow(&[late.clone(), standing(1, true, false)]);
            assert_eq!(urgencies.of(VcpuId(1)), period.saturating_sub(MOST - 1));
        }
        assert_eq!(levels(&urgencies, 2), [MOST, 4]);
    }
}
