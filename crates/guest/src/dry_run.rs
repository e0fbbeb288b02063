//! Decisions of the controller's rules without trials, for a dry run.
//!
//! A [`Controller`] takes one step at a time, holds each for some periods and keeps it only if it gained something.
//! A dry run sets nothing, so there is no effect to judge and no step to wait for.
//! It queries both rules directly instead:
//!
//! - consolidation afresh in each period, as if its conditions had held for long enough: the next step from all vCPUs;
//! - retention with one [`Retention`] for the whole run, because it detects stolen time over several periods.
//!   It reports [`Because::Rule`], never a verdict of a trial.
//!
//! A live agent may decide differently: it reverts useless steps, and may use fewer vCPUs than the first step leaves.
//!
//! [`Controller`]: tandem_policy::gleaner::Controller

use tandem_model::Nanos;
use tandem_policy::gleaner::controller::Because;
use tandem_policy::gleaner::{
    Averages, Consolidation, ControllerConfig, Decision, Observation, Retention, consolidation,
};

/// Both rules, without trials.
#[derive(Debug)]
pub struct Preview {
    settings: ControllerConfig,
    vcpus: u32,
    retention: Retention,
}

impl Preview {
    /// Starts with all of `vcpus` vCPUs and without retention.
    pub fn new(vcpus: u32, mut settings: ControllerConfig) -> Preview {
        settings.consolidation.confirm = 1;
        Preview { retention: Retention::new(settings.retention.clone()), vcpus, settings }
    }

    /// Decides at the end of a period.
    pub fn decide(&mut self, observed: &Observation) -> Decision {
        let (active, consolidation) = self.consolidation(observed);
        let (retention_time, retention) = if self.settings.retain {
            let choice = self.retention.decide(observed);
            (choice.time, Because::Rule(choice.because))
        } else {
            (Nanos::ZERO, Because::Off)
        };
        Decision { active, consolidation, retention_time, retention }
    }

    fn consolidation(&self, observed: &Observation) -> (u32, Option<consolidation::Because>) {
        if !self.settings.consolidate {
            return (self.vcpus, None);
        }
        if Averages::of(observed).utilization < self.settings.retention.least_work {
            return (self.vcpus, Some(consolidation::Because::Asleep));
        }
        let mut rule = Consolidation::new(self.vcpus, self.settings.consolidation.clone());
        let choice = rule.decide(observed);
        (choice.active, Some(choice.because))
    }
}

#[cfg(test)]
mod tests {
    use tandem_policy::gleaner::{VcpuPeriod, retention};

    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(100);

    /// Two vCPUs with these fractions of busy and stolen time and this number of idle periods.
    fn seen(busy: f64, stolen: f64, idle_periods: u64) -> Observation {
        let part = |part: f64| Nanos((PERIOD.0 as f64 * part) as u64);
        let vcpu = VcpuPeriod {
            work: part(busy),
            idle: part(1.0 - busy - stolen),
            idle_periods,
            stolen: part(stolen),
        };
        Observation {
            period: PERIOD,
            vcpus: vec![vcpu; 2],
            switches: 4 * idle_periods,
            ..Observation::default()
        }
    }

    fn preview(change: impl FnOnce(&mut ControllerConfig)) -> Preview {
        let mut settings = ControllerConfig::default();
        settings.retention.round_trip = Nanos(60_000);
        change(&mut settings);
        Preview::new(2, settings)
    }

    #[test]
    fn short_idle_times_get_retention() {
        // Idle for 60 us at a time: the measured round trip, doubled once, covers two of them.
        let mut preview = preview(|_| {});
        for period in 0..5 {
            let decision = preview.decide(&seen(0.4, 0.0, 1000));
            assert_eq!(decision.retention_time, Nanos(120_000), "{period}");
            assert!(
                matches!(decision.retention, Because::Rule(retention::Because::Short { .. })),
                "{decision:?}"
            );
            // The decision repeats, as the one before was not applied.
            assert_eq!(decision.active, 1);
            assert_eq!(decision.consolidation, Some(consolidation::Because::Fits));
        }
    }

    #[test]
    fn long_idle_times_and_sleep_get_none() {
        let mut preview = preview(|_| {});
        let long = preview.decide(&seen(0.4, 0.0, 5));
        assert_eq!(long.retention_time, Nanos::ZERO);
        assert!(matches!(long.retention, Because::Rule(retention::Because::Long { .. })));
        let asleep = preview.decide(&seen(0.01, 0.0, 1000));
        assert_eq!((asleep.retention_time, asleep.active), (Nanos::ZERO, 2));
        assert_eq!(asleep.consolidation, Some(consolidation::Because::Asleep));
    }

    #[test]
    fn steal_is_detected_over_several_periods() {
        let mut preview = preview(|_| {});
        let first = preview.decide(&seen(0.3, 0.3, 1000));
        assert!(first.retention_time > Nanos::ZERO, "{first:?}");
        let mut last = first;
        for _ in 0..10 {
            last = preview.decide(&seen(0.3, 0.3, 1000));
        }
        assert_eq!(last.retention_time, Nanos::ZERO);
        assert!(matches!(last.retention, Because::Rule(retention::Because::Stolen { .. })));
    }

    #[test]
    fn held_settings_are_not_decided() {
        let mut preview = preview(|settings| {
            settings.consolidate = false;
            settings.retain = false;
        });
        let decision = preview.decide(&seen(0.4, 0.0, 1000));
        assert_eq!((decision.active, decision.retention_time), (2, Nanos::ZERO));
        assert_eq!((decision.consolidation, decision.retention), (None, Because::Off));
    }
}
