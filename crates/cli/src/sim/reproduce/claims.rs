//! The published claims, and when a figure counts as reproduced.
//!
//! A claim's `value` is a table of figures, lists and tables; a figure is meant by its path, such as
//! `dedup[0]` or `inefficiency_cut_percent.aple`. It is reproduced within `band`, relative to it
//! (within 0.15 unless the claim says otherwise). Where the last name of the path ends in `_at_least`
//! or `_more_than` it is a lower bound, and in `_max` or `at_most` an upper one, which the same band
//! loosens. A claim of kind `shape` holds sentences that must hold.

use anyhow::Context;
use serde::Deserialize;
use serde::Serialize;

use super::sample::Sample;
use tandem_experiment::statistics::Mean;

/// What papers report; the numbers in it are theirs.
const PUBLISHED: &str = include_str!("../../../../../targets/published.toml");

/// The band of claims that name none.
const BAND: f64 = 0.15;

/// Whether the model may be fitted to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// It may.
    Fit,
    /// It must come out by itself.
    Check,
}

/// One published claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its name: paper, figure or table, and what of it.
    pub id: String,
    /// What is reported.
    pub value: serde_json::Value,
    /// `ratio`, `percent`, `us`, `count` or `shape`.
    pub kind: String,
    /// What counts as reproduced.
    #[serde(default)]
    pub band: Option<f64>,
    /// For fitting or for checking.
    #[serde(rename = "use")]
    pub purpose: Use,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    claim: Vec<Claim>,
}

/// All published claims.
pub fn published() -> anyhow::Result<Vec<Claim>> {
    let published: Published = toml::from_str(PUBLISHED).context("targets/published.toml")?;
    Ok(published.claim)
}

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// A value and how far from it is near enough.
    Near { value: f64, low: f64, high: f64 },
    /// At least so much; `bound` with the band taken off.
    AtLeast { value: f64, bound: f64 },
    /// At most so much; `bound` with the band added.
    AtMost { value: f64, bound: f64 },
    /// A sentence that must hold.
    Holds,
}

/// A figure of ours against the published one.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its path in the claim's value, or the sentence.
    pub name: String,
    /// What it is held against.
    pub wanted: Wanted,
    /// Ours; for a sentence 1 if it holds, else 0. `None`: not covered.
    pub ours: Option<Mean>,
}

impl Figure {
    /// Whether it is reproduced; `None`: not covered.
    pub fn in_band(&self) -> Option<bool> {
        let ours = self.ours?.mean;
        match self.wanted {
            Wanted::Near { low, high, .. } => Some((low..=high).contains(&ours)),
            Wanted::AtLeast { bound, .. } => Some(ours >= bound),
            Wanted::AtMost { bound, .. } => Some(ours <= bound),
            Wanted::Holds => Some(ours == 1.0),
        }
    }
}

impl Claim {
    /// Our figure against the published one at `path`.
    pub fn figure(&self, path: &str, ours: &Sample) -> anyhow::Result<Figure> {
        let value = self.number(path)?;
        let band = self.band.unwrap_or(BAND);
        let width = band * value.abs();
        let last = path.rsplit('.').next().unwrap_or(path);
        let last = last.split('[').next().unwrap_or(last);
        let ends = |endings: &[&str]| endings.iter().any(|ending| last.ends_with(ending));
        let wanted = if ends(&["_at_least", "_more_than"]) {
            let bound = value - width;
            Wanted::AtLeast { value, bound }
        } else if self.band.is_none() && ends(&["_max"]) {
            // Without a band it is a limit; with one, the largest of several figures.
            Wanted::AtMost {
                value,
                bound: value,
            }
        } else {
            let (low, high) = (value - width, value + width);
            Wanted::Near { value, low, high }
        };
        Ok(Figure {
            name: path.to_owned(),
            wanted,
            ours: Some(ours.with_interval()),
        })
    }

    /// A sentence that must hold.
    pub fn shape(&self, sentence: &str, holds: bool) -> Figure {
        Figure {
            name: sentence.to_owned(),
            wanted: Wanted::Holds,
            ours: Some(Mean {
                mean: f64::from(u8::from(holds)),
                ci95: None,
            }),
        }
    }

    /// The number at a path.
    pub fn number(&self, path: &str) -> anyhow::Result<f64> {
        let pointer: String = path
            .split(['.', '['])
            .map(|part| format!("/{}", part.trim_end_matches(']')))
            .collect();
        let value = self.value.pointer(&pointer);
        value
            .and_then(serde_json::Value::as_f64)
            .with_context(|| format!("claim {} has no number {path}", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str) -> Claim {
        let all = published().unwrap();
        all.into_iter().find(|claim| claim.id == id).unwrap()
    }

    fn sample(value: f64) -> Sample {
        Sample::new(vec![value])
    }

    #[test]
    fn a_figure_is_judged_by_its_band() {
        let claim = claim("apples.f6.ebizzy");
        let judged = |path: &str, ours: f64| {
            let figure = claim.figure(path, &sample(ours)).unwrap();
            figure.in_band().unwrap()
        };
        assert!(judged("aple", 1.34 * 1.149));
        assert!(!judged("aple", 1.34 * 1.151));
        assert!(judged("inefficiency_cut_percent.apples", 58.0 * 0.86));
        assert!(!judged("inefficiency_cut_percent.apples", f64::NAN));
        assert!(claim.figure("bple", &sample(1.0)).is_err());
    }

    #[test]
    fn bounds_are_one_sided() {
        let judged = |id: &str, path: &str, ours: f64| {
            let figure = claim(id).figure(path, &sample(ours)).unwrap();
            figure.in_band().unwrap()
        };
        assert!(judged("gleaner.t2.D", "vm_us_at_least", 1000.0));
        assert!(!judged("gleaner.t2.D", "vm_us_at_least", 50.0));
        assert!(judged("diag.f2_1", "dedup_more_than", 500.0));
        assert!(judged(
            "apples.overhead",
            "undersubscribed_percent_max",
            -3.0
        ));
        assert!(!judged(
            "apples.overhead",
            "undersubscribed_percent_max",
            2.1
        ));
        assert!(!judged(
            "apples.overhead",
            "nonspinning_percent_max",
            f64::NAN
        ));
        // The largest of several lags is a figure like any other.
        assert!(!judged("flex.f6.lag", "xen_max_percent", 5.0));
    }

    #[test]
    fn lists_are_indexed_and_shapes_hold_or_not() {
        assert_eq!(
            claim("gleaner.f5.slowdown").number("dedup[0]").unwrap(),
            517.0
        );
        let shape = claim("flex.f7.weights");
        assert_eq!(shape.shape("3:2:1 is exact", true).in_band(), Some(true));
        assert_eq!(shape.shape("3:2:1 is exact", false).in_band(), Some(false));
    }
}
