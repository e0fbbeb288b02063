//! Demand of members for each pCPU.

use super::Member;
use super::seats::Demand;
use tandem_model::pcpu_set::PcpuSet;

/// Adds a share `due` to the demand for each of these pCPUs.
pub(super) fn add(demand: &mut Demand, pcpus: &PcpuSet, due: f64) {
    for pcpu in pcpus.iter() {
        *demand.entry(pcpu).or_default() += due;
    }
}

/// Demand for the most demanded pCPU.
pub(super) fn max_demand(members: &[Member]) -> f64 {
    let mut demand = Demand::new();
    for member in members.iter().filter(|member| member.roams.is_none()) {
        add(&mut demand, &member.pcpus(), member.due);
    }
    add_roaming(&mut demand, members.iter());
    demand.values().copied().fold(f64::MIN_POSITIVE, f64::max)
}

/// Divides the members' shares by `by`, each to at most all rows.
pub(super) fn scale(members: &mut [Member], by: f64) {
    for member in members {
        member.due = (member.due / by).min(1.0);
    }
}

/// Adds the demand of roaming members to that of the others, as evenly as possible.
/// Members with the fewest pCPUs come first, each on its least demanded pCPUs.
/// Exact if of two overlapping sets one contains the other.
/// Otherwise the maximum may come out too high, and the shares of the rows too low, by the same factor for all.
fn add_roaming<'a>(demand: &mut Demand, members: impl Iterator<Item = &'a Member>) {
    let mut roaming: Vec<(&PcpuSet, f64)> =
        members.filter_map(|member| Some((member.roams.as_ref()?, member.due))).collect();
    roaming.sort_by_key(|(pcpus, _)| pcpus.len());
    for (pcpus, due) in roaming {
        fill(demand, pcpus, due);
    }
}

/// Spreads an amount over pCPUs so that the lowest rise to one level.
fn fill(demand: &mut Demand, pcpus: &PcpuSet, amount: f64) {
    let mut levels: Vec<f64> =
        pcpus.iter().map(|pcpu| demand.get(&pcpu).copied().unwrap_or(0.0)).collect();
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
    use tandem_model::units::PcpuId;

    fn filled(levels: &[f64], list: &str, amount: f64) -> Vec<f64> {
        let mut demand: Demand = (0u32..).map(PcpuId).zip(levels.iter().copied()).collect();
        fill(&mut demand, &list.parse().unwrap(), amount);
        demand.into_values().collect()
    }

    #[test]
    fn lowest_levels_rise_together() {
        assert_eq!(filled(&[0.25, 0.25], "0-1", 0.5), [0.5, 0.5]);
        assert_eq!(filled(&[0.0, 0.5], "0-1", 0.25), [0.25, 0.5]);
        assert_eq!(filled(&[0.0, 0.5, 1.0], "0-2", 1.0), [0.75, 0.75, 1.0]);
        assert_eq!(filled(&[0.0, 0.5, 0.0], "0-1", 0.5), [0.5, 0.5, 0.0]);
        assert_eq!(filled(&[0.5, 0.0], "1", 0.5), [0.5, 0.5]);
    }
}
