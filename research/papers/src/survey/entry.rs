//! Entries of a survey, one policy in one place each, and aggregates over them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tandem_model::averages::geometric_mean;

/// The policy that is the baseline.
pub const STOCK: &str = "stock";

/// Work relative to stock below which a VM counts as hurt.
pub const HURT: f64 = 0.95;

/// One policy in one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The program.
    pub workload: String,
    /// The host's pCPUs.
    #[serde(default = "usual", skip_serializing_if = "is_usual")]
    pub pcpus: u32,
    /// Overcommit of the host.
    pub overcommit: u32,
    /// The policy.
    pub policy: String,
    /// Geometric mean over the VMs of work relative to stock; null: not measured.
    pub throughput: Option<f64>,
    /// Largest slowdown relative to the least, each compared with the VM alone.
    pub unfairness: Option<f64>,
    /// The least work of a VM relative to stock.
    pub worst: Option<f64>,
    /// The VM of `worst`.
    pub victim: Option<String>,
    /// The least work of a VM relative to stock's work scaled to the VM's fair share ([`due`](super::due)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_by_due: Option<f64>,
    /// The VM of `worst_by_due`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim_by_due: Option<String>,
}

/// Default number of pCPUs of the host.
pub const PCPUS: u32 = 16;

fn usual() -> u32 {
    PCPUS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_usual(pcpus: &u32) -> bool {
    *pcpus == PCPUS
}

impl Entry {
    /// Returns the place: the program and the overcommit.
    pub fn place(&self) -> String {
        format!("{} {}×", self.workload, self.overcommit)
    }
}

/// A survey; the lists give the order of its tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The policies.
    pub policies: Vec<String>,
    /// The programs.
    pub workloads: Vec<String>,
    /// Overcommits of the host.
    pub overcommit: Vec<u32>,
    /// The host's pCPUs.
    pub pcpus: u32,
}

impl Survey {
    /// Returns the geometric mean of a policy's throughput over all programs at one overcommit.
    pub fn mean_of(&self, policy: &str, times: u32) -> Option<f64> {
        let there =
            self.entries.iter().filter(|entry| entry.policy == policy && entry.overcommit == times);
        geometric_mean(there.filter_map(|entry| entry.throughput))
    }

    /// Returns whether the survey has `worst_by_due`.
    pub fn is_by_due(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.worst_by_due.is_some())
    }

    /// Returns the entry with the highest throughput in each place.
    pub fn winners(&self) -> BTreeMap<(&str, u32), &Entry> {
        let mut best: BTreeMap<(&str, u32), &Entry> = BTreeMap::new();
        for entry in self.entries.iter().filter(|e| e.throughput.is_some()) {
            let at = best.entry((entry.workload.as_str(), entry.overcommit)).or_insert(entry);
            if entry.throughput > at.throughput {
                *at = entry;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn winners_have_highest_throughput_of_place() {
        let entry = |workload: &str, policy: &str, throughput: Option<f64>| Entry {
            workload: workload.to_owned(),
            overcommit: 2,
            policy: policy.to_owned(),
            throughput,
            unfairness: None,
            worst: None,
            victim: None,
            pcpus: PCPUS,
            worst_by_due: None,
            victim_by_due: None,
        };
        let survey = Survey {
            entries: vec![
                entry("a", "stock", Some(1.0)),
                entry("a", "hvs", Some(1.2)),
                entry("b", "stock", Some(1.0)),
                entry("b", "hvs", Some(0.8)),
                entry("c", "hvs", None),
            ],
            policies: Vec::new(),
            workloads: Vec::new(),
            overcommit: vec![2],
            pcpus: PCPUS,
        };
        let best = survey.winners();
        assert_eq!(best[&("a", 2)].policy, "hvs");
        assert_eq!(best[&("b", 2)].policy, "stock");
        assert!(!best.contains_key(&("c", 2)));
        let mean = survey.mean_of("hvs", 2).unwrap();
        assert!((mean - (1.2_f64 * 0.8).sqrt()).abs() < 1e-12, "{mean}");
    }
}
