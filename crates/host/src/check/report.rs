//! What a check found: plain data, printed as a table or as JSON.
//!
//! Figures are kept twice: in words for people, and as numbers whose names end in their unit. What was not measured has neither, and says why.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::Version;
use tandem_model::{Nanos, PcpuSet};

/// What is looked at, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Weights of cgroups side by side.
    CgroupWeight,
    /// A cgroup in the idle class beside one that is not.
    IdleClass,
    /// How soon a cgroup runs once it is out of the idle class.
    IdleSwitch,
    /// Groups of single vCPUs inside a VM's group.
    VcpuGroups,
    /// Nice values of threads within one group.
    Nice,
    /// EEVDF slices of threads' own.
    Slice,
    /// Affinity masks.
    Affinity,
    /// Hard caps.
    Quota,
    /// Real-time threads.
    RealTime,
    /// Schedulers loaded by BPF.
    SchedExt,
    /// Whether a VM that is pinned and blocks takes more than its weight gives it.
    PinnedHog,
}

impl Subject {
    /// What is measured in cgroups made for it.
    pub const IN_PROCESS: [Subject; 9] = [
        Subject::CgroupWeight,
        Subject::IdleClass,
        Subject::IdleSwitch,
        Subject::VcpuGroups,
        Subject::Nice,
        Subject::Slice,
        Subject::Affinity,
        Subject::Quota,
        Subject::PinnedHog,
    ];

    /// What it is, in words.
    pub fn words(self) -> &'static str {
        match self {
            Subject::CgroupWeight => "cgroup weight, 1 : 4",
            Subject::IdleClass => "cpu.idle beside a normal group",
            Subject::IdleSwitch => "cpu.idle switched",
            Subject::VcpuGroups => "groups of vCPUs in a VM's group, 1 : 4",
            Subject::Nice => "nice 0 : 5 in one group",
            Subject::Slice => "EEVDF slice of 20 ms",
            Subject::Affinity => "affinity",
            Subject::Quota => "cpu.max (quota) of 0.3 pCPUs",
            Subject::RealTime => "SCHED_FIFO",
            Subject::SchedExt => "sched_ext scheduler",
            Subject::PinnedHog => "pinned-hog defect",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// The knob does what it should.
    Acts,
    /// It does not.
    DoesNotAct,
    /// A defect is there, or a scheduler loaded.
    Present,
    /// It is not.
    Absent,
    /// The figure is neither what it should be nor what it would be without the knob.
    Unclear,
    /// Not measured, and why.
    NotMeasured(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Acts => f.write_str("acts"),
            Verdict::DoesNotAct => f.write_str("does not act"),
            Verdict::Present => f.write_str("is there"),
            Verdict::Absent => f.write_str("is not there"),
            Verdict::Unclear => f.write_str("unclear"),
            Verdict::NotMeasured(_) => f.write_str("not measured"),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: Subject,
    /// What was found.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The figure, in words; empty if nothing was measured.
    pub figure: String,
    /// The figures, by names that end in their unit (`_ms`, `_pcpus`) or are shares of what was received in all.
    pub values: BTreeMap<String, f64>,
}

impl Finding {
    /// A finding without figures.
    pub fn new(subject: Subject, verdict: Verdict) -> Finding {
        Finding { subject, verdict, figure: String::new(), values: BTreeMap::new() }
    }

    /// With this figure in words.
    #[must_use]
    pub fn figure(self, figure: impl Into<String>) -> Finding {
        Finding { figure: figure.into(), ..self }
    }

    /// With this number too.
    #[must_use]
    pub fn value(mut self, name: &str, value: f64) -> Finding {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// Whether it was measured.
    pub fn is_measured(&self) -> bool {
        !matches!(self.verdict, Verdict::NotMeasured(_))
    }
}

/// What the kernel says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// `EEVDF` or `CFS`, and how that is known; `None`: it is not.
    pub scheduler: Option<String>,
    /// What told the scheduler.
    pub scheduler_from: String,
    /// The clock tick, in ns: the resolution of CLOCK_MONOTONIC_COARSE, which the kernel moves once a tick.
    pub tick: Nanos,
    /// Which of the two interfaces holds the cpu controller.
    pub cgroup: Version,
    /// Where it is mounted.
    pub mount: String,
}

/// Everything that a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What the kernel says of itself.
    pub kernel: Kernel,
    /// Where was measured.
    pub pcpus: PcpuSet,
    /// How long it took.
    pub seconds: f64,
    /// A finding for each subject, in the order of [`Subject`].
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether anything was measured in cgroups.
    pub fn could_measure(&self) -> bool {
        let in_process = |finding: &&Finding| Subject::IN_PROCESS.contains(&finding.subject);
        self.findings.iter().filter(in_process).any(Finding::is_measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_the_same_after_a_trip_through_json() {
        let measured = Finding::new(Subject::IdleSwitch, Verdict::Acts)
            .figure("median 2.0 ms")
            .value("median_ms", 2.0);
        let missed =
            Finding::new(Subject::Slice, Verdict::NotMeasured("no slices here".to_owned()));
        for finding in [measured, missed] {
            let text = serde_json::to_string(&finding).unwrap();
            assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding);
        }
    }

    #[test]
    fn json_has_names_and_the_reason() {
        let missed = Finding::new(Subject::PinnedHog, Verdict::NotMeasured("why".to_owned()));
        let value = serde_json::to_value(missed).unwrap();
        assert_eq!(value["subject"], "pinned-hog");
        assert_eq!(value["verdict"], "not-measured");
        assert_eq!(value["why"], "why");
    }
}
