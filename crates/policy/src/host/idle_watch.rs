//! Whether a period needs a decision.
//!
//! FlexW leaves the weights as configured while a group's pCPUs have idle time (the paper calls
//! it work conserving). So after a period in which no group was used up, vCPU times need not be
//! read again until some pCPU comes near its limit. Each pCPU's idle time shows that in one read
//! for the whole host. For status and metrics a decision is made every few periods anyway.
//!
//! A live host reports idle time in steps of a clock tick of 10 ms (`/proc/stat`), so "near its
//! limit" is [`ENOUGH_IDLE`], twice the fraction that FlexW counts as none.

use super::observation::IdleTimes;
use tandem_model::units::Nanos;

/// Fraction of a period for which every pCPU must have been idle if the period is to need no decision.
pub const ENOUGH_IDLE: f64 = 0.10;

/// Maximum number of periods in a row without a decision.
pub const MAX_PAUSE: u32 = 4;

/// Each pCPU's idle time now, a period ago, and at the last decision.
#[derive(Clone, Debug)]
pub struct IdleWatch {
    now: (Nanos, IdleTimes),
    before: (Nanos, IdleTimes),
    decided: (Nanos, IdleTimes),
    /// Periods in a row without a decision.
    paused: u32,
}

impl IdleWatch {
    /// Creates a watch. `idle` is each pCPU's idle time since boot, read at the time `at`.
    pub fn new(idle: IdleTimes, at: Nanos) -> IdleWatch {
        IdleWatch {
            now: (at, idle.clone()),
            before: (at, idle.clone()),
            decided: (at, idle),
            paused: 0,
        }
    }

    /// Records the end of a period.
    pub fn look(&mut self, idle: IdleTimes, at: Nanos) {
        self.before = std::mem::replace(&mut self.now, (at, idle));
    }

    /// Whether some pCPU was near its limit in the period, or the last decision is long ago.
    /// If no decision is due, the period counts as paused.
    pub fn is_decision_due(&mut self) -> bool {
        let (elapsed, idle) = difference(&self.before, &self.now);
        let enough = elapsed.0 as f64 * ENOUGH_IDLE;
        let is_quiet = !idle.is_empty() && idle.values().all(|idle| idle.0 as f64 >= enough);
        let is_due = !is_quiet || self.paused >= MAX_PAUSE;
        self.paused += u32::from(!is_due);
        is_due
    }

    /// Returns the time since the last decision and each pCPU's idle time in it; the next one counts from now.
    pub fn since_decision(&mut self) -> (Nanos, IdleTimes) {
        let since = difference(&self.decided, &self.now);
        self.decided.clone_from(&self.now);
        self.paused = 0;
        since
    }
}

/// Difference of two readings. A pCPU that came online in between counts as busy.
fn difference(then: &(Nanos, IdleTimes), now: &(Nanos, IdleTimes)) -> (Nanos, IdleTimes) {
    let elapsed = now.0.saturating_sub(then.0);
    let idle = now.1.iter().map(|(&pcpu, &idle)| {
        let before = then.1.get(&pcpu).copied().unwrap_or(idle);
        (pcpu, idle.saturating_sub(before))
    });
    (elapsed, idle.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::units::PcpuId;

    /// Two pCPUs, read every 100 ms.
    struct TwoPcpus {
        watch: IdleWatch,
        at: Nanos,
        idle: [u64; 2],
    }

    impl TwoPcpus {
        fn new() -> TwoPcpus {
            let at = Nanos::from_secs(1);
            TwoPcpus { watch: IdleWatch::new(map([0, 0]), at), at, idle: [0, 0] }
        }

        fn period(&mut self, idle_ms: [u64; 2]) -> bool {
            self.at += Nanos::from_millis(100);
            for (sum, idle) in self.idle.iter_mut().zip(idle_ms) {
                *sum += idle;
            }
            self.watch.look(map(self.idle), self.at);
            self.watch.is_decision_due()
        }
    }

    fn map(idle_ms: [u64; 2]) -> IdleTimes {
        (0..2).map(|n| (PcpuId(n), Nanos(idle_ms[n as usize] * 1_000_000))).collect()
    }

    #[test]
    fn busy_pcpu_needs_a_decision() {
        let mut world = TwoPcpus::new();
        assert!(!world.period([100, 10]), "both have enough idle time");
        assert!(world.period([100, 0]));
        assert!(world.period([0, 100]));
    }

    #[test]
    fn quiet_host_gets_periodic_decisions() {
        let mut world = TwoPcpus::new();
        let mut due = Vec::new();
        for period in 1..=15 {
            if world.period([50, 50]) {
                let (elapsed, idle) = world.watch.since_decision();
                assert_eq!(elapsed, Nanos(500_000_000), "all periods since the last");
                assert_eq!(idle[&PcpuId(0)], Nanos(250_000_000));
                due.push(period);
            }
        }
        assert_eq!(due, [5, 10, 15]);
    }

    #[test]
    fn missing_idle_times_need_a_decision() {
        let at = Nanos::from_secs(1);
        let mut watch = IdleWatch::new(IdleTimes::new(), at);
        watch.look(IdleTimes::new(), at + Nanos::from_millis(100));
        assert!(watch.is_decision_due());
    }
}
