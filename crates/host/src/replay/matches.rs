//! The VMs of a record that match the operator's patterns.
//!
//! A record has names and PIDs, and cgroups if settings were recorded.
//! It has no users, so `uid:1000` matches none.

use std::collections::BTreeSet;

use globset::GlobMatcher;
use tandem_model::VmId;
use tandem_observe::record::RecordedVm;

use crate::glob;
use crate::glob::name_matches;
use crate::select::VmPattern;

/// Patterns, and the VMs that have matched so far.
#[derive(Debug, Default)]
pub(crate) struct RecordedMatches<'a> {
    /// Each pattern with its compiled cgroup, and whether a VM matched it.
    patterns: Vec<(&'a VmPattern, Option<GlobMatcher>, bool)>,
    vms: BTreeSet<VmId>,
}

impl<'a> RecordedMatches<'a> {
    /// Starts without matches. Without a pattern, every VM matches.
    pub(crate) fn new(asked: &'a [VmPattern]) -> RecordedMatches<'a> {
        let compiled = asked.iter().map(|pattern| match pattern {
            VmPattern::Cgroup(text) => (pattern, glob::for_cgroups(text).ok(), false),
            _ => (pattern, None, false),
        });
        RecordedMatches { patterns: compiled.collect(), vms: BTreeSet::new() }
    }

    /// Adds a VM of the record, if it matches.
    pub(crate) fn add(&mut self, id: VmId, vm: &RecordedVm) {
        for (pattern, compiled, has_matched) in &mut self.patterns {
            let settings = vm.settings.as_ref();
            let cgroup = settings.and_then(|settings| settings.cgroup.as_ref());
            let matches = match pattern {
                VmPattern::Name(name) => name_matches(name, &vm.name),
                VmPattern::Process(pid) => *pid == vm.pid,
                VmPattern::User(_) => false,
                VmPattern::Cgroup(_) => cgroup.is_some_and(|cgroup| {
                    let globs = compiled.as_slice();
                    glob::is_within(globs, cgroup)
                }),
            };
            if matches {
                *has_matched = true;
                self.vms.insert(id);
            }
        }
    }

    /// Whether the VM matches.
    pub(crate) fn has(&self, vm: VmId) -> bool {
        self.patterns.is_empty() || self.vms.contains(&vm)
    }

    /// Returns the patterns without a match.
    pub(crate) fn unmatched(&self) -> Vec<&'a VmPattern> {
        let unmatched = self.patterns.iter().filter(|(.., has_matched)| !has_matched);
        unmatched.map(|(pattern, ..)| *pattern).collect()
    }
}
