//! Waits of a VM's vCPUs for a pCPU: the mean wait per run over about the last second.
//!
//! Source: fields 2 and 3 of schedstat: time waited, and runs begun.
//! Their differences are summed per VM at each observation, and marked at each publication of the status.
//! The mean covers the time since the newest mark that is `OVER` old.
//! A wait counts when it ends.
//! While the daemon does not observe (all pCPUs have time to spare), nothing is counted; the next observation includes it.
//! A VM whose vCPUs did not run has no mean.

use std::collections::VecDeque;

use tandem_linux::sampler::VcpuSample;
use tandem_model::Nanos;

/// Time that the mean covers.
const OVER: Nanos = Nanos::from_secs(1);

/// Total of waits and runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Total {
    waited: Nanos,
    runs: u64,
}

/// The waits of a VM.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    total: Total,
    /// Time of each mark and its total; the oldest first.
    marks: VecDeque<(Nanos, Total)>,
}

impl Waits {
    /// Adds the difference between two samples of a vCPU; nothing without an earlier one.
    pub fn count(&mut self, last: Option<VcpuSample>, now: VcpuSample) {
        if let Some(last) = last {
            self.total.waited += now.waited.saturating_sub(last.waited);
            self.total.runs += now.runs.saturating_sub(last.runs);
        }
    }

    /// Marks the time, and returns the mean wait per run since about a second ago, or since the first mark.
    pub fn mark(&mut self, now: Nanos) -> Option<Nanos> {
        while let Some((second, _)) = self.marks.get(1)
            && now.saturating_sub(*second) >= OVER
        {
            self.marks.pop_front();
        }
        let then = self.marks.front().map(|(_, total)| *total);
        self.marks.push_back((now, self.total));
        let then = then?;
        mean(
            self.total.waited.saturating_sub(then.waited),
            self.total.runs.saturating_sub(then.runs),
        )
    }
}

/// Mean wait per run; `None` without runs.
pub fn mean(waited: Nanos, runs: u64) -> Option<Nanos> {
    waited.0.checked_div(runs).map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(waited_ms: u64, runs: u64) -> VcpuSample {
        VcpuSample { waited: Nanos::from_millis(waited_ms), runs, ..VcpuSample::default() }
    }

    #[test]
    fn mean_covers_last_second_of_all_vcpus() {
        let at = Nanos::from_millis;
        let mut waits = Waits::default();
        waits.count(None, sample(500, 3));
        assert_eq!(waits.mark(at(0)), None);
        waits.count(Some(sample(500, 3)), sample(520, 5));
        waits.count(Some(sample(0, 0)), sample(40, 10));
        assert_eq!(waits.mark(at(500)), Some(at(5)));
        waits.count(Some(sample(520, 5)), sample(530, 6));
        assert_eq!(waits.mark(at(1500)), Some(at(10)), "older runs do not count");
        assert_eq!(waits.mark(at(2000)), Some(at(10)));
        assert_eq!(waits.mark(at(2500)), None, "it did not run");
    }

    #[test]
    fn a_run_without_a_wait_counts() {
        assert_eq!(mean(Nanos::ZERO, 3), Some(Nanos::ZERO));
        assert_eq!(mean(Nanos(9), 0), None);
    }

    #[test]
    fn marks_do_not_pile_up() {
        let mut waits = Waits::default();
        for mark in 0..10_000 {
            waits.mark(Nanos::from_millis(mark * 100));
        }
        assert!(waits.marks.len() <= 12, "{}", waits.marks.len());
    }
}
