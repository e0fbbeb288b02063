//! Tunables of consolidation. Fractions are of 1; periods are those of the controller.

use serde::{Deserialize, Serialize};

use crate::settings::settings;
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

settings! {
    /// Tunables of consolidation.
    pub struct ConsolidationConfig {
        /// Initial ρ: fraction of the others' idle time that may be filled.
        pub load_factor: f64 = 1.0, (0.01, 10.0);
        /// Initial η: fraction of an idle period that a piece of work may fill.
        pub granularity_factor: f64 = 1.0, (0.01, 10.0);
        /// Maximum length of a piece of work, "a few" ms in the paper.
        /// Longer consolidates programs that compute for longer between two synchronizations.
        pub least_time_slice: Nanos = Nanos::from_millis(4), (Nanos(1), Nanos::from_secs(1));
        /// How a step is judged.
        pub judge: Judge = Judge::Progress;
        /// Tolerated loss. Wider keeps steps that cost a little.
        /// Negative: the gain that a step needs to be kept.
        pub tolerance: f64 = 0.02, (-1.0, 1.0);
        /// Periods that are merged if progress is sampled. More distinguishes smaller effects from noise, later.
        pub judged_over: u32 = 1, (1, 1000);
        /// Periods for which both conditions must hold before a step.
        pub confirm: u32 = 2, (1, 1000);
        /// Whether up to half of the vCPUs are removed at once if the others have room; the paper removes one at a time.
        pub leaps: bool = true;
        /// Whether any vCPU above 90 % brings all vCPUs back, as in the paper.
        /// False: only a vCPU that was less busy right after the last step does, or one more thread that waits for a vCPU.
        pub full_starts_over: bool = false;
        /// Fraction of its time that a workload waits for locks without sleeping, above which
        /// it is consolidated on trial although it leaves no room. 1: never.
        pub contention: f64 = 0.1, (0.0, 1.0);
        /// Periods after a failed step until it may be retried; doubles with each failure, up to 32 times this.
        /// 0: never, as in the paper.
        pub rest: u32 = 50, (0, 100_000);
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
