//! `tandem host replay --why`: the findings for a time of a record.
//!
//! The findings are those of a live host, from the sum of the intervals and the settings of the last one.
//! Commands name processes and threads of that time.
//! A record without settings (version 1, or unreadable settings) has findings without commands, and names what was not looked for.
//! The same applies to a VM whose settings were not recorded yet because it had just started.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tandem_linux::cgroup::Version;
use tandem_model::{Nanos, PcpuId, PcpuSet, VmId};
use tandem_observe::findings::{Cure, KnownHost, KnownVm, NotLookedFor, Situation};

use super::Replayed;
use crate::select::VmPattern;
use crate::why::{WhyInterval, answer};
use tandem_observe::moment::printed;

/// Remark in place of a command for a VM without settings.
const NOT_KNOWN: &str = "its settings are not known: none were recorded in this time, as in a VM's first seconds; ask for a later time, or look at the host";

impl Replayed {
    /// Returns the findings of the VMs that match, or of all if there is no pattern.
    pub fn why(&self, asked: &[VmPattern]) -> WhyInterval {
        let matches = self.matching(asked);
        let selected: BTreeSet<VmId> =
            self.vms.keys().copied().filter(|id| matches.has(*id)).collect();
        let situation = Situation {
            interval: &self.interval,
            vms: self.known(),
            host: self.host.clone().unwrap_or_else(|| self.bare_host()),
            // Commands act on present processes, and a record has no weights of these.
            weights: BTreeMap::new(),
        };
        let mut answer = answer(&situation, &selected, self.unreadable);
        let bare = self.without_settings(&selected);
        for finding in &mut answer.findings {
            if bare.contains_key(&finding.id) {
                finding.cure = Cure { remark: NOT_KNOWN.to_owned(), ..Cure::default() };
            }
        }
        let mut not = |what, want: &str| {
            answer.not_looked_for.push(NotLookedFor { what, want: want.to_owned() });
        };
        if self.host.is_none() {
            not(
                "quotas by name, cgroups, caches, defects of this kernel, actions of the daemon; and commands",
                "this record has no settings: a recorder of version 2 writes them, as far as it may read them",
            );
            for finding in &mut answer.findings {
                finding.cure.commands.clear();
                finding.cure.undo.clear();
            }
        } else if self.has_changed {
            not(
                "earlier settings in this range",
                "settings changed, and the last ones are used; ask for a shorter time",
            );
        }
        if self.host.is_some() && !bare.is_empty() {
            let names: Vec<&str> = bare.into_values().collect();
            let want = format!("of {}: {NOT_KNOWN}", names.join(", "));
            not("quotas by name, cgroups, turns; and commands", &want);
        }
        answer
    }

    /// Returns the names of the selected VMs without recorded settings.
    fn without_settings(&self, selected: &BTreeSet<VmId>) -> BTreeMap<VmId, &str> {
        let bare = self
            .vms
            .iter()
            .filter(|(id, recorded)| selected.contains(id) && recorded.settings.is_none());
        bare.map(|(id, recorded)| (*id, recorded.name.as_str())).collect()
    }

    /// Returns the range, and a note on commands.
    pub fn heading(&self) -> String {
        let (from, to) = self.at;
        format!(
            "recorded from {} to {}; commands name processes and threads of that time",
            printed(from),
            printed(to)
        )
    }

    fn known(&self) -> BTreeMap<VmId, KnownVm> {
        let known = self.vms.iter().map(|(id, recorded)| {
            let settings =
                recorded.settings.clone().unwrap_or(KnownVm { weight: 1.0, ..KnownVm::default() });
            let known = KnownVm {
                name: recorded.name.clone(),
                pid: recorded.pid,
                tids: recorded.tids.clone(),
                due: self.due.get(id).copied().unwrap_or(Nanos::ZERO),
                received: self.received(*id),
                ..settings
            };
            (*id, known)
        });
        known.collect()
    }

    /// Returns the host as far as intervals show it. `why` leaves out findings that need more.
    fn bare_host(&self) -> KnownHost {
        let pcpus = u32::try_from(self.interval.host.pcpus).unwrap_or(0);
        let online: PcpuSet = (0..pcpus).map(PcpuId).collect();
        KnownHost {
            version: Version::V2,
            mount: PathBuf::new(),
            online,
            isolated: PcpuSet::default(),
            caches: Vec::new(),
            cores: Vec::new(),
            kernel: None,
            has_autogroup: false,
        }
    }
}
