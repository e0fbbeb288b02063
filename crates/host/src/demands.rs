//! Decisions of the policy `asymmetric` in a dry run: demand and fair share of each vCPU, and the VMs left alone with the reason.
//!
//! The figures differ in every period.
//! The daemon logs them if the set of vCPUs that want more changes, or the reason.

use std::collections::BTreeSet;

use tandem_model::{Nanos, VcpuId, VmId};
use tandem_policy::asymmetric::report::LeftAlone;
use tandem_policy::flexw::{Round, VcpuDemand};

/// Maximum number of vCPUs in a line; those that want more come first.
const SHOWN: usize = 8;

/// The part of a line whose change triggers a new one: the vCPUs that want more, and the reason to leave the VM alone.
pub(crate) type Kind = (Vec<VcpuId>, Option<LeftAlone>);

/// Returns the lines of a round: the VM, the kind of line, and the text after the VM's name.
pub(crate) fn lines(period: Nanos, round: &Round) -> impl Iterator<Item = (VmId, Kind, String)> {
    let vms: BTreeSet<VmId> = round.vcpus.keys().chain(round.left_alone.keys()).copied().collect();
    vms.into_iter().map(move |vm| {
        let demands = round.vcpus.get(&vm).map_or(&[][..], Vec::as_slice);
        let left = round.left_alone.get(&vm).copied();
        let short = demands.iter().filter(|demand| demand.wants_more);
        let kind = (short.map(|demand| demand.vcpu).collect(), left);
        (vm, kind, describe(period, demands, left))
    })
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
        let mut lines = lines(PERIOD, round);
        let (_, _, line) = lines.next().unwrap();
        assert!(lines.next().is_none());
        line
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
    fn figures_do_not_change_the_kind() {
        let kind = |first: u64, second: u64| {
            let demands = vec![demand(0, 40, first, 50), demand(1, 40, second, 50)];
            lines(PERIOD, &round(demands, None)).next().map(|(_, kind, _)| kind)
        };
        assert_eq!(kind(44, 40), kind(48, 40));
        assert_ne!(kind(44, 40), kind(40, 44));
    }
}
