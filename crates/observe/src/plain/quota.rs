//! LIM: the throttled part of the time that vCPUs were runnable without running.
//!
//! The kernel counts throttled time for each cgroup with a quota, and counts a throttled thread as waiting. So the throttled time of a cgroup
//! is subtracted from the waits of its threads, in proportion to these, at most all of them. These threads are vCPUs and the VM's
//! other threads. Other processes in the cgroup are unknown here, and their throttled time counts as the VM's. Cgroups are
//! processed from the deepest upwards (libvirt has one per vCPU, below the VM's), because a quota above applies to the rest only.
//!
//! The kernel adds throttled time when throttling ends, as with a wait. A pending wait that
//! fills the interval counts all the same. Its throttled part is the part of the quota's periods that began throttled, which the kernel
//! counts at once. This advance is subtracted from the cgroup's figure when the kernel adds it. If the period of a quota is longer than the
//! interval, the interval may have no period; such a wait is RDY.
//!
//! A cgroup's figure is a sum over pCPUs: a pCPU on which two vCPUs of a VM were throttled at the same time counts once. Then LIM is
//! too small, and RDY too large, by the wait of one of them.
//!
//! Reading a cgroup's figures makes the kernel sum up its descendants. So only cgroups with a quota are read, and
//! the quota is checked again after [`REREAD`] intervals.

use std::collections::BTreeMap;

use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Throttled};
use tandem_linux::procfs::is_gone;
use tandem_model::Nanos;

/// Number of intervals after which a cgroup's quota is read again.
pub(super) const REREAD: u64 = 16;

/// State of a cgroup's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quota {
    /// The cgroup has none.
    None,
    /// It has one, with these figures so far.
    Limits(Throttled),
    /// The files cannot be read.
    Unreadable,
}

#[derive(Debug)]
struct Known {
    quota: Quota,
    /// Interval of the next reading.
    due: u64,
    /// LIM that was reported before the kernel counted it.
    advance: Nanos,
    /// The last interval with a thread below the cgroup.
    seen: u64,
}

/// Effect of a quota in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Throttled time and periods.
    Throttled(Throttled),
    /// Unknown.
    Unreadable,
}

/// A wait of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait<'a> {
    pub(super) cgroup: &'a CgroupPath,
    pub(super) time: Nanos,
    /// Whether the wait ended and was counted by the kernel; else it fills the interval and continues.
    pub(super) is_over: bool,
}

/// The quotas of cgroups, with their figures so far.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    known: BTreeMap<CgroupPath, Known>,
    rounds: u64,
}

impl Quotas {
    /// Returns the effects of the quotas of `leaves` and their ancestors since the last call, without zero effects.
    /// A cgroup or quota that is new has no result.
    pub(super) fn read<'a>(
        &mut self,
        controller: &dyn CpuController,
        leaves: impl Iterator<Item = &'a CgroupPath>,
    ) -> BTreeMap<CgroupPath, Limit> {
        self.rounds += 1;
        let mut limits = BTreeMap::new();
        for leaf in leaves {
            let mut at = leaf.clone();
            while !at.is_root() {
                if self.known.get(&at).is_some_and(|known| known.seen == self.rounds) {
                    break;
                }
                if let Some(limit) = self.read_one(controller, &at) {
                    limits.insert(at.clone(), limit);
                }
                match at.parent() {
                    Some(parent) => at = parent,
                    None => break,
                }
            }
        }
        self.known.retain(|_, known| known.seen == self.rounds);
        limits
    }

    fn read_one(&mut self, controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<Limit> {
        let rounds = self.rounds;
        // Readings are spread over intervals.
        let first = rounds + REREAD - self.known.len() as u64 % REREAD;
        let mut next = rounds + REREAD;
        let known = self.known.entry(cgroup.clone()).or_insert_with(|| {
            next = first;
            Known { quota: Quota::None, due: rounds, advance: Nanos::ZERO, seen: rounds }
        });
        known.seen = rounds;
        let before = known.quota;
        if rounds >= known.due {
            known.due = next;
            known.quota = match has_quota(controller, cgroup) {
                Ok(true) => Quota::Limits(Throttled::default()),
                Ok(false) => Quota::None,
                Err(_) => Quota::Unreadable,
            };
        }
        if known.quota == Quota::None {
            return None;
        }
        let now = match controller.throttled(cgroup) {
            Ok(Some(now)) => now,
            // The quota or the cgroup was removed.
            Ok(None) | Err(CgroupError::Gone(_)) => {
                known.quota = Quota::None;
                return None;
            }
            Err(_) => {
                known.quota = Quota::Unreadable;
                return Some(Limit::Unreadable);
            }
        };
        known.quota = Quota::Limits(now);
        let before = match before {
            Quota::Limits(before) => before,
            Quota::None => return None,
            Quota::Unreadable => return Some(Limit::Unreadable),
        };
        let grown = Throttled {
            time: now.time.saturating_sub(before.time),
            periods: now.periods.saturating_sub(before.periods),
            throttled_periods: now.throttled_periods.saturating_sub(before.throttled_periods),
        };
        (grown != Throttled::default()).then_some(Limit::Throttled(grown))
    }

    /// Returns the throttled part of each wait, in the given order; `None` if a quota cannot be read.
    pub(super) fn limited(
        &mut self,
        waits: &[Wait<'_>],
        limits: &BTreeMap<CgroupPath, Limit>,
    ) -> Vec<Option<Nanos>> {
        if limits.is_empty() {
            return vec![Some(Nanos::ZERO); waits.len()];
        }
        let mut left: Vec<Option<Nanos>> = waits.iter().map(|wait| Some(wait.time)).collect();
        let mut cgroups: Vec<_> = members(waits, limits).into_iter().collect();
        cgroups.sort_by_key(|(cgroup, _)| std::cmp::Reverse(cgroup.0.matches('/').count()));
        for (cgroup, members) in cgroups {
            let Some(limit) = limits.get(cgroup) else {
                continue;
            };
            let Limit::Throttled(throttled) = limit else {
                members.into_iter().for_each(|index| left[index] = None);
                continue;
            };
            let (over, going): (Vec<usize>, Vec<usize>) =
                members.into_iter().partition(|&index| waits[index].is_over);
            let mut advance = self.known.get(cgroup).map_or(Nanos::ZERO, |known| known.advance);
            let time = throttled.time.saturating_sub(advance);
            advance = advance.saturating_sub(throttled.time);
            let sum: u64 = over.iter().filter_map(|&index| left[index]).map(|left| left.0).sum();
            take(&mut left, &over, time.0.min(sum), sum.max(1));
            let periods = throttled.periods.max(1);
            let begun_throttled = throttled.throttled_periods.min(periods);
            advance += take(&mut left, &going, begun_throttled, periods);
            if let Some(known) = self.known.get_mut(cgroup) {
                // Without pending waits, no more of the advance will be counted.
                known.advance = if going.is_empty() { Nanos::ZERO } else { advance };
            }
        }
        let waits = waits.iter().zip(left);
        waits.map(|(wait, left)| Some(wait.time - left?)).collect()
    }
}

/// Returns the waits in and below each cgroup that has a limit.
fn members<'a>(
    waits: &[Wait<'_>],
    limits: &'a BTreeMap<CgroupPath, Limit>,
) -> BTreeMap<&'a CgroupPath, Vec<usize>> {
    // Thousands of threads share few cgroups.
    let mut in_leaf: BTreeMap<&CgroupPath, Vec<usize>> = BTreeMap::new();
    for (index, wait) in waits.iter().enumerate() {
        in_leaf.entry(wait.cgroup).or_default().push(index);
    }
    let mut members: BTreeMap<&CgroupPath, Vec<usize>> = BTreeMap::new();
    for (leaf, indices) in in_leaf {
        let above = std::iter::successors(Some(leaf.clone()), CgroupPath::parent);
        for (cgroup, _) in above.filter_map(|at| limits.get_key_value(&at)) {
            members.entry(cgroup).or_default().extend(&indices);
        }
    }
    members
}

/// Subtracts the fraction `part` ÷ `of` from the rest of each member, and returns the total.
fn take(left: &mut [Option<Nanos>], members: &[usize], part: u64, of: u64) -> Nanos {
    let mut taken = Nanos::ZERO;
    for &index in members {
        if let Some(left) = &mut left[index] {
            let time = u128::from(left.0) * u128::from(part) / u128::from(of);
            let time = Nanos(time as u64);
            *left = *left - time;
            taken += time;
        }
    }
    taken
}

/// Whether a cgroup has a quota. Cgroups without the controller have none.
fn has_quota(controller: &dyn CpuController, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
    match controller.quota(cgroup) {
        Ok(quota) => Ok(quota.is_some()),
        Err(CgroupError::Gone(_)) => Ok(false),
        Err(CgroupError::Read { source, .. }) if is_gone(&source) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> CgroupPath {
        CgroupPath(path.to_owned())
    }

    const fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// Returns LIM in ms for waits in ms, of which those in `going` are pending.
    fn limits(
        quotas: &mut Quotas,
        waits: &[(&str, u64)],
        going: &[usize],
        throttled: &[(&str, Throttled)],
    ) -> Vec<u64> {
        let cgroups: Vec<CgroupPath> = waits.iter().map(|(cgroup, _)| path(cgroup)).collect();
        let waits: Vec<_> = (0..waits.len())
            .map(|at| Wait {
                cgroup: &cgroups[at],
                time: ms(waits[at].1),
                is_over: !going.contains(&at),
            })
            .collect();
        let throttled = throttled
            .iter()
            .map(|(cgroup, throttled)| (path(cgroup), Limit::Throttled(*throttled)))
            .collect();
        let limited = quotas.limited(&waits, &throttled);
        limited.iter().map(|time| time.unwrap().0 / 1_000_000).collect()
    }

    fn for_ms(time: u64) -> Throttled {
        Throttled { time: ms(time), ..Throttled::default() }
    }

    fn once(waits: &[(&str, u64)], throttled: &[(&str, u64)]) -> Vec<u64> {
        let throttled: Vec<_> =
            throttled.iter().map(|(cgroup, time)| (*cgroup, for_ms(*time))).collect();
        limits(&mut Quotas::default(), waits, &[], &throttled)
    }

    #[test]
    fn quota_limits_waits_below_it_in_proportion() {
        let waits = [("/vm/a", 300), ("/vm/b", 100), ("/other", 500)];
        assert_eq!(once(&waits, &[("/vm", 200)]), [150, 50, 0]);
        assert_eq!(once(&waits, &[]), [0, 0, 0]);
    }

    #[test]
    fn limited_time_is_at_most_the_wait() {
        assert_eq!(once(&[("/vm", 30), ("/vm", 0)], &[("/vm", 900)]), [30, 0]);
        assert_eq!(once(&[("/vm", 0)], &[("/vm", 5)]), [0]);
    }

    #[test]
    fn own_quota_comes_before_those_above() {
        let waits = [("/vm/vcpu0", 100), ("/vm/vcpu1", 100)];
        let throttled = [("/vm", 60), ("/vm/vcpu0", 80)];
        // First 80 of the first, then 60 of the remaining 20 and 100.
        assert_eq!(once(&waits, &throttled), [90, 50]);
    }

    #[test]
    fn pending_throttling_counts_once_in_advance() {
        let mut quotas = Quotas::default();
        quotas.known.insert(
            path("/vm"),
            Known { quota: Quota::None, due: 0, advance: Nanos::ZERO, seen: 0 },
        );
        let periods = |time, periods, throttled_periods| Throttled {
            time: ms(time),
            periods,
            throttled_periods,
        };
        let waits = [("/vm", 1_000), ("/vm", 100)];
        // The first waits all the time; the kernel counted 100 ms of the second, all throttled.
        let first = limits(&mut quotas, &waits, &[0], &[("/vm", periods(100, 10, 9))]);
        assert_eq!(first, [900, 100]);
        // Both ended: 900 of the 1050 ms that the kernel counts now were reported before.
        let waits = [("/vm", 60), ("/vm", 140)];
        let second = limits(&mut quotas, &waits, &[], &[("/vm", periods(1_050, 10, 1))]);
        assert_eq!(second, [45, 105]);
        let third = limits(&mut quotas, &waits, &[], &[("/vm", periods(100, 10, 1))]);
        assert_eq!(third, [30, 70], "the advance is spent");
    }

    #[test]
    fn unreadable_quota_is_not_zero() {
        let (vm, other) = (path("/vm/vcpu0"), path("/other"));
        let waits = [&vm, &other].map(|cgroup| Wait { cgroup, time: ms(5), is_over: true });
        let limits = BTreeMap::from([(path("/vm"), Limit::Unreadable)]);
        let limited = Quotas::default().limited(&waits, &limits);
        assert_eq!(limited, [None, Some(Nanos::ZERO)]);
    }
}
