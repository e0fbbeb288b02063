//! Decisions of the policy `asymmetric` in a dry run: demand and fair share of each vCPU, and the VMs left alone with the reason.
//!
//! The figures differ in every period.
//! They are logged if the set of vCPUs that want more changes, or the reason, at most once a second per VM.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_model::{Nanos, VcpuId, VmId};
use tandem_policy::asymmetric::report::LeftAlone;
use tandem_policy::flexw::{Round, VcpuDemand};

/// Minimum interval between log lines of a VM.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of vCPUs in a line; those that want more come first.
const SHOWN: usize = 8;

/// The part of a line whose change triggers a new one: the vCPUs that want more, and the reason to leave the VM alone.
type Kind = (Vec<VcpuId>, Option<LeftAlone>);

/// The lines logged by a dry run.
#[derive(Clone, Debug, Default)]
pub(crate) struct SaidDemands(BTreeMap<VmId, (Instant, Kind)>);

impl SaidDemands {
    /// Returns the lines to log for a round: the VM, and the text after its name.
    pub(crate) fn news(
        &mut self,
        now: Instant,
        period: Nanos,
        round: &Round,
    ) -> Vec<(VmId, String)> {
        let mut vms: Vec<VmId> = round.vcpus.keys().copied().collect();
        vms.extend(round.left_alone.keys());
        vms.sort_unstable();
        vms.dedup();
        let mut news = Vec::new();
        for vm in vms {
            let demands = round.vcpus.get(&vm).map_or(&[][..], Vec::as_slice);
            let left = round.left_alone.get(&vm).copied();
            let kind = (
                demands
                    .iter()
                    .filter(|demand| demand.wants_more)
                    .map(|demand| demand.vcpu)
                    .collect(),
                left,
            );
            let is_news = match self.0.get(&vm) {
                Some((at, said)) => *said != kind && now.duration_since(*at) >= LOG_INTERVAL,
                None => true,
            };
            if is_news {
                self.0.insert(vm, (now, kind));
                news.push((vm, describe(period, demands, left)));
            }
        }
        news
    }

    /// Removes VMs that have ended.
    pub(crate) fn retain(&mut self, is_there: impl Fn(VmId) -> bool) {
        self.0.retain(|vm, _| is_there(*vm));
    }
}

fn describe(period: Nanos, demands: &[VcpuDemand], left: Option<LeftAlone>) -> String {
    let pcpus = |time: Nanos| time.0 as f64 / period.0.max(1) as f64;
    let figures = |demand: &VcpuDemand| {
        let urgency = match demand.urgency {
            0 => String::new(),
            level => format!(", urgency {level}"),
        };
        format!(
            "vCPU {} ran {:.2}, wants {:.2}, is due {:.2}{urgency}",
            demand.vcpu,
            pcpus(demand.ran),
            pcpus(demand.demand),
            pcpus(demand.allocation)
        )
    };
    let mut ordered: Vec<&VcpuDemand> = demands.iter().collect();
    ordered.sort_by_key(|demand| (!demand.wants_more, demand.vcpu));
    let mut parts: Vec<String> = ordered.iter().take(SHOWN).map(|demand| figures(demand)).collect();
    if ordered.len() > SHOWN {
        parts.push(format!("and {} more", ordered.len() - SHOWN));
    }
    let left = left.map(|why| format!("is left as it is by asymmetric: {why}"));
    let parts = (!parts.is_empty()).then(|| format!("in pCPUs of its time: {}", parts.join("; ")));
    let said: Vec<String> = left.into_iter().chain(parts).collect();
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(100);

    fn demand(vcpu: u32, ran: u64, demand: u64, allocation: u64) -> VcpuDemand {
        VcpuDemand {
            vcpu: VcpuId(vcpu),
            ran: Nanos::from_millis(ran),
            demand: Nanos::from_millis(demand),
            allocation: Nanos::from_millis(allocation),
            urgency: 0,
            wants_more: demand > ran,
        }
    }

    fn round(demands: Vec<VcpuDemand>, left: Option<LeftAlone>) -> Round {
        let mut round = Round::default();
        if !demands.is_empty() {
            round.vcpus.insert(VmId(1), demands);
        }
        round.left_alone.extend(left.map(|why| (VmId(1), why)));
        round
    }

    fn said(round: &Round) -> String {
        let mut news = SaidDemands::default().news(Instant::now(), PERIOD, round);
        assert_eq!(news.len(), 1);
        news.remove(0).1
    }

    #[test]
    fn vcpu_demands_are_logged_with_figures() {
        let mut short = demand(1, 50, 55, 70);
        short.urgency = 2;
        let line = said(&round(vec![demand(0, 20, 20, 30), short], None));
        assert_eq!(
            line,
            "in pCPUs of its time: vCPU 1 ran 0.50, wants 0.55, is due 0.70, urgency 2; vCPU 0 ran 0.20, wants 0.20, is due 0.30"
        );
        let many = (0..11).map(|n| demand(n, 10, 10, 10)).collect();
        assert!(said(&round(many, None)).ends_with("; and 3 more"));
    }

    #[test]
    fn vm_left_alone_is_logged_with_reason() {
        let line = said(&round(Vec::new(), Some(LeftAlone::OneVcpu)));
        assert_eq!(line, "is left as it is by asymmetric: it has one vCPU");
        let calm = vec![demand(0, 20, 20, 50), demand(1, 10, 10, 50)];
        let line = said(&round(calm, Some(LeftAlone::NoneShort)));
        assert!(line.contains("wants more; in pCPUs of its time: vCPU 0 ran 0.20"), "{line}");
    }

    #[test]
    fn changed_demands_are_logged_once_a_second() {
        let (mut said, begin) = (SaidDemands::default(), Instant::now());
        let mut count = |ms, first: u64, second: u64| {
            let demands = vec![demand(0, 40, first, 50), demand(1, 40, second, 50)];
            let at = begin + Duration::from_millis(ms);
            said.news(at, PERIOD, &round(demands, None)).len()
        };
        assert_eq!(count(0, 44, 40), 1);
        assert_eq!(count(100, 48, 40), 0, "other figures");
        assert_eq!(count(200, 40, 44), 0, "too soon");
        assert_eq!(count(1200, 40, 44), 1);
        assert_eq!(count(9000, 40, 46), 0);
        said.retain(|_| false);
        assert!(said.0.is_empty());
    }
}
