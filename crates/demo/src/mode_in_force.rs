//! The active mode: entering it, checking it, leaving it. Dropping it reverts its changes, as leaving does.

use std::collections::BTreeMap;

use tandem_host::spins::SpinAccount;
use tandem_model::Nice;
use tandem_report::service::SpinFigures;
use thiserror::Error;

use crate::account;
use crate::batch::{Batch, BatchError};
use crate::daemon_process::{DaemonError, DaemonProcess, Selected};
use crate::groups::{Groups, GroupsError};
use crate::mode::{Mode, NEIGHBOUR_NICE};
use crate::plan::Plan;
use crate::state_dir::StateDir;
use crate::vm_process::VmProcess;

/// An error that ends only the mode.
#[derive(Debug, Error)]
pub enum ModeFailure {
    /// The settings of the VMs failed.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// The daemon failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// SCHED_BATCH could not be set or reverted.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The mode changes neighbours, and there are none.
    #[error("the mode changes all VMs except the first, and there is only one VM")]
    NoNeighbour,
}

fn figures_of(account: &SpinAccount) -> SpinFigures {
    let truth = account.against_truth.clone().unwrap_or_default();
    SpinFigures {
        judged: account.judged,
        called_spinning: account.spun,
        decided: account.decided,
        swaps: account.swaps,
        left: account.left.clone(),
        failed: account.failed,
        refused: account.refused.clone(),
        spun: truth.spun,
        found: truth.found,
        missed: truth.missed,
        worked: truth.worked,
        false_alarms: truth.false_alarms,
    }
}

/// The changes of a mode.
pub enum ModeInForce {
    /// No changes.
    Nothing,
    /// Cgroups, pins or nice values.
    Groups(Box<Groups>),
    /// Cgroups, and threads in SCHED_BATCH.
    Batch(Box<Groups>, Batch),
    /// The daemon.
    Daemon(DaemonProcess),
}

impl ModeInForce {
    /// Enters a mode with the booted VMs of `plan`.
    pub fn enter(
        mode: Mode,
        plan: &Plan,
        vms: &[VmProcess],
        dir: &StateDir,
    ) -> Result<ModeInForce, ModeFailure> {
        if matches!(mode, Mode::Nice | Mode::Batch) && vms.len() < 2 {
            return Err(ModeFailure::NoNeighbour);
        }
        let equal = || Groups::enter(plan, vms, None, &dir.groups());
        let groups = match mode {
            Mode::AsIs => return Ok(ModeInForce::Nothing),
            Mode::EqualWeights => equal()?,
            Mode::HardCap => {
                let caps = account::entitlements(plan);
                Groups::enter(plan, vms, Some(&caps), &dir.groups())?
            }
            Mode::Pinning => {
                let mut groups = equal()?;
                groups.pin(plan, vms)?;
                groups
            }
            Mode::Nice => {
                let mut groups = Groups::none(&dir.groups())?;
                groups.nice_neighbours(plan, vms, Nice(NEIGHBOUR_NICE))?;
                groups
            }
            Mode::Batch => return Ok(ModeInForce::Batch(Box::new(equal()?), Batch::enter(vms)?)),
            Mode::Tandem | Mode::Asymmetric | Mode::Flexs => {
                let how = match mode {
                    Mode::Asymmetric => plan.daemon.with_asymmetric(),
                    Mode::Flexs => plan.daemon.with_flexs(),
                    _ => plan.daemon.clone(),
                };
                let weights = plan.vms.iter().map(|vm| vm.weight);
                let pids = vms.iter().map(VmProcess::pid).zip(weights).collect();
                let selected = Selected::Pids(pids);
                let daemon = DaemonProcess::start(&selected, &how, &[], &dir.daemon())?;
                return Ok(ModeInForce::Daemon(daemon));
            }
        };
        Ok(ModeInForce::Groups(Box::new(groups)))
    }

    /// Returns the figures of the policy `flexs` for each VM, if it counts the branches of that VM.
    pub fn spins(&self, vms: &[VmProcess]) -> Vec<Option<SpinFigures>> {
        let accounts = match self {
            ModeInForce::Daemon(daemon) => daemon.spins(),
            ModeInForce::Nothing | ModeInForce::Groups(_) | ModeInForce::Batch(..) => {
                BTreeMap::new()
            }
        };
        let of = |vm: &VmProcess| accounts.get(&vm.pid()).map(figures_of);
        vms.iter().map(of).collect()
    }

    /// Returns an error if the mode is no longer active.
    pub fn check(&mut self) -> Result<(), ModeFailure> {
        match self {
            ModeInForce::Daemon(daemon) => Ok(daemon.check()?),
            ModeInForce::Nothing | ModeInForce::Groups(_) | ModeInForce::Batch(..) => Ok(()),
        }
    }

    /// Reverts everything.
    pub fn leave(self) -> Result<(), ModeFailure> {
        match self {
            ModeInForce::Nothing => Ok(()),
            ModeInForce::Groups(groups) => Ok(groups.leave()?),
            ModeInForce::Batch(groups, batch) => {
                batch.leave()?;
                Ok(groups.leave()?)
            }
            ModeInForce::Daemon(daemon) => Ok(daemon.stop()?),
        }
    }
}
