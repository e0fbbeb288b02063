//! Tunables of FlexS and their ranges.
//!
//! Defaults are the paper's (Rao & Zhou, PPoPP 2014, section 4.2): 10 ms ticks, two choices,
//! within 10 %, a fair window of 10 s, 1 ms earlier per failed search.
//! The ranges prevent ticks so short that accounting costs more than spinning, and windows shorter than a tick.
//!
//! Times are [`Nanos`]. [`super::FlexS`] describes the effect of the values on a decision.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use tandem_model::units::Nanos;

/// Minimum time between two accountings of a vCPU; below it, counting costs more than it finds.
const MIN_INTERVAL: Nanos = Nanos(100_000);
/// Maximum tick; beyond it a spinning vCPU would waste whole slices undetected.
const MAX_TICK: Nanos = Nanos::from_secs(1);
/// Maximum fair window; extremes of an hour ago say little about the current workload.
const MAX_WINDOW: Nanos = Nanos::from_secs(3600);
/// Maximum number of choices; more would search everywhere.
const MAX_CHOICES: u32 = 64;
/// Maximum similarity; 1 ÷ 1000 is below the repeatability of counters.
const MAX_SIMILARITY: u32 = 1000;
/// Maximum of `least_branches`; fewer branches run in the shortest accounting period.
const MAX_BRANCHES: u32 = 1_000_000;
/// Minimum branches of a vCPU that is accounted once a period.
/// A loop that mispredicts one in 1,000 has 100 ± 10 mispredicted ones among them.
/// This deviation is as much as the default similarity (within 10 %) tolerates.
const BRANCHES_PER_PERIOD: u32 = 100_000;
/// Maximum warm-up, in samples.
const MAX_WARM_UP: u32 = 1000;

/// Tunables of FlexS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlexSConfig {
    /// Interval between accountings of a running vCPU. Default 10 ms; 100 µs … 1 s.
    /// Shorter finds spinning sooner and costs more reads of counters.
    pub tick: Nanos,
    /// Number of other pCPUs searched for a sibling. Default 2; 1 … 64.
    /// More finds one more often and looks into more queues.
    pub choices: u32,
    /// A ratio counts as extreme if it is within 1 ÷ similarity of the extreme. Default 10 (within 10 %); 2 … 1000.
    /// Higher has fewer false alarms and misses more.
    pub similarity: u32,
    /// Interval at which extremes and marks are cleared. Default 10 s; `tick` … 1 h.
    /// Shorter follows a program's phases sooner, but mistakes more work for spinning after each clearing.
    pub fair_window: Nanos,
    /// Time by which each failed search advances the next accounting. Default 1 ms; 0 … `tick`.
    pub earlier: Nanos,
    /// Minimum time to the next accounting. Default 1 ms; 100 µs … `tick`.
    pub floor: Nanos,
    /// Samples of a VM in a window before one can count as spinning. Default 1, as in the paper; 1 … 1000.
    /// With 1 the first sample is its own extreme and always counts.
    /// Higher avoids such false alarms and starts later.
    pub warm_up: u32,
    /// Suppresses spinning verdicts while all that a VM ran in a window looks alike. Default false, as in the paper.
    /// Without it a VM that only computes, evenly, counts as spinning, which is harmless if all
    /// of its vCPUs are marked.
    /// With it a VM whose vCPUs all spin is not found either.
    pub contrast: bool,
    /// Minimum branches of a sample; smaller samples are not judged, and move no extreme.
    /// Default 0, as in the paper; 0 … 1,000,000.
    /// Higher keeps the noise of small numbers out of the extremes, and leaves more short runs of
    /// a vCPU without a verdict.
    pub least_branches: u32,
}

impl Default for FlexSConfig {
    fn default() -> FlexSConfig {
        FlexSConfig {
            tick: Nanos::from_millis(10),
            choices: 2,
            similarity: 10,
            fair_window: Nanos::from_secs(10),
            earlier: Nanos::from_millis(1),
            floor: Nanos::from_millis(1),
            warm_up: 1,
            contrast: false,
            least_branches: 0,
        }
    }
}

/// A tunable out of its range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FlexSConfigError {
    /// A time.
    #[error("{name} is {value}: expected {least} … {most}")]
    Time {
        /// Which tunable.
        name: &'static str,
        /// Its value.
        value: Nanos,
        /// Its minimum.
        least: Nanos,
        /// Its maximum.
        most: Nanos,
    },
    /// A number.
    #[error("{name} is {value}: expected {least} … {most}")]
    Number {
        /// Which tunable.
        name: &'static str,
        /// Its value.
        value: u32,
        /// Its minimum.
        least: u32,
        /// Its maximum.
        most: u32,
    },
}

impl FlexSConfig {
    /// Tunables for vCPUs that are accounted once an accounting period instead of every 10 ms.
    /// A swap moves threads and caches, so a VM is judged only after four samples: two periods of two vCPUs.
    /// A vCPU whose samples look like all others of its VM does not count as spinning.
    /// A vCPU that others keep off its pCPU runs in slivers, some of them cut by the end of a period.
    /// Slivers too small to judge do not count.
    pub fn of_periods() -> FlexSConfig {
        FlexSConfig {
            warm_up: 4,
            contrast: true,
            least_branches: BRANCHES_PER_PERIOD,
            ..FlexSConfig::default()
        }
    }

    /// Checks every value against its range; returns the first violation.
    pub fn validate(&self) -> Result<(), FlexSConfigError> {
        time("tick", self.tick, MIN_INTERVAL, MAX_TICK)?;
        number("choices", self.choices, 1, MAX_CHOICES)?;
        number("similarity", self.similarity, 2, MAX_SIMILARITY)?;
        time("fair_window", self.fair_window, self.tick, MAX_WINDOW)?;
        time("earlier", self.earlier, Nanos::ZERO, self.tick)?;
        time("floor", self.floor, MIN_INTERVAL, self.tick)?;
        number("least_branches", self.least_branches, 0, MAX_BRANCHES)?;
        number("warm_up", self.warm_up, 1, MAX_WARM_UP)
    }

    /// Returns the time to the next accounting: tick − failures × earlier, at least the floor.
    pub fn wait(&self, failures: u32) -> Nanos {
        let earlier = Nanos(self.earlier.0.saturating_mul(u64::from(failures)));
        self.tick.saturating_sub(earlier).max(self.floor)
    }
}

fn time(
    name: &'static str,
    value: Nanos,
    least: Nanos,
    most: Nanos,
) -> Result<(), FlexSConfigError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(FlexSConfigError::Time { name, value, least, most })
    }
}

fn number(name: &'static str, value: u32, least: u32, most: u32) -> Result<(), FlexSConfigError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(FlexSConfigError::Number { name, value, least, most })
    }
}
