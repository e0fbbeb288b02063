//! Verdicts on claims, and their machine-readable list.
//!
//! The format of the list is stable: `{id, use, covered, in_band, ours, published, command}` for each claim.
//! Claims are in the order of `research/targets/published.toml`.
//! `figures` has each figure with its bounds and interval.
//! `in_band` is null if a claim is not covered; an entry of `ours` is null if it was not measured.
//! `out_of_reach` has the figures that depend on something that only the authors have; `in_reach` is true if there are none.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::claims::{Claim, Figure, Use, Wanted};

/// A claim with our figures.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The claim.
    pub claim: Claim,
    /// The figures; empty if the claim has no judge.
    pub figures: Vec<Figure>,
}

impl Verdict {
    /// Creates a verdict; `figures` is `None` if the claim has no judge.
    pub fn new(claim: Claim, figures: Option<Vec<Figure>>) -> Verdict {
        Verdict { claim, figures: figures.unwrap_or_default() }
    }

    /// Returns whether each figure, or another reading of it, is in band; `None` if the claim is not covered.
    pub fn in_band(&self) -> Option<bool> {
        let figures = self.figures.iter();
        figures.map(|figure| self.is_met(figure)).reduce(|a, b| a && b)
    }

    /// Returns whether a figure of the claim, or another reading of it, is in band.
    pub fn is_met(&self, figure: &Figure) -> bool {
        let same = |other: &&Figure| {
            other.rule.reading_of.is_some() && other.rule.reading_of == figure.rule.reading_of
        };
        figure.in_band() || self.figures.iter().filter(same).any(Figure::in_band)
    }

    /// Returns whether any figure is out of reach.
    pub fn is_out_of_reach(&self) -> bool {
        let mut figures = self.figures.iter();
        figures.any(|figure| figure.rule.out_of_reach.is_some())
    }

    /// Returns the number of figures in band and the number of figures.
    pub fn hits(&self) -> (usize, usize) {
        let hits = self.figures.iter().filter(|figure| figure.in_band());
        (hits.count(), self.figures.len())
    }

    /// Returns the command that reproduces the claim.
    pub fn command(&self) -> String {
        format!("tandem-lab reproduce --claims {}", self.claim.id)
    }
}

/// Returns the number of claims of a use that are in band, and that are covered.
pub fn count(verdicts: &[Verdict], purpose: Use) -> (usize, usize) {
    let of_use = verdicts.iter().filter(|v| v.claim.purpose == purpose);
    let judged: Vec<bool> = of_use.filter_map(Verdict::in_band).collect();
    (judged.iter().filter(|&&hit| hit).count(), judged.len())
}

/// Returns the same counts for claims without figures out of reach.
pub fn count_in_reach(verdicts: &[Verdict], purpose: Use) -> (usize, usize) {
    let in_reach = verdicts.iter().filter(|v| !v.is_out_of_reach());
    count(&in_reach.cloned().collect::<Vec<Verdict>>(), purpose)
}

/// Returns the number of figures in band and the number of figures.
pub fn count_figures(verdicts: &[Verdict]) -> (usize, usize) {
    let hits = verdicts.iter().map(Verdict::hits);
    hits.fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
}

/// Returns the number of claims without a judge.
pub fn count_uncovered(verdicts: &[Verdict]) -> usize {
    let open = verdicts.iter().filter(|verdict| verdict.figures.is_empty());
    open.count()
}

/// A claim in the machine-readable list.
#[derive(Debug, Serialize)]
pub struct Listed {
    id: String,
    #[serde(rename = "use")]
    purpose: Use,
    covered: bool,
    in_band: Option<bool>,
    in_reach: bool,
    out_of_reach: Vec<OutOfReach>,
    ours: BTreeMap<String, Value>,
    published: Value,
    command: String,
    figures: Vec<ListedFigure>,
}

#[derive(Debug, Serialize)]
struct OutOfReach {
    figure: String,
    published: Option<f64>,
    ours: Option<f64>,
    why: String,
}

#[derive(Debug, Serialize)]
struct ListedFigure {
    name: String,
    published: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    ours: Option<f64>,
    ci95: Option<f64>,
    in_band: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    with_our_settings: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reading_of: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_reach: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weak: Option<String>,
}

/// Returns the machine-readable list.
pub fn list(verdicts: &[Verdict]) -> Vec<Listed> {
    let listed = |verdict: &Verdict| Listed {
        id: verdict.claim.id.clone(),
        purpose: verdict.claim.purpose,
        covered: verdict.in_band().is_some(),
        in_band: verdict.in_band(),
        in_reach: !verdict.is_out_of_reach(),
        out_of_reach: verdict.figures.iter().filter_map(out_of_reach).collect(),
        ours: verdict.figures.iter().map(|figure| (figure.name.clone(), ours(figure))).collect(),
        published: verdict.claim.value.clone(),
        command: verdict.command(),
        figures: verdict.figures.iter().map(figure).collect(),
    };
    verdicts.iter().map(listed).collect()
}

fn ours(figure: &Figure) -> Value {
    match (figure.ours, figure.wanted) {
        (None, _) => Value::Null,
        (Some(ours), Wanted::Holds) => Value::Bool(ours.mean == 1.0),
        (Some(ours), _) => {
            serde_json::Number::from_f64(ours.mean).map_or(Value::Null, Value::Number)
        }
    }
}

fn out_of_reach(figure: &Figure) -> Option<OutOfReach> {
    Some(OutOfReach {
        figure: figure.name.clone(),
        published: figure.wanted.published(),
        ours: figure.ours.map(|ours| ours.mean),
        why: figure.rule.out_of_reach.clone()?,
    })
}

fn figure(figure: &Figure) -> ListedFigure {
    ListedFigure {
        name: figure.name.clone(),
        published: figure.wanted.published(),
        low: figure.wanted.low(),
        high: figure.wanted.high(),
        ours: figure.ours.map(|ours| ours.mean),
        ci95: figure.ours.and_then(|ours| ours.ci95),
        in_band: figure.in_band(),
        with_our_settings: figure.with_our_settings.map(|ours| ours.mean),
        reading_of: figure.rule.reading_of.clone(),
        out_of_reach: figure.rule.out_of_reach.clone(),
        weak: figure.rule.weak.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::claims::published;
    use super::*;
    use crate::sample::Sample;

    fn verdict(id: &str, figures: &[(&str, f64)]) -> Verdict {
        let claim = published().unwrap();
        let claim = claim.into_iter().find(|claim| claim.id == id).unwrap();
        let figures = figures
            .iter()
            .map(|&(path, value)| claim.figure(path, &Sample::new(vec![value])).unwrap())
            .collect();
        Verdict::new(claim, Some(figures))
    }

    #[test]
    fn claim_is_in_band_if_all_figures_are() {
        let both = verdict("scal.f4_5", &[("mean[0]", 9.6), ("mean[1]", 11.0)]);
        assert_eq!(both.in_band(), Some(true));
        let one = verdict("scal.f4_5", &[("mean[0]", 9.6), ("mean[1]", 5.0)]);
        assert_eq!(one.in_band(), Some(false));
        assert_eq!(one.hits(), (1, 2));
        let none = Verdict::new(one.claim.clone(), None);
        assert_eq!(none.in_band(), None);
        let all = [both, one, none];
        assert_eq!(count(&all, Use::Check), (1, 2));
        assert_eq!(count(&all, Use::Fit), (0, 0));
        assert_eq!(count_figures(&all), (3, 4));
        assert_eq!(count_uncovered(&all), 1);
    }

    #[test]
    fn one_reading_of_several_is_enough() {
        let readings = |gain: f64, ratio: f64| {
            verdict(
                "gleaner.f7.speedup",
                &[("dedup_max", 16.0), ("mean_gain_percent", gain), ("mean_ratio_percent", ratio)],
            )
        };
        let ratio = readings(103.0, 203.0);
        assert_eq!(ratio.in_band(), Some(true));
        assert_eq!(ratio.hits(), (2, 3));
        assert!(ratio.is_met(&ratio.figures[1]) && !ratio.figures[1].in_band());
        assert_eq!(readings(203.0, 303.0).in_band(), Some(true));
        let neither = readings(0.0, 100.0);
        assert_eq!(neither.in_band(), Some(false));
        assert!(!neither.is_met(&neither.figures[1]));
    }

    #[test]
    fn claims_out_of_reach_are_counted_separately() {
        let all = [
            verdict("flex.f8.parallel", &[("bodytrack_over_xen", 2.0)]),
            verdict("scal.f4_5", &[("mean[0]", 9.6)]),
        ];
        assert!(all[0].is_out_of_reach() && !all[1].is_out_of_reach());
        assert_eq!(count(&all, Use::Check), (1, 2));
        assert_eq!(count_in_reach(&all, Use::Check), (1, 1));
        let json = serde_json::to_value(list(&all)).unwrap();
        assert_eq!(json[0]["in_reach"], false);
        assert_eq!(json[0]["out_of_reach"][0]["figure"], "bodytrack_over_xen");
        assert!(json[0]["figures"][0]["out_of_reach"].is_string());
        assert_eq!(json[1]["in_reach"], true);
        assert_eq!(json[1]["out_of_reach"].as_array().unwrap().len(), 0);
        assert_eq!(json[1]["figures"][0].get("out_of_reach"), None);
    }

    #[test]
    fn list_format_is_stable() {
        let out = verdict("scal.f4_5", &[("mean[0]", 9.6), ("mean[1]", f64::NAN)]);
        let json = serde_json::to_value(list(&[out])).unwrap();
        let claim = &json[0];
        assert_eq!(claim["id"], "scal.f4_5");
        assert_eq!(claim["use"], "check");
        assert_eq!(claim["covered"], true);
        assert_eq!(claim["in_band"], false);
        assert_eq!(claim["ours"]["mean[0]"], 9.6);
        assert_eq!(claim["ours"]["mean[1]"], Value::Null);
        assert_eq!(claim["figures"][1]["in_band"], false);
        assert_eq!(claim["published"]["mean"][1], 11.0);
        assert_eq!(claim["command"], "tandem-lab reproduce --claims scal.f4_5");
    }
}
