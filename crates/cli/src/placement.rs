//! `--placement`: permitted changes of affinities.

use clap::ValueEnum;
use tandem_host::config::Placement;

/// Changes of affinities that the daemon may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlacementArg {
    /// Leave every affinity as it is. VMs whose vCPUs have no pCPU each then take no turns
    Keep,
    /// Give each vCPU of a VM that takes turns a pCPU, within its affinity, while it does
    Turns,
    /// That, and move vCPUs pinned to one pCPU where the pins leave no fair division
    Rebalance,
}

impl From<PlacementArg> for Placement {
    fn from(placement: PlacementArg) -> Placement {
        match placement {
            PlacementArg::Keep => Placement::Keep,
            PlacementArg::Turns => Placement::Turns,
            PlacementArg::Rebalance => Placement::Rebalance,
        }
    }
}
