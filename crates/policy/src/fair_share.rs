//! Fair shares by generalized processor sharing (GPS), with infeasible weights and idle VMs.
//!
//! Source: Rao & Zhou, "Towards Fair and Efficient SMP Virtual Machine Scheduling", PPoPP 2014,
//! section 4.1: S_gps_i = w_i / Σ_j w_j × T × P, where a VM that cannot use its share (because it has
//! too few vCPUs) is fixed at its peak n_i × T, taken out, and the rest is shared anew
//! (water-filling).
//!
//! In one formula: there is a level λ, CPU time per unit of weight, such that each VM is entitled to
//! x_i = min(peak_i, λ w_i) and the entitlements use up the capacity. Two things are added to the
//! paper, because real VMs sleep:
//!
//! - GPS serves a VM only while it is backlogged. A VM that received less than x_i and was backlogged
//!   for a fraction b_i of the period is entitled to b_i × x_i, or to what it received if that is
//!   more, and the rest goes to the others. A VM that never sleeps has b_i = 1.
//! - A VM is never entitled to more than the time its vCPUs could have run.
//!
//! Where b_i is an upper bound (see [`tandem_model::VmObservation::backlogged`]), a VM that sleeps may be entitled to more than GPS gives it,
//! though never to more than x_i nor to more than it could have run. The others pay for that: entitlements fill the capacity,
//! so a larger b_i lowers λ, and with it the x of everybody who is backlogged. Two vCPUs runnable in the *same* half of the
//! time are the worst case: entitled to x_i, where GPS gives x_i ÷ 2
//! (`crate::assess`, test `vcpus_runnable_at_the_same_time_are_said_to_be_due_more_than_gps_at_the_others_cost`).
//!
//! A host's scheduler divides by weights among the children of a cgroup only, level by level, so that is what weights mean
//! ([`fair_shares_by_level`]): a cgroup claims what is in it could use, by its own weight, and its share is divided within.
//! Whatever a tenant sets and starts below the cgroup that he was given divides his share, and nobody else's. A cgroup with a hard cap cannot
//! use more than that leaves, whatever is in it.
//!
//! The level λ is found by bisection: the entitlements are non-decreasing in λ. All times are in
//! nanoseconds within one period.

use std::collections::BTreeMap;

use tandem_model::observation::{Level, under_quota};
use tandem_model::units::{Nanos, Weight};

/// What one VM brings to the division of a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Configured weight w_i; above zero.
    pub weight: Weight,
    /// The most it can use, n_i × T.
    pub peak: Nanos,
    /// What it received, S_i.
    pub received: Nanos,
    /// Sum over its vCPUs of the time each could have run.
    pub could_run: Nanos,
    /// Time in which at least one of its vCPUs could have run, or an upper bound of it ([`tandem_model::observation`]).
    pub backlogged: Nanos,
}

impl Claim {
    /// A VM that wants all it can get, whatever it received: the paper's case.
    pub fn always_runnable(weight: Weight, peak: Nanos, period: Nanos) -> Claim {
        let received = Nanos::ZERO;
        Claim { weight, peak, received, could_run: peak, backlogged: period }
    }

    /// The GPS service at level `lambda` (ns of CPU time per unit of weight).
    fn entitled(&self, lambda: f64, period: Nanos) -> f64 {
        let x = (lambda * self.weight.value()).min(self.peak.0 as f64);
        let received = self.received.0 as f64;
        if received >= x {
            return x;
        }
        let b = self.backlogged.0.min(period.0) as f64 / period.0 as f64;
        (b * x).min(self.could_run.0 as f64).max(received)
    }
}

/// What one VM brings to a division level by level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeveledClaim<'a> {
    /// The cgroups above its own, from the top.
    pub levels: &'a [Level],
    /// Its claim within the lowest of them.
    pub claim: Claim,
}

/// What stands in a level: a VM, or a cgroup with more below.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Member {
    Vm(usize),
    Group(u32),
}

/// Divides `capacity` over `claims`, in their order, level by level; within a level as [`fair_shares`] does.
pub fn fair_shares_by_level(
    capacity: Nanos,
    period: Nanos,
    claims: &[LeveledClaim<'_>],
) -> Vec<Nanos> {
    let mut shares = vec![Nanos::ZERO; claims.len()];
    let all: Vec<usize> = (0..claims.len()).collect();
    divide_level(capacity, period, claims, &all, 0, &mut shares);
    shares
}

/// Divides among those of `claims` that are `here`: all within one cgroup, `depth` levels down.
fn divide_level(
    capacity: Nanos,
    period: Nanos,
    claims: &[LeveledClaim<'_>],
    here: &[usize],
    depth: usize,
    shares: &mut [Nanos],
) {
    let mut members: BTreeMap<Member, (Option<Level>, Vec<usize>)> = BTreeMap::new();
    for &i in here {
        let level = claims[i].levels.get(depth).copied();
        let member = level.map_or(Member::Vm(i), |level| Member::Group(level.group));
        let (_, within) = members.entry(member).or_insert((level, Vec::new()));
        within.push(i);
    }
    // One VM, or what is in a cgroup, as one.
    let own: Vec<Claim> = members
        .values()
        .map(|(level, within)| match level {
            None => claims[within[0]].claim,
            Some(level) => together(level, period, claims, within, depth),
        })
        .collect();
    let mut levels = members.values().map(|(level, _)| *level);
    let divided = match (members.len(), levels.next().flatten()) {
        // A cgroup that has it all shares with nobody.
        (1, Some(Level { quota: None, .. })) => vec![capacity],
        (1, Some(_)) => vec![capacity.min(own[0].peak)],
        _ => fair_shares(capacity, period, &own),
    };
    for ((member, (_, within)), share) in members.into_iter().zip(divided) {
        match member {
            Member::Vm(i) => shares[i] = share,
            Member::Group(_) => divide_level(share, period, claims, &within, depth + 1, shares),
        }
    }
}

/// What is in a cgroup `depth` levels down, as one: it could run while anything in it could, and use what they can use together, at most what
/// its hard cap leaves.
fn together(
    level: &Level,
    period: Nanos,
    claims: &[LeveledClaim<'_>],
    within: &[usize],
    depth: usize,
) -> Claim {
    let mut all = Claim {
        weight: level.weight,
        peak: Nanos::ZERO,
        received: Nanos::ZERO,
        could_run: Nanos::ZERO,
        backlogged: Nanos::ZERO,
    };
    for claim in parts(period, claims, within, depth + 1) {
        all.peak += claim.peak;
        all.received += claim.received;
        // What is beyond its peak it could not be given within.
        all.could_run += claim.could_run.min(claim.peak).max(claim.received);
        all.backlogged = (all.backlogged + claim.backlogged).min(period);
    }
    if level.quota.is_some() {
        all.peak = under_quota(all.peak, level.quota, period, all.received);
        all.could_run = all.could_run.min(all.peak).max(all.received);
    }
    all
}

/// What a cgroup is made of: its VMs; and where there are hard caps further down, each of the cgroups in it as one.
fn parts(period: Nanos, claims: &[LeveledClaim<'_>], within: &[usize], depth: usize) -> Vec<Claim> {
    let below = |i: &usize| claims[*i].levels.iter().skip(depth);
    let is_capped = |i: &usize| below(i).any(|level| level.quota.is_some());
    if !within.iter().any(is_capped) {
        return within.iter().map(|&i| claims[i].claim).collect();
    }
    let mut parts = Vec::new();
    let mut groups: BTreeMap<u32, (Level, Vec<usize>)> = BTreeMap::new();
    for &i in within {
        match claims[i].levels.get(depth) {
            None => parts.push(claims[i].claim),
            Some(level) => {
                let (_, within) = groups.entry(level.group).or_insert((*level, Vec::new()));
                within.push(i);
            }
        }
    }
    let groups = groups.values();
    parts.extend(groups.map(|(level, within)| together(level, period, claims, within, depth)));
    parts
}

/// Divides `capacity` over `claims`, in their order; the shares sum up to `capacity` or, where the
/// claims together cannot use it, to what they can.
pub fn fair_shares(capacity: Nanos, period: Nanos, claims: &[Claim]) -> Vec<Nanos> {
    if period == Nanos::ZERO {
        return vec![Nanos::ZERO; claims.len()];
    }
    let total = |lambda: f64| claims.iter().map(|c| c.entitled(lambda, period)).sum::<f64>();
    let lightest = claims.iter().map(|c| c.weight.value()).fold(f64::INFINITY, f64::min);
    let largest = claims.iter().map(|c| c.peak.0).max().unwrap_or(0) as f64;
    let mut low = 0.0;
    // At this level every claim is at its peak.
    let mut high = if claims.is_empty() { 0.0 } else { largest / lightest };
    let wanted = capacity.0 as f64;
    if total(high) > wanted {
        // Each step halves the interval; 100 of them exhaust the 53 bits of an f64 from any start.
        for _ in 0..100 {
            let middle = low + (high - low) / 2.0;
            if total(middle) > wanted {
                high = middle;
            } else {
                low = middle;
            }
        }
    }
    claims.iter().map(|c| Nanos(c.entitled(high, period).round() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Nanos = Nanos(100_000_000);

    fn burner(weight: f64, vcpus: u64) -> Claim {
        Claim::always_runnable(Weight::constant(weight), Nanos(T.0 * vcpus), T)
    }

    fn shares(pcpus: u64, claims: &[Claim]) -> Vec<f64> {
        fair_shares(Nanos(T.0 * pcpus), T, claims)
            .into_iter()
            .map(|s| (s.0 as f64 / T.0 as f64 * 1e6).round() / 1e6)
            .collect()
    }

    #[test]
    fn spec_10_unfair_host_is_fair_at_two_and_two() {
        assert_eq!(shares(4, &[burner(1024.0, 4), burner(1024.0, 3)]), [2.0, 2.0]);
    }

    #[test]
    fn shares_follow_weights() {
        let claims = [burner(100.0, 4), burner(200.0, 4), burner(300.0, 4)];
        assert_eq!(shares(2, &claims), [0.333333, 0.666667, 1.0]);
    }

    #[test]
    fn an_infeasible_weight_is_fixed_at_its_peak_and_the_rest_is_shared() {
        let claims = [burner(100.0, 2), burner(100.0, 1), burner(600.0, 1)];
        assert_eq!(shares(2, &claims), [0.5, 0.5, 1.0]);
    }

    #[test]
    fn fixing_one_peak_can_make_the_next_weight_infeasible() {
        // 4 pCPUs, weights 8:3:1:1. 8/13 × 4 > 1; then 3/5 × 3 > 1; the last two share 2.
        let claims = [burner(8.0, 1), burner(3.0, 1), burner(1.0, 4), burner(1.0, 4)];
        assert_eq!(shares(4, &claims), [1.0, 1.0, 1.0, 1.0]);
        // 3 pCPUs: 8/13 × 3 > 1 → 1; 3/5 × 2 > 1 → 1; the rest share 1.
        assert_eq!(shares(3, &claims), [1.0, 1.0, 0.5, 0.5]);
    }

    #[test]
    fn everybody_peaks_where_there_is_room() {
        assert_eq!(shares(8, &[burner(1.0, 4), burner(9.0, 2)]), [4.0, 2.0]);
    }

    #[test]
    fn a_sleeper_leaves_its_share_to_the_others() {
        let asleep = Claim {
            received: Nanos::ZERO,
            could_run: Nanos::ZERO,
            backlogged: Nanos::ZERO,
            ..burner(1.0, 2)
        };
        assert_eq!(shares(2, &[asleep, burner(1.0, 2), burner(1.0, 2)]), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn a_vm_that_sleeps_at_times_is_entitled_to_its_rate_while_backlogged() {
        // Two vCPUs backlogged 90 % of the period, served 0.3 of a pCPU: 90 % of the level 20/19.
        let starved = Claim {
            received: Nanos(30_000_000),
            could_run: Nanos(180_000_000),
            backlogged: Nanos(90_000_000),
            ..burner(1.0, 2)
        };
        let shares = shares(2, &[starved, burner(1.0, 2)]);
        assert_eq!(shares, [0.947368, 1.052632]);
    }

    #[test]
    fn a_vm_that_took_less_than_its_share_by_choice_is_satisfied() {
        let bursty = Claim {
            received: Nanos(25_000_000),
            could_run: Nanos(28_000_000),
            backlogged: Nanos(14_000_000),
            ..burner(1.0, 2)
        };
        assert_eq!(shares(2, &[bursty, burner(1.0, 2)]), [0.25, 1.75]);
    }

    fn at<'a>(levels: &'a [Level], claim: Claim) -> LeveledClaim<'a> {
        LeveledClaim { levels, claim }
    }

    fn level(group: u32, weight: f64) -> Level {
        Level { group, weight: Weight::constant(weight), quota: None }
    }

    fn capped(group: u32, weight: f64, quota: f64) -> Level {
        Level { quota: Some(quota), ..level(group, weight) }
    }

    fn by_level(pcpus: u64, claims: &[LeveledClaim<'_>]) -> Vec<f64> {
        let shares = fair_shares_by_level(Nanos(T.0 * pcpus), T, claims);
        shares.into_iter().map(|s| (s.0 as f64 / T.0 as f64 * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn delegated_weights_and_numbers_of_vms_divide_what_the_tenant_has() {
        let (machine, user) = ([level(1, 100.0)], [level(2, 100.0), level(3, 100.0)]);
        let neighbours = [at(&machine, burner(100.0, 2)), at(&machine, burner(100.0, 2))];
        let beside = |tenant: &[LeveledClaim<'_>]| {
            let all: Vec<_> = neighbours.iter().chain(tenant).copied().collect();
            by_level(2, &all)
        };
        let alone = beside(&[at(&user, burner(100.0, 2))]);
        assert_eq!(alone, [0.5, 0.5, 1.0]);
        // He sets his VM's weight to the most, or starts ten of them: his is divided among them, and the neighbours lose nothing.
        assert_eq!(beside(&[at(&user, burner(10_000.0, 2))]), alone);
        let ten = beside(&[at(&user, burner(10_000.0, 2)); 10]);
        assert_eq!(ten[..2], alone[..2]);
        assert_eq!(ten[2..], [0.1; 10]);
        let unequal = beside(&[at(&user, burner(300.0, 2)), at(&user, burner(100.0, 2))]);
        assert_eq!(unequal, [0.5, 0.5, 0.75, 0.25]);
    }

    #[test]
    fn what_a_cgroup_cannot_use_goes_to_the_others() {
        let (a, b) = ([level(1, 100.0)], [level(2, 300.0)]);
        let asleep = Claim {
            received: Nanos::ZERO,
            could_run: Nanos::ZERO,
            backlogged: Nanos::ZERO,
            ..burner(1.0, 2)
        };
        let claims = [at(&a, burner(1.0, 4)), at(&b, asleep), at(&b, burner(1.0, 1))];
        assert_eq!(by_level(4, &claims), [3.0, 0.0, 1.0]);
        // Within its cgroup an idle VM leaves its part to its siblings, not to the neighbours.
        let claims = [at(&a, burner(1.0, 4)), at(&b, asleep), at(&b, burner(1.0, 4))];
        assert_eq!(by_level(4, &claims), [1.0, 0.0, 3.0]);
    }

    #[test]
    fn one_cgroup_for_all_is_as_good_as_none() {
        let above = [level(1, 7.0), level(2, 9.0)];
        let claims = [burner(100.0, 2), burner(100.0, 1), burner(600.0, 1)];
        let leveled: Vec<_> = claims.iter().map(|&claim| at(&above, claim)).collect();
        assert_eq!(by_level(2, &leveled), shares(2, &claims));
        let flat: Vec<_> = claims.iter().map(|&claim| at(&[], claim)).collect();
        assert_eq!(by_level(2, &flat), shares(2, &claims));
        assert!(by_level(2, &[]).is_empty());
    }

    #[test]
    fn a_cgroup_with_a_hard_cap_is_due_no_more_than_that_and_the_others_have_the_rest() {
        let (a, b) = ([capped(1, 100.0, 0.5)], [level(2, 100.0)]);
        let claims = [at(&a, burner(300.0, 2)), at(&a, burner(100.0, 2)), at(&b, burner(100.0, 2))];
        assert_eq!(by_level(2, &claims), [0.375, 0.125, 1.5]);
        // The cap of a cgroup further down, beside one that has none.
        let (a, c) =
            ([level(1, 100.0), capped(3, 100.0, 0.25)], [level(1, 100.0), level(4, 100.0)]);
        let two = [at(&a, burner(100.0, 2)), at(&b, burner(100.0, 2))];
        assert_eq!(by_level(2, &two), [0.25, 1.75]);
        let claims = [two[0], two[1], at(&c, burner(100.0, 2))];
        assert_eq!(by_level(2, &claims), [0.25, 1.0, 0.75]);
        // Alone it has what its cap leaves.
        assert_eq!(by_level(2, &two[..1]), [0.25]);
        // A cap that leaves more than it is due changes nothing.
        let wide = [capped(1, 100.0, 1.5)];
        let claims = [at(&wide, burner(100.0, 2)), at(&b, burner(100.0, 2))];
        assert_eq!(by_level(2, &claims), [1.0, 1.0]);
    }

    #[test]
    fn who_has_nearly_all_that_a_cap_leaves_or_more_has_its_due() {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let left = |received| under_quota(ms(200), Some(0.5), T, ms(received));
        assert_eq!(left(20), ms(50), "the cap");
        assert_eq!(left(46), ms(46), "slices of it are never used");
        assert_eq!(left(80), ms(80), "the cap is another by now");
        assert_eq!(under_quota(ms(30), Some(0.5), T, ms(20)), ms(30));
        assert_eq!(under_quota(ms(200), None, T, ms(20)), ms(200));
    }

    #[test]
    fn nobody_there_means_nothing_to_share() {
        assert_eq!(fair_shares(T, T, &[]), []);
        assert_eq!(fair_shares(T, Nanos::ZERO, &[burner(1.0, 1)]), [Nanos::ZERO]);
    }
}
