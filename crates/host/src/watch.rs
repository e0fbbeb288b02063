//! Observation of VMs and its assessment by weight, shared by all commands that show fair shares.
//!
//! `Look` combines the discovery, the weights and the source of measurements.
//! `top`, `why`, `record`, `export`, `status` and `scalability` differ in their use of it.
//!
//! All VMs of the host are measured and assessed, selected or not.
//! The fair share of an unselected VM is not available to the others, and any VM may be a culprit.

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

/// Why the host cannot be observed.
#[derive(Debug, Error)]
pub enum LookError {
    /// The host has no usable cpu controller.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The processes cannot be listed.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The threads cannot be measured.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// Observes the host repeatedly and changes nothing.
pub(crate) struct Look {
    discovery: Discovery,
    pub(crate) controller: Box<dyn CpuController>,
    pub(crate) source: Box<dyn Source>,
    pub(crate) state_dir: PathBuf,
    homes: KnownHomes,
}

impl Look {
    /// Opens the source. The running daemon of `state_dir`, if any, provides the configured weights.
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

    /// Returns the present VMs.
    pub(crate) fn scan(&mut self) -> Result<Scan, LookError> {
        Ok(self.discovery.scan()?)
    }

    /// Begins the first interval, and returns the present VMs.
    pub(crate) fn begin(&mut self) -> Result<Vec<Vm>, LookError> {
        let vms = self.scan()?.vms;
        self.begin_with(&vms)?;
        Ok(vms)
    }

    /// Begins the first interval, with these VMs.
    pub(crate) fn begin_with(&mut self, vms: &[Vm]) -> Result<(), LookError> {
        Ok(self.source.begin(&watched(vms))?)
    }

    /// Returns the present VMs, and the interval since the last call or the beginning.
    pub(crate) fn interval(&mut self) -> Result<(Scan, Interval), LookError> {
        let scan = self.scan()?;
        let interval = self.interval_with(&scan.vms)?;
        Ok((scan, interval))
    }

    /// Returns the interval of these VMs since the last call or the beginning.
    pub(crate) fn interval_with(&mut self, vms: &[Vm]) -> Result<Interval, LookError> {
        Ok(self.source.interval(&watched(vms))?)
    }

    /// Returns the present weights of these VMs.
    pub(crate) fn weights(&mut self, vms: &[Vm]) -> Weights {
        let homes = self.homes.look(self.controller.as_ref(), vms);
        Weights::read(self.controller.as_ref(), &self.state_dir, vms, &homes)
    }
}

/// Converts VMs for a source of measurements.
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

/// Returns the fair share and the received time of each VM, level by level; a VM without a weight counts with 1.
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
        // Time throttled by a quota was never available to it, whatever the others do.
        waited: vcpu.waited.saturating_sub(limited),
        limited,
        runnable: vcpu.runnable,
        ..VcpuObservation::new(vcpu.vcpu, vcpu.allowed.clone())
    }
}
