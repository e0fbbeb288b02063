//! Requests of the operator that the daemon cannot meet: unreadable processes, and names without a VM.
//!
//! Each scan checks both, and changes are logged once.
//! A VM of that name may start later, so neither is an error.

use tandem_linux::thread::Pid;

use crate::config::HostConfig;
use crate::discovery::{Scan, Vm};
use crate::glob::name_matches;

/// The logged problems.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    is_unreadable_said: bool,
    unmatched: Vec<String>,
}

impl Unseen {
    /// Returns the problems that are new since the last scan.
    pub(crate) fn news(&mut self, scan: &Scan, config: &HostConfig, is_root: bool) -> Vec<String> {
        let unreadable = unreadable(scan, is_root).filter(|_| !self.is_unreadable_said);
        self.is_unreadable_said |= unreadable.is_some();
        let now = unmatched(&scan.vms, config);
        let is_new = now != self.unmatched && !now.is_empty();
        self.unmatched = now;
        let unmatched = is_new.then(|| {
            format!("no VM matches {} yet; the daemon waits for one", self.unmatched.join(", "))
        });
        unreadable.into_iter().chain(unmatched).collect()
    }
}

/// Reports processes with unreadable descriptors: their KVM vCPUs are unknown, so VMs among them are not found.
/// Root can read all of them, except in a container.
fn unreadable(scan: &Scan, is_root: bool) -> Option<String> {
    if scan.unreadable == 0 || (is_root && scan.unreadable_vmms == 0) {
        return None;
    }
    let (of, vmms) = (scan.unreadable, scan.unreadable_vmms);
    Some(if is_root {
        format!(
            "{of} processes, {vmms} of them named like a VMM, could not be inspected: this process lacks the permission (in a container, or hidepid?)"
        )
    } else {
        format!(
            "VMs of other users are invisible without root: {of} processes, {vmms} of them named like a VMM, could not be inspected; run as root"
        )
    })
}

/// Returns the configured names and processes without a VM, as written.
fn unmatched(vms: &[Vm], config: &HostConfig) -> Vec<String> {
    let has_name = |glob: &String| vms.iter().any(|vm| name_matches(glob, &vm.name));
    let has_pid = |pid: &u32| vms.iter().any(|vm| vm.process.pid == Pid(*pid));
    let (select, rules) = (&config.select, &config.rule);
    let names = select.names.iter().filter(|name| !has_name(name));
    let pids = select.pids.iter().filter(|pid| !has_pid(pid));
    let names = names.map(|name| format!("the name '{name}'"));
    let pids = pids.map(|pid| format!("the process {pid}"));
    let mut all: Vec<String> = names.chain(pids).collect();
    for rule in rules {
        let of_name = rule.name.iter().filter(|name| !has_name(name));
        let of_pid = rule.pid.iter().filter(|pid| !has_pid(pid));
        all.extend(of_name.map(|name| format!("the rule for the name '{name}'")));
        all.extend(of_pid.map(|pid| format!("the rule for the process {pid}")));
    }
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Select, VmRule};
    use crate::fixtures::vm;

    fn scan(names: &[&str], unreadable: usize) -> Scan {
        let vms = names.iter().zip(1..).map(|(name, n)| vm(n, name, 0));
        Scan { vms: vms.collect(), unreadable, ..Scan::default() }
    }

    fn all() -> HostConfig {
        HostConfig { select: Select { all: true, ..Select::default() }, ..HostConfig::default() }
    }

    #[test]
    fn unreadable_processes_are_reported_once() {
        let mut unseen = Unseen::default();
        assert!(unseen.news(&scan(&[], 0), &all(), false).is_empty());
        let said = unseen.news(&scan(&[], 7), &all(), false);
        assert!(said.len() == 1 && said[0].contains("without root: 7 processes"), "{said:?}");
        assert!(unseen.news(&scan(&[], 8), &all(), false).is_empty());
        assert!(
            Unseen::default().news(&scan(&[], 7), &all(), true).is_empty(),
            "no VMMs among them"
        );
    }

    #[test]
    fn unmatched_names_are_logged_when_they_change() {
        let mut config = all();
        config.select.names = vec!["db-*".to_owned(), "web".to_owned()];
        config.rule = ["build-*", "web"].map(|name| VmRule::whose(name).unwrap()).to_vec();
        let mut unseen = Unseen::default();
        let said = unseen.news(&scan(&["web"], 0), &config, true);
        assert_eq!(
            said,
            [
                "no VM matches the name 'db-*', the rule for the name 'build-*' yet; the daemon waits for one"
            ]
        );
        assert!(unseen.news(&scan(&["web"], 0), &config, true).is_empty());
        let came = scan(&["web", "db-1"], 0);
        let said = unseen.news(&came, &config, true);
        assert!(said.len() == 1 && !said[0].contains("db-*"), "it came: {said:?}");
        let said = unseen.news(&scan(&["db-1"], 0), &config, true);
        assert!(said[0].contains("'web'"), "it went: {said:?}");
    }
}
