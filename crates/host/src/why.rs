//! `tandem host why`: why VMs are slow, and what to do.
//!
//! One interval of [`tandem_observe`] and what is configured on this host, put together for [`tandem_observe::findings`]. All VMs are
//! looked at, since any may be a culprit; findings are those of the VM that was asked for, or of all.
//!
//! [`WhyInterval`] in JSON is an interface: `schema` is raised when a field changes its meaning or goes; fields may be added.

pub mod text;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::procfs::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_linux::sampler::SampleError;
use tandem_linux::sampler::Sampler;
use tandem_observe::Interval;
use tandem_observe::ObserveError;
use tandem_observe::Source;
use tandem_observe::findings::Finding;
use tandem_observe::findings::KnownHost;
use tandem_observe::findings::KnownQuota;
use tandem_observe::findings::KnownVm;
use tandem_observe::findings::NotLookedFor;
use tandem_observe::findings::Situation;
use tandem_observe::findings::find;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::PcpuSet;
use tandem_policy::VmId;
use tandem_policy::states::interval::HostTotals;
use tandem_policy::states::interval::SourceName;
use thiserror::Error;

use crate::check::kernel;
use crate::discovery::Discovery;
use crate::discovery::DiscoveryError;
use crate::discovery::DiscoveryOptions;
use crate::discovery::Vm;
use crate::status;
use crate::vmm::Vmm;
use crate::watch::assessed;
use crate::watch::watched;

/// The version of the JSON documents.
pub const SCHEMA: u32 = 1;

/// How many names an error lists.
const NAMES: usize = 20;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WhyError {
    /// The host has no usable cpu controller.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Processes cannot be looked through.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Threads cannot be measured.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The host's pCPUs are not known.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// No VM has that name.
    #[error("no VM is called '{asked}' and no VM's process has that number; {}", there_is(.names))]
    NoSuchVm {
        /// What was asked for.
        asked: String,
        /// What there is.
        names: Vec<String>,
    },
}

fn there_is(names: &[String]) -> String {
    match names {
        [] => "no VM was found on this host".to_owned(),
        [only] => format!("there is {only}"),
        _ => {
            let shown = names[..names.len().min(NAMES)].join(", ");
            let more = match names.len() > NAMES {
                true => format!(" and {} more", names.len() - NAMES),
                false => String::new(),
            };
            format!("there are {shown}{more}")
        }
    }
}

/// What was found in one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhyInterval {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the interval began, in ns: CLOCK_MONOTONIC.
    pub start: Nanos,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// Where the figures are from.
    pub source: SourceName,
    /// The VMs that were asked for and measured, by name.
    pub vms: Vec<String>,
    /// Processes that are VMMs by their names and could not be looked into.
    pub unreadable: usize,
    /// What is wrong, the costliest first.
    pub findings: Vec<Finding>,
    /// Causes that may be there and cannot be seen.
    pub not_looked_for: Vec<NotLookedFor>,
    /// Where the host's pCPUs were.
    pub host: HostTotals,
}

/// Looks at the host; nothing is changed.
pub struct Why {
    procfs: ProcFs,
    discovery: Discovery,
    controller: Box<dyn CpuController>,
    state_dir: PathBuf,
    source: Box<dyn Source>,
}

impl Why {
    /// Opens what is needed to look, with this source.
    pub fn open(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        state_dir: &Path,
    ) -> Result<Why, WhyError> {
        let procfs = ProcFs::host();
        Ok(Why {
            discovery: Discovery::new(options, procfs.clone())?,
            controller: cgroup::open(&procfs)?,
            source,
            state_dir: state_dir.to_owned(),
            procfs,
        })
    }

    /// Looks for so long, at the VM of that name or process number, or at all.
    pub fn look(&mut self, asked: Option<&str>, length: Duration) -> Result<WhyInterval, WhyError> {
        let before = self.discovery.scan()?.vms;
        // Who asks for a VM that is not there is told at once.
        asked_for(asked, &before)?;
        self.source.begin(&watched(&before))?;
        std::thread::sleep(length);
        let scan = self.discovery.scan()?;
        let interval = self.source.interval(&watched(&scan.vms))?;
        let ids = asked_for(asked, &scan.vms)?;
        let situation = self.situation(&scan.vms, &interval)?;
        let found = find(&situation, |vm| ids.contains(&vm));
        let measured = interval.vms.iter().filter(|vm| ids.contains(&vm.vm));
        let mut vms: Vec<String> = measured
            .filter_map(|vm| Some(situation.vms.get(&vm.vm)?.name.clone()))
            .collect();
        vms.sort();
        Ok(WhyInterval {
            schema: SCHEMA,
            start: interval.start,
            seconds: interval.length.as_secs_f64(),
            source: interval.source,
            vms,
            unreadable: scan.unreadable_vmms,
            findings: found.findings,
            not_looked_for: found.not_looked_for,
            host: interval.host,
        })
    }

    fn situation<'a>(&self, vms: &[Vm], interval: &'a Interval) -> Result<Situation<'a>, WhyError> {
        let controller = self.controller.as_ref();
        let weights = status::configured_weights(controller, &self.state_dir, vms);
        let default = controller.default_weight();
        let managed = status::managed(&self.state_dir);
        let accounts = assessed(interval, &weights);
        let known = vms.iter().map(|vm| {
            let account = accounts.get(&vm.id);
            let cgroups: BTreeSet<CgroupPath> = vm
                .vcpus
                .iter()
                .filter_map(|vcpu| controller.cgroup_of(&vcpu.thread).ok())
                .collect();
            let turns = managed.get(&vm.process).copied();
            let known = KnownVm {
                name: vm.name.clone(),
                pid: vm.process.pid.0,
                tids: vm
                    .vcpus
                    .iter()
                    .map(|vcpu| (vcpu.index, vcpu.thread.tid.0))
                    .collect(),
                weight: weights
                    .get(&vm.id)
                    .map_or(1.0, |weight| weight.value() / default.value()),
                due: account.map_or(Nanos::ZERO, |account| account.fair),
                received: account.map_or(Nanos::ZERO, |account| account.received),
                is_libvirt: vm.vmm == Vmm::Qemu && cgroups.iter().any(is_libvirts),
                quotas: quotas(controller, &cgroups),
                cgroup: cgroups.into_iter().next(),
                is_managed: turns.is_some(),
                takes_turns: turns == Some(true),
            };
            (vm.id, known)
        });
        Ok(Situation {
            interval,
            vms: known.collect(),
            host: self.host()?,
        })
    }

    fn host(&self) -> Result<KnownHost, WhyError> {
        let online = Sampler::new(self.procfs.clone()).online_pcpus()?;
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let autogroup = self
            .procfs
            .resolve("/proc/sys/kernel/sched_autogroup_enabled");
        Ok(KnownHost {
            version: self.controller.version(),
            mount: self.controller.mount().to_owned(),
            caches: caches(&self.procfs, &online),
            online,
            kernel: kernel::numbers(&release),
            has_autogroup: read_text(&autogroup).is_ok_and(|text| text.trim() == "1"),
        })
    }
}

/// The VMs of that name or process number; all if none is given.
fn asked_for(asked: Option<&str>, vms: &[Vm]) -> Result<BTreeSet<VmId>, WhyError> {
    let Some(asked) = asked else {
        return Ok(vms.iter().map(|vm| vm.id).collect());
    };
    let is_asked = |vm: &&Vm| vm.name == asked || vm.process.pid.0.to_string() == asked;
    let ids: BTreeSet<VmId> = vms.iter().filter(is_asked).map(|vm| vm.id).collect();
    match ids.is_empty() {
        false => Ok(ids),
        true => Err(WhyError::NoSuchVm {
            asked: asked.to_owned(),
            names: vms.iter().map(|vm| vm.name.clone()).collect(),
        }),
    }
}

/// Whether libvirt made the cgroup: `machine-qemu….scope` with systemd, `….libvirt-qemu` without.
fn is_libvirts(cgroup: &CgroupPath) -> bool {
    cgroup
        .0
        .split('/')
        .any(|name| name.starts_with("machine-qemu") || name.ends_with(".libvirt-qemu"))
}

/// The quotas of these cgroups and of those above. What cannot be read has none that is known.
fn quotas(controller: &dyn CpuController, cgroups: &BTreeSet<CgroupPath>) -> Vec<KnownQuota> {
    let mut all: BTreeSet<CgroupPath> = cgroups.clone();
    all.extend(cgroups.iter().flat_map(CgroupPath::ancestors));
    all.retain(|cgroup| !cgroup.is_root());
    let quotas = all.into_iter().filter_map(|cgroup| {
        let quota = controller.quota(&cgroup).ok()??;
        Some(KnownQuota { cgroup, quota })
    });
    quotas.collect()
}

/// The pCPUs of each last-level cache.
///
/// Source: Documentation/ABI/testing/sysfs-devices-system-cpu, cache/index*/{level,shared_cpu_list}.
fn caches(procfs: &ProcFs, online: &PcpuSet) -> Vec<PcpuSet> {
    let mut caches = BTreeSet::new();
    for pcpu in online.iter() {
        caches.extend(last_cache(procfs, pcpu));
    }
    caches.into_iter().collect()
}

fn last_cache(procfs: &ProcFs, pcpu: PcpuId) -> Option<PcpuSet> {
    let folder = procfs.resolve(format!("/sys/devices/system/cpu/cpu{pcpu}/cache"));
    let mut by_level: BTreeMap<u32, PcpuSet> = BTreeMap::new();
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let read = |file: &str| read_text(&entry.path().join(file)).ok();
        let level = read("level").and_then(|text| text.trim().parse().ok());
        let shared = read("shared_cpu_list").and_then(|text| text.trim().parse().ok());
        by_level.extend(level.zip(shared));
    }
    by_level.into_values().next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_vm_is_answered_with_what_there_is() {
        let error = asked_for(Some("db"), &[]).unwrap_err().to_string();
        assert!(
            error.contains("'db'") && error.contains("no VM was found"),
            "{error}"
        );
        let names = |count: usize| (0..count).map(|n| format!("vm{n}")).collect::<Vec<_>>();
        assert_eq!(there_is(&names(1)), "there is vm0");
        assert_eq!(there_is(&names(2)), "there are vm0, vm1");
        assert!(there_is(&names(25)).ends_with("vm19 and 5 more"));
        assert_eq!(asked_for(None, &[]).unwrap(), BTreeSet::new());
    }

    #[test]
    fn libvirts_cgroups_are_known_with_and_without_systemd() {
        let is = |path: &str| is_libvirts(&CgroupPath(path.to_owned()));
        assert!(is(
            r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/vcpu0"
        ));
        assert!(is("/machine/qemu-1-web.libvirt-qemu/vcpu0"));
        assert!(!is("/vms/web"));
    }

    #[test]
    fn the_last_cache_is_the_one_of_the_highest_level() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("sys/devices/system/cpu/cpu0/cache");
        for (index, level, shared) in [
            ("index0", "1", "0"),
            ("index1", "3", "0-3"),
            ("index2", "2", "0-1"),
        ] {
            let folder = cache.join(index);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("level"), level).unwrap();
            fs::write(folder.join("shared_cpu_list"), format!("{shared}\n")).unwrap();
        }
        let procfs = ProcFs::at(dir.path());
        assert_eq!(last_cache(&procfs, PcpuId(0)), Some("0-3".parse().unwrap()));
        assert_eq!(last_cache(&procfs, PcpuId(1)), None);
    }
}
