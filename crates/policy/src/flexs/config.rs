//! Tunables of FlexS and the ranges they must be in.
//!
//! Defaults are the paper's (Rao & Zhou, PPoPP 2014, section 4.2): 10 ms ticks, two choices, within 10 %,
//! a fair window of 10 s, 1 ms earlier per failed search. The ranges keep a controller from doing
//! harm: no ticks so short that accounting costs more than spinning, no window shorter than a tick.
//!
//! Times are [`Nanos`]. Not here: what the values mean for one decision (see [`super::FlexS`]).

use serde::{Deserialize, Serialize};
use thiserror::Error;

use tandem_model::units::Nanos;

/// The shortest time between two accountings of a vCPU: below, counting costs more than it finds.
const SHORTEST: Nanos = Nanos(100_000);
/// The longest tick: a spinning vCPU would waste whole slices unseen.
const LONGEST_TICK: Nanos = Nanos::from_secs(1);
/// The longest fair window; extremes of an hour ago say little of what runs now.
const LONGEST_WINDOW: Nanos = Nanos::from_secs(3600);
/// More choices than this look everywhere.
const MOST_CHOICES: u32 = 64;
/// The finest similarity: 1 ÷ 1000 is below what counters repeat to.
const FINEST: u32 = 1000;
/// More branches than this are not run in the shortest accounting period.
const MOST_BRANCHES: u32 = 1_000_000;
/// The branches of a vCPU that is accounted once a period: a loop that mispredicts one in 1,000 has 100 ± 10 mispredicted ones among them, which is as much
/// as the default similarity (within 10 %) lets pass.
const BRANCHES_OF_A_PERIOD: u32 = 100_000;
/// The longest warm-up in samples.
const LONGEST_WARM_UP: u32 = 1000;

/// Tunables of FlexS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlexSConfig {
    /// How often a running vCPU is accounted. Default 10 ms; 100 µs … 1 s. Shorter finds spinning sooner
    /// and costs more reads of counters.
    pub tick: Nanos,
    /// On how many other pCPUs a sibling is looked for. Default 2; 1 … 64. More finds one more often and
    /// looks into more queues.
    pub choices: u32,
    /// A ratio counts as the extreme when it is within 1 ÷ similarity of it. Default 10 (within 10 %);
    /// 2 … 1000. Higher has fewer false alarms and misses more.
    pub similarity: u32,
    /// How often extremes and marks are cleared. Default 10 s; `tick` … 1 h. Shorter follows a program's
    /// phases sooner and, after each clearing, takes more work for spinning.
    pub fair_window: Nanos,
    /// How much earlier the next accounting comes per failed search. Default 1 ms; 0 … `tick`.
    pub earlier: Nanos,
    /// The next accounting never comes sooner than this. Default 1 ms; 100 µs … `tick`.
    pub floor: Nanos,
    /// Samples of a VM in a window before one can count as spinning. Default 1, as in the paper: there
    /// the first is its own extreme and always counts; 1 … 1000. Higher avoids such false alarms and
    /// starts later.
    pub warm_up: u32,
    /// Whether nobody counts as spinning while all that a VM ran in a window looks alike. Default false, as in the paper: there a VM
    /// that only computes, evenly, counts as spinning, which does no harm where all of its vCPUs are marked. With it a VM whose
    /// vCPUs all spin is not found either.
    pub contrast: bool,
    /// A sample of fewer branches is not judged, and moves no extreme. Default 0, as in the paper; 0 … 1,000,000. Higher keeps the chance of small numbers out
    /// of the extremes, and leaves more short runs of a vCPU without a verdict.
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
        /// The least it may be.
        least: Nanos,
        /// The most it may be.
        most: Nanos,
    },
    /// A number.
    #[error("{name} is {value}: expected {least} … {most}")]
    Number {
        /// Which tunable.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The least it may be.
        least: u32,
        /// The most it may be.
        most: u32,
    },
}

impl FlexSConfig {
    /// For vCPUs that are accounted once an accounting period, not every 10 ms. A swap moves threads and caches, so nothing is judged
    /// before a VM of two vCPUs was seen for two periods, and nobody is called spinning who is like all else that its VM ran. A vCPU that others keep off
    /// its pCPU runs in slivers, some of them cut by the end of a period: those too small to tell do not count.
    pub fn of_periods() -> FlexSConfig {
        FlexSConfig {
            warm_up: 4,
            contrast: true,
            least_branches: BRANCHES_OF_A_PERIOD,
            ..FlexSConfig::default()
        }
    }

    /// Checks every value against its range; the first that is out of it is the error.
    pub fn validate(&self) -> Result<(), FlexSConfigError> {
        time("tick", self.tick, SHORTEST, LONGEST_TICK)?;
        number("choices", self.choices, 1, MOST_CHOICES)?;
        number("similarity", self.similarity, 2, FINEST)?;
        time("fair_window", self.fair_window, self.tick, LONGEST_WINDOW)?;
        time("earlier", self.earlier, Nanos::ZERO, self.tick)?;
        time("floor", self.floor, SHORTEST, self.tick)?;
        number("least_branches", self.least_branches, 0, MOST_BRANCHES)?;
        number("warm_up", self.warm_up, 1, LONGEST_WARM_UP)
    }

    /// Time to the next accounting: tick − failures × earlier, not below the floor.
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
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(FlexSConfigError::Time { name, value, least, most }),
    }
}

fn number(name: &'static str, value: u32, least: u32, most: u32) -> Result<(), FlexSConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(FlexSConfigError::Number { name, value, least, most }),
    }
}
