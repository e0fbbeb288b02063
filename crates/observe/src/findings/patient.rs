//! A VM under diagnosis.

use tandem_model::states::interval::VmInterval;
use tandem_model::{Nanos, VcpuTimes, VmId};

use super::finding::{Cure, Finding, Kind, Severity, ratio};
use super::situation::{KnownVm, Situation};

/// A VM in the interval with its configuration.
pub(super) struct Patient<'a> {
    /// Its measurements.
    pub vm: &'a VmInterval,
    /// Its configuration.
    pub known: &'a KnownVm,
    /// The total times of its vCPUs.
    pub times: VcpuTimes,
}

impl Patient<'_> {
    /// Returns the VM's id.
    pub fn id(&self) -> VmId {
        self.vm.vm
    }

    /// Returns a time relative to the vCPUs' wall time.
    pub fn part(&self, time: Nanos) -> f64 {
        ratio(time, self.times.wall())
    }

    /// Builds a finding that cost the VM `lost` in the interval.
    pub fn finding(
        &self,
        situation: &Situation<'_>,
        kind: Kind,
        severity: Severity,
        lost: Nanos,
        evidence: Vec<String>,
        cure: Cure,
    ) -> Finding {
        let ran: Nanos = self.vm.vcpus.iter().map(|vcpu| vcpu.ran).sum();
        let length = situation.interval.length.0.max(1);
        let per_second = u128::from(lost.0) * 1_000_000_000 / u128::from(length);
        Finding {
            vm: self.known.name.clone(),
            pid: self.known.pid,
            id: self.id(),
            kind,
            severity,
            lost_per_second: Nanos(u64::try_from(per_second).unwrap_or(u64::MAX)),
            lost_of_run: (ran > Nanos::ZERO).then(|| ratio(lost, ran)),
            burned_per_second: None,
            evidence,
            cure,
        }
    }

    /// Builds a finding that cost the VM nothing, but wasted `burned` of the host's time in the interval.
    pub fn burner(
        &self,
        situation: &Situation<'_>,
        kind: Kind,
        burned: Nanos,
        evidence: Vec<String>,
        cure: Cure,
    ) -> Finding {
        let finding = self.finding(situation, kind, Severity::Notice, burned, evidence, cure);
        Finding {
            burned_per_second: Some(finding.lost_per_second),
            lost_per_second: Nanos::ZERO,
            lost_of_run: None,
            ..finding
        }
    }
}
