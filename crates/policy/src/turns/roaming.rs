//! Members that roam: without a fixed seat, because fixed ones would be too tight.
//!
//! Two VMs that share a seat leave each other half of it, whatever is free elsewhere: of three VMs of one vCPU beside one of two, each due
//! half a pCPU of two, two would have three quarters of a pCPU between them, and the third as much alone. In rows B C, B D, C D, and A
//! alone, all have their due. So a VM of one vCPU that may run on several pCPUs gets its seat with each row ([`super::rotor`]). One of more
//! vCPUs does not roam: what it has in caches is more, and its vCPUs would move together.

use super::Member;
use super::rotation::Candidate;
use super::rotation::most_demand;
use super::rotation::scale;
use super::seats::Demand;
use crate::pcpu_set::PcpuSet;

/// Nobody roams over more pCPUs than this: the daemon's journal has a line for each.
const MOST_PCPUS: usize = 16;

/// These members with all of them roaming that can; `None` if nobody can.
pub(super) fn roam(members: &[Member], candidates: &[&Candidate]) -> Option<Vec<Member>> {
    let mut members = members.to_vec();
    for member in &mut members {
        let candidate = candidates.iter().find(|c| c.vm == member.vm)?;
        member.due = candidate.due / member.pcpus().len().max(1) as f64;
        member.roams = match candidate.vcpus.as_slice() {
            [(_, pcpus)] if (2..=MOST_PCPUS).contains(&pcpus.len()) => Some(pcpus.clone()),
            _ => None,
        };
    }
    if members.iter().all(|member| member.roams.is_none()) {
        return None;
    }
    let most = most_demand(&members);
    scale(&mut members, most.min(1.0));
    Some(members)
}

/// Adds what members that roam are due to the demand of those that do not, as evenly as it goes: who has the least choice first, each where
/// least is spoken for yet. Exact where of two sets that overlap one is in the other; else the most in demand may come out too high, and
/// the parts of the rows too low, alike for all.
pub(super) fn add_roaming<'a>(demand: &mut Demand, members: impl Iterator<Item = &'a Member>) {
    let mut roaming: Vec<(&PcpuSet, f64)> = members
        .filter_map(|member| Some((member.roams.as_ref()?, member.due)))
        .collect();
    roaming.sort_by_key(|(pcpus, _)| pcpus.len());
    for (pcpus, due) in roaming {
        fill(demand, pcpus, due);
    }
}

/// Spreads an amount over pCPUs so that the lowest rise to one level.
fn fill(demand: &mut Demand, pcpus: &PcpuSet, amount: f64) {
    let mut levels: Vec<f64> = pcpus
        .iter()
        .map(|pcpu| demand.get(&pcpu).copied().unwrap_or(0.0))
        .collect();
    levels.sort_by(f64::total_cmp);
    let mut below = amount;
    let mut level = 0.0;
    for (count, height) in (1u32..).zip(&levels) {
        if count > 1 && level <= *height {
            break;
        }
        below += height;
        level = below / f64::from(count);
    }
    for pcpu in pcpus.iter() {
        let height = demand.entry(pcpu).or_default();
        *height = height.max(level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PcpuId;

    fn filled(levels: &[f64], list: &str, amount: f64) -> Vec<f64> {
        let mut demand: Demand = (0u32..).map(PcpuId).zip(levels.iter().copied()).collect();
        fill(&mut demand, &list.parse().unwrap(), amount);
        demand.into_values().collect()
    }

    #[test]
    fn the_lowest_rise_to_one_level() {
        assert_eq!(filled(&[0.25, 0.25], "0-1", 0.5), [0.5, 0.5]);
        assert_eq!(filled(&[0.0, 0.5], "0-1", 0.25), [0.25, 0.5]);
        assert_eq!(filled(&[0.0, 0.5, 1.0], "0-2", 1.0), [0.75, 0.75, 1.0]);
        assert_eq!(filled(&[0.0, 0.5, 0.0], "0-1", 0.5), [0.5, 0.5, 0.0]);
        assert_eq!(filled(&[0.5, 0.0], "1", 0.5), [0.5, 0.5]);
    }
}
