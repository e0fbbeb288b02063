//! Hints for operators whose settings leave a policy without effect.

use tandem_model::{PcpuSet, PolicySet};
use tandem_policy::host::{Placement, registry};

/// Returns the hint if placement keeps affinities and no VM that may take turns has its vCPUs pinned to one pCPU each.
/// Each VM has its policies and the affinities of its vCPUs.
pub(crate) fn on_turns(
    placement: Placement,
    vms: impl IntoIterator<Item = (PolicySet, Vec<PcpuSet>)>,
) -> Option<&'static str> {
    let turns = registry::find("turns").ok()?;
    let mut may = vms
        .into_iter()
        .filter(|(policies, vcpus)| policies.contains(turns) && !vcpus.is_empty())
        .map(|(_, vcpus)| vcpus.iter().all(|vcpu| vcpu.len() == 1))
        .peekable();
    if placement != Placement::Keep || may.peek().is_none() || may.any(|pinned| pinned) {
        return None;
    }
    Some(
        "turns have no effect: with placement keep, only VMs whose vCPUs are pinned to one pCPU each take turns, and there is \
         none; with --placement turns Tandem gives each vCPU a pCPU while its VM takes turns",
    )
}

/// Reports VMs that take no turns because of their cgroups.
pub(crate) fn left_out_of_turns(vms: &[&str]) -> String {
    format!(
        "VMs {} never sleep and take no turns: only VMs whose cgroups have the same parent take turns, and among several such sets \
         the one with the most vCPUs that never sleep; these VMs have other parents (logged once)",
        vms.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(placement: Placement, vms: &[(&str, &[&str])]) -> bool {
        let vms = vms.iter().map(|(policies, vcpus)| {
            let vcpus = vcpus.iter().map(|vcpu| vcpu.parse().unwrap());
            (registry::parse(policies).unwrap(), vcpus.collect())
        });
        on_turns(placement, vms).is_some()
    }

    #[test]
    fn hint_only_if_turns_have_no_effect() {
        let free: (&str, &[&str]) = ("fair,turns", &["0", "0-1"]);
        let pinned: (&str, &[&str]) = ("turns", &["0", "1"]);
        assert!(hint(Placement::Keep, &[free, free]));
        assert!(!hint(Placement::Keep, &[free, pinned]));
        assert!(!hint(Placement::Turns, &[free]));
        assert!(!hint(Placement::Keep, &[]));
        // VMs that may not take turns do not count.
        assert!(!hint(Placement::Keep, &[("fair", &["0-1"])]));
        assert!(hint(Placement::Keep, &[free, ("fair", &["0"])]));
    }
}
