//! LIM: how much of the time that vCPUs were runnable without running they were throttled.
//!
//! The kernel counts throttling for each cgroup with a quota, and a throttled thread as waiting. So what a cgroup was throttled
//! is taken out of the waits of the vCPUs below it, in proportion to these, at most all of them. Cgroups are gone through from
//! the deepest up (libvirt gives each vCPU one, below the VM's), because a quota above counts only what is left.
//!
//! A cgroup's figure is a sum over pCPUs; a pCPU on which two vCPUs of a VM were throttled together counts once. Then LIM is too
//! small, and RDY too large, by what one of them waited.

use std::collections::BTreeMap;

use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_policy::Nanos;

/// What cgroups were throttled so far.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    seen: BTreeMap<CgroupPath, Nanos>,
}

impl Quotas {
    /// What each cgroup of `leaves`, and each above them, was throttled since the last call. One that was not there before was
    /// not throttled as far as is known.
    pub(super) fn throttled<'a>(
        &mut self,
        controller: &dyn CpuController,
        leaves: impl Iterator<Item = &'a CgroupPath>,
    ) -> BTreeMap<CgroupPath, Nanos> {
        let mut now = BTreeMap::new();
        for leaf in leaves {
            let above = std::iter::successors(Some(leaf.clone()), CgroupPath::parent);
            for cgroup in above.take_while(|cgroup| !cgroup.is_root()) {
                if now.contains_key(&cgroup) {
                    break;
                }
                // Where it is not counted there can be no quota.
                let throttled = controller.throttled(&cgroup).ok().flatten();
                now.insert(cgroup, throttled.unwrap_or_default());
            }
        }
        let before = std::mem::replace(&mut self.seen, now);
        let grown = self.seen.iter().filter_map(|(cgroup, now)| {
            let grown = now.saturating_sub(*before.get(cgroup)?);
            (grown > Nanos::ZERO).then(|| (cgroup.clone(), grown))
        });
        grown.collect()
    }
}

/// How much of each wait was throttled, in the order given: waits with the cgroup of each.
pub(super) fn limited(
    waits: &[(&CgroupPath, Nanos)],
    throttled: &BTreeMap<CgroupPath, Nanos>,
) -> Vec<Nanos> {
    let mut left: Vec<Nanos> = waits.iter().map(|(_, wait)| *wait).collect();
    let mut cgroups: Vec<_> = throttled.iter().collect();
    cgroups.sort_by_key(|(cgroup, _)| std::cmp::Reverse(cgroup.0.matches('/').count()));
    for (cgroup, time) in cgroups {
        let below = |index: &usize| waits[*index].0.is_within(cgroup);
        let members: Vec<usize> = (0..waits.len()).filter(below).collect();
        let sum: Nanos = members.iter().map(|&index| left[index]).sum();
        let taken = u128::from((*time).min(sum).0);
        for index in members {
            // No wait is longer than the sum, so this is at most what is left.
            let part = u128::from(left[index].0) * taken / u128::from(sum.0.max(1));
            left[index] = left[index] - Nanos(part as u64);
        }
    }
    let waits = waits.iter().zip(left);
    waits.map(|((_, wait), left)| *wait - left).collect()
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

    fn limits(waits: &[(&str, u64)], throttled: &[(&str, u64)]) -> Vec<u64> {
        let cgroups: Vec<CgroupPath> = waits.iter().map(|(cgroup, _)| path(cgroup)).collect();
        let waits: Vec<_> = cgroups
            .iter()
            .zip(waits)
            .map(|(cgroup, (_, wait))| (cgroup, ms(*wait)))
            .collect();
        let throttled = throttled
            .iter()
            .map(|(cgroup, time)| (path(cgroup), ms(*time)));
        let limited = limited(&waits, &throttled.collect());
        limited.iter().map(|time| time.0 / 1_000_000).collect()
    }

    #[test]
    fn a_quota_is_taken_out_of_the_waits_below_it_in_proportion() {
        let waits = [("/vm/a", 300), ("/vm/b", 100), ("/other", 500)];
        assert_eq!(limits(&waits, &[("/vm", 200)]), [150, 50, 0]);
        assert_eq!(limits(&waits, &[]), [0, 0, 0]);
    }

    #[test]
    fn nobody_is_limited_for_longer_than_it_waited() {
        assert_eq!(limits(&[("/vm", 30), ("/vm", 0)], &[("/vm", 900)]), [30, 0]);
        assert_eq!(limits(&[("/vm", 0)], &[("/vm", 5)]), [0]);
    }

    #[test]
    fn a_vcpus_own_quota_comes_before_those_above() {
        let waits = [("/vm/vcpu0", 100), ("/vm/vcpu1", 100)];
        let throttled = [("/vm", 60), ("/vm/vcpu0", 80)];
        // First 80 of the one; then 60 of the 20 and 100 that are left.
        assert_eq!(limits(&waits, &throttled), [90, 50]);
    }
}
