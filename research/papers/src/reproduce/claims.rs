//! The published claims, and when a figure counts as reproduced.
//!
//! A claim's `value` is a table of figures, lists and tables; a figure is meant by its path, such as
//! `dedup[0]` or `inefficiency_cut_percent.aple`. It is reproduced within `band` of the value: `{ rel = … }`
//! is a part of it, `{ abs = … }` so much in its own unit, and without one it is 0.15 of it. With
//! `bound = "at-least"` or `"at-most"` the value is a bound, which the band widens. Both are said of a whole
//! claim, or of one figure in `figures`. A claim of kind `shape` holds sentences that must hold.
//!
//! `figures` says three more things of one figure. `reading_of` names what several figures are readings of: the source can
//! be read in several ways, and one of them is enough. `out_of_reach` is why the figure cannot come out without what
//! only the authors have; it is judged all the same. `weak` is why it says little.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sample::Sample;
use tandem_experiment::statistics::Mean;

/// What papers report; the numbers in it are theirs.
const PUBLISHED: &str = include_str!("../../../targets/published.toml");

/// The band of claims that name none.
const BAND: Band = Band::Rel(0.15);

/// Why the list of claims cannot be used.
#[derive(Debug, Error)]
pub enum PublishedError {
    /// It is not in its form.
    #[error("research/targets/published.toml")]
    Form(#[source] toml::de::Error),
    /// A rule is for a figure that there is not.
    #[error("research/targets/published.toml has a rule for a figure that is not there")]
    Rule(#[source] NoNumber),
    /// A figure is a reading that has no other.
    #[error(
        "research/targets/published.toml: claim {claim} has one reading of {what}: give the others the same reading_of, or leave it out"
    )]
    Reading {
        /// The claim.
        claim: String,
        /// What it is a reading of.
        what: String,
    },
    /// A band is no width.
    #[error(
        "research/targets/published.toml: claim {claim} has a band of {width}: write 0 or more"
    )]
    Band {
        /// The claim.
        claim: String,
        /// What is there.
        width: f64,
    },
}

/// A claim has no such figure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("claim {claim} has no number {path}")]
pub struct NoNumber {
    /// The claim.
    pub claim: String,
    /// The figure.
    pub path: String,
}

/// Whether the model may be fitted to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// It may.
    Fit,
    /// It must come out by itself.
    Check,
}

impl Use {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Use::Fit => "fit",
            Use::Check => "check",
        }
    }
}

/// How far from a published value counts as reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Band {
    /// So much, in the value's unit.
    Abs(f64),
    /// So large a part of the value.
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

/// On which side of a published value everything counts as reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Above it.
    AtLeast,
    /// Below it.
    AtMost,
}

/// How one figure of a claim is judged, where that differs from the claim's others, and what is to be known of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What counts as reproduced.
    #[serde(default)]
    pub band: Option<Band>,
    /// Whether the value is a bound.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// What it is one reading of; of the claim's readings of it one is enough.
    #[serde(default)]
    pub reading_of: Option<String>,
    /// Why it cannot come out without what only the authors have.
    #[serde(default)]
    pub out_of_reach: Option<String>,
    /// Why it says little.
    #[serde(default)]
    pub weak: Option<String>,
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
    pub band: Option<Band>,
    /// Whether the values are bounds.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Figures that are judged differently, by their paths.
    #[serde(default)]
    pub figures: BTreeMap<String, Rule>,
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

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// A value and how far from it is near enough.
    Near {
        /// The published value.
        value: f64,
        /// The least that is near enough.
        low: f64,
        /// The most that is near enough.
        high: f64,
    },
    /// At least so much.
    AtLeast {
        /// The published value.
        value: f64,
        /// It with the band taken off.
        bound: f64,
    },
    /// At most so much.
    AtMost {
        /// The published value.
        value: f64,
        /// It with the band added.
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

    /// The published value; `None` for a sentence.
    pub fn published(&self) -> Option<f64> {
        match *self {
            Wanted::Near { value, .. }
            | Wanted::AtLeast { value, .. }
            | Wanted::AtMost { value, .. } => Some(value),
            Wanted::Holds => None,
        }
    }

    /// The least that counts as reproduced; `None`: anything.
    pub fn low(&self) -> Option<f64> {
        match *self {
            Wanted::Near { low, .. } => Some(low),
            Wanted::AtLeast { bound, .. } => Some(bound),
            Wanted::AtMost { .. } | Wanted::Holds => None,
        }
    }

    /// The most that counts as reproduced; `None`: anything.
    pub fn high(&self) -> Option<f64> {
        match *self {
            Wanted::Near { high, .. } => Some(high),
            Wanted::AtMost { bound, .. } => Some(bound),
            Wanted::AtLeast { .. } | Wanted::Holds => None,
        }
    }
}

/// A figure of ours against the published one.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its path in the claim's value, or the sentence.
    pub name: String,
    /// What it is held against.
    pub wanted: Wanted,
    /// Ours; for a sentence 1 if it holds, else 0. `None`: not measured.
    pub ours: Option<Mean>,
    /// The same with our settings, where `ours` is with the source's. It is shown beside the verdict and not judged.
    pub with_our_settings: Option<Mean>,
    /// What the list of claims says of it.
    pub rule: Rule,
}

impl Figure {
    /// Its name, and in brackets what is to be known of it.
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

    /// Whether it is reproduced; what was not measured is not.
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
    /// Our figure against the published one at `path`.
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

    /// The same with the source's settings, judged, and with our own beside it.
    pub fn figure_beside(
        &self,
        path: &str,
        theirs: &Sample,
        ours: &Sample,
    ) -> Result<Figure, NoNumber> {
        Ok(Figure { with_our_settings: ours.with_interval(), ..self.figure(path, theirs)? })
    }

    /// A sentence that must hold.
    pub fn shape(&self, sentence: &str, holds: bool) -> Figure {
        Figure {
            name: sentence.to_owned(),
            wanted: Wanted::Holds,
            ours: Some(Mean { mean: f64::from(u8::from(holds)), ci95: None }),
            with_our_settings: None,
            rule: Rule::default(),
        }
    }

    /// The number at a path.
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
        // The largest of several lags is a figure like any other, where the source says how large it was.
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
    fn a_band_is_absolute_or_relative_and_a_bound_is_said_not_guessed() {
        let text = format!(
            "{SMALL}band = {{ abs = 3 }}\nfigures = {{ b = {{ bound = 'at-most', band = {{ rel = 0.5 }} }} }}\n"
        );
        let claim = read(&text).unwrap().remove(0);
        let wanted = |path: &str| claim.figure(path, &Sample::Pending).unwrap().wanted;
        let near = |value, low, high| Wanted::Near { value, low, high };
        assert_eq!(wanted("a"), near(10.0, 7.0, 13.0));
        let most = Wanted::AtMost { value: 2.0, bound: 3.0 };
        assert_eq!(wanted("b"), most);
        // A name says nothing.
        assert_eq!(wanted("c_max"), near(5.0, 2.0, 8.0));
        let all = read(&format!("{SMALL}bound = 'at-least'\nband = {{ abs = 1 }}\n")).unwrap();
        let least = Wanted::AtLeast { value: 10.0, bound: 9.0 };
        assert_eq!(all[0].figure("a", &Sample::Pending).unwrap().wanted, least);
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
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
    fn what_is_to_be_known_of_a_figure_stands_behind_its_name() {
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
