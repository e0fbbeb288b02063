//! What is found: what is wrong with a VM, what it costs, what shows it, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::CgroupPath;
use tandem_model::{Nanos, Nice, PcpuSet, VcpuId, VmId};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A quota holds the VM back while pCPUs idle.
    Quota,
    /// Several busy vCPUs of the VM are confined to fewer pCPUs while others idle.
    Stacked,
    /// The VM has more busy vCPUs than pCPUs where they may run, and waits for itself.
    TooManyVcpus,
    /// A VM that is pinned and stacked takes more than its due from this one.
    PinnedHog,
    /// The VMs pinned to the same pCPUs are due more than these have.
    UnfairPins,
    /// One vCPU is always runnable and waits, and its siblings wait for it.
    SlowSibling,
    /// The VM never sleeps, beside others that never sleep: if its vCPUs wait for each other by spinning, they should run together.
    Turns,
    /// vCPUs spin and yield, and nobody is helped.
    UselessSpinning,
    /// The host polls for halted vCPUs for longer than these run.
    HaltPolling,
    /// The VM's other threads take its vCPUs' pCPUs.
    OwnThreads,
    /// Processes of the host take the time.
    HostProcess,
    /// Other VMs take the time.
    Neighbour,
    /// The VM waits, and for whom is not known.
    Unexplained,
}

impl Kind {
    /// What is wrong, in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Quota => "a quota holds it back while pCPUs idle",
            Kind::Stacked => "its vCPUs are stacked while pCPUs idle",
            Kind::TooManyVcpus => "it has more busy vCPUs than pCPUs that it may use",
            Kind::PinnedHog => "a VM with stacked, pinned vCPUs takes its part",
            Kind::UnfairPins => "pins leave no fair division",
            Kind::SlowSibling => "it waits for a slow vCPU of its own",
            Kind::Turns => "it never sleeps beside others that never sleep: turns",
            Kind::UselessSpinning => "its vCPUs spin without progress",
            Kind::HaltPolling => "halt polling burns more than it runs",
            Kind::OwnThreads => "its other threads take its vCPUs' time",
            Kind::HostProcess => "processes of the host take its time",
            Kind::Neighbour => "other VMs take its time",
            Kind::Unexplained => "it waits, and for whom is not seen",
        }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth a look.
    Notice,
    /// Users feel it.
    Bad,
}

/// One thing that is wrong with one VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The VM's name.
    pub vm: String,
    /// Its process.
    pub pid: u32,
    /// The VM's number while it is looked at.
    #[serde(skip)]
    pub id: VmId,
    /// What is wrong.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// What the VM loses by it, in ns per second, summed over its vCPUs.
    pub lost_per_second: Nanos,
    /// That as a part of what its vCPUs ran; `None` if they did not run, or it loses nothing.
    pub lost_of_run: Option<f64>,
    /// What it burns of the host's time, in ns per second, where the VM itself loses nothing by it; else `None`.
    pub burned_per_second: Option<Nanos>,
    /// What shows it: columns and edges, in words with figures.
    pub evidence: Vec<String>,
    /// What to do.
    pub cure: Cure,
}

/// A cause that was not looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotLookedFor {
    /// Which.
    pub what: &'static str,
    /// For want of what.
    pub want: String,
}

/// What [`super::find`] answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// What is wrong, the costliest first.
    pub findings: Vec<Finding>,
    /// Causes that may be there and cannot be seen.
    pub not_looked_for: Vec<NotLookedFor>,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cure {
    /// To be pasted into a shell, one after the other; none where only the operator can act.
    pub commands: Vec<String>,
    /// What undoes them; none where what is in force now is not known, or stands in the commands' remark.
    pub undo: Vec<String>,
    /// What they do, or what to do instead.
    pub remark: String,
    /// The same without a shell, for whoever tries it; none where nothing can be made, and undone, that way.
    #[serde(skip)]
    pub changes: Vec<Change>,
}

/// A change that cures something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A vCPU of the VM may run there.
    Vcpu {
        /// Which.
        vcpu: VcpuId,
        /// Where.
        pcpus: PcpuSet,
    },
    /// The VM's other threads of that name may run there.
    ThreadsTo {
        /// The threads' name.
        name: String,
        /// Where.
        pcpus: PcpuSet,
    },
    /// The VM's other threads of that name stand back behind its vCPUs.
    ThreadsNice {
        /// The threads' name.
        name: String,
        /// Their nice value.
        nice: Nice,
    },
    /// A cgroup has no quota.
    NoQuota {
        /// Whose.
        cgroup: CgroupPath,
    },
    /// The VM's own cgroup has so much of the weight that it has now, in per cent.
    VmWeight {
        /// How much.
        percent: u32,
    },
    /// A cgroup of the host's has this weight, in the knob's units.
    Weight {
        /// Whose.
        cgroup: CgroupPath,
        /// How much.
        weight: u32,
    },
    /// A process of the host stands back.
    ProcessNice {
        /// Its number.
        pid: u32,
        /// Its name, which tells it from a later process of that number.
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

/// A part of a whole.
pub(super) fn ratio(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0.max(1) as f64
}

/// `37 %`, and with a decimal below 10.
pub(super) fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}
