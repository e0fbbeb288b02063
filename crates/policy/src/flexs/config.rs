//! Tunables of FlexS and their ranges.
//!
//! Defaults are the paper's (Rao & Zhou, PPoPP 2014, section 4.2): 10 ms ticks, two choices,
//! within 10 %, a fair window of 10 s, 1 ms earlier per failed search.
//! The ranges prevent ticks so short that accounting costs more than spinning, and windows shorter than a tick.
//!
//! Times are [`Nanos`]. [`super::FlexS`] describes the effect of the values on a decision.

use crate::settings::settings;
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

settings! {
    /// Tunables of FlexS.
    #[derive(Eq)]
    pub struct FlexSConfig as its {
        /// Interval between accountings of a running vCPU; a live host has the accounting period instead.
        /// Shorter finds spinning sooner and costs more reads of counters.
        pub tick: Nanos = Nanos::from_millis(10), (MIN_INTERVAL, MAX_TICK);
        /// Number of other pCPUs searched for a sibling.
        /// More finds one more often and looks into more queues.
        pub choices: u32 = 2, (1, MAX_CHOICES);
        /// A ratio counts as extreme if it is within 1 ÷ similarity of the extreme. The default means within 10 %.
        /// Higher has fewer false alarms and misses more.
        pub similarity: u32 = 10, (2, MAX_SIMILARITY);
        /// Interval at which extremes and marks are cleared.
        /// Shorter follows a program's phases sooner, but mistakes more work for spinning after each clearing.
        pub fair_window: Nanos = Nanos::from_secs(10), (its.tick, MAX_WINDOW);
        /// Time by which each failed search advances the next accounting; not on a live host.
        pub earlier: Nanos = Nanos::from_millis(1), (Nanos::ZERO, its.tick);
        /// Minimum time to the next accounting; not on a live host.
        pub floor: Nanos = Nanos::from_millis(1), (MIN_INTERVAL, its.tick);
        /// Samples of a VM in a window before one can count as spinning.
        /// With 1, as in the paper, the first sample is its own extreme and always counts.
        /// Higher avoids such false alarms and starts later.
        pub warm_up: u32 = 1, (1, MAX_WARM_UP);
        /// Suppresses spinning verdicts while all that a VM ran in a window looks alike.
        /// Without it, as in the paper, a VM that only computes, evenly, counts as spinning, which is harmless if all
        /// of its vCPUs are marked.
        /// With it a VM whose vCPUs all spin is not found either.
        pub contrast: bool = false;
        /// Minimum branches of a sample; smaller samples are not judged, and move no extreme. 0 as in the paper.
        /// Higher keeps the noise of small numbers out of the extremes, and leaves more short runs of
        /// a vCPU without a verdict.
        pub least_branches: u32 = 0, (0, MAX_BRANCHES);
    }
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

    /// Returns the time to the next accounting: tick − failures × earlier, at least the floor.
    pub fn wait(&self, failures: u32) -> Nanos {
        let earlier = Nanos(self.earlier.0.saturating_mul(u64::from(failures)));
        self.tick.saturating_sub(earlier).max(self.floor)
    }
}
