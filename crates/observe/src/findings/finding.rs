//! Findings: a problem of a VM, its cost, its evidence and its remedy.

use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::CgroupPath;
use tandem_model::{Nanos, Nice, PcpuSet, VcpuId, VmId};

/// The kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A quota throttles the VM while pCPUs idle.
    Quota,
    /// Several busy vCPUs of the VM are confined to fewer pCPUs while others idle.
    Stacked,
    /// The VM has more busy vCPUs than pCPUs that they may use, and waits for itself.
    TooManyVcpus,
    /// A pinned and stacked VM takes more than its fair share from this one.
    PinnedHog,
    /// The fair shares of the VMs pinned to the same pCPUs exceed these pCPUs.
    UnfairPins,
    /// One vCPU is always runnable and waits, and its siblings wait for it.
    SlowSibling,
    /// The VM and others never sleep. If its vCPUs wait for each other by spinning, they should run together.
    Turns,
    /// vCPUs spin and yield without effect.
    UselessSpinning,
    /// The host polls longer for halted vCPUs than these run.
    HaltPolling,
    /// The VM's other threads take time on the pCPUs of its vCPUs.
    OwnThreads,
    /// Host processes take the time.
    HostProcess,
    /// Other VMs take the time.
    Neighbour,
    /// The VM waits, and the culprit is unknown.
    Unexplained,
}

impl Kind {
    /// Returns a short description.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Quota => "a quota holds it back while pCPUs idle",
            Kind::Stacked => "its vCPUs are stacked while pCPUs idle",
            Kind::TooManyVcpus => "it has more busy vCPUs than pCPUs that it may use",
            Kind::PinnedHog => "a VM with stacked, pinned vCPUs takes its part",
            Kind::UnfairPins => "pins leave no fair division",
            Kind::SlowSibling => "it waits for a slow vCPU of its own",
            Kind::Turns => "it never sleeps, next to others that never sleep: turns",
            Kind::UselessSpinning => "its vCPUs spin without progress",
            Kind::HaltPolling => "halt polling burns more than it runs",
            Kind::OwnThreads => "its other threads take its vCPUs' time",
            Kind::HostProcess => "processes of the host take its time",
            Kind::Neighbour => "other VMs take its time",
            Kind::Unexplained => "it waits, and the cause is not seen",
        }
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth a look.
    Notice,
    /// Users notice it.
    Bad,
}

/// A problem of one VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The VM's name.
    pub vm: String,
    /// Its process.
    pub pid: u32,
    /// The VM's id in the situation.
    #[serde(skip)]
    pub id: VmId,
    /// The kind of problem.
    pub kind: Kind,
    /// Its severity.
    pub severity: Severity,
    /// Time that the VM loses by it, in ns per second, summed over its vCPUs.
    pub lost_per_second: Nanos,
    /// The loss relative to the run time of its vCPUs; `None` if they did not run, or it loses nothing.
    pub lost_of_run: Option<f64>,
    /// Host time that it wastes, in ns per second, if the VM itself loses nothing by it; else `None`.
    pub burned_per_second: Option<Nanos>,
    /// The evidence: columns and edges, as text with figures.
    pub evidence: Vec<String>,
    /// The remedy.
    pub cure: Cure,
}

/// A cause that was not checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotLookedFor {
    /// The cause.
    pub what: &'static str,
    /// The missing input.
    pub want: String,
}

/// Result of [`super::find`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// The findings, by cost in descending order.
    pub findings: Vec<Finding>,
    /// Possible causes that cannot be measured.
    pub not_looked_for: Vec<NotLookedFor>,
}

/// A remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cure {
    /// Commands for a shell, in order; empty if only the operator can act.
    pub commands: Vec<String>,
    /// Commands that revert them; empty if the current value is unknown, or contained in the remark.
    pub undo: Vec<String>,
    /// The effect of the commands, or what to do instead.
    pub remark: String,
    /// The same as changes that the trial applies and reverts; empty if that is impossible.
    #[serde(skip)]
    pub changes: Vec<Change>,
}

/// A change of a setting that remedies a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the affinity of a vCPU.
    Vcpu {
        /// The vCPU.
        vcpu: VcpuId,
        /// The allowed pCPUs.
        pcpus: PcpuSet,
    },
    /// Sets the affinity of the VM's other threads of a name.
    ThreadsTo {
        /// The threads' name.
        name: String,
        /// The allowed pCPUs.
        pcpus: PcpuSet,
    },
    /// Sets the nice value of the VM's other threads of a name.
    ThreadsNice {
        /// The threads' name.
        name: String,
        /// Their nice value.
        nice: Nice,
    },
    /// Removes the quota of a cgroup.
    NoQuota {
        /// The cgroup.
        cgroup: CgroupPath,
    },
    /// Scales the weight of the VM's own cgroup.
    VmWeight {
        /// Per cent of the current weight.
        percent: u32,
    },
    /// Sets the weight of a host cgroup.
    Weight {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The weight in the knob's units.
        weight: u32,
    },
    /// Sets the nice value of a host process.
    ProcessNice {
        /// Its process id.
        pid: u32,
        /// Its name, which distinguishes it from a later process of that id.
        name: String,
        /// Its nice value.
        nice: Nice,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Vcpu { vcpu, pcpus } => write!(f, "vCPU {vcpu} may run on pCPUs {pcpus}"),
            Change::ThreadsTo { name, pcpus } => {
                write!(f, "its threads '{name}' may run on pCPUs {pcpus}")
            }
            Change::ThreadsNice { name, nice } => {
                write!(f, "its threads '{name}' have nice value {nice}")
            }
            Change::NoQuota { cgroup } => write!(f, "cgroup {cgroup} has no quota"),
            Change::VmWeight { percent } => {
                write!(f, "its cgroup has {percent} % of its weight")
            }
            Change::Weight { cgroup, weight } => write!(f, "cgroup {cgroup} has weight {weight}"),
            Change::ProcessNice { pid, name, nice } => {
                write!(f, "process {pid} ({name}) has nice value {nice}")
            }
        }
    }
}

/// Returns `part / whole`.
pub(super) fn ratio(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0.max(1) as f64
}

/// Formats a ratio as `37 %`, with one decimal below 10.
pub(super) fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}
