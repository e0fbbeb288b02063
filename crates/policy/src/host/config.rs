//! The settings of the controller and its policies, the same on a live host and in a simulation.

use serde::{Deserialize, Serialize};

use crate::asymmetric::AsymmetricConfig;
use crate::flexs::FlexSConfig;
use crate::flexw::FlexWConfig;
use crate::turns::TurnsConfig;
use tandem_model::policy_set::PolicySet;
use tandem_model::units::Nanos;

/// May policies change where vCPUs run?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Leave every affinity as it is. What the pins make impossible stays unfair, and only VMs take turns
    /// whose vCPUs have a pCPU each.
    Keep,
    /// Give each vCPU of a VM that takes turns a pCPU, within what the operator allowed, while it does.
    #[default]
    Turns,
    /// That, and move vCPUs pinned to one pCPU where the pins leave no fair division.
    Rebalance,
}

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControllerConfig {
    /// The accounting period T, 30 … 1000 ms on a live host. Default 100 ms. Shorter reacts sooner and measures fewer
    /// slices.
    pub period: Nanos,
    /// The policies that any VM may be under. Default: `fair`.
    pub policies: PolicySet,
    /// May policies change affinities? Default: of VMs that take turns.
    pub placement: Placement,
    /// Of the policy `fair`.
    pub flexw: FlexWConfig,
    /// Of the policy `turns`.
    pub turns: TurnsConfig,
    /// Of the policy `asymmetric`.
    pub asymmetric: AsymmetricConfig,
    /// Of the policy `flexs`. Its tick is the period.
    pub flexs: FlexSConfig,
    /// Decide and change nothing.
    pub dry_run: bool,
}

impl ControllerConfig {
    /// The defaults, for these policies.
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
