//! Measured times of the host's work for a timer that wakes a vCPU; they vary with caches and other activity.

use serde::Serialize;

use super::Costs;
use crate::random::Stream;

/// Times in ns; one is drawn for each timer that wakes a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TimerSteals {
    /// Times on a busy pCPU; empty: [`Costs::timer_steal`].
    pub busy: Vec<u64>,
    /// Times on an idle pCPU, with the idle exit beyond [`Costs::idle_pcpu_wake`]; empty: [`Costs::timer_steal`].
    pub idle: Vec<u64>,
}

impl TimerSteals {
    /// Whether there are no measurements.
    pub fn is_empty(&self) -> bool {
        self.busy.is_empty() && self.idle.is_empty()
    }

    /// Draws a time in ns.
    pub(crate) fn draw(&self, is_idle: bool, costs: &Costs, random: &mut Stream) -> u64 {
        let times = if is_idle { &self.idle } else { &self.busy };
        if times.is_empty() {
            return costs.timer_steal;
        }
        let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
        times[random.below(count) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_per_pcpu_state() {
        let steals = TimerSteals { busy: vec![1, 2, 4], idle: vec![8] };
        let (costs, mut random) = (Costs::default(), Stream::new(1, "steals", 0));
        let mut seen = [0; 9];
        for _ in 0..3_000 {
            seen[steals.draw(false, &costs, &mut random) as usize] += 1;
        }
        for time in [1, 2, 4] {
            assert!((900..1_100).contains(&seen[time]), "{seen:?}");
        }
        assert_eq!(steals.draw(true, &costs, &mut random), 8);
    }

    #[test]
    fn table_cost_applies_without_measurements() {
        let costs = Costs { timer_steal: 7, ..Costs::default() };
        let mut random = Stream::new(1, "steals", 0);
        assert_eq!(TimerSteals::default().draw(true, &costs, &mut random), 7);
    }
}
