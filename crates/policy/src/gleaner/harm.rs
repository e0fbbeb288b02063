//! Memory of harmful changes: a change is not repeated with the same workload until a rest is over.
//!
//! Without it, a workload that changes for a moment and changes back would be harmed again at once.
//! So would one that seems to change because the vCPUs that a step had removed have just come back.
//! Rests are counted in periods and double each time that the same workload is harmed.

use std::collections::VecDeque;

use super::Averages;

/// Maximum number of workloads remembered; beyond it, the one harmed the longest ago is forgotten.
const REMEMBERED: usize = 4;
/// Maximum number of times that a rest doubles.
const MAX_DOUBLINGS: u32 = 5;
/// Maximum difference in utilization of a vCPU within the same workload, absolute.
const SAME_UTILIZATION: f64 = 0.2;
/// Maximum factor between grains within the same workload.
const SAME_GRAIN: f64 = 2.0;

/// A change that did harm.
#[derive(Clone, Debug, PartialEq)]
struct Harm {
    /// vCPUs that the workload had.
    active: u32,
    /// Averages with them.
    before: Averages,
    /// Number of vCPUs removed; fewer may do no harm.
    length: u32,
    /// Periods until it may be tried again.
    rest: u32,
    /// Number of times it did harm.
    times: u32,
}

impl Harm {
    fn is_of(&self, active: u32, now: &Averages) -> bool {
        let before = &self.before;
        let moved = (now.utilization - before.utilization).abs() > SAME_UTILIZATION;
        let is_finer = now.grain * SAME_GRAIN < before.grain;
        let is_coarser = now.grain > SAME_GRAIN * before.grain;
        self.active == active && !moved && !is_finer && !is_coarser
    }
}

/// Recent harms.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Harms(VecDeque<Harm>);

impl Harms {
    /// Counts down the rests after a period.
    pub(super) fn rest(&mut self) {
        for harm in &mut self.0 {
            harm.rest = harm.rest.saturating_sub(1);
        }
    }

    /// Records that removing `length` vCPUs, one or more, did harm. For other changes `length` is constant.
    /// Returns the rest in periods: `rest` the first time.
    pub(super) fn add(&mut self, active: u32, before: &Averages, length: u32, rest: u32) -> u32 {
        let is_same = |harm: &Harm| harm.length == length && harm.is_of(active, before);
        let known = self.0.iter().position(is_same);
        let times = known.and_then(|at| self.0.remove(at)).map_or(0, |harm| harm.times);
        let rest = rest.saturating_mul(1 << times.min(MAX_DOUBLINGS));
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Harm { active, before: *before, length, rest, times: times + 1 });
        rest
    }

    /// Returns how many of the `wanted` vCPUs may be removed: halved until it is less than what
    /// did harm to this workload. Zero: none.
    pub(super) fn allowed(&self, active: u32, now: &Averages, wanted: u32) -> u32 {
        let resting = self.0.iter().filter(|harm| harm.rest > 0);
        let harmed = resting.filter(|harm| harm.is_of(active, now));
        let shortest = harmed.map(|harm| harm.length).min().unwrap_or(u32::MAX);
        let mut allowed = wanted;
        while allowed >= shortest {
            allowed /= 2;
        }
        allowed
    }

    /// Forgets the harms of a workload that has gained.
    pub(super) fn forget(&mut self, active: u32, before: &Averages) {
        self.0.retain(|harm| !harm.is_of(active, before));
    }

    /// Whether any harm rests.
    pub(super) fn is_any(&self) -> bool {
        self.0.iter().any(|harm| harm.rest > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Observation, VcpuPeriod};
    use super::*;
    use tandem_model::units::Nanos;

    /// A vCPU that is busy for `ms` of 100 ms, with these switches.
    fn busy(ms: u64, switches: u64) -> Averages {
        Averages::of(&Observation {
            period: Nanos::from_millis(100),
            vcpus: vec![VcpuPeriod { work: Nanos::from_millis(ms), ..VcpuPeriod::default() }],
            switches,
            ..Observation::default()
        })
    }

    #[test]
    fn harmful_change_rests_longer_each_time() {
        let (mut harms, workload) = (Harms::default(), busy(40, 100));
        for wanted in [5, 10, 20, 40, 80, 160, 160] {
            assert_eq!(harms.add(2, &workload, 1, 5), wanted);
            for left in (0..wanted).rev() {
                assert_eq!(harms.allowed(2, &workload, 1), 0, "{left} left");
                harms.rest();
            }
            assert_eq!(harms.allowed(2, &workload, 1), 1);
            assert!(!harms.is_any());
        }
        harms.forget(2, &workload);
        assert_eq!(harms.add(2, &workload, 1, 5), 5, "it did good meanwhile");
    }

    #[test]
    fn other_workloads_and_shorter_steps_are_allowed() {
        let mut harms = Harms::default();
        harms.add(8, &busy(40, 100), 4, 10);
        assert_eq!(harms.allowed(8, &busy(45, 90), 4), 2);
        assert_eq!(harms.allowed(8, &busy(40, 100), 1), 1);
        for other in [busy(65, 160), busy(40, 300), busy(40, 10)] {
            assert_eq!(harms.allowed(8, &other, 4), 4);
        }
        assert_eq!(harms.allowed(4, &busy(40, 100), 4), 4, "other vCPUs");
        harms.add(8, &busy(40, 100), 1, 10);
        assert_eq!(harms.allowed(8, &busy(40, 100), 4), 0);
    }

    #[test]
    fn oldest_harm_is_forgotten() {
        let mut harms = Harms::default();
        let workload = |at: usize| busy(40, 10 * 5u64.pow(at as u32));
        for at in 0..=REMEMBERED {
            harms.add(2, &workload(at), 1, 10);
        }
        let allowed = (0..=REMEMBERED).map(|at| harms.allowed(2, &workload(at), 1));
        assert_eq!(allowed.collect::<Vec<u32>>(), [1, 0, 0, 0, 0]);
    }
}
