//! What an operator should hear whose settings together leave a policy nothing to do.

use tandem_model::{PcpuSet, PolicySet};
use tandem_policy::host::{Placement, registry};

/// Where affinities are kept, only VMs take turns whose vCPUs are pinned to a pCPU each: what to say if that is none of those that
/// may take turns. Each VM has its policies and where its vCPUs may run.
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
        "turns act on nobody: with placement keep only VMs take turns whose vCPUs are pinned to one pCPU each, and there is \
         none; with --placement turns Tandem gives each vCPU a pCPU while its VM takes turns",
    )
}

/// Says which VMs take no turns because of where their cgroups are: once, since who never sleeps changes all the time.
#[derive(Debug, Default)]
pub(crate) struct LeftOutOfTurns {
    is_said: bool,
}

impl LeftOutOfTurns {
    /// What to say, given their names.
    pub(crate) fn news(&mut self, vms: &[&str]) -> Option<String> {
        if vms.is_empty() || std::mem::replace(&mut self.is_said, true) {
            return None;
        }
        Some(format!(
            "VMs {} never sleep and take no turns: turns are for VMs whose cgroups are right below the same one, and where there are several such sets, \
             for that with the most vCPUs that never sleep; these are below others (said once)",
            vms.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_out_of_turns_is_said_once() {
        let mut left_out = LeftOutOfTurns::default();
        assert_eq!(left_out.news(&[]), None);
        let said = left_out.news(&["web", "db"]).unwrap();
        assert!(said.starts_with("VMs web, db never sleep and take no turns"), "{said}");
        assert_eq!(left_out.news(&["web", "db"]), None);
        assert_eq!(left_out.news(&["other"]), None);
    }

    fn hint(placement: Placement, vms: &[(&str, &[&str])]) -> bool {
        let vms = vms.iter().map(|(policies, vcpus)| {
            let vcpus = vcpus.iter().map(|vcpu| vcpu.parse().unwrap());
            (registry::parse(policies).unwrap(), vcpus.collect())
        });
        on_turns(placement, vms).is_some()
    }

    #[test]
    fn only_where_turns_can_act_on_nobody() {
        let free: (&str, &[&str]) = ("fair,turns", &["0", "0-1"]);
        let pinned: (&str, &[&str]) = ("turns", &["0", "1"]);
        assert!(hint(Placement::Keep, &[free, free]));
        assert!(!hint(Placement::Keep, &[free, pinned]));
        assert!(!hint(Placement::Turns, &[free]));
        assert!(!hint(Placement::Keep, &[]));
        // VMs that may not take turns count neither way.
        assert!(!hint(Placement::Keep, &[("fair", &["0-1"])]));
        assert!(hint(Placement::Keep, &[free, ("fair", &["0"])]));
    }
}
