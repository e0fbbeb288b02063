//! What findings are made from: an interval, and what is configured on the host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::{CgroupPath, Quota, Version};
use tandem_model::states::interval::Interval;
use tandem_model::{Nanos, PcpuSet, VcpuId, VmId};

use super::finding::ratio;

/// An interval and what is configured.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// What was measured.
    pub interval: &'a Interval,
    /// The VMs. One that is not here is a culprit without a name, and not looked at.
    pub vms: BTreeMap<VmId, KnownVm>,
    /// The host.
    pub host: KnownHost,
    /// The weights of cgroups in which processes of the host are, and of those above, in the knob's units; 0 in the idle class. One that is not
    /// here is not known.
    pub weights: BTreeMap<CgroupPath, u32>,
}

impl Situation<'_> {
    /// A VM's name, with its process where another has the same.
    pub(super) fn name(&self, vm: VmId) -> String {
        let Some(known) = self.vms.get(&vm) else {
            return "a VM that is gone".to_owned();
        };
        let mut others = self.vms.iter().filter(|(id, _)| **id != vm);
        match others.any(|(_, other)| other.name == known.name) {
            true => format!("{} ({})", known.name, known.pid),
            false => known.name.clone(),
        }
    }

    /// How many pCPUs a time in the interval is.
    pub(super) fn pcpus(&self, time: Nanos) -> f64 {
        ratio(time, self.interval.length)
    }
}

/// What is configured for a VM. What is not written is in a record already, beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownVm {
    /// Its name.
    #[serde(skip)]
    pub name: String,
    /// Its process.
    #[serde(skip)]
    pub pid: u32,
    /// The threads of its vCPUs.
    #[serde(skip)]
    pub tids: BTreeMap<VcpuId, u32>,
    /// Its configured weight; the kernel's default is 1.
    pub weight: f64,
    /// Due over the interval, by weights and beside all VMs of the host.
    #[serde(skip)]
    pub due: Nanos,
    /// Received over the interval.
    #[serde(skip)]
    pub received: Nanos,
    /// The cgroup of its first vCPU; `None` where that is not known.
    pub cgroup: Option<CgroupPath>,
    /// The quotas of the cgroups of its vCPUs and of those above.
    pub quotas: Vec<KnownQuota>,
    /// Where the cpuset of each vCPU's cgroup lets it be moved. One that is not here may be moved anywhere, as far as is known.
    pub cpusets: BTreeMap<VcpuId, PcpuSet>,
    /// Whether it is a domain of libvirt, of the same name.
    pub is_libvirt: bool,
    /// Whether its name is a tenant's word, which selects nothing.
    pub is_tenants: bool,
    /// Whether a running daemon of Tandem's looks after it.
    pub is_managed: bool,
    /// Whether it takes turns.
    pub takes_turns: bool,
}

impl KnownVm {
    /// What is configured, without what is known of the VM and its interval anyway.
    pub fn settings(self) -> KnownVm {
        KnownVm {
            name: String::new(),
            pid: 0,
            tids: BTreeMap::new(),
            due: Nanos::ZERO,
            received: Nanos::ZERO,
            ..self
        }
    }
}

/// A cgroup's quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownQuota {
    /// Whose.
    pub cgroup: CgroupPath,
    /// How much.
    pub quota: Quota,
    /// For how long it kept the cgroup off pCPUs in the interval, summed over these; `None` where that is not known.
    #[serde(skip)]
    pub throttled: Option<Nanos>,
}

/// What is configured on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHost {
    /// Which interface holds the cpu controller.
    pub version: Version,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The pCPUs that are online.
    pub online: PcpuSet,
    /// The pCPUs that the kernel's command line takes out of scheduling (isolcpus).
    #[serde(default)]
    pub isolated: PcpuSet,
    /// The pCPUs of each last-level cache; empty where that is not known.
    pub caches: Vec<PcpuSet>,
    /// The pCPUs of each core; empty where that is not known, as in older records.
    #[serde(default)]
    pub cores: Vec<PcpuSet>,
    /// Major and minor number of the kernel's release; `None` where that is not known.
    pub kernel: Option<(u32, u32)>,
    /// Whether processes of a session compete as one (autogroup) while they are in the root cgroup.
    pub has_autogroup: bool,
}
