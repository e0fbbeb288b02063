//! The input of findings: an interval, and the configuration of the host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::{CgroupPath, Quota, Version};
use tandem_model::states::interval::Interval;
use tandem_model::{Nanos, PcpuSet, VcpuId, VmId};

use super::finding::ratio;

/// An interval and the configuration of the host.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The measurements.
    pub interval: &'a Interval,
    /// The VMs. Others in the interval count as unnamed culprits only.
    pub vms: BTreeMap<VmId, KnownVm>,
    /// The host.
    pub host: KnownHost,
    /// Weights of the cgroups of host processes and of their ancestors, in the knob's units; 0 for the idle class.
    /// Weights of other cgroups are unknown.
    pub weights: BTreeMap<CgroupPath, u32>,
}

impl Situation<'_> {
    /// Returns a VM's name, with its process id if the name is not unique.
    pub(super) fn name(&self, vm: VmId) -> String {
        let Some(known) = self.vms.get(&vm) else {
            return "a VM that is gone".to_owned();
        };
        let mut others = self.vms.iter().filter(|(id, _)| **id != vm);
        if others.any(|(_, other)| other.name == known.name) {
            format!("{} ({})", known.name, known.pid)
        } else {
            known.name.clone()
        }
    }

    /// Converts a time in the interval to pCPUs.
    pub(super) fn pcpus(&self, time: Nanos) -> f64 {
        ratio(time, self.interval.length)
    }
}

/// The configuration of a VM. Skipped fields are stored elsewhere in a record.
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
    /// Fair share of the interval, by weights among all VMs of the host.
    #[serde(skip)]
    pub due: Nanos,
    /// Received over the interval.
    #[serde(skip)]
    pub received: Nanos,
    /// The cgroup of its first vCPU; `None` if unknown.
    pub cgroup: Option<CgroupPath>,
    /// The quotas of its vCPUs' cgroups and their ancestors.
    pub quotas: Vec<KnownQuota>,
    /// The pCPUs that the cpuset of each vCPU's cgroup allows. vCPUs without an entry have no known restriction.
    pub cpusets: BTreeMap<VcpuId, PcpuSet>,
    /// Whether it is a libvirt domain of the same name.
    pub is_libvirt: bool,
    /// Whether a tenant chose its name, so that the name selects nothing.
    pub is_tenants: bool,
    /// Whether a Tandem daemon manages it.
    pub is_managed: bool,
    /// Whether it takes turns (co-scheduling).
    pub takes_turns: bool,
}

impl KnownVm {
    /// Returns the configuration without the fields that a record stores elsewhere.
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
    /// The cgroup.
    pub cgroup: CgroupPath,
    /// The quota.
    pub quota: Quota,
    /// Time that it throttled the cgroup in the interval, summed over pCPUs; `None` if unknown.
    #[serde(skip)]
    pub throttled: Option<Nanos>,
}

/// The configuration of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHost {
    /// The interface of the cpu controller.
    pub version: Version,
    /// Its mount point.
    pub mount: PathBuf,
    /// The online pCPUs.
    pub online: PcpuSet,
    /// The pCPUs that the kernel's command line excludes from scheduling (isolcpus).
    #[serde(default)]
    pub isolated: PcpuSet,
    /// The pCPUs of each last-level cache; empty if unknown.
    pub caches: Vec<PcpuSet>,
    /// The pCPUs of each core; empty if unknown, as in older records.
    #[serde(default)]
    pub cores: Vec<PcpuSet>,
    /// Major and minor number of the kernel's release; `None` if unknown.
    pub kernel: Option<(u32, u32)>,
    /// Whether autogroup makes the processes of a session compete as one in the root cgroup.
    pub has_autogroup: bool,
}
