//! `tandem host why`: explains why VMs are slow, and proposes remedies.
//!
//! Combines one interval of [`tandem_observe`] with the configuration of this host for [`tandem_observe::findings`].
//! All VMs are measured, since any of them may be the culprit.
//! The findings cover the selected VMs, or all.
//! [`trial`] tries the remedies.
//!
//! [`WhyInterval`] in JSON is an interface.
//! `schema` is raised when a field changes its meaning or is removed; fields may be added.

mod changes;
mod heirs;
mod steps;
pub mod text;
pub mod trial;
pub mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tandem_linux::actuator::ActuatorError;
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::interrupt::Interrupted;
use tandem_linux::kernel_release;
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_linux::restore::RestoreReport;
use tandem_linux::sampler::{SampleError, Sampler};
use tandem_linux::thread::{Pid, StartTime, ThreadRef};
use tandem_model::states::edges::Party;
use tandem_model::states::interval::{HostTotals, SourceName};
use tandem_model::states::programs::Programs;
use tandem_model::{Nanos, VcpuId, VmId};
use tandem_observe::findings::{
    Change, Finding, KnownHost, KnownVm, NotLookedFor, Situation, find,
};
use tandem_observe::{Interval, Source};
use thiserror::Error;

use crate::config::ConfigError;
use crate::cpusets::{Caches, Cpusets};
use crate::discovery::{Discovery, DiscoveryOptions, Scan, VcpuThread, Vm};
use crate::origin::Origin;
use crate::quotas::Quotas;
use crate::select::{Selector, VmPattern};
use crate::vmm::Vmm;
use crate::watch::{Look, LookError, assessed};
use crate::weights::Weights;
use crate::{cpusets, quotas, status};

/// The version of the JSON documents.
pub const SCHEMA: u32 = 1;

/// Maximum number of VM names that an error lists.
const NAMES: usize = 20;

/// Why no answer can be given.
#[derive(Debug, Error)]
pub enum WhyError {
    /// The host cannot be observed.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The host's pCPUs are unknown.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// No VM matches.
    #[error("no VM matches '{asked}'; {}", there_is(.names))]
    NoSuchVm {
        /// The pattern.
        asked: String,
        /// The names of the VMs on the host.
        names: Vec<String>,
    },
    /// A signal arrived.
    #[error("{0}; all changes are reverted")]
    Interrupted(Interrupted),
    /// A trial without `yes` needs named VMs.
    #[error(
        "--try changes settings of a VM: name the VM, or pass --yes to allow all VMs and processes of the host"
    )]
    NoVmNamed,
    /// A trial failed, and so did a revert.
    #[error("{error}; and not all changes could be reverted: {report}")]
    NotPutBack {
        /// The first error.
        error: Box<WhyError>,
        /// The reverted and the remaining changes.
        report: RestoreReport,
    },
    /// Changes of an earlier run have to be reverted first.
    #[error("not all changes of an earlier run can be reverted, so no remedy is tried: {0}")]
    EarlierLeft(RestoreReport),
    /// The journal cannot be used, or a change cannot be reverted.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// A pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] ConfigError),
}

impl WhyError {
    /// No VM with one of these names matches the pattern.
    pub(crate) fn no_such_vm<'a>(
        asked: &VmPattern,
        names: impl Iterator<Item = &'a str>,
    ) -> WhyError {
        WhyError::NoSuchVm { asked: asked.to_string(), names: names.map(str::to_owned).collect() }
    }
}

fn there_is(names: &[String]) -> String {
    match names {
        [] => "no VM was found on this host".to_owned(),
        [only] => format!("there is {only}"),
        _ => {
            let shown = names[..names.len().min(NAMES)].join(", ");
            let more = if names.len() > NAMES {
                format!(" and {} more", names.len() - NAMES)
            } else {
                String::new()
            };
            format!("there are {shown}{more}")
        }
    }
}

/// The findings of one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhyInterval {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Start of the interval, in ns of CLOCK_MONOTONIC.
    pub start: Nanos,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// Source of the figures.
    pub source: SourceName,
    /// Names of the VMs that were selected and measured.
    pub vms: Vec<String>,
    /// Number of processes with a VMM's name that could not be inspected.
    pub unreadable: usize,
    /// The findings, the costliest first.
    pub findings: Vec<Finding>,
    /// Possible causes that this source cannot see.
    pub not_looked_for: Vec<NotLookedFor>,
    /// Events missed and figures estimated by the BPF programs, one line each.
    pub notes: Vec<String>,
    /// Times of the host's pCPUs.
    pub host: HostTotals,
}

/// Observes the host and changes nothing.
pub struct Why {
    procfs: ProcFs,
    options: DiscoveryOptions,
    pub(crate) look: Look,
    caches: Caches,
}

/// One interval with the configuration of its VMs.
struct Observation {
    /// All VMs of the host at the end of the interval.
    vms: Vec<Vm>,
    /// The selected VMs.
    asked: BTreeSet<VmId>,
    /// The weights behind the fair shares.
    weights: Weights,
    known: BTreeMap<VmId, KnownVm>,
    host: KnownHost,
    interval: Interval,
    /// The processes that remedies refer to and that existed for the whole interval.
    processes: BTreeMap<u32, ThreadRef>,
    /// The findings, for display.
    found: WhyInterval,
}

impl Why {
    /// Prepares to observe with this source.
    pub fn open(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        state_dir: &Path,
    ) -> Result<Why, WhyError> {
        let procfs = ProcFs::host();
        Ok(Why {
            look: Look::open(source, options.clone(), state_dir)?,
            options,
            caches: Caches::default(),
            procfs,
        })
    }

    /// Measures for `length` and returns the findings for the VMs that match `asked`, or for all if it is empty.
    pub fn look(&mut self, asked: &[VmPattern], length: Duration) -> Result<WhyInterval, WhyError> {
        let wait = || {
            std::thread::sleep(length);
            Ok(())
        };
        Ok(self.observe(asked, None, wait)?.found)
    }

    /// Measures for as long as `wait` takes.
    /// With `weights`, fair shares use these; VMs without an entry there use their present configuration.
    fn observe(
        &mut self,
        asked: &[VmPattern],
        weights: Option<&Weights>,
        wait: impl FnOnce() -> Result<(), Interrupted>,
    ) -> Result<Observation, WhyError> {
        let before = self.look.scan()?.vms;
        // A pattern without a match fails before the wait.
        select_vms(asked, &before, self.look.controller.as_ref())?;
        let mut quotas = Quotas::begin(self.look.controller.as_ref(), &before);
        let begun = heirs::now(&self.procfs);
        self.look.begin_with(&before)?;
        wait().map_err(WhyError::Interrupted)?;
        let (scan, interval) = self.look.interval()?;
        let asked = select_vms(asked, &scan.vms, self.look.controller.as_ref())?;
        let mut configured = self.look.weights(&scan.vms);
        if let Some(weights) = weights {
            configured.replace(weights);
        }
        let weights = configured;
        let situation = Situation {
            vms: self.known(&scan.vms, &interval, &weights, &mut quotas),
            host: self.host()?,
            weights: weights_of_culprits(self.look.controller.as_ref(), &interval),
            interval: &interval,
        };
        let found = answer(&situation, &asked, scan.unreadable_vmms);
        let processes = begun.map(|begun| remedy_processes(&self.procfs, &found.findings, begun));
        Ok(Observation {
            known: situation.vms,
            host: situation.host,
            processes: processes.unwrap_or_default(),
            vms: scan.vms,
            asked,
            weights,
            found,
            interval,
        })
    }

    /// Discovers the VMs from scratch, because cached discovery may be some seconds old.
    /// Known VMs keep their ids.
    fn rescan(&self, known: &[Vm]) -> Result<Scan, WhyError> {
        let discovery = Discovery::new(self.options.clone(), self.procfs.clone());
        let mut scan =
            discovery.and_then(|mut discovery| discovery.scan()).map_err(LookError::from)?;
        renumber(&mut scan.vms, known);
        Ok(scan)
    }

    /// Returns the present configuration, for a record. The time throttled by quotas is in it as LIM.
    pub(crate) fn situation<'a>(
        &mut self,
        vms: &[Vm],
        interval: &'a Interval,
    ) -> Result<Situation<'a>, WhyError> {
        let weights = self.look.weights(vms);
        Ok(Situation {
            vms: self.known(vms, interval, &weights, &mut Quotas::default()),
            host: self.host()?,
            weights: BTreeMap::new(),
            interval,
        })
    }

    fn known(
        &self,
        vms: &[Vm],
        interval: &Interval,
        weights: &Weights,
        quotas: &mut Quotas,
    ) -> BTreeMap<VmId, KnownVm> {
        let controller = self.look.controller.as_ref();
        let default = controller.default_weight();
        let managed = status::managed(&self.look.state_dir);
        let accounts = assessed(interval, weights);
        let mut cpusets = Cpusets::open(&self.procfs);
        let known = vms.iter().map(|vm| {
            let account = accounts.get(&vm.id);
            let cgroups = quotas::cgroups(controller, vm);
            let turns = managed.get(&vm.process).copied();
            let is_libvirt = vm.vmm == Vmm::Qemu && cgroups.iter().any(is_libvirts);
            let cpuset_of = |vcpu: &VcpuThread| -> Option<(VcpuId, _)> {
                Some((vcpu.index, cpusets.of(&vcpu.thread, is_libvirt)?))
            };
            let known = KnownVm {
                name: vm.name.clone(),
                pid: vm.process.pid.0,
                tids: vm.vcpus.iter().map(|vcpu| (vcpu.index, vcpu.thread.tid.0)).collect(),
                weight: weights.get(&vm.id).map_or(1.0, |weight| weight.value() / default.value()),
                due: account.map_or(Nanos::ZERO, |account| account.fair),
                received: account.map_or(Nanos::ZERO, |account| account.received),
                is_libvirt,
                quotas: quotas.of(controller, &cgroups),
                cpusets: vm.vcpus.iter().filter_map(cpuset_of).collect(),
                cgroup: cgroups.into_iter().next(),
                is_tenants: !Origin::of(vm, &self.procfs, controller).is_operators,
                is_managed: turns.is_some(),
                takes_turns: turns == Some(true),
            };
            (vm.id, known)
        });
        known.collect()
    }

    fn host(&mut self) -> Result<KnownHost, WhyError> {
        let online = Sampler::new(self.procfs.clone()).online_pcpus()?;
        let release = kernel_release::running();
        let autogroup = self.procfs.resolve("/proc/sys/kernel/sched_autogroup_enabled");
        Ok(KnownHost {
            version: self.look.controller.version(),
            mount: self.look.controller.mount().to_owned(),
            isolated: cpusets::isolated(&self.procfs),
            caches: self.caches.of(&self.procfs, &online).to_vec(),
            cores: self.caches.cores().to_vec(),
            online,
            kernel: kernel_release::numbers(&release),
            has_autogroup: read_text(&autogroup).is_ok_and(|text| text.trim() == "1"),
        })
    }
}

/// Returns the weights of the cgroups, and of their ancestors, of processes for which vCPUs waited.
fn weights_of_culprits(
    controller: &dyn CpuController,
    interval: &Interval,
) -> BTreeMap<CgroupPath, u32> {
    let culprits = interval.edges.iter().map(|edge| edge.culprit);
    let places: BTreeSet<CgroupPath> = culprits
        .filter_map(|culprit| match culprit {
            Party::Process { cgroup, .. } => cgroup.clone().map(CgroupPath),
            _ => None,
        })
        .flat_map(|cgroup| [cgroup.ancestors(), vec![cgroup]].concat())
        .filter(|cgroup| !cgroup.is_root())
        .collect();
    let weights = places.into_iter().filter_map(|cgroup| {
        let weight = controller.weight_outside_idle(&cgroup).ok()?;
        let shown = weight.map_or(0, |weight| weight.value().round() as u32);
        Some((cgroup, shown))
    });
    weights.collect()
}

/// Gives known VMs their ids, and the others unused ones.
fn renumber(vms: &mut [Vm], known: &[Vm]) {
    for (vm, n) in vms.iter_mut().zip(0..) {
        let same = |one: &&Vm| one.process == vm.process && one.name == vm.name;
        let known = known.iter().find(same);
        vm.id = known.map_or(VmId(u64::MAX - n), |known| known.id);
    }
}

/// Returns the processes that remedies refer to.
/// Only those that started before the interval are certain to be the measured ones.
fn remedy_processes(
    procfs: &ProcFs,
    findings: &[Finding],
    begun: StartTime,
) -> BTreeMap<u32, ThreadRef> {
    let changes = findings.iter().flat_map(|finding| &finding.cure.changes);
    let processes = changes.filter_map(|change| {
        let Change::ProcessNice { pid, .. } = change else {
            return None;
        };
        let process = ThreadRef::of_process(procfs, Pid(*pid)).ok()?;
        (process.start <= begun).then_some((*pid, process))
    });
    processes.collect()
}

/// Returns the findings for these VMs.
pub(crate) fn answer(
    situation: &Situation<'_>,
    ids: &BTreeSet<VmId>,
    unreadable: usize,
) -> WhyInterval {
    let interval = situation.interval;
    let found = find(situation, |vm| ids.contains(&vm));
    let measured = interval.vms.iter().filter(|vm| ids.contains(&vm.vm));
    let mut vms: Vec<String> =
        measured.filter_map(|vm| Some(situation.vms.get(&vm.vm)?.name.clone())).collect();
    vms.sort();
    WhyInterval {
        schema: SCHEMA,
        start: interval.start,
        seconds: interval.length.as_secs_f64(),
        source: interval.source,
        vms,
        unreadable,
        findings: found.findings,
        not_looked_for: found.not_looked_for,
        notes: interval.programs.as_ref().map_or_else(Vec::new, Programs::notes),
        host: interval.host.clone(),
    }
}

/// Returns the VMs that match any pattern, or all if there is none. A pattern that no VM matches is an error.
pub(crate) fn select_vms(
    asked: &[VmPattern],
    vms: &[Vm],
    controller: &dyn CpuController,
) -> Result<BTreeSet<VmId>, WhyError> {
    if asked.is_empty() {
        return Ok(vms.iter().map(|vm| vm.id).collect());
    }
    let mut ids = BTreeSet::new();
    for pattern in asked {
        let selector = Selector::of(std::slice::from_ref(pattern))?;
        let matching = vms.iter().filter(|vm| selector.matches(vm, controller));
        let matching: Vec<VmId> = matching.map(|vm| vm.id).collect();
        if matching.is_empty() {
            return Err(WhyError::no_such_vm(pattern, vms.iter().map(|vm| vm.name.as_str())));
        }
        ids.extend(matching);
    }
    Ok(ids)
}

/// Whether libvirt made the cgroup: `machine-qemu….scope` with systemd, `….libvirt-qemu` without.
fn is_libvirts(cgroup: &CgroupPath) -> bool {
    cgroup
        .0
        .split('/')
        .any(|name| name.starts_with("machine-qemu") || name.ends_with(".libvirt-qemu"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_vm_error_lists_names() {
        let tree = crate::fixtures::tree::Tree::default();
        let db = VmPattern::Name("db".to_owned());
        let error = select_vms(&[db], &[], &tree).unwrap_err().to_string();
        assert!(error.contains("'db'") && error.contains("no VM was found"), "{error}");
        let names = |count: usize| (0..count).map(|n| format!("vm{n}")).collect::<Vec<_>>();
        assert_eq!(there_is(&names(1)), "there is vm0");
        assert_eq!(there_is(&names(2)), "there are vm0, vm1");
        assert!(there_is(&names(25)).ends_with("vm19 and 5 more"));
        assert_eq!(select_vms(&[], &[], &tree).unwrap(), BTreeSet::new());
    }

    #[test]
    fn each_pattern_must_match() {
        use crate::fixtures::vm;
        let tree = crate::fixtures::tree::Tree::default();
        let vms = [vm(1, "db-1", 1), vm(2, "db-2", 1), vm(3, "web", 1)];
        let asked = |texts: &[&str]| {
            let patterns = texts.iter().map(|text| text.parse().unwrap());
            select_vms(&patterns.collect::<Vec<_>>(), &vms, &tree)
        };
        assert_eq!(asked(&["db-*", "300"]).unwrap().len(), 3);
        assert_eq!(asked(&["web"]).unwrap(), BTreeSet::from([VmId(3)]));
        let error = asked(&["web", "mail*"]).unwrap_err().to_string();
        assert!(error.contains("'mail*'") && error.contains("db-1, db-2, web"), "{error}");
    }

    #[test]
    fn new_vm_gets_an_unused_id() {
        use crate::fixtures::vm;
        let known = [vm(1, "a", 1), vm(2, "b", 1)];
        let mut replaced = vm(1, "a", 1);
        replaced.process.start.0 += 1;
        let mut grown = vm(2, "b", 2);
        grown.id = VmId(1);
        let mut now = [replaced, grown, vm(7, "c", 1)];
        renumber(&mut now, &known);
        assert_eq!(now[1].id, VmId(2), "found in another order");
        assert!(!known.iter().any(|vm| vm.id == now[0].id), "{:?}", now[0]);
        assert!(now[0].id != now[2].id && now[2].id.0 > 9);
    }

    #[test]
    fn process_started_within_interval_is_excluded() {
        let dir = tempfile::tempdir().unwrap();
        let task = dir.path().join("proc/300/task/300");
        std::fs::create_dir_all(&task).unwrap();
        let stat = format!("300 (dd) R 1 1 1 0 -1 {}1 0 41 0 0\n", "0 ".repeat(11));
        std::fs::write(task.join("stat"), stat).unwrap();
        let finding = Finding {
            vm: "db".to_owned(),
            pid: 100,
            id: VmId(1),
            kind: tandem_observe::findings::Kind::HostProcess,
            severity: tandem_observe::findings::Severity::Bad,
            lost_per_second: Nanos::ZERO,
            lost_of_run: None,
            burned_per_second: None,
            evidence: Vec::new(),
            cure: tandem_observe::findings::Cure {
                changes: vec![Change::ProcessNice {
                    pid: 300,
                    name: "dd".to_owned(),
                    nice: tandem_model::Nice::MOST,
                }],
                ..Default::default()
            },
        };
        let procfs = ProcFs::at(dir.path());
        let named = |begun| remedy_processes(&procfs, std::slice::from_ref(&finding), begun);
        assert_eq!(named(StartTime(41)).len(), 1);
        assert_eq!(named(StartTime(40)).len(), 0);
    }

    #[test]
    fn libvirt_cgroups_with_and_without_systemd() {
        let is = |path: &str| is_libvirts(&CgroupPath(path.to_owned()));
        assert!(is(r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/vcpu0"));
        assert!(is("/machine/qemu-1-web.libvirt-qemu/vcpu0"));
        assert!(!is("/vms/web"));
    }
}
