//! Tunables of consolidation. Fractions are of 1; periods are those of the controller.

use serde::{Deserialize, Serialize};

use tandem_model::units::Nanos;

/// How a step is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judge {
    /// By the workload's progress.
    #[default]
    Progress,
    /// By utilization, as in the paper.
    Utilization,
}

/// Tunables of consolidation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsolidationConfig {
    /// Initial ρ, above 0: fraction of the others' idle time that may be filled. Default 1.
    pub load_factor: f64,
    /// Initial η, above 0: fraction of an idle period that a piece of work may fill. Default 1.
    pub granularity_factor: f64,
    /// Maximum length of a piece of work. Default 4 ms, "a few" in the paper.
    /// Longer consolidates programs that compute for longer between two synchronizations.
    pub least_time_slice: Nanos,
    /// How a step is judged.
    pub judge: Judge,
    /// Tolerated loss, 0 … 1. Default 0.02. Wider keeps steps that cost a little.
    /// Negative (-1 … 0): the gain that a step needs to be kept.
    pub tolerance: f64,
    /// Periods that are merged if progress is sampled, 1 …. Default 1. More distinguishes smaller
    /// effects from noise, later.
    pub judged_over: u32,
    /// Periods for which both conditions must hold before a step, 1 …. Default 2.
    pub confirm: u32,
    /// Whether up to half of the vCPUs are removed at once if the others have room. Default true;
    /// the paper removes one at a time.
    pub leaps: bool,
    /// Whether any vCPU above 90 % brings all vCPUs back, as in the paper.
    /// Default false: only a vCPU that was less busy right after the last step does, or one more
    /// thread that waits for a vCPU.
    pub full_starts_over: bool,
    /// Fraction of its time that a workload waits for locks without sleeping, 0 … 1, above which
    /// it is consolidated on trial although it leaves no room. Default 0.1. 1: never.
    pub contention: f64,
    /// Periods after a failed step until it may be retried; doubles with each failure, up to 32 times this.
    /// 0: never, as in the paper. Default 50.
    pub rest: u32,
}

impl Default for ConsolidationConfig {
    fn default() -> ConsolidationConfig {
        ConsolidationConfig {
            load_factor: 1.0,
            granularity_factor: 1.0,
            least_time_slice: Nanos::from_millis(4),
            judge: Judge::Progress,
            tolerance: 0.02,
            judged_over: 1,
            confirm: 2,
            leaps: true,
            full_starts_over: false,
            contention: 0.1,
            rest: 50,
        }
    }
}

impl ConsolidationConfig {
    /// The settings of the paper. It names no tolerance; ours covers noise.
    pub fn paper() -> ConsolidationConfig {
        ConsolidationConfig {
            judge: Judge::Utilization,
            confirm: 1,
            leaps: false,
            full_starts_over: true,
            contention: 1.0,
            rest: 0,
            ..ConsolidationConfig::default()
        }
    }
}
