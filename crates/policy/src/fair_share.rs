//! Fair shares by generalized processor sharing (GPS), with infeasible weights and idle VMs.
//!
//! Source: Rao & Zhou, "Towards Fair and Efficient SMP Virtual Machine Scheduling", PPoPP 2014,
//! section 4.1: S_gps_i = w_i / Σ_j w_j × T × P.
//! A VM that cannot use its share, because it has too few vCPUs, is fixed at its peak n_i × T and removed.
//! The rest is shared again (water-filling).
//!
//! In one formula: at a level λ, CPU time per unit of weight, each VM is entitled to x_i =
//! min(peak_i, λ w_i), and the entitlements use up the capacity.
//! Two rules are added to the paper, because real VMs sleep:
//!
//! - GPS serves a VM only while it is backlogged.
//!   A VM that received less than x_i and was backlogged for a fraction b_i of the period is
//!   entitled to b_i × x_i, or to the time it received if that is more. The rest goes to the others.
//!   A VM that never sleeps has b_i = 1.
//! - A VM is never entitled to more than the time its vCPUs could have run.
//!
//! If b_i is an upper bound (see [`tandem_model::VmObservation::backlogged`]), a VM that sleeps may
//! be entitled to more than GPS gives it, but never to more than x_i or the time it could have run.
//! The others pay for it: entitlements fill the capacity, so a larger b_i lowers λ, and with it x
//! of every backlogged VM.
//! The worst case is two vCPUs that are runnable in the *same* half of the time.
//! They are entitled to x_i, whereas GPS gives x_i ÷ 2 (`crate::assess`, test `concurrent_vcpus_get_more_than_gps`).
//!
//! The kernel applies weights only among the children of one cgroup, level by level.
//! [`fair_shares_by_level`] does the same: a cgroup claims the time that its VMs could use, by
//! its own weight, and its share is divided among them.
//! The settings and VMs of a tenant below the tenant's cgroup divide only that cgroup's share.
//! A cgroup with a hard cap cannot claim more than the cap.
//!
//! The level λ is found by bisection: the entitlements are non-decreasing in λ. All times are in
//! nanoseconds within one period.

use std::collections::BTreeMap;

use tandem_model::observation::{Level, under_quota};
use tandem_model::units::{Nanos, Weight};

/// Claim of one VM in the division of a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Configured weight w_i; above zero.
    pub weight: Weight,
    /// Maximum time it can use, n_i × T.
    pub peak: Nanos,
    /// Time it received, S_i.
    pub received: Nanos,
    /// Sum over its vCPUs of the time each could have run.
    pub could_run: Nanos,
    /// Time in which at least one of its vCPUs could have run, or an upper bound of it ([`tandem_model::observation`]).
    pub backlogged: Nanos,
}

impl Claim {
    /// The claim of a VM that is always runnable, whatever it received: the paper's case.
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

/// Claim of one VM in a division level by level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeveledClaim<'a> {
    /// The cgroups above its own, from the top.
    pub levels: &'a [Level],
    /// Its claim within the lowest of them.
    pub claim: Claim,
}

/// A member of a level: a VM, or a cgroup with VMs below.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Member {
    Vm(usize),
    Group(u32),
}

/// Divides `capacity` over `claims`, in their order, level by level; within a level like [`fair_shares`].
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

/// Divides among the claims `here`, which share one cgroup `depth` levels down.
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
    // One claim per VM and per cgroup.
    let own: Vec<Claim> = members
        .values()
        .map(|(level, within)| match level {
            None => claims[within[0]].claim,
            Some(level) => together(level, period, claims, within, depth),
        })
        .collect();
    let mut levels = members.values().map(|(level, _)| *level);
    let divided = match (members.len(), levels.next().flatten()) {
        // A cgroup without siblings gets all of the capacity.
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

/// Combines the claims within a cgroup, `depth` levels down, into one.
/// Its times are the sums of its members' times; the backlog is at most the period, the peak at most the hard cap.
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
        // A member cannot use more than its peak.
        all.could_run += claim.could_run.min(claim.peak).max(claim.received);
        all.backlogged = (all.backlogged + claim.backlogged).min(period);
    }
    if level.quota.is_some() {
        all.peak = under_quota(all.peak, level.quota, period, all.received);
        all.could_run = all.could_run.min(all.peak).max(all.received);
    }
    all
}

/// Returns the claims within a cgroup: its VMs, or its VMs and child cgroups if there are hard caps further down.
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

/// Divides `capacity` over `claims`, in their order.
/// The shares add up to `capacity`, or to the time that all claims can use if that is less.
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
    fn spec_10_equal_vms_get_two_pcpus_each() {
        assert_eq!(shares(4, &[burner(1024.0, 4), burner(1024.0, 3)]), [2.0, 2.0]);
    }

    #[test]
    fn shares_follow_weights() {
        let claims = [burner(100.0, 4), burner(200.0, 4), burner(300.0, 4)];
        assert_eq!(shares(2, &claims), [0.333333, 0.666667, 1.0]);
    }

    #[test]
    fn infeasible_weight_is_fixed_at_peak() {
        let claims = [burner(100.0, 2), burner(100.0, 1), burner(600.0, 1)];
        assert_eq!(shares(2, &claims), [0.5, 0.5, 1.0]);
    }

    #[test]
    fn fixed_peak_makes_next_weight_infeasible() {
        // 4 pCPUs, weights 8:3:1:1. 8/13 × 4 > 1; then 3/5 × 3 > 1; the last two share 2.
        let claims = [burner(8.0, 1), burner(3.0, 1), burner(1.0, 4), burner(1.0, 4)];
        assert_eq!(shares(4, &claims), [1.0, 1.0, 1.0, 1.0]);
        // 3 pCPUs: 8/13 × 3 > 1 → 1; 3/5 × 2 > 1 → 1; the rest share 1.
        assert_eq!(shares(3, &claims), [1.0, 1.0, 0.5, 0.5]);
    }

    #[test]
    fn all_claims_peak_with_spare_capacity() {
        assert_eq!(shares(8, &[burner(1.0, 4), burner(9.0, 2)]), [4.0, 2.0]);
    }

    #[test]
    fn sleeping_vm_leaves_its_share() {
        let asleep = Claim {
            received: Nanos::ZERO,
            could_run: Nanos::ZERO,
            backlogged: Nanos::ZERO,
            ..burner(1.0, 2)
        };
        assert_eq!(shares(2, &[asleep, burner(1.0, 2), burner(1.0, 2)]), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn partly_backlogged_vm_gets_its_rate() {
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
    fn vm_below_share_by_choice_is_satisfied() {
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
    fn tenant_weights_divide_only_its_share() {
        let (machine, user) = ([level(1, 100.0)], [level(2, 100.0), level(3, 100.0)]);
        let neighbours = [at(&machine, burner(100.0, 2)), at(&machine, burner(100.0, 2))];
        let with_neighbours = |tenant: &[LeveledClaim<'_>]| {
            let all: Vec<_> = neighbours.iter().chain(tenant).copied().collect();
            by_level(2, &all)
        };
        let alone = with_neighbours(&[at(&user, burner(100.0, 2))]);
        assert_eq!(alone, [0.5, 0.5, 1.0]);
        // A tenant with the maximum weight, or with ten VMs, divides its own share; the neighbours lose nothing.
        assert_eq!(with_neighbours(&[at(&user, burner(10_000.0, 2))]), alone);
        let ten = with_neighbours(&[at(&user, burner(10_000.0, 2)); 10]);
        assert_eq!(ten[..2], alone[..2]);
        assert_eq!(ten[2..], [0.1; 10]);
        let unequal = with_neighbours(&[at(&user, burner(300.0, 2)), at(&user, burner(100.0, 2))]);
        assert_eq!(unequal, [0.5, 0.5, 0.75, 0.25]);
    }

    #[test]
    fn unused_cgroup_share_goes_to_others() {
        let (a, b) = ([level(1, 100.0)], [level(2, 300.0)]);
        let asleep = Claim {
            received: Nanos::ZERO,
            could_run: Nanos::ZERO,
            backlogged: Nanos::ZERO,
            ..burner(1.0, 2)
        };
        let claims = [at(&a, burner(1.0, 4)), at(&b, asleep), at(&b, burner(1.0, 1))];
        assert_eq!(by_level(4, &claims), [3.0, 0.0, 1.0]);
        // Within its cgroup an idle VM leaves its share to its siblings, not to the neighbours.
        let claims = [at(&a, burner(1.0, 4)), at(&b, asleep), at(&b, burner(1.0, 4))];
        assert_eq!(by_level(4, &claims), [1.0, 0.0, 3.0]);
    }

    #[test]
    fn single_common_cgroup_changes_nothing() {
        let above = [level(1, 7.0), level(2, 9.0)];
        let claims = [burner(100.0, 2), burner(100.0, 1), burner(600.0, 1)];
        let leveled: Vec<_> = claims.iter().map(|&claim| at(&above, claim)).collect();
        assert_eq!(by_level(2, &leveled), shares(2, &claims));
        let flat: Vec<_> = claims.iter().map(|&claim| at(&[], claim)).collect();
        assert_eq!(by_level(2, &flat), shares(2, &claims));
        assert!(by_level(2, &[]).is_empty());
    }

    #[test]
    fn hard_cap_limits_cgroup_share() {
        let (a, b) = ([capped(1, 100.0, 0.5)], [level(2, 100.0)]);
        let claims = [at(&a, burner(300.0, 2)), at(&a, burner(100.0, 2)), at(&b, burner(100.0, 2))];
        assert_eq!(by_level(2, &claims), [0.375, 0.125, 1.5]);
        // The cap of a nested cgroup, next to one without a cap.
        let (a, c) =
            ([level(1, 100.0), capped(3, 100.0, 0.25)], [level(1, 100.0), level(4, 100.0)]);
        let two = [at(&a, burner(100.0, 2)), at(&b, burner(100.0, 2))];
        assert_eq!(by_level(2, &two), [0.25, 1.75]);
        let claims = [two[0], two[1], at(&c, burner(100.0, 2))];
        assert_eq!(by_level(2, &claims), [0.25, 1.0, 0.75]);
        // Alone, it gets its cap.
        assert_eq!(by_level(2, &two[..1]), [0.25]);
        // A cap above the fair share changes nothing.
        let wide = [capped(1, 100.0, 1.5)];
        let claims = [at(&wide, burner(100.0, 2)), at(&b, burner(100.0, 2))];
        assert_eq!(by_level(2, &claims), [1.0, 1.0]);
    }

    #[test]
    fn usage_near_cap_counts_as_satisfied() {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let left = |received| under_quota(ms(200), Some(0.5), T, ms(received));
        assert_eq!(left(20), ms(50), "the cap");
        assert_eq!(left(46), ms(46), "slices of it are never used");
        assert_eq!(left(80), ms(80), "the cap is another by now");
        assert_eq!(under_quota(ms(30), Some(0.5), T, ms(20)), ms(30));
        assert_eq!(under_quota(ms(200), None, T, ms(20)), ms(200));
    }

    #[test]
    fn empty_claims_or_period_share_nothing() {
        assert_eq!(fair_shares(T, T, &[]), []);
        assert_eq!(fair_shares(T, Nanos::ZERO, &[burner(1.0, 1)]), [Nanos::ZERO]);
    }
}
