//! A paragraph on the intended changes, logged before the first one.

use std::path::Path;

use tandem_model::PolicySet;
use tandem_policy::host::{Placement, apart, asymmetric, configured, fair, flexs, registry, turns};
use tracing::info;

use super::Daemon;
use crate::config::{HostConfig, restore_command};
use crate::discovery::Scan;

impl Daemon {
    /// Logs the paragraph, or that no VM is selected.
    pub(super) fn announce(&mut self, scan: &Scan) {
        if self.config.select.is_empty() {
            info!(
                "no VM is selected, so the daemon manages none: add names, cgroups, pids or uids to the section [host.select] of the settings \
                 file, and reload it (systemctl reload tandem-host, or SIGHUP)",
            );
            return;
        }
        let selected = scan.vms.iter().filter(|vm| self.is_selected(vm)).count();
        info!("{}", intent(&self.config, selected, scan.vms.len()));
    }
}

/// Describes the knobs that policies may change.
fn knobs(config: &HostConfig, policies: PolicySet) -> Vec<String> {
    let has = |name: &str| registry::find(name).is_ok_and(|policy| policies.contains(policy));
    let mut knobs = Vec::new();
    if has(fair::ENTRY.name) || has(configured::ENTRY.name) {
        knobs.push("the weight of its cgroup, or of a new cgroup for its vCPU threads".to_owned());
    }
    if has(turns::ENTRY.name) {
        knobs.push(format!(
            "cpu.idle of its whole cgroup while other VMs have their turns of {} each, in which I/O and emulator threads in that cgroup wait too",
            config.turns.turn.in_whole_units()
        ));
        if config.placement != Placement::Keep {
            knobs.push("affinities of its vCPUs during turns".to_owned());
        }
    }
    if has(apart::ENTRY.name) {
        knobs.push("a cgroup per vCPU".to_owned());
    }
    if has(asymmetric::ENTRY.name) {
        knobs.push("weight, nice value and slice of its vCPUs".to_owned());
    }
    let moves = has(flexs::ENTRY.name) || has(asymmetric::ENTRY.name) || has(fair::ENTRY.name);
    if moves && config.placement == Placement::Rebalance {
        knobs.push("affinities of pinned vCPUs".to_owned());
    }
    knobs
}

/// Returns the paragraph.
fn intent(config: &HostConfig, selected: usize, found: usize) -> String {
    let policies = config.controller().policies;
    let knobs = knobs(config, policies);
    let vms = format!("{selected} of {found} VMs now, and matching VMs that start later");
    if knobs.is_empty() {
        return format!(
            "manages {vms}: no policy acts, so the daemon measures them and changes nothing"
        );
    }
    let reverts = format!(
        "The daemon journals each change in {} first, and reverts it at its end, on an error or a signal; after kill -9, its next start or \
         '{}' reverts it",
        journal(&config.state_dir),
        restore_command(&config.state_dir)
    );
    let (verb, end) = if config.dry_run {
        ("a dry run: without it, the daemon would change", "Now it changes nothing.")
    } else {
        ("changes", "")
    };
    format!(
        "{verb} on each managed VM ({vms}), by policy ({}): {}. {reverts}. {end}",
        registry::names(policies),
        knobs.join("; ")
    )
    .trim_end()
    .to_owned()
}

fn journal(state_dir: &Path) -> String {
    state_dir.join("journal").display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Policies;

    fn text(names: &[&str], change: impl Fn(&mut HostConfig)) -> String {
        let policies = Policies(registry::set(names.iter().copied()).unwrap());
        let mut config = HostConfig { policies, ..HostConfig::default() };
        change(&mut config);
        intent(&config, 2, 3)
    }

    #[test]
    fn the_paragraph_names_vms_knobs_and_revert() {
        let text = text(&["fair", "turns", "apart"], |_| {});
        for part in [
            "2 of 3 VMs",
            "the weight of its cgroup",
            "turns of 20ms each",
            "I/O and emulator threads",
            "a cgroup per vCPU",
            "/run/tandem/journal",
            "tandem host restore",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().count() == 1 && !text.contains("pinned"), "{text}");
    }

    #[test]
    fn only_knobs_of_policies_that_act_are_named() {
        assert!(!text(&["fair"], |_| {}).contains("cpu.idle"));
        let keep = text(&["turns"], |config| config.placement = Placement::Keep);
        assert!(!keep.contains("affinities"), "{keep}");
        let moves = text(&["fair"], |config| config.placement = Placement::Rebalance);
        assert!(moves.contains("pinned vCPUs"), "{moves}");
        assert!(text(&[], |_| {}).contains("changes nothing"));
        assert!(text(&["fair"], |config| config.dry_run = true).starts_with("a dry run"));
    }
}
