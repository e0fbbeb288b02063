//! Looking at VMs, and what their measured time means by their weights: the same for all that say what VMs are due.
//!
//! `Look` holds what every command that looks needs: how VMs are found, their weights, and the source that measures. `top`, `why`, `record`,
//! `export`, `status` and `scalability` differ in what they make of it.
//!
//! All VMs of the host are measured and assessed, selected or not: pCPUs that an unselected VM is due are not there for the others,
//! and any VM may be a culprit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tandem_linux::cgroup;
use tandem_linux::cgroup::{CgroupError, CpuController};
use tandem_linux::procfs::ProcFs;
use tandem_model::states::interval::VcpuInterval;
use tandem_model::{State, VcpuObservation, VmId, VmObservation, Weight};
use tandem_observe::{Interval, ObserveError, Source, WatchedVcpu, WatchedVm};
use tandem_policy::Assessment;
use thiserror::Error;

use crate::discovery::{Discovery, DiscoveryError, DiscoveryOptions, Scan, Vm};
use crate::homes::KnownHomes;
use crate::weights::Weights;

/// Why the host cannot be looked at.
#[derive(Debug, Error)]
pub enum LookError {
    /// The host has no usable cpu controller.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Processes cannot be looked through.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Threads cannot be measured.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// Looks at the host again and again; nothing is changed.
pub(crate) struct Look {
    discovery: Discovery,
    pub(crate) controller: Box<dyn CpuController>,
    pub(crate) source: Box<dyn Source>,
    pub(crate) state_dir: PathBuf,
    homes: KnownHomes,
}

impl Look {
    /// Opens what is needed to look, with this source. Where a running daemon keeps its state, it says what is configured.
    pub(crate) fn open(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        state_dir: &Path,
    ) -> Result<Look, LookError> {
        let procfs = ProcFs::host();
        Ok(Look {
            discovery: Discovery::new(options, procfs.clone())?,
            controller: cgroup::open(&procfs)?,
            source,
            state_dir: state_dir.to_owned(),
            homes: KnownHomes::default(),
        })
    }

    /// The VMs that are there.
    pub(crate) fn scan(&mut self) -> Result<Scan, LookError> {
        Ok(self.discovery.scan()?)
    }

    /// Begins the first interval; the VMs that are there.
    pub(crate) fn begin(&mut self) -> Result<Vec<Vm>, LookError> {
        let vms = self.scan()?.vms;
        self.begin_with(&vms)?;
        Ok(vms)
    }

    /// Begins the first interval, with these VMs.
    pub(crate) fn begin_with(&mut self, vms: &[Vm]) -> Result<(), LookError> {
        Ok(self.source.begin(&watched(vms))?)
    }

    /// What is there now, and what happened since the last call or the beginning.
    pub(crate) fn interval(&mut self) -> Result<(Scan, Interval), LookError> {
        let scan = self.scan()?;
        let interval = self.interval_with(&scan.vms)?;
        Ok((scan, interval))
    }

    /// What these VMs did since the last call or the beginning.
    pub(crate) fn interval_with(&mut self, vms: &[Vm]) -> Result<Interval, LookError> {
        Ok(self.source.interval(&watched(vms))?)
    }

    /// What these VMs weigh now.
    pub(crate) fn weights(&mut self, vms: &[Vm]) -> Weights {
        let homes = self.homes.look(self.controller.as_ref(), vms);
        Weights::read(self.controller.as_ref(), &self.state_dir, vms, &homes)
    }
}

/// VMs as a source of observation knows them.
pub(crate) fn watched(vms: &[Vm]) -> Vec<WatchedVm> {
    let vcpus = |vm: &Vm| {
        let vcpus =
            vm.vcpus.iter().map(|vcpu| WatchedVcpu { vcpu: vcpu.index, thread: vcpu.thread });
        vcpus.collect()
    };
    let watched =
        vms.iter().map(|vm| WatchedVm { vm: vm.id, process: vm.process, vcpus: vcpus(vm) });
    watched.collect()
}

/// What each VM is due and received in the interval, level by level; one without a weight counts with 1.
pub(crate) fn assessed(interval: &Interval, weights: &Weights) -> BTreeMap<VmId, Assessment> {
    let observed: Vec<VmObservation> = interval
        .vms
        .iter()
        .map(|vm| {
            let weight = weights.get(&vm.vm).copied().unwrap_or(Weight::constant(1.0));
            VmObservation {
                levels: weights.levels(vm.vm).to_vec(),
                ..VmObservation::new(vm.vm, weight, vm.vcpus.iter().map(observation).collect())
            }
        })
        .collect();
    let assessments = tandem_policy::assess(interval.length, &observed);
    let ids = interval.vms.iter().map(|vm| vm.vm);
    ids.zip(assessments).collect()
}

fn observation(vcpu: &VcpuInterval) -> VcpuObservation {
    let limited = vcpu.times.get(State::Limited).unwrap_or_default();
    VcpuObservation {
        ran: vcpu.ran,
        // What a quota keeps it off it could not have had, whatever the others do.
        waited: vcpu.waited.saturating_sub(limited),
        limited,
        runnable: vcpu.runnable,
        ..VcpuObservation::new(vcpu.vcpu, vcpu.allowed.clone())
    }
}
