//! Detection of busy-waiting from the branch counters of a vCPU.
//!
//! Source: Rao & Zhou, PPoPP 2014, section 4.2. A spin loop is short and always goes the same way.
//! It has more branches per instruction, and fewer of them mispredicted, than anything else its VM runs.
//! Per VM, the detector keeps the extremes since the fair window began:
//!
//! ```text
//! bpi  = branches ÷ instructions            (max_bpi:  the largest)
//! bmpr = mispredicted ÷ branches            (min_bmpr: the smallest)
//! ```
//!
//! With similarity n = 10 a vCPU is busy-waiting if both ratios are within 10 % of the extremes:
//! ⌊(max_bpi − bpi) × n ÷ max_bpi⌋ = 0 and ⌊(bmpr − min_bmpr) × n ÷ min_bmpr⌋ = 0.
//! That is n bpi > (n − 1) max_bpi and n bmpr < (n + 1) min_bmpr: exactly 10 % away no longer counts.
//! Both are decided on integers, without rounding: every machine gives the same verdict, and only ratios matter.
//! The newest sample enters the extremes before it is compared with them.
//!
//! Guards:
//! Without instructions, or with inconsistent counts, there is no verdict and the extremes do not move.
//! Counts are inconsistent if branches exceed instructions, or mispredicted ones exceed branches.
//! Without branches the second ratio does not exist, and such code does not loop: not busy-waiting.
//! So max_bpi = 0 never enters a comparison. If min_bmpr = 0, only bmpr = 0 counts as near it.
//!
//! Small samples: of B branches of a loop that mispredicts a fraction p, about p × B ± √(p × B) are counted.
//! A small enough sample shows any ratio, 0 among them, and as the smallest one it would hide
//! spinning until the window ends.
//! The source does not treat this, as its samples are whole ticks.
//! With [`SpinDetector::with_least_branches`] a sample of fewer branches moves no extreme and is not judged.
//!
//! The detector does not know whether the work is useful. A VM that only computes, evenly, looks like its own extremes.
//! The marks prevent needless swaps of such vCPUs (see [`super::FlexS`]).
//! With [`SpinDetector::with_contrast`] no vCPU counts as spinning while all samples of a window look alike.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_model::branch_counters::BranchCounts;

/// An exact fraction. The whole is never 0.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    part: u64,
    whole: u64,
}

impl Ratio {
    /// `part` ÷ `whole`; `None` if the whole is 0 or less than the part.
    pub fn new(part: u64, whole: u64) -> Option<Ratio> {
        (whole > 0 && part <= whole).then_some(Ratio { part, whole })
    }

    /// Returns the fraction as a float, for display.
    pub fn as_f64(self) -> f64 {
        self.part as f64 / self.whole as f64
    }

    /// Returns the larger ratio.
    fn greatest(self, other: Ratio) -> Ratio {
        match other.compare(1, self, 1) {
            Ordering::Greater => other,
            Ordering::Less | Ordering::Equal => self,
        }
    }

    /// Returns the smaller ratio.
    fn least(self, other: Ratio) -> Ratio {
        match other.compare(1, self, 1) {
            Ordering::Less => other,
            Ordering::Greater | Ordering::Equal => self,
        }
    }

    /// Compares a × self with b × other.
    fn compare(self, a: u32, other: Ratio, b: u32) -> Ordering {
        product(a, self.part, other.whole).cmp(&product(b, other.part, self.whole))
    }
}

impl PartialEq for Ratio {
    fn eq(&self, other: &Ratio) -> bool {
        self.compare(1, *other, 1) == Ordering::Equal
    }
}

impl Eq for Ratio {}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4}", self.as_f64())
    }
}

/// a × b × c as (upper bits, lower 64 bits): up to 160 bits, which u128 alone does not hold.
fn product(a: u32, b: u64, c: u64) -> (u128, u64) {
    let ab = u128::from(a) * u128::from(b);
    let low = u128::from(ab as u64) * u128::from(c);
    let high = (ab >> 64) * u128::from(c) + (low >> 64);
    (high, low as u64)
}

/// Basis of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Both ratios were compared with the VM's extremes.
    Compared,
    /// The VM has too few samples in this fair window.
    WarmingUp,
    /// All that the VM ran in this fair window looks alike.
    Alike,
    /// It ran too few branches for meaningful ratios.
    TooFew,
    /// It ran no branches.
    NoBranches,
    /// It ran no instructions.
    NoInstructions,
    /// More branches than instructions, or more mispredicted than branches.
    Inconsistent,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Basis::Compared => "its branches are unlike those of the VM's tightest loop",
            Basis::WarmingUp => "too few samples of the VM in this fair window",
            Basis::Alike => "all that its VM ran in this fair window looks alike",
            Basis::TooFew => "too few branches since its last accounting to tell",
            Basis::NoBranches => "no branches since its last accounting",
            Basis::NoInstructions => "no instructions since its last accounting",
            Basis::Inconsistent => {
                "counters that contradict each other: \
                 expected instructions ≥ branches ≥ mispredicted"
            }
        })
    }
}

/// Verdict on the counters of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether it busy-waits.
    pub busy_waiting: bool,
    /// Branches ÷ instructions; `None` without instructions.
    pub bpi: Option<Ratio>,
    /// Mispredicted ÷ branches; `None` without branches.
    pub bmpr: Option<Ratio>,
    /// Basis of the verdict.
    pub basis: Basis,
}

impl Verdict {
    /// Whether the counters could be judged; if not, the earlier state of the vCPU stands.
    pub fn says_something(&self) -> bool {
        !matches!(self.basis, Basis::NoInstructions | Basis::Inconsistent | Basis::TooFew)
    }

    /// Both ratios, if both exist.
    pub fn ratios(&self) -> Option<(Ratio, Ratio)> {
        self.bpi.zip(self.bmpr)
    }
}

/// The extremes of one VM's vCPUs in a fair window, and verdicts by them.
#[derive(Clone, Debug)]
pub struct SpinDetector {
    similarity: u32,
    warm_up: u32,
    samples: u32,
    /// The largest branches ÷ instructions, and smallest mispredicted ÷ branches.
    extremes: Option<(Ratio, Ratio)>,
    /// The smallest branches ÷ instructions, and largest mispredicted ÷ branches.
    opposite: Option<(Ratio, Ratio)>,
    contrast: bool,
    least_branches: u64,
}

impl SpinDetector {
    /// Creates a detector without samples. A ratio is near an extreme if it is within 1 ÷ `similarity` of it.
    /// The first `warm_up` − 1 samples of a window only move the extremes.
    pub fn new(similarity: u32, warm_up: u32) -> SpinDetector {
        SpinDetector {
            similarity,
            warm_up,
            samples: 0,
            extremes: None,
            opposite: None,
            contrast: false,
            least_branches: 0,
        }
    }

    /// Sets whether no vCPU counts as spinning while all samples of a window are near its extremes.
    #[must_use]
    pub fn with_contrast(self, contrast: bool) -> SpinDetector {
        SpinDetector { contrast, ..self }
    }

    /// Sets the minimum number of branches of a sample.
    #[must_use]
    pub fn with_least_branches(self, least_branches: u32) -> SpinDetector {
        SpinDetector { least_branches: u64::from(least_branches), ..self }
    }

    /// The largest branches ÷ instructions in this window.
    pub fn max_bpi(&self) -> Option<Ratio> {
        self.extremes.map(|(max_bpi, _)| max_bpi)
    }

    /// The smallest mispredicted ÷ branches in this window.
    pub fn min_bmpr(&self) -> Option<Ratio> {
        self.extremes.map(|(_, min_bmpr)| min_bmpr)
    }

    /// Begins a new fair window and forgets the extremes.
    pub fn clear(&mut self) {
        self.samples = 0;
        self.extremes = None;
        self.opposite = None;
    }

    /// Adds a sample of one of the VM's vCPUs and judges it.
    pub fn observe(&mut self, counts: &BranchCounts) -> Verdict {
        let bpi = Ratio::new(counts.branches, counts.instructions);
        let bmpr = Ratio::new(counts.mispredicted, counts.branches);
        let verdict = |busy_waiting, basis| Verdict { busy_waiting, bpi, bmpr, basis };
        if counts.mispredicted > counts.branches || counts.branches > counts.instructions {
            return verdict(false, Basis::Inconsistent);
        }
        let Some(bpi) = bpi else {
            return verdict(false, Basis::NoInstructions);
        };
        if counts.branches < self.least_branches {
            return verdict(false, Basis::TooFew);
        }
        self.samples = self.samples.saturating_add(1);
        let Some(bmpr) = bmpr else {
            return verdict(false, Basis::NoBranches);
        };
        let (max_bpi, min_bmpr) = self.take_in(bpi, bmpr);
        if self.samples < self.warm_up {
            return verdict(false, Basis::WarmingUp);
        }
        if self.contrast && self.all_alike(max_bpi, min_bmpr) {
            return verdict(false, Basis::Alike);
        }
        let spins = self.near_max(bpi, max_bpi) && self.near_min(bmpr, min_bmpr);
        verdict(spins, Basis::Compared)
    }

    /// Updates the extremes with a new sample and returns them.
    fn take_in(&mut self, bpi: Ratio, bmpr: Ratio) -> (Ratio, Ratio) {
        let (max_bpi, min_bmpr) = self.extremes.unwrap_or((bpi, bmpr));
        let (min_bpi, max_bmpr) = self.opposite.unwrap_or((bpi, bmpr));
        self.opposite = Some((min_bpi.least(bpi), max_bmpr.greatest(bmpr)));
        let extremes = (max_bpi.greatest(bpi), min_bmpr.least(bmpr));
        self.extremes = Some(extremes);
        extremes
    }

    /// Whether every sample of this window is near its extremes.
    fn all_alike(&self, max_bpi: Ratio, min_bmpr: Ratio) -> bool {
        self.opposite.is_none_or(|(min_bpi, max_bmpr)| {
            self.near_max(min_bpi, max_bpi) && self.near_min(max_bmpr, min_bmpr)
        })
    }

    /// ⌊(max_bpi − bpi) × n ÷ max_bpi⌋ = 0, that is n × bpi > (n − 1) × max_bpi.
    fn near_max(&self, bpi: Ratio, max_bpi: Ratio) -> bool {
        let n = self.similarity;
        bpi.compare(n, max_bpi, n.saturating_sub(1)) == Ordering::Greater
    }

    /// ⌊(bmpr − min_bmpr) × n ÷ min_bmpr⌋ = 0, that is n × bmpr < (n + 1) × min_bmpr; if min_bmpr
    /// is 0, only 0 is near it.
    fn near_min(&self, bmpr: Ratio, min_bmpr: Ratio) -> bool {
        let n = self.similarity;
        match min_bmpr.part {
            0 => bmpr.part == 0,
            _ => bmpr.compare(n, min_bmpr, n.saturating_add(1)) == Ordering::Less,
        }
    }
}
