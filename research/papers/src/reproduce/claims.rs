//! The published claims, and the rule by which a figure counts as reproduced.
//!
//! A claim's `value` is a table of figures, lists and tables.
//! A figure is named by its path, such as `dedup[0]` or `inefficiency_cut_percent.aple`.
//! It is reproduced if ours is within `band` of the value.
//! `{ rel = … }` is a fraction of the value, `{ abs = … }` is in the value's unit; the default is `rel = 0.15`.
//! With `bound = "at-least"` or `"at-most"` the value is a bound, which the band widens.
//! Band and bound apply to a whole claim, or to one figure in `figures`.
//! A claim of kind `shape` consists of sentences that must hold.
//!
//! Three more keys in `figures` annotate a figure:
//!
//! - `reading_of`: several figures are alternative readings of the same statement of the source; one in band is enough.
//! - `out_of_reach`: the reason why the figure depends on something that only the authors have; it is judged all the same.
//! - `weak`: the reason why the figure has little weight.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sample::Sample;
use tandem_experiment::statistics::Mean;

/// The list of claims, with the numbers as published.
const PUBLISHED: &str = include_str!("../../../targets/published.toml");

/// Default band.
const BAND: Band = Band::Rel(0.15);

/// Error in the list of claims.
#[derive(Debug, Error)]
pub enum PublishedError {
    /// The file does not parse.
    #[error("research/targets/published.toml")]
    Form(#[source] toml::de::Error),
    /// A rule names a figure that does not exist.
    #[error("research/targets/published.toml has a rule for a figure that is not there")]
    Rule(#[source] NoNumber),
    /// A figure is the only reading of its statement.
    #[error(
        "research/targets/published.toml: claim {claim} has one reading of {what}: give the others the same reading_of, or leave it out"
    )]
    Reading {
        /// The claim.
        claim: String,
        /// The value of `reading_of`.
        what: String,
    },
    /// A band is negative or not finite.
    #[error(
        "research/targets/published.toml: claim {claim} has a band of {width}: write 0 or more"
    )]
    Band {
        /// The claim.
        claim: String,
        /// The invalid width.
        width: f64,
    },
}

/// A claim has no number at a path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("claim {claim} has no number {path}")]
pub struct NoNumber {
    /// The claim.
    pub claim: String,
    /// The path.
    pub path: String,
}

/// Whether the model may be fitted to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// The model may be fitted to the claim.
    Fit,
    /// The claim must be reproduced without fitting.
    Check,
}

impl Use {
    /// Returns the name in the list of claims.
    pub fn name(self) -> &'static str {
        match self {
            Use::Fit => "fit",
            Use::Check => "check",
        }
    }
}

/// Tolerance around a published value.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Band {
    /// Absolute, in the value's unit.
    Abs(f64),
    /// Fraction of the value.
    Rel(f64),
}

impl Band {
    fn width(self, value: f64) -> f64 {
        match self {
            Band::Abs(width) => width,
            Band::Rel(part) => part * value.abs(),
        }
    }

    fn is_possible(self) -> bool {
        let (Band::Abs(width) | Band::Rel(width)) = self;
        width.is_finite() && width >= 0.0
    }
}

/// Direction of a published value that is a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The published value is a lower bound.
    AtLeast,
    /// The published value is an upper bound.
    AtMost,
}

/// Rule for one figure, which overrides the claim's, with annotations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Tolerance.
    #[serde(default)]
    pub band: Option<Band>,
    /// Direction, if the value is a bound.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Statement of which the figure is one reading; one reading in band is enough.
    #[serde(default)]
    pub reading_of: Option<String>,
    /// Reason why the figure depends on something that only the authors have.
    #[serde(default)]
    pub out_of_reach: Option<String>,
    /// Reason why the figure has little weight.
    #[serde(default)]
    pub weak: Option<String>,
}

/// One published claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Name: paper, figure or table, and quantity.
    pub id: String,
    /// The published figures.
    pub value: serde_json::Value,
    /// `ratio`, `percent`, `us`, `count` or `shape`.
    pub kind: String,
    /// Tolerance of its figures.
    #[serde(default)]
    pub band: Option<Band>,
    /// Direction, if its values are bounds.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Rules for single figures, by path.
    #[serde(default)]
    pub figures: BTreeMap<String, Rule>,
    /// Fitting or checking.
    #[serde(rename = "use")]
    pub purpose: Use,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    claim: Vec<Claim>,
}

/// Returns all published claims.
pub fn published() -> Result<Vec<Claim>, PublishedError> {
    read(PUBLISHED)
}

fn read(text: &str) -> Result<Vec<Claim>, PublishedError> {
    let published: Published = toml::from_str(text).map_err(PublishedError::Form)?;
    for claim in &published.claim {
        for path in claim.figures.keys() {
            claim.number(path).map_err(PublishedError::Rule)?;
        }
        let readings = || claim.figures.values().filter_map(|rule| rule.reading_of.as_deref());
        for what in readings() {
            if readings().filter(|&other| other == what).count() < 2 {
                return Err(PublishedError::Reading {
                    claim: claim.id.clone(),
                    what: what.to_owned(),
                });
            }
        }
        let bands = claim.figures.values().filter_map(|rule| rule.band);
        for band in bands.chain(claim.band) {
            if !band.is_possible() {
                let (Band::Abs(width) | Band::Rel(width)) = band;
                return Err(PublishedError::Band { claim: claim.id.clone(), width });
            }
        }
    }
    Ok(published.claim)
}

/// Criterion that a figure must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// Within a band around a value.
    Near {
        /// The published value.
        value: f64,
        /// Lower end of the band.
        low: f64,
        /// Upper end of the band.
        high: f64,
    },
    /// At or above a bound.
    AtLeast {
        /// The published value.
        value: f64,
        /// The published value minus the band.
        bound: f64,
    },
    /// At or below a bound.
    AtMost {
        /// The published value.
        value: f64,
        /// The published value plus the band.
        bound: f64,
    },
    /// A sentence that must hold.
    Holds,
}

impl Wanted {
    fn new(value: f64, band: Band, bound: Option<Bound>) -> Wanted {
        let width = band.width(value);
        let (low, high) = (value - width, value + width);
        match bound {
            None => Wanted::Near { value, low, high },
            Some(Bound::AtLeast) => Wanted::AtLeast { value, bound: low },
            Some(Bound::AtMost) => Wanted::AtMost { value, bound: high },
        }
    }

    /// Returns the published value; `None` for a sentence.
    pub fn published(&self) -> Option<f64> {
        match *self {
            Wanted::Near { value, .. }
            | Wanted::AtLeast { value, .. }
            | Wanted::AtMost { value, .. } => Some(value),
            Wanted::Holds => None,
        }
    }

    /// Returns the least value that counts as reproduced; `None`: unbounded.
    pub fn low(&self) -> Option<f64> {
        match *self {
            Wanted::Near { low, .. } => Some(low),
            Wanted::AtLeast { bound, .. } => Some(bound),
            Wanted::AtMost { .. } | Wanted::Holds => None,
        }
    }

    /// Returns the largest value that counts as reproduced; `None`: unbounded.
    pub fn high(&self) -> Option<f64> {
        match *self {
            Wanted::Near { high, .. } => Some(high),
            Wanted::AtMost { bound, .. } => Some(bound),
            Wanted::AtLeast { .. } | Wanted::Holds => None,
        }
    }
}

/// A figure of ours and its published counterpart.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Path in the claim's value, or the sentence.
    pub name: String,
    /// The criterion.
    pub wanted: Wanted,
    /// Our figure; for a sentence 1 if it holds, else 0. `None`: not measured.
    pub ours: Option<Mean>,
    /// The figure with our settings, if `ours` uses the source's settings; shown next to the verdict, not judged.
    pub with_our_settings: Option<Mean>,
    /// The rule from the list of claims.
    pub rule: Rule,
}

impl Figure {
    /// Returns the name, followed by the annotations in brackets.
    pub fn label(&self) -> String {
        let remarks = [
            (self.rule.reading_of.is_some(), "one of several readings"),
            (self.rule.out_of_reach.is_some(), "out of reach"),
            (self.rule.weak.is_some(), "weak"),
        ];
        let remarks = remarks.iter().filter(|(is, _)| *is);
        let remarks = remarks.map(|(_, remark)| format!(" ({remark})"));
        std::iter::once(self.name.clone()).chain(remarks).collect()
    }

    /// Returns whether the figure is reproduced; a figure that was not measured is not.
    pub fn in_band(&self) -> bool {
        let Some(Mean { mean: ours, .. }) = self.ours else {
            return false;
        };
        match self.wanted {
            Wanted::Near { low, high, .. } => (low..=high).contains(&ours),
            Wanted::AtLeast { bound, .. } => ours >= bound,
            Wanted::AtMost { bound, .. } => ours <= bound,
            Wanted::Holds => ours == 1.0,
        }
    }
}

impl Claim {
    /// Pairs our figure with the published one at `path`.
    pub fn figure(&self, path: &str, ours: &Sample) -> Result<Figure, NoNumber> {
        let rule = self.figures.get(path).cloned().unwrap_or_default();
        let band = rule.band.or(self.band).unwrap_or(BAND);
        let bound = rule.bound.or(self.bound);
        Ok(Figure {
            name: path.to_owned(),
            wanted: Wanted::new(self.number(path)?, band, bound),
            ours: ours.with_interval(),
            with_our_settings: None,
            rule,
        })
    }

    /// Pairs our figure with the source's settings, which is judged, and adds the one with our settings.
    pub fn figure_with_ours(
        &self,
        path: &str,
        theirs: &Sample,
        ours: &Sample,
    ) -> Result<Figure, NoNumber> {
        Ok(Figure { with_our_settings: ours.with_interval(), ..self.figure(path, theirs)? })
    }

    /// Returns a sentence that must hold as a figure.
    pub fn shape(&self, sentence: &str, holds: bool) -> Figure {
        Figure {
            name: sentence.to_owned(),
            wanted: Wanted::Holds,
            ours: Some(Mean { mean: f64::from(u8::from(holds)), ci95: None }),
            with_our_settings: None,
            rule: Rule::default(),
        }
    }

    /// Returns the published number at a path.
    pub fn number(&self, path: &str) -> Result<f64, NoNumber> {
        let pointer: String =
            path.split(['.', '[']).map(|part| format!("/{}", part.trim_end_matches(']'))).collect();
        let value = self.value.pointer(&pointer);
        value
            .and_then(serde_json::Value::as_f64)
            .ok_or_else(|| NoNumber { claim: self.id.clone(), path: path.to_owned() })
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
        let judged = |path: &str, ours: f64| claim.figure(path, &sample(ours)).unwrap().in_band();
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
            figure.in_band()
        };
        assert!(judged("gleaner.t2.D", "vm_us_at_least", 1000.0));
        assert!(!judged("gleaner.t2.D", "vm_us_at_least", 50.0));
        assert!(judged("diag.f2_1", "dedup_more_than", 500.0));
        assert!(judged("apples.overhead", "undersubscribed_percent_max", -3.0));
        assert!(!judged("apples.overhead", "undersubscribed_percent_max", 2.1));
        assert!(!judged("apples.overhead", "nonspinning_percent_max", f64::NAN));
        // The source gives the maximum lags as values, not as bounds.
        assert!(!judged("flex.f6.lag", "xen_max_percent", 5.0));
        assert!(judged("flex.f6.lag", "flex_max_percent", 0.5));
        assert!(!judged("flex.f6.lag", "flex_max_percent", 15.1));
        let overhead = "flexs_schedule_overhead_percent";
        assert!(judged("flex.f8.parallel", overhead, 0.02));
        assert!(!judged("flex.f8.parallel", overhead, 1.1));
    }

    #[test]
    fn lists_are_indexed_and_shapes_hold_or_not() {
        assert_eq!(claim("gleaner.f5.slowdown").number("dedup[0]").unwrap(), 517.0);
        let shape = claim("flex.f7.weights");
        assert!(shape.shape("3:2:1 is exact", true).in_band());
        assert!(!shape.shape("3:2:1 is exact", false).in_band());
    }

    const SMALL: &str = "[[claim]]\nid = 'x'\nkind = 'count'\nuse = 'check'\n\
                         value = { a = 10, b = 2, c_max = 5 }\n";

    #[test]
    fn bounds_are_explicit_and_bands_absolute_or_relative() {
        let text = format!(
            "{SMALL}band = {{ abs = 3 }}\nfigures = {{ b = {{ bound = 'at-most', band = {{ rel = 0.5 }} }} }}\n"
        );
        let claim = read(&text).unwrap().remove(0);
        let wanted = |path: &str| claim.figure(path, &Sample::Pending).unwrap().wanted;
        let near = |value, low, high| Wanted::Near { value, low, high };
        assert_eq!(wanted("a"), near(10.0, 7.0, 13.0));
        let most = Wanted::AtMost { value: 2.0, bound: 3.0 };
        assert_eq!(wanted("b"), most);
        // The suffix `_max` does not make a bound.
        assert_eq!(wanted("c_max"), near(5.0, 2.0, 8.0));
        let all = read(&format!("{SMALL}bound = 'at-least'\nband = {{ abs = 1 }}\n")).unwrap();
        let least = Wanted::AtLeast { value: 10.0, bound: 9.0 };
        assert_eq!(all[0].figure("a", &Sample::Pending).unwrap().wanted, least);
    }

    #[test]
    fn invalid_rules_are_rejected() {
        let refused = |more: &str| {
            let error = read(&format!("{SMALL}{more}\n")).unwrap_err();
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", cause.unwrap_or_default())
        };
        let error = refused("figures = { d = { bound = 'at-most' } }");
        assert!(error.contains("claim x has no number d"), "{error}");
        assert!(refused("band = { rel = -1 }").contains("claim x has a band of -1"));
        assert!(refused("bound = 'above'").contains("at-least"));
        assert!(refused("band = 0.3").contains("research/targets/published.toml"));
        let alone = refused("figures = { a = { reading_of = 'both' } }");
        assert!(alone.contains("one reading of both"), "{alone}");
    }

    #[test]
    fn label_appends_annotations() {
        let text = format!(
            "{SMALL}figures = {{ a = {{ out_of_reach = 'their patch' }}, b = {{ weak = 'short', reading_of = 'x' }}, \
             c_max = {{ reading_of = 'x' }} }}\n"
        );
        let claim = read(&text).unwrap().remove(0);
        let label = |path: &str| claim.figure(path, &Sample::Pending).unwrap().label();
        assert_eq!(label("a"), "a (out of reach)");
        assert_eq!(label("b"), "b (one of several readings) (weak)");
        assert_eq!(claim.shape("it grows", true).label(), "it grows");
    }
}
