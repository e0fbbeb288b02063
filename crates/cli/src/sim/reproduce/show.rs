//! Verdicts as a table for people and as a list for programs.
//!
//! The list is stable: `{id, use, covered, in_band, ours, published, command}` for each claim, in the
//! order of `targets/published.toml`; `figures` has each figure with its bounds and interval. `in_band` is
//! null where a claim is not covered.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;

use super::claims::Claim;
use super::claims::Figure;
use super::claims::Use;
use super::claims::Wanted;

/// A claim and what came out.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The claim.
    pub claim: Claim,
    /// Its figures; `None`: no judge looks at it.
    pub figures: Option<Vec<Figure>>,
}

impl Verdict {
    /// A claim with its figures.
    pub fn new(claim: Claim, figures: Option<Vec<Figure>>) -> Verdict {
        Verdict { claim, figures }
    }

    /// Whether anything of it was looked at.
    pub fn covered(&self) -> bool {
        self.in_band().is_some()
    }

    /// Whether all figures that were looked at are in band; `None`: none was.
    pub fn in_band(&self) -> Option<bool> {
        let figures = self.figures.iter().flatten();
        figures.filter_map(Figure::in_band).reduce(|a, b| a && b)
    }

    /// How many of its figures are in band, and of how many.
    pub fn hits(&self) -> (usize, usize) {
        let judged = || self.figures.iter().flatten().filter_map(Figure::in_band);
        (judged().filter(|&hit| hit).count(), judged().count())
    }

    /// The command that shows it.
    pub fn command(&self) -> String {
        format!("tandem sim reproduce --claims {}", self.claim.id)
    }
}

/// A claim in the list.
#[derive(Debug, Serialize)]
pub struct Listed {
    id: String,
    #[serde(rename = "use")]
    purpose: Use,
    covered: bool,
    in_band: Option<bool>,
    ours: BTreeMap<String, Value>,
    published: Value,
    command: String,
    figures: Vec<ListedFigure>,
}

#[derive(Debug, Serialize)]
struct ListedFigure {
    name: String,
    published: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    ours: Option<f64>,
    ci95: Option<f64>,
    in_band: Option<bool>,
}

/// The list for programs.
pub fn list(verdicts: &[Verdict]) -> Vec<Listed> {
    let listed = |verdict: &Verdict| Listed {
        id: verdict.claim.id.clone(),
        purpose: verdict.claim.purpose,
        covered: verdict.covered(),
        in_band: verdict.in_band(),
        ours: verdict
            .figures
            .iter()
            .flatten()
            .filter_map(|figure| Some((figure.name.clone(), ours(figure)?)))
            .collect(),
        published: verdict.claim.value.clone(),
        command: verdict.command(),
        figures: verdict.figures.iter().flatten().map(figure).collect(),
    };
    verdicts.iter().map(listed).collect()
}

fn ours(figure: &Figure) -> Option<Value> {
    let mean = figure.ours?.mean;
    Some(match figure.wanted {
        Wanted::Holds => Value::Bool(mean == 1.0),
        _ => serde_json::Number::from_f64(mean).map_or(Value::Null, Value::Number),
    })
}

fn figure(figure: &Figure) -> ListedFigure {
    let (published, low, high) = bounds(figure.wanted);
    ListedFigure {
        name: figure.name.clone(),
        published,
        low,
        high,
        ours: figure.ours.map(|ours| ours.mean),
        ci95: figure.ours.and_then(|ours| ours.ci95),
        in_band: figure.in_band(),
    }
}

/// The published value, and the least and the most that is near enough.
pub fn bounds(wanted: Wanted) -> (Option<f64>, Option<f64>, Option<f64>) {
    match wanted {
        Wanted::Near { value, low, high } => (Some(value), Some(low), Some(high)),
        Wanted::AtLeast { value, bound } => (Some(value), Some(bound), None),
        Wanted::AtMost { value, bound } => (Some(value), None, Some(bound)),
        Wanted::Holds => (None, None, None),
    }
}

/// The table for people, and the count below it.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut table = Table::new(&["claim", "use", "figure", "published", "ours", "± 95 %", ""]);
    for verdict in verdicts {
        let purpose = match verdict.claim.purpose {
            Use::Fit => "fit",
            Use::Check => "check",
        };
        let mut head = [
            Cell::toned(verdict.claim.id.as_str(), Tone::Strong),
            purpose.into(),
        ];
        let figures = verdict.figures.as_deref().unwrap_or_default();
        if figures.is_empty() {
            let none = Cell::toned("not covered", Tone::Faint);
            let empty = Cell::default;
            let cells = head.into_iter();
            table.row(cells.chain([empty(), empty(), empty(), empty(), none]));
            continue;
        }
        for figure in figures {
            let cells = head.clone().into_iter().chain(row(figure));
            table.row(cells);
            head = [Cell::default(), Cell::default()];
        }
    }
    format!("{table}\n\n{}\n", summary(verdicts))
}

fn row(figure: &Figure) -> [Cell; 5] {
    let verdict = match (figure.in_band(), figure.wanted) {
        (Some(true), _) => Cell::toned("in band", Tone::Good),
        (Some(false), Wanted::Holds) => Cell::toned("does not hold", Tone::Bad),
        (Some(false), _) => Cell::toned("OUT", Tone::Bad),
        (None, _) => Cell::toned("not covered", Tone::Faint),
    };
    let published = match figure.wanted {
        Wanted::Near { value, .. } => number(value),
        Wanted::AtLeast { value, .. } => format!("≥ {}", number(value)),
        Wanted::AtMost { value, .. } => format!("≤ {}", number(value)),
        Wanted::Holds => String::new(),
    };
    let numeric = !matches!(figure.wanted, Wanted::Holds);
    let ours = figure.ours.filter(|_| numeric);
    [
        figure.name.as_str().into(),
        published.into(),
        ours.map_or_else(String::new, |mean| number(mean.mean))
            .into(),
        ours.and_then(|mean| mean.ci95)
            .map_or_else(String::new, number)
            .into(),
        verdict,
    ]
}

/// Three digits that matter.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "not measured".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// How many claims are in band.
pub fn summary(verdicts: &[Verdict]) -> String {
    let count = |purpose: Use| {
        let judged = || {
            let of_use = verdicts.iter().filter(|v| v.claim.purpose == purpose);
            of_use.filter_map(Verdict::in_band)
        };
        (judged().filter(|&hit| hit).count(), judged().count())
    };
    let (fit, of_fit) = count(Use::Fit);
    let (check, of_check) = count(Use::Check);
    let hits = verdicts.iter().map(Verdict::hits);
    let (figures, of_figures) = hits.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    let open = verdicts.iter().filter(|v| !v.covered()).count();
    format!(
        "{check} of {of_check} claims to be checked are in band, {fit} of {of_fit} that the model may \
         be fitted to; {figures} of {of_figures} figures. {open} claims are not covered."
    )
}

#[cfg(test)]
mod tests {
    use super::super::claims::published;
    use super::super::sample::Sample;
    use super::*;

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
    fn a_claim_is_in_band_when_all_its_figures_are() {
        let both = verdict("scal.f4_5", &[("mean[0]", 9.6), ("mean[1]", 11.0)]);
        assert_eq!(both.in_band(), Some(true));
        let one = verdict("scal.f4_5", &[("mean[0]", 9.6), ("mean[1]", 5.0)]);
        assert_eq!(one.in_band(), Some(false));
        assert_eq!(one.hits(), (1, 2));
        let none = Verdict::new(one.claim.clone(), None);
        assert_eq!((none.covered(), none.in_band()), (false, None));
        let said = summary(&[both, one, none]);
        assert!(said.starts_with("1 of 2 claims"), "{said}");
        assert!(said.ends_with("1 claims are not covered."), "{said}");
    }

    #[test]
    fn the_list_keeps_its_form() {
        let out = verdict("scal.f4_5", &[("mean[0]", 9.6)]);
        let json = serde_json::to_value(list(&[out])).unwrap();
        let claim = &json[0];
        assert_eq!(claim["id"], "scal.f4_5");
        assert_eq!(claim["use"], "check");
        assert_eq!(claim["covered"], true);
        assert_eq!(claim["in_band"], true);
        assert_eq!(claim["ours"]["mean[0]"], 9.6);
        assert_eq!(claim["published"]["mean"][1], 11.0);
        assert_eq!(claim["command"], "tandem sim reproduce --claims scal.f4_5");
    }
}
