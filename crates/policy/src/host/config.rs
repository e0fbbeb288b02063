//! Settings of the controller and its policies, the same on a live host and in a simulation.

use serde::{Deserialize, Serialize};

use crate::asymmetric::AsymmetricConfig;
use crate::flexs::FlexSConfig;
use crate::flexw::FlexWConfig;
use crate::turns::TurnsConfig;
use tandem_model::policy_set::PolicySet;
use tandem_model::units::Nanos;

/// Whether policies may change where vCPUs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Leave every affinity as it is. Unfairness that pins cause remains, and only VMs whose
    /// vCPUs have a pCPU each take turns.
    Keep,
    /// Give each vCPU of a VM in turns a pCPU, within the affinity that the operator allowed.
    #[default]
    Turns,
    /// In addition, move vCPUs pinned to one pCPU if the pins prevent a fair division.
    Rebalance,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControllerConfig {
    /// Accounting period T, 30 … 1000 ms on a live host. Default 100 ms.
    /// Shorter reacts sooner and measures fewer slices.
    pub period: Nanos,
    /// Policies that VMs may be under. Default: `fair`.
    pub policies: PolicySet,
    /// Whether policies may change affinities. Default: only of VMs in turns.
    pub placement: Placement,
    /// Settings of the policy `fair`.
    pub flexw: FlexWConfig,
    /// Settings of the policy `turns`.
    pub turns: TurnsConfig,
    /// Settings of the policy `asymmetric`.
    pub asymmetric: AsymmetricConfig,
    /// Settings of the policy `flexs`. Its tick is the period.
    pub flexs: FlexSConfig,
    /// Decide and change nothing.
    pub dry_run: bool,
}

impl ControllerConfig {
    /// Defaults with these policies.
    pub fn new(policies: PolicySet) -> ControllerConfig {
        ControllerConfig {
            period: Nanos::from_millis(100),
            policies,
            placement: Placement::default(),
            flexw: FlexWConfig::default(),
            turns: TurnsConfig::default(),
            asymmetric: AsymmetricConfig::default(),
            flexs: FlexSConfig::of_periods(),
            dry_run: false,
        }
    }
}
