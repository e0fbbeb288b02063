//! What can be set of consolidation. Parts are of 1; periods are those of the controller.

use serde::{Deserialize, Serialize};

use tandem_model::units::Nanos;

/// How a step is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judge {
    /// By what the workload got done.
    #[default]
    Progress,
    /// By utilization, as in the paper.
    Utilization,
}

/// Tunables of consolidation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsolidationConfig {
    /// ρ at the start, over 0 … 1: which part of the others' idle time may be filled. Default 1.
    pub load_factor: f64,
    /// η at the start, over 0 … 1: which part of an idle period a piece of work may fill. Default 1.
    pub granularity_factor: f64,
    /// Pieces of work are never longer than this. Default 4 ms, "a few" in the paper. Longer consolidates
    /// programs that compute for longer between two synchronizations.
    pub least_time_slice: Nanos,
    /// How a step is judged.
    pub judge: Judge,
    /// A loss of up to this part is none, 0 … 1. Default 0.02. Wider keeps steps that cost a little. Negative
    /// (-1 … 0): a step is kept only if it gains that part.
    pub tolerance: f64,
    /// Periods that are taken together where progress is sampled, 1 …. Default 1. More tells smaller effects from
    /// noise, later.
    pub judged_over: u32,
    /// Periods for which both conditions must hold before a step, 1 …. Default 2.
    pub confirm: u32,
    /// Whether up to half of the vCPUs are taken out at once, where the others have room. Default true; the
    /// paper takes one at a time.
    pub leaps: bool,
    /// Whether any vCPU above 90 % brings all vCPUs back, as in the paper. Default false: only one that was not as busy right
    /// after the last step does, and one more thread that waits for a vCPU.
    pub full_starts_over: bool,
    /// With more than this part of its time spent waiting for locks without sleeping, 0 … 1, a workload that leaves no room is
    /// consolidated on trial. Default 0.1. 1: never.
    pub contention: f64,
    /// Periods after a failed step until it may be tried again; doubles with each failure up to 32 times this.
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
    /// As in the paper. It names no tolerance; ours stands for noise.
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
