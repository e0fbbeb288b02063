//! Result of a check: plain data, printed as a table or as JSON.
//!
//! Figures are kept as text and as numbers whose names end in their unit.
//! A subject without a measurement has neither, but a reason.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::Version;
use tandem_model::{Nanos, PcpuSet};

/// Subject of a finding, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Weights of sibling cgroups.
    CgroupWeight,
    /// A cgroup in the idle class against a normal one.
    IdleClass,
    /// Delay before a cgroup runs after it leaves the idle class.
    IdleSwitch,
    /// Groups of single vCPUs inside a VM's group.
    VcpuGroups,
    /// Nice values of threads within one group.
    Nice,
    /// Individual EEVDF slices of threads.
    Slice,
    /// Affinity masks.
    Affinity,
    /// Hard caps.
    Quota,
    /// Real-time threads.
    RealTime,
    /// Schedulers loaded by BPF.
    SchedExt,
    /// Whether a VM that is pinned and blocks receives more than its weight allows.
    PinnedHog,
}

impl Subject {
    /// Subjects that the measuring process covers, in cgroups.
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

    /// Returns its description.
    pub fn words(self) -> &'static str {
        match self {
            Subject::CgroupWeight => "cgroup weight, 1 : 4",
            Subject::IdleClass => "cpu.idle against a normal group",
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

/// Result for a subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// The knob acts.
    Acts,
    /// The knob does not act.
    DoesNotAct,
    /// A defect is present, or a scheduler is loaded.
    Present,
    /// It is absent.
    Absent,
    /// The figure matches neither expected value.
    Unclear,
    /// Not measured, with the reason.
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
    /// The subject.
    pub subject: Subject,
    /// The result.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The figure as text; empty if it was not measured.
    pub figure: String,
    /// The figures, by names that end in their unit (`_ms`, `_pcpus`), or shares of the sum received.
    pub values: BTreeMap<String, f64>,
}

impl Finding {
    /// A finding without figures.
    pub fn new(subject: Subject, verdict: Verdict) -> Finding {
        Finding { subject, verdict, figure: String::new(), values: BTreeMap::new() }
    }

    /// Sets the figure.
    #[must_use]
    pub fn figure(self, figure: impl Into<String>) -> Finding {
        Finding { figure: figure.into(), ..self }
    }

    /// Adds a number.
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

/// Properties of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Release, as printed by `uname -r`.
    pub release: String,
    /// `EEVDF` or `CFS`; `None` if unknown.
    pub scheduler: Option<String>,
    /// Source of the scheduler's name.
    pub scheduler_from: String,
    /// The clock tick, in ns: the resolution of CLOCK_MONOTONIC_COARSE, which the kernel advances once per tick.
    pub tick: Nanos,
    /// Cgroup version of the cpu controller.
    pub cgroup: Version,
    /// Its mount point.
    pub mount: String,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Properties of the kernel.
    pub kernel: Kernel,
    /// The pCPUs of the measurements.
    pub pcpus: PcpuSet,
    /// Duration.
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
    fn finding_survives_json() {
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
