//! The changes that a dry run logged, so that each is logged once, not once per period.
//!
//! A dry run changes nothing, so its policies decide the same in every period.
//! A change is logged if the last logged one of the same VM or vCPU and knob had another displayed value or kind of reason.
//! The figures of a reason always differ and do not count.
//! The changes of a VM and knob are logged at most once a second: all of one period, then none.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use tandem_model::{Because, Decision, Knob, VcpuId, VmId};

/// Minimum interval between log lines of a VM's knob.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A change without the figures of its reason.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    value: String,
    because: Discriminant<Because>,
}

/// Logged changes of a VM's knob.
#[derive(Clone, Debug)]
struct Said {
    at: Instant,
    /// The last change of the VM itself, and of each vCPU.
    last: BTreeMap<Option<VcpuId>, Change>,
}

/// The logged changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct SaidChanges {
    by_knob: BTreeMap<(VmId, Knob), Said>,
}

impl SaidChanges {
    /// Returns the decisions of a period to log, and marks them as logged.
    pub(crate) fn news<'a>(
        &mut self,
        now: Instant,
        decisions: &'a [Decision],
    ) -> impl Iterator<Item = &'a Decision> {
        decisions.iter().filter(move |decision| self.is_news(now, decision))
    }

    fn is_news(&mut self, now: Instant, decision: &Decision) -> bool {
        let said = self
            .by_knob
            .entry((decision.vm(), decision.knob()))
            .or_insert_with(|| Said { at: now, last: BTreeMap::new() });
        let change = Change { value: value(decision), because: discriminant(decision.because()) };
        let vcpu = decision.vcpu();
        if said.last.get(&vcpu) == Some(&change) || (said.at != now && now - said.at < LOG_INTERVAL)
        {
            return false;
        }
        said.at = now;
        said.last.insert(vcpu, change);
        true
    }

    /// Removes VMs that have ended.
    pub(crate) fn retain(&mut self, is_there: impl Fn(VmId) -> bool) {
        self.by_knob.retain(|(vm, _), _| is_there(*vm));
    }
}

/// Returns the new value, as displayed.
fn value(decision: &Decision) -> String {
    match decision {
        Decision::SetWeight { weight, .. } => weight.to_string(),
        Decision::SetIdle { idle, .. } => idle.to_string(),
        Decision::SetNice { nice, .. } => nice.to_string(),
        Decision::SetSlice { slice, .. } => {
            slice.map_or_else(String::new, |slice| slice.to_string())
        }
        Decision::Divide { portions, .. } => {
            let portions = portions.iter();
            let portions = portions.map(|(vcpu, portion)| format!("{vcpu}: {portion:.2}"));
            portions.collect::<Vec<_>>().join(", ")
        }
        Decision::SetAffinity { pcpus, .. } => pcpus.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tandem_model::{PcpuId, PcpuSet, Target, Weight};

    use super::*;

    fn weight(vm: u64, weight: f64, because: Because) -> Decision {
        Decision::SetWeight {
            target: Target::Vm(VmId(vm)),
            weight: Weight::saturating(weight),
            because,
        }
    }

    fn lag(lag: f64) -> Because {
        Because::Lag { lag, fair: 1.0, received: 1.0 - lag }
    }

    fn moved(vcpu: u32, pcpu: u32) -> Decision {
        Decision::SetAffinity {
            vm: VmId(1),
            vcpu: VcpuId(vcpu),
            pcpus: PcpuSet::from_iter([PcpuId(pcpu)]),
            because: Because::Seat,
        }
    }

    /// Returns the number of logged decisions of a period, `ms` after the first period.
    fn count(said: &mut SaidChanges, begin: Instant, ms: u64, decisions: &[Decision]) -> usize {
        said.news(begin + Duration::from_millis(ms), decisions).count()
    }

    #[test]
    fn same_change_is_logged_once() {
        let (mut said, begin) = (SaidChanges::default(), Instant::now());
        let mut count = |ms, decisions: &[Decision]| count(&mut said, begin, ms, decisions);
        assert_eq!(count(0, &[weight(1, 2048.0, lag(0.5))]), 1);
        for ms in (100..5000).step_by(100) {
            assert_eq!(count(ms, &[weight(1, 2048.0, lag(1.0 / ms as f64))]), 0);
        }
        assert_eq!(count(5000, &[weight(1, 2048.0, Because::KeepSum)]), 1);
        assert_eq!(count(5100, &[weight(2, 2048.0, Because::KeepSum)]), 1);
    }

    #[test]
    fn other_values_are_logged_once_a_second() {
        let (mut said, begin) = (SaidChanges::default(), Instant::now());
        let mut lines = 0;
        for period in 0..40 {
            let decision = weight(1, 1000.0 + period as f64, lag(0.1));
            lines += count(&mut said, begin, period * 100, &[decision]);
        }
        assert_eq!(lines, 4);
    }

    #[test]
    fn all_vcpus_of_a_period_are_logged() {
        let (mut said, begin) = (SaidChanges::default(), Instant::now());
        let mut count = |ms, decisions: &[Decision]| count(&mut said, begin, ms, decisions);
        assert_eq!(count(0, &[moved(0, 0), moved(1, 1)]), 2);
        assert_eq!(count(100, &[moved(0, 1), moved(1, 0)]), 0);
        assert_eq!(count(1000, &[moved(0, 1), moved(1, 1)]), 1);
    }

    #[test]
    fn entries_of_ended_vms_are_removed() {
        let (mut said, begin) = (SaidChanges::default(), Instant::now());
        let decision = [weight(1, 2048.0, Because::KeepSum)];
        assert_eq!(count(&mut said, begin, 0, &decision), 1);
        said.retain(|vm| vm != VmId(1));
        assert_eq!(count(&mut said, begin, 100, &decision), 1);
    }
}
